"""Writes to a partition that its leader does not apply."""

from __future__ import annotations

import asyncio

import pytest

from logboom import Add, Client
from logboom.errors import PartitionPaused, Unavailable
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process


async def test_who_would_wait_in_vain_is_told_and_what_was_ordered_takes_effect_once(cluster: LocalCluster) -> None:
    """Each such write took all of its time, and ended with an outcome that nobody knew."""
    async with Client(cluster.endpoints) as boom:
        node = await asyncio.to_thread(cluster.leader)
        other = next(name for name in cluster.nodes if name != node)
        assert await boom.admin("pause", 3, node=node) == "paused"
        try:
            for _ in range(2):
                with pytest.raises(PartitionPaused, match=f"partitions resume 3 --node {node}") as refused:
                    await boom.submit(3, Add(b"refused", 1), wait="applied")
                assert refused.value.outcome == "not_applied"
            with pytest.raises(PartitionPaused):
                await boom.submit_many({2: [Add(b"refused", 1)], 3: [Add(b"refused", 1)]}, wait="applied")
            await boom.submit(3, Add(b"ordered", 1), wait="durable")
            await boom.submit(2, Add(b"beside", 1), wait="applied")
            # By way of another node the same is told.
            async with Client(cluster.addresses[other]) as beside:
                with pytest.raises(PartitionPaused):
                    await beside.submit(3, Add(b"refused", 1), wait="applied")
        finally:
            await boom.admin("resume", 3, node=node)
        await boom.submit(3, Add(b"after", 1), wait="applied")
        assert await boom.get_many(3, [b"refused", b"ordered", b"after"]) == [None, (1,), (1,)]
        assert await boom.get(2, b"refused") is None


async def test_a_view_is_of_a_paused_partition_too_unless_that_has_more_to_apply(cluster: LocalCluster) -> None:
    """Found by reading: it took all of its time, whether anything was left to apply or not."""
    async with Client(cluster.endpoints) as boom:
        node = await asyncio.to_thread(cluster.leader)
        await boom.submit_many({2: [Add(b"viewed", 1)], 3: [Add(b"viewed", 1)]}, wait="applied")
        assert await boom.admin("pause", 3, node=node) == "paused"

        async def view() -> list[tuple[int, object]]:
            found = boom.scan_view([2, 3], prefix=b"viewed", node=cluster.addresses[node], timeout=2.0)
            return [(each.partition_id, each.value) async for each in found]

        try:
            assert await view() == [(2, (1,)), (3, (1,))]
            await boom.submit(3, Add(b"viewed", 1), wait="durable")
            with pytest.raises(Unavailable, match="partition 3 is paused"):
                await view()
        finally:
            await boom.admin("resume", 3, node=node)
        await boom.submit(3, Add(b"viewed", 1), wait="applied")
        assert await view() == [(2, (1,)), (3, (3,))]
