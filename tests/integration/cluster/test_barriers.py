"""Barriers on real nodes."""

from __future__ import annotations

import asyncio
import time

import pytest

from logboom import Client, Put
from logboom.errors import BarrierTimeout, InvalidRequest
from logboom.testing import LocalCluster

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cluster")]


async def test_idle_partitions_hold_nobody_up(cluster: LocalCluster) -> None:
    """One partition of eight is written, the barrier spans all: seven idle ones follow the commit index."""
    async with Client(cluster.endpoints) as boom:
        receipt = await boom.submit(0, Put(b"k", b"v"))
        reached = await boom.barrier(receipt.global_index, scope="all", timeout=5)
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
                marks = {row[0]: row for row in failed.value.watermarks}
                assert marks[3][5] < receipt.global_index
                assert marks[3][6] == "paused"
                assert all(row[5] >= receipt.global_index for p, row in marks.items() if p != 3)
        finally:
            await boom.admin("resume", 3, node=leader)
        await boom.barrier(receipt.global_index, scope="all", timeout=5)


async def test_cancelled_and_disconnected_waiters_are_gone(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        node = cluster.addresses["n1"]
        target = (await boom.status(node=node))["commit_index"] + 1000
        async with Client(node) as other:
            waiting = [asyncio.ensure_future(c.barrier(target, node=node, timeout=60)) for c in (boom, other) * 10]
            while (await boom.status(node=node))["waiters"] < 20:  # noqa: ASYNC110 - the node counts, not we
                await asyncio.sleep(0.01)
            for task in waiting[::2]:
                task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        deadline = time.monotonic() + 5
        while (await boom.status(node=node))["waiters"]:
            assert time.monotonic() < deadline, "waiters were left behind"
            await asyncio.sleep(0.01)


async def test_absurd_targets_are_refused(cluster: LocalCluster) -> None:
    async with Client(cluster.endpoints) as boom:
        with pytest.raises(InvalidRequest):
            await boom.barrier(1 << 40, timeout=1)
        with pytest.raises(InvalidRequest):
            await boom.barrier(1, scope="galaxy")
