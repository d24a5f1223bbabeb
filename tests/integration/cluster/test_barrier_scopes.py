"""Barriers over several real nodes, acknowledgement levels, freshness: while nodes are down and leaders die."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from logboom import Client, Put
from logboom.errors import BarrierFuture, BarrierTimeout, LineageMismatch, LogboomError
from logboom.testing import LocalCluster
from logboom.types import Token

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {
    "cluster.overrides": {
        "1": {"linearizable": True},
        "2": {"ack": "committed"},
        "3": {"ack": "durable", "mode": "write_behind"},
    }
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes, four kv partitions."""
    with LocalCluster(partitions=4, settings=SETTINGS) as running:
        yield running


async def followers(cluster: LocalCluster) -> list[str]:
    leader = await asyncio.to_thread(cluster.leader)
    return [name for name in cluster.addresses if name != leader]


async def waiting_at(boom: Client, node: str, count: int) -> None:
    """Until the node has so many waiters."""
    async with asyncio.timeout(30):
        while (await boom.status(node=node))["waiters"] != count:  # noqa: ASYNC110 - the node counts, not we
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("level", ["ordered", "durable", "applied"])
@pytest.mark.parametrize("scope", ["node", "leader", "quorum", "all"])
async def test_every_scope_and_level(cluster: LocalCluster, scope: str, level: str) -> None:
    async with Client(cluster.endpoints) as boom:
        receipts = await boom.submit_many({p: [Put(b"k", b"v")] for p in range(4)}, wait="committed")
        reached = await boom.barrier(receipts, scope=scope, level=level, timeout=30)
        assert reached.global_index == receipts.global_index
        assert all(reached.frontiers[part.partition_id] >= part.global_index for part in receipts.parts)


