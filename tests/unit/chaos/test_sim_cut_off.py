"""A node that is cut off from the others, not from clients: whoever asks it, or follows there, goes on elsewhere.

So it is with one that hears that there is more, and does not come by it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from chaos.sim.drawn_settings import member_of
from chaos.sim.host import Host
from dispatcher.sessions.waits import Waits
from logboom import Client, Put, Receipt
from logboom.errors import BarrierTimeout, Unavailable
from logboom.settings import ClusterSettings, NodeSettings, RaftSettings, Settings
from tests.unit.chaos.sim_world import World

TIMEOUT_S = 5.0
NAMES = ("n1", "n2", "n3")


class Cluster(World):
    """Three nodes, one partition, and somebody at ``c1``."""

    def __init__(self) -> None:
        super().__init__(seed=7)
        self.network.nodes = frozenset(NAMES)
        members = tuple(member_of(number) for number in range(1, len(NAMES) + 1))
        self.addresses = [each.client_address for each in members]
        self.hosts = {
            name: Host(
                name,
                loop=self.loop,
                network=self.network,
                rng=random.Random(name),
                settings=Settings(
                    cluster=ClusterSettings(id="sim", members=members, partitions=1),
                    node=NodeSettings(id=name, data_dir=f"/{name}"),
                    raft=RaftSettings(inline_sync_bytes_max=0),
                ),
                slowest_s=0.001,
                ended=lambda host, error: pytest.fail(f"{host.name} has ended: {error!r}"),
                started=lambda _: None,
            )
            for name in NAMES
        }

    def tell(self, story: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        async def at_client() -> None:
            async with Client(self.addresses, rng=random.Random(3), timeout=TIMEOUT_S) as boom:
                await boom.submit(0, Put(b"k", b"0"), timeout=60.0)
                for address in self.addresses:  # it knows them all
                    await boom._cluster.connection(address)
                await story(boom)

        async def all_of_it() -> None:
            for host in self.hosts.values():
                host.start()
            await self.on("c1", at_client)

        self.play(all_of_it())

    def cut_off(self, name: str) -> None:
        for other in NAMES:
            if other != name:
                self.network.cut(name, other)
                self.network.cut(other, name)

    def hang(self, name: str) -> None:
        """Its disk does: it hears all, and nothing that comes is durable there."""
        self.hosts[name].sync_offload.stalled_until = float("inf")

    def follower(self) -> str:
        return next(
            name
            for name, host in self.hosts.items()
            if host.node is not None and not host.node.pipeline.raft.engine.is_leader
        )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    for host in made.hosts.values():
        host.kill(power=False)


WAYS = pytest.mark.parametrize("strike", [Cluster.cut_off, Cluster.hang])
"""To be of no use to anybody who wants to hear of something new."""
Strike = Callable[[Cluster, str], None]


@WAYS
@pytest.mark.parametrize("how", [{"at_least": "session"}, {"max_staleness": 1.0}])
def test_whoever_reads_is_answered_by_others(cluster: Cluster, how: dict[str, Any], strike: Strike) -> None:
    async def story(boom: Client) -> None:
        strike(cluster, cluster.follower())
        for number in range(1, 31):
            await boom.submit(0, Put(b"k", b"%d" % number))
            assert await boom.get(0, b"k", **how) is not None
            await asyncio.sleep(0.2)

    cluster.tell(story)


def test_whoever_asks_it_alone_is_told_to_ask_another(cluster: Cluster) -> None:
    async def story(boom: Client) -> None:
        name = cluster.follower()
        cluster.cut_off(name)
        await boom.submit(0, Put(b"k", b"1"))
        begun = cluster.now
        with pytest.raises(Unavailable, match="heard of no leader"):
            await boom.get(0, b"k", at_least="session", node=name, timeout=20.0)
        assert cluster.now - begun > 19.0, "it was asked for"
        assert await boom.get(0, b"k", stale=True, node=name) != b"1", "which is answered at once, and old"

    cluster.tell(story)


async def wait_for(boom: Client, receipt: Receipt | dict[int, int], *, watched: bool, **how: Any) -> None:
    if not watched:
        await boom.barrier(receipt, **how)
        return
    async for step in boom.barrier_watch(receipt, **how):
        done = step.done
    assert done is not None


@WAYS
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("scope", ["node", "quorum"])
def test_whoever_waits_is_answered_by_others(cluster: Cluster, strike: Strike, *, watched: bool, scope: str) -> None:
    async def story(boom: Client) -> None:
        strike(cluster, cluster.follower())
        for number in range(1, 31):
            receipt = await boom.submit(0, Put(b"k", b"%d" % number))
            await wait_for(boom, receipt, watched=watched, scope=scope, timeout=TIMEOUT_S)
            await asyncio.sleep(0.2)

    cluster.tell(story)


@pytest.mark.parametrize("watched", [False, True])
def test_whoever_waits_for_it_alone_has_all_of_its_time(cluster: Cluster, *, watched: bool) -> None:
    async def story(boom: Client) -> None:
        name = cluster.follower()
        cluster.cut_off(name)
        receipt = await boom.submit(0, Put(b"k", b"1"))
        begun = cluster.now
        with pytest.raises(BarrierTimeout, match="not reached in time") as caught:
            await wait_for(boom, receipt, watched=watched, node=name, timeout=20.0)
        assert 19.5 < cluster.now - begun < 20.5
        assert [mark.partition_id for mark in caught.value.watermarks] == [0]
        waiting = asyncio.ensure_future(wait_for(boom, receipt, watched=watched, node=name, timeout=60.0))
        await asyncio.sleep(20.0)
        cluster.network.heal()
        await waiting

    cluster.tell(story)


def test_where_nobody_leads_a_barrier_says_where_everything_stands_at_its_end(cluster: Cluster) -> None:
    async def story(boom: Client) -> None:
        receipt = await boom.submit(0, Put(b"k", b"1"))
        for name in NAMES:
            cluster.cut_off(name)
        begun = cluster.now
        with pytest.raises(BarrierTimeout, match="not reached in time") as caught:
            await boom.barrier({0: receipt.global_index + 1}, timeout=20.0)
        assert 19.5 < cluster.now - begun < 20.5
        assert [mark.partition_id for mark in caught.value.watermarks] == [0]

    cluster.tell(story)


@pytest.mark.parametrize("watched", [False, True])
def test_where_nobody_leads_whoever_waits_asks_seldom(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, watched: bool
) -> None:
    asked, barrier = list[float](), Waits.barrier

    def counted(waits: Waits, *args: Any) -> None:
        asked.append(cluster.now)
        barrier(waits, *args)

    monkeypatch.setattr(Waits, "barrier", counted)

    async def story(boom: Client) -> None:
        receipt = await boom.submit(0, Put(b"k", b"1"))
        for name in NAMES:
            cluster.cut_off(name)
        await asyncio.sleep(10.0)
        begun = cluster.now
        with pytest.raises(BarrierTimeout, match="not reached in time"):
            await wait_for(boom, {0: receipt.global_index + 1}, watched=watched, timeout=40.0)
        assert 39.5 < cluster.now - begun < 40.5
        assert sum(at - begun < 1.0 for at in asked) >= len(NAMES), "all of them, soon"
        assert len(asked) < 40

    cluster.tell(story)


def follow(boom: Client, what: str, **where: Any) -> AsyncIterator[int]:
    """Global indices."""

    async def told() -> AsyncIterator[int]:
        if what == "tail":
            async for batch in boom.tail(0, follow=True, **where):
                yield batch.global_index
        elif what == "scan":
            async for batch in boom.scan_log([0], follow=True, **where):
                yield batch.global_index
        else:
            async for now in boom.watermarks_stream([0], **where):
                yield now.minimum

    return told()


@pytest.mark.parametrize("what", ["tail", "scan", "watermarks"])
def test_whoever_follows_where_nothing_new_comes_goes_on_elsewhere(cluster: Cluster, what: str) -> None:
    async def story(boom: Client) -> None:
        name = cluster.follower()
        following = follow(boom, what)
        while True:
            await anext(following)
            (there,) = [each for each in boom._cluster._connections.values() if each.has_streams]
            if there.welcome["node"] == name:
                break
            await following.aclose()  # type: ignore[attr-defined]
            following = follow(boom, what)
        cluster.hang(name)
        async with asyncio.timeout(60.0):
            last = await boom.submit(0, Put(b"k", b"1"), timeout=30.0)
            seen = 0
            while seen < last.global_index:
                await boom.submit(0, Put(b"k", b"2"), timeout=30.0)
                seen = await anext(following)
        await following.aclose()  # type: ignore[attr-defined]

    cluster.tell(story)


@pytest.mark.parametrize("what", ["tail", "scan", "watermarks"])
def test_whoever_follows_there_goes_on_elsewhere(cluster: Cluster, what: str) -> None:
    async def story(boom: Client) -> None:
        for _ in NAMES:  # one of them leads, perhaps
            following = follow(boom, what)
            seen = await anext(following)
            (there,) = [each for each in boom._cluster._connections.values() if each.has_streams]
            cluster.cut_off(there.welcome["node"])
            last = await boom.submit(0, Put(b"k", b"1"), timeout=30.0)
            async with asyncio.timeout(30.0):
                while seen < last.global_index:
                    seen = await anext(following)
            await following.aclose()  # type: ignore[attr-defined]
            cluster.network.heal()
            await asyncio.sleep(60.0)

    cluster.tell(story)


def test_whoever_named_it_stays(cluster: Cluster) -> None:
    async def story(boom: Client) -> None:
        name = cluster.follower()
        following = follow(boom, "watermarks", node=name)
        while await anext(following) < boom.last_seen:
            pass
        cluster.cut_off(name)
        last = await boom.submit(0, Put(b"k", b"1"))
        waits = asyncio.ensure_future(anext(following))
        await asyncio.sleep(60.0)
        assert not waits.done()
        cluster.network.heal()
        seen = await waits
        async with asyncio.timeout(30.0):
            while seen < last.global_index:
                seen = await anext(following)
        await following.aclose()  # type: ignore[attr-defined]

    cluster.tell(story)


def test_where_nobody_leads_streams_stay_where_they_are(cluster: Cluster) -> None:
    async def story(boom: Client) -> None:
        following = follow(boom, "tail")
        await anext(following)
        streams = {id(each) for each in boom._cluster._connections.values() if each.has_streams}
        for name in NAMES:
            cluster.cut_off(name)
        waits = asyncio.ensure_future(anext(following))
        await asyncio.sleep(60.0)
        assert not waits.done()
        assert {id(each) for each in boom._cluster._connections.values() if each.has_streams} == streams
        cluster.network.heal()
        await boom.submit(0, Put(b"k", b"1"), timeout=30.0)
        async with asyncio.timeout(30.0):
            await waits
        await following.aclose()  # type: ignore[attr-defined]

    cluster.tell(story)
