"""Barriers on real nodes."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from logboom import Client, Put
from logboom.errors import BarrierTimeout, InvalidRequest
from logboom.testing import LocalCluster
from logboom.types import BarrierResult, PartitionId

pytestmark = pytest.mark.process


async def test_idle_partitions_hold_nobody_up(cluster: LocalCluster) -> None:
    """One partition of eight is written, the barrier spans all: seven idle ones follow the commit index."""
    async with Client(cluster.endpoints) as boom:
        receipt = await boom.submit(0, Put(b"k", b"v"))
        reached = await boom.barrier(receipt.global_index, scope="all", timeout=30)
        assert all(m.applied_global_index >= receipt.global_index for m in reached.watermarks)
        assert len(reached.watermarks) == 8


async def test_a_paused_partition_times_out_with_the_watermarks(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        leader = cluster.addresses[await asyncio.to_thread(cluster.leader)]
        assert await boom.admin("pause", 3, node=leader) == "paused"
        try:
            receipt = await boom.submit(3, Put(b"k", b"v"), wait="committed")
            for wait_blocked in (False, True):
                with pytest.raises(BarrierTimeout) as failed:
                    await boom.barrier(receipt.global_index, node=leader, timeout=0.5, wait_blocked=wait_blocked)
                marks = {mark.partition_id: mark for mark in failed.value.watermarks}
                assert marks[3].applied_global_index < receipt.global_index
                assert marks[3].state == "paused"
                assert all(m.applied_global_index >= receipt.global_index for p, m in marks.items() if p != 3)
        finally:
            await boom.admin("resume", 3, node=leader)
        await boom.barrier(receipt.global_index, scope="all", timeout=30)


async def test_cancelled_and_disconnected_waiters_are_gone(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        node = cluster.addresses["n1"]
        target = (await boom.status(node=node))["commit_index"] + 1000
        async with Client(node) as other:
            waiting = [
                asyncio.ensure_future(c.barrier(target + n, node=node, timeout=60))
                for n, c in enumerate((boom, other) * 10)
            ]
            while (await boom.status(node=node))["waiters"] < 20:  # noqa: ASYNC110 - the node counts, not we
                await asyncio.sleep(0.01)
            for task in waiting[::2]:
                task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        deadline = time.monotonic() + 30
        while (await boom.status(node=node))["waiters"]:
            assert time.monotonic() < deadline, "waiters were left behind"
            await asyncio.sleep(0.01)


async def test_many_who_wait_for_the_same_are_one_waiter_and_each_keeps_his_own_time(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom, Client(cluster.endpoints) as writer:
        node = cluster.addresses[await asyncio.to_thread(cluster.leader)]
        before = await writer.status(node=node)
        target = before["commit_index"] + 1

        def wait(timeout: float) -> asyncio.Task[BarrierResult]:
            return asyncio.create_task(boom.barrier(target, partitions=[0], node=node, timeout=timeout))

        tasks = [wait(timeout) for timeout in (0.5, 60.0) for _ in range(5_000)]
        short = await asyncio.gather(*tasks[:5_000], return_exceptions=True)
        assert {type(each) for each in short} == {BarrierTimeout}
        marks = [mark for each in short if isinstance(each, BarrierTimeout) for mark in each.watermarks]
        assert {(mark.partition_id, mark.applied_global_index < target) for mark in marks} == {(0, True)}
        assert (await writer.status(node=node))["waiters"] == before["waiters"] + 1
        receipt = await writer.submit(0, Put(b"k", b"v"), wait="applied")
        reached = await asyncio.gather(*tasks[5_000:])
        assert receipt.global_index == target
        assert all(each.frontiers[PartitionId(0)] >= target for each in reached)


async def test_more_than_are_told_at_once_are_all_told(cluster: LocalCluster) -> None:
    """Each with a request of his own, and many for the same index: in slices, over a few connections."""
    async with Client(cluster.endpoints) as boom, AsyncExitStack() as stack:
        node = cluster.addresses[await asyncio.to_thread(cluster.leader)]
        clients = [await stack.enter_async_context(Client(node)) for _ in range(3)]
        before = await boom.status(node=node)
        target = before["commit_index"] + 1
        tasks = [
            asyncio.create_task(clients[n % 3].barrier({0: target + n // 300, 1: 0}, node=node)) for n in range(3_000)
        ]
        await boom.submit(0, [Put(b"k", b"v")] * 10)
        while not all(task.done() for task in tasks):
            await boom.submit(0, Put(b"k", b"v"))
        assert all(task.result().frontiers[PartitionId(0)] >= target for task in tasks)
        assert (await boom.status(node=node))["waiters"] == before["waiters"]


async def test_absurd_targets_are_refused(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        with pytest.raises(InvalidRequest):
            await boom.barrier(1 << 40, timeout=1)
        with pytest.raises(InvalidRequest):
            await boom.barrier(1, scope="galaxy")
