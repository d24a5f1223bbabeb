"""What goes wrong once, in a way that nobody has thought of, costs a node neither its ticks nor its links."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from logboom.types import NodeId
from ports.seldom import Seldom
from raftlog.core import RaftLog
from raftlog.links import links
from raftlog.links.dialling import Dialling
from raftlog.links.refusals import Refusals
from raftlog.turns import Turns
from tests.unit.raftlog.cluster import Cluster, SimNode
from tests.unit.raftlog.outbox_world import Offload, Target, group_of

N2 = NodeId("n2")


class Unheard(Exception):
    """Of no kind that anybody catches."""


def fails(*_: object) -> None:
    raise Unheard


async def test_a_tick_that_fails_is_followed_by_others() -> None:
    """There were none any more: the node neither stood for election nor sent a sign of life."""
    turns = Turns(lambda: None, cast("Any", SimpleNamespace(rest=fails)), every_s=60.0)
    turns.begin()
    with pytest.raises(Unheard):
        turns._on_timer()
    assert turns._timer is not None
    turns.close()


class Network:
    def __init__(self) -> None:
        self.dialled = 0
        self.again = asyncio.Event()

    async def dial(self, *_: object, **__: object) -> None:
        self.dialled += 1
        if self.dialled == 3:
            self.again.set()
        raise Unheard


class Link:
    peer: NodeId | None = None

    def __init__(self) -> None:
        self.settled, self.gone = asyncio.Event(), asyncio.Event()

    def abort(self) -> None:
        pass


def calls_of(links: dict[NodeId, Any], network: object) -> Dialling:
    now = asyncio.get_running_loop().time
    seldom = Seldom(now)
    return Dialling(
        node_id=NodeId("n1"),
        links=links,
        link_to=lambda _: cast("Any", Link()),
        refusals=Refusals(now, seldom),
        seldom=seldom,
        network=cast("Any", network),
        clock=cast("Any", SimpleNamespace(monotonic=now)),
        rng=random.Random(1),
        limits=cast("Any", SimpleNamespace(handshake_s=1.0)),
        tls=None,
    )


async def test_who_could_not_be_called_for_an_unheard_of_reason_is_called_again() -> None:
    """The task that calls ended, and nobody looked at it: that member was never called again."""
    network = Network()
    dialling = calls_of({}, network)
    with capture_logs() as lines:
        dialling.begin({NodeId("n2"): "there:1"})
        async with asyncio.timeout(10):
            await network.again.wait()
        for task in dialling.tasks():
            task.cancel()
        await asyncio.gather(*dialling.tasks(), return_exceptions=True)
    assert [line["event"] for line in lines][:2] == ["dial_failed"] * 2
    assert isinstance(lines[0]["exc_info"], Unheard)


async def test_a_beat_that_fails_is_followed_by_others_and_keeps_none_from_other_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There were none any more: peers heard nothing of this node, and of those that were silent none was noticed."""
    monkeypatch.setattr(links, "PING_S", 0.001)
    pinged, again = list[str](), asyncio.Event()
    each: Any = links.Links.__new__(links.Links)
    each.clock, each.rejoining = SimpleNamespace(monotonic=lambda: 1.0), False
    each.seldom = Seldom(each.clock.monotonic)
    each.directories = SimpleNamespace(beat=lambda **_: fails())

    def sent(_: object) -> None:
        pinged.append("n3")
        if len(pinged) == 2:
            again.set()

    each.links = {
        node: SimpleNamespace(peer=node, heard=1.0, connection=SimpleNamespace(congested=False, send=send))
        for node, send in ((N2, fails), (NodeId("n3"), sent))
    }
    with capture_logs() as lines:
        task = asyncio.create_task(each._keep_alive())
        async with asyncio.timeout(10):
            await again.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [line.get("peer") for line in lines][:4] == [None, N2] * 2, "what is to be said in it fails each time"


class Certificates:
    """The other side's is no good at first, then one link long, and no more."""

    def __init__(self, links: dict[NodeId, Any]) -> None:
        self.links = links
        self.over = asyncio.Event()
        self.dialled = 0

    async def dial(self, _: str, link: Link, **__: object) -> None:
        self.dialled += 1
        if self.dialled == 3:
            self.links[N2] = link
            link.peer = N2
            link.settled.set()
            asyncio.get_running_loop().call_soon(self.down)
            return
        if self.dialled == 6:
            self.over.set()
        raise ssl.SSLError(1, "certificate has expired")

    def down(self) -> None:
        self.links.pop(N2).gone.set()


async def test_that_a_certificate_is_no_good_is_said_once_each_time_that_it_comes_to_be_so() -> None:
    """Where it had been said before, of a link that came up since, nothing told why that was gone."""
    links = dict[NodeId, Any]()
    network = Certificates(links)
    dialling = calls_of(links, network)
    with capture_logs() as lines:
        dialling.begin({N2: "there:1"})
        async with asyncio.timeout(10):
            await network.over.wait()
        for task in dialling.tasks():
            task.cancel()
        await asyncio.gather(*dialling.tasks(), return_exceptions=True)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["peer_not_trusted"] * 2


@pytest.mark.parametrize("turn", [RaftLog._turn, RaftLog.turn_now])
async def test_a_turn_that_fails_before_it_is_taken_is_followed_by_others(
    turn: Callable[[RaftLog], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed due, and nobody could have another: a node whose links were down stood still for good.

    One for a command alone left all that came after it to whoever had it: a leader synced nothing any more.
    """
    cluster, failing = Cluster(1, nodes=1), [True]

    def orders(_: SimNode) -> None:
        if failing.pop():
            raise Unheard

    async def story() -> None:
        (node,) = cluster.ids
        await cluster.start(node)
        await cluster.sleep(2)
        raft = cluster.nodes[node].raft
        assert raft.admits
        monkeypatch.setattr(SimNode, "orders", orders)
        raft.turns.scheduled = True
        with pytest.raises(Unheard):
            turn(raft)
        assert not raft.turns.scheduled
        monkeypatch.undo()
        cluster.nodes[node].submit(0)
        applied = raft.engine.applied_index
        await cluster.sleep(2)
        assert raft.engine.applied_index > applied

    await asyncio.to_thread(cluster.tell, story())


def test_what_was_held_and_fails_keeps_no_other_back_and_the_group_ends() -> None:
    """The next group never began: nothing was synced or acknowledged any more, and the node did not end."""
    offload, journal, failures, sent = Offload(), Target(), list[BaseException](), list[str]()
    group = group_of(offload, journal, failures)
    for what in ("first", "second"):
        journal.queued += 1
        group.hold(fails)
        group.hold(lambda what=what: sent.append(what))  # type: ignore[misc]
        group.kick()
        with capture_logs() as lines:
            offload.finish_one()
        assert [line["event"] for line in lines] == ["held_send_failed"]
    assert (sent, failures) == (["first", "second"], [])