async def test_nothing_is_left_behind_on_any_node(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        for name in cluster.addresses:
            target = (await boom.status(node=name))["commit_index"] + 1000
            with pytest.raises(BarrierTimeout):
                await boom.barrier(target, scope="all", node=name, timeout=0.3)
        for name in cluster.addresses:
            await waiting_at(boom, name, 0)


async def test_a_barrier_waits_on_the_other_nodes_too_and_is_freed_there_when_it_is_cancelled(
    cluster: LocalCluster,
) -> None:
    async with Client(cluster.endpoints) as boom:
        target = (await boom.status())["commit_index"] + 1000
        task = asyncio.create_task(boom.barrier(target, partitions=[0, 1], scope="quorum", node="n1", timeout=60))
        for name, count in (("n1", 1), ("n2", 2), ("n3", 2)):
            await waiting_at(boom, name, count)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for name in cluster.addresses:
            await waiting_at(boom, name, 0)


async def test_a_quorum_does_without_a_node_that_is_down_and_all_waits_for_it(cluster: LocalCluster) -> None:
    down = (await followers(cluster))[0]
    cluster.kill(down)
    try:
        async with Client(cluster.endpoints) as boom:
            receipt = await boom.submit(0, Put(b"k", b"without"))
            await boom.barrier(receipt, scope="quorum", timeout=30)
            with pytest.raises(BarrierTimeout) as failed:
                await boom.barrier(receipt, scope="all", timeout=0.5)
            assert failed.value.behind == [0]
            everybody = asyncio.create_task(boom.barrier(receipt, scope="all", timeout=60))
            await asyncio.to_thread(cluster.restart, down)
            assert (await everybody).frontiers[0] >= receipt.global_index
    finally:
        if not cluster.alive(down):
            cluster.restart(down)
        await asyncio.to_thread(cluster.wait_serving)


async def test_scopes_outlive_the_leader(cluster: LocalCluster) -> None:
    leader = await asyncio.to_thread(cluster.leader)
    async with Client(cluster.endpoints) as boom, Client(cluster.endpoints) as writer:
        target = (await writer.submit(0, Put(b"k", b"before"))).global_index + 1
        tasks = {
            scope: asyncio.create_task(boom.barrier(target, partitions=[0], scope=scope, timeout=60))
            for scope in ("leader", "quorum", "all")
        }
        async with asyncio.timeout(30):
            while sum([(await writer.status(node=name))["waiters"] for name in cluster.addresses]) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        cluster.kill(leader)
        try:
            receipt = await writer.submit(0, Put(b"k", b"after"), timeout=30)
            assert receipt.global_index >= target
            for scope in ("leader", "quorum"):
                assert (await tasks[scope]).node_id != leader
            assert not tasks["all"].done()
        finally:
            cluster.restart(leader)
        assert (await tasks["all"]).frontiers[0] >= target


async def test_modes(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        here = (await boom.submit(0, Put(b"k", b"v"))).global_index
        targets = {0: here, 1: here, 2: here + 1000}
        assert (await boom.barrier(targets, mode=2, timeout=30)).frontiers[0] >= here
        await boom.barrier(targets, mode="any", scope="quorum", timeout=30)
        with pytest.raises(BarrierTimeout):
            await boom.barrier(targets, timeout=0.2)


async def test_snapshotted_waits_for_a_complete_set(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        receipt = await boom.submit(0, Put(b"k", b"kept"))
        task = asyncio.create_task(boom.barrier(receipt, level="snapshotted", scope="all", timeout=60))
        with pytest.raises(BarrierTimeout):
            await boom.barrier(receipt, level="snapshotted", timeout=0.2)
        await boom.create_snapshot(timeout=60)
        assert (await task).frontiers[0] >= receipt.global_index


async def test_a_time_covers_what_was_committed_before_it(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        receipt = await boom.submit(0, Put(b"k", b"timed"), wait="committed")
        now = datetime.now(UTC)
        reached = await boom.barrier(now, partitions=[0, 1], scope="quorum", timeout=30)
        assert reached.global_index >= receipt.global_index
        began = time.monotonic()
        await boom.barrier(now + timedelta(seconds=0.5), partitions=[0], timeout=10)
        assert time.monotonic() - began < 9
        with pytest.raises(BarrierFuture):
            await boom.barrier(now + timedelta(hours=1), partitions=[0], timeout=5)


async def test_a_token_of_another_cluster_is_refused(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        await boom.submit(0, Put(b"k", b"v"))
        await boom.barrier(await boom.token(), partitions=[0])
        with pytest.raises(LineageMismatch):
            await boom.barrier(Token("elsewhere", 1), partitions=[0])


async def test_progress_is_told_until_it_is_reached(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom, Client(cluster.endpoints) as writer:
        target = (await writer.submit(0, Put(b"k", b"v"))).global_index + 3
        steps = []
        async for step in boom.barrier_watch(target, partitions=[0], scope="quorum", every=0.02, timeout=30):
            steps.append(step)
            if step.done is None:
                await writer.submit(0, Put(b"k", b"more"))
        assert steps[-1].done is not None
        assert steps[0].done is None
        assert steps[-1].frontiers[0] >= target
        frontiers = [step.frontiers[0] for step in steps]
        assert frontiers == sorted(frontiers)


async def test_watermarks_are_followed_over_a_partition_that_comes_and_goes(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom, Client(cluster.endpoints) as other:
        leader = cluster.addresses[await asyncio.to_thread(cluster.leader)]
        updates = boom.watermarks_stream(node=leader, every=0.02)
        async with asyncio.timeout(30):
            assert [mark.partition_id for mark in (await anext(updates)).watermarks] == [0, 1, 2, 3]
            created = await other.create_partition()
            async for update in updates:
                if created in [mark.partition_id for mark in update.watermarks]:
                    break
            await other.destroy_partition(created)
            async for update in updates:
                if created not in [mark.partition_id for mark in update.watermarks]:
                    break
            receipt = await other.submit(2, Put(b"k", b"v"), wait="applied")
            async for update in updates:
                assert update.minimum == min(mark.applied_global_index for mark in update.watermarks)
                if update.minimum >= receipt.global_index:
                    break
        await updates.aclose()


async def test_who_does_not_say_gets_what_the_partition_says(cluster: LocalCluster) -> None:
    """Results are there if, and only if, the answer came after the apply."""
    async with Client(cluster.endpoints) as boom, Client(cluster.addresses[(await followers(cluster))[0]]) as away:
        for client in (boom, away):
            default = {p: (await client.submit(p, Put(b"k", b"v"))).results is not None for p in range(4)}
            assert default == {0: True, 1: True, 2: False, 3: False}
            committed = {p: (await client.submit(p, Put(b"k", b"v"), wait="committed")).results for p in (0, 1)}
            assert committed[0] is None
            assert committed[1] is not None
        together = await boom.submit_many({p: [Put(b"k", b"v")] for p in (0, 2)})
        assert all(part.results is not None for part in together.parts)


@pytest.mark.parametrize("staleness", [0, 0.2, 1.0])
async def test_bounded_reads_see_what_is_old_enough_at_every_node(cluster: LocalCluster, staleness: float) -> None:
    """And may see more."""
    written: list[float] = []  # when each was acknowledged
    key, looked = b"bounded by %g" % staleness, dict.fromkeys(cluster.addresses, -1)
    async with Client(cluster.endpoints) as boom:
        while min(looked.values()) < 2:  # each node had to show three of them
            await boom.submit(0, Put(key, b"%d" % len(written)), wait="committed")
            written.append(time.monotonic())
            for node in cluster.addresses:
                now = time.monotonic()
                least = sum(each <= now - staleness for each in written) - 1
                found = await boom.get(0, key, max_staleness=staleness, node=node, timeout=10)
                if least >= 0:
                    assert isinstance(found, bytes)
                    assert least <= int(found) < len(written)
                looked[node] = least
            await asyncio.sleep(staleness / 4)


async def test_a_node_that_is_behind_answers_bounded_reads_for_as_long_as_it_may_be(cluster: LocalCluster) -> None:
    name = (await followers(cluster))[0]
    async with Client(cluster.endpoints) as boom:

        async def found(max_staleness: float, timeout: float = 30) -> bytes | tuple[int, ...] | None:
            return await boom.get(0, b"behind", max_staleness=max_staleness, node=name, timeout=timeout)

        await boom.submit(0, Put(b"behind", b"old"), wait="committed")
        assert await found(0) == b"old"
        await boom.admin("pause", 0, node=name)
        try:
            await boom.submit(0, Put(b"behind", b"new"), wait="committed")
            assert await found(600) == b"old"
            with pytest.raises(LogboomError):
                await found(0, timeout=0.5)
            waiting = asyncio.create_task(found(0.001))
        finally:
            await boom.admin("resume", 0, node=name)
        assert await waiting == b"new"


async def test_the_command_line_waits_and_shows(cluster: LocalCluster) -> None:
    def command(*args: str) -> subprocess.CompletedProcess[str]:
        given = [sys.executable, "-m", "logboom", *args, "--endpoints", cluster.endpoints]
        return subprocess.run(given, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    async with Client(cluster.endpoints) as boom:
        receipt = await boom.submit(0, Put(b"k", b"v"))
    target = f"0:{receipt.global_index}"
    done = await asyncio.to_thread(
        command, "barrier", "--receipt", target, "--scope", "quorum", "--level", "durable", "--watch", "-o", "jsonl"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["global_index"] == receipt.global_index
    done = await asyncio.to_thread(command, "barrier", "--at", "now", "--mode", "2", "--watch")
    assert done.returncode == 0, done.stderr
    late = await asyncio.to_thread(
        command, "barrier", "-g", str(receipt.global_index + 1000), "--watch", "--timeout", "300ms", "-o", "jsonl"
    )
    assert late.returncode == 1
    first = json.loads(late.stdout.splitlines()[0])
    assert (first["reached"], first["needed"]) == (0, 4)
    both = await asyncio.to_thread(command, "barrier", "-g", "1", "--at", "now")
    assert both.returncode == 2
    marks = await asyncio.to_thread(command, "watermarks", "-p", "0,2", "-o", "json")
    assert [row["partition"] for row in json.loads(marks.stdout)["watermarks"]] == [0, 2]
