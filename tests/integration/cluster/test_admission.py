"""Admission on real nodes: who waits gets in, who waits in vain is told, and what is committed is never refused."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.backlog import build_up, judge, settings
from logboom import Add, Client, Put
from logboom.errors import DeadlineExceeded, LogboomError, Overloaded
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

FULL = {"admission.partition_ops": 100, "admission.fair_share_percent": 100}


@pytest.fixture(scope="module")
def small() -> Iterator[LocalCluster]:
    with LocalCluster(partitions=4, settings=FULL) as cluster:
        yield cluster


async def leader_of(cluster: LocalCluster) -> str:
    return cluster.addresses[await asyncio.to_thread(cluster.leader)]


async def waiting_at(client: Client, node: str, count: int) -> None:
    async with asyncio.timeout(20):
        while (await client.status(node=node))["admission"]["waiting"][0] != count:  # noqa: ASYNC110 - a node's
            await asyncio.sleep(0.01)


async def idle(client: Client, cluster: LocalCluster) -> None:
    await client.barrier(client.last_seen, scope="all")
    for address in cluster.addresses.values():
        status = await client.status(node=address)
        assert status["node_backlog"] == [0, 0]
        assert status["admission"]["waiting"] == [0, 0]


async def test_who_waits_gets_in_when_there_is_room_and_others_pass_meanwhile(small: LocalCluster) -> None:
    async with Client(small.endpoints) as boom:
        leader = await leader_of(small)
        await boom.admin("pause", 1, node=leader)
        await boom.submit(1, [Put(b"a%d" % k, b"") for k in range(100)], wait="committed")
        waits = asyncio.ensure_future(
            boom.submit(1, [Put(b"b", b""), Add(b"n", 1)], wait="committed", admission_wait=20.0)
        )
        await waiting_at(boom, leader, 1)
        await boom.submit(2, Put(b"c", b""))
        assert not waits.done()
        await boom.admin("resume", 1, node=leader)
        await waits
        assert await boom.get(1, b"n") == (1,)
        await idle(boom, small)


async def test_who_waits_in_vain_is_refused_or_too_late(small: LocalCluster) -> None:
    async with Client(small.endpoints) as boom:
        leader = await leader_of(small)
        await boom.admin("pause", 1, node=leader)
        await boom.submit(1, [Put(b"a%d" % k, b"") for k in range(100)], wait="committed")
        with pytest.raises((Overloaded, DeadlineExceeded)):
            await boom.submit(1, [Add(b"never", 1)] * 2, wait="committed", admission_wait=0.2, timeout=0.5)
        given_up = asyncio.ensure_future(boom.submit(1, [Add(b"never", 1)] * 2, wait="committed", admission_wait=20.0))
        await waiting_at(boom, leader, 1)
        given_up.cancel()
        await waiting_at(boom, leader, 0)
        async with Client(small.endpoints) as other:
            gone = asyncio.ensure_future(other.submit(1, [Add(b"never", 1)] * 2, wait="committed", admission_wait=20.0))
            await waiting_at(boom, leader, 1)
        with pytest.raises(LogboomError):
            await gone
        await waiting_at(boom, leader, 0)
        await boom.admin("freeze", 3, node=leader)
        await boom.admin("thaw", 3, node=leader)
        await boom.admin("resume", 1, node=leader)
        await boom.submit(1, Put(b"after", b""))
        assert await boom.get(1, b"never") is None
        await idle(boom, small)


@pytest.mark.parametrize("chunk_bytes", [64, 0])
async def test_small_requests_pass_a_large_one_that_gets_its_budget_in_chunks(chunk_bytes: int) -> None:
    """All that the node takes is taken by partitions that stand still, and go on one after the other."""
    limits = {"admission.node_ops": 100, "admission.queue_bypass_ms": 50, "admission.queue_chunk_bytes": chunk_bytes}
    still = (1, 2, 3, 4, 5)
    with LocalCluster(partitions=6, settings={**FULL, **limits}) as own:
        leader = await leader_of(own)
        async with Client(leader) as boom, Client(leader) as other:
            for partition in still:
                await boom.admin("pause", partition, node=leader)
                await boom.submit(partition, [Put(b"a%d" % k, b"") for k in range(20)], wait="committed")
            large = asyncio.ensure_future(other.submit(0, [Put(b"l%d" % k, b"") for k in range(60)], admission_wait=60))
            await waiting_at(boom, leader, 1)
            passed = []
            for nth, partition in enumerate(still[:3]):
                await boom.admin("resume", partition, node=leader)
                await boom.barrier(boom.last_seen, partitions=[partition], scope="leader")
                if nth == 2:
                    break  # there is room for it
                await asyncio.sleep(0.1)  # longer than what is not large is passed
                try:
                    await boom.submit(0, [Add(b"n", 1)] * 10, timeout=30 if chunk_bytes else 0.5)
                except (Overloaded, DeadlineExceeded):
                    passed.append(False)
                else:
                    passed.append(True)
            await large
            assert all(passed) if chunk_bytes else not passed[-1]
            for partition in still[3:]:
                await boom.admin("resume", partition, node=leader)
            await idle(boom, own)


async def test_who_waits_at_a_leader_that_stops_gets_in_at_the_next_one() -> None:
    with LocalCluster(partitions=2, settings=FULL) as own:
        async with Client(own.endpoints) as boom:
            name = await asyncio.to_thread(own.leader)
            await boom.admin("pause", 1, node=own.addresses[name])
            await boom.submit(1, [Put(b"a%d" % k, b"") for k in range(100)], wait="committed")
            waits = asyncio.ensure_future(boom.submit(1, [Add(b"n", 1)] * 2, wait="committed", admission_wait=20.0))
            await waiting_at(boom, own.addresses[name], 1)
            own.kill(name, signal.SIGTERM)
            await waits
            assert await boom.get(1, b"n") == (2,)


async def test_a_committed_backlog_costs_no_memory_and_is_applied() -> None:
    """``python -m bench.backlog`` does the same with ten million."""
    records, block = 300_000, 5_000
    with LocalCluster(partitions=1, state_machine="log", settings=settings(records)) as own:
        seen = await build_up(own, records, block)
    checks = judge(seen, records)
    assert all(check.met for check in checks), list(map(str, checks))


async def withheld_by(client: Client, node: str, signal_name: str | None) -> list[object]:
    """What the leader withholds, once it is of this signal (None: once it withholds nothing)."""
    async with asyncio.timeout(20):
        while True:
            rows = (await client.status(node=node))["admission"]["withheld"]
            if signal_name is None if not rows else str(rows[0][1]).startswith(f"{signal_name}@"):
                return list(rows)
            await asyncio.sleep(0.05)


async def begun_anew(cluster: LocalCluster, node: str, least: int) -> None:
    """With so many bytes that have to be free on its disk."""
    config = cluster.config(node)
    changed = re.sub(r"disk_free_bytes_min = \d+", f"disk_free_bytes_min = {least}", config.read_text())
    assert f"disk_free_bytes_min = {least}" in changed
    await asyncio.to_thread(cluster.kill, node)
    config.write_text(changed)
    await asyncio.to_thread(cluster.restart, node)


async def test_a_leader_refuses_what_two_followers_have_no_room_for(tmp_path: Path) -> None:
    with LocalCluster(partitions=1, directory=tmp_path, settings={"admission.disk_free_bytes_min": 1}) as cluster:
        leads = await asyncio.to_thread(cluster.leader)
        leader, followers = cluster.addresses[leads], [node for node in cluster.nodes if node != leads]
        async with Client(cluster.endpoints, timeout=20.0) as boom:
            await begun_anew(cluster, followers[0], 1 << 60)
            await boom.barrier(await boom.submit(0, Put(b"a", b"1"), wait="committed"), scope="all")
            assert await withheld_by(boom, leader, None) == []
            await begun_anew(cluster, followers[1], 1 << 60)
            (row,) = await withheld_by(boom, leader, "disk_free")
            with pytest.raises((Overloaded, DeadlineExceeded)) as raised:  # the last try may be on its way by then
                await boom.submit(0, Put(b"a", b"2"), timeout=1.0)
            assert (row[0], row[2]) == (None, 1.0)
            assert row[1] in str(raised.value)
            assert await boom.get(0, b"a") == b"1"
            await begun_anew(cluster, followers[0], 1)
            await boom.submit(0, Put(b"a", b"3"))
            assert await withheld_by(boom, leader, None) == []


async def test_a_leader_that_has_no_room_itself_has_another_one_lead(tmp_path: Path) -> None:
    """One full disk of three holds nobody up, whoever's it is."""
    with LocalCluster(partitions=1, directory=tmp_path, settings={"admission.disk_free_bytes_min": 1}) as cluster:
        async with Client(cluster.endpoints, timeout=20.0) as boom:
            await begun_anew(cluster, "n1", 1 << 60)
            await asyncio.to_thread(cluster.wait_serving)
            await boom.barrier(await boom.submit(0, Put(b"a", b"1"), wait="committed"), scope="all")
            await boom.transfer("n1")
            await boom.submit(0, Put(b"a", b"2"))
            assert await asyncio.to_thread(cluster.leader) != "n1"
            assert await boom.get(0, b"a") == b"2"
