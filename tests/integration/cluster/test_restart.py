"""What a node says after a restart is never less than what it said before (I7)."""

from __future__ import annotations

import asyncio

import pytest

from logboom import Client, Record
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

RECORDS = 6_000


async def test_a_killed_follower_shows_no_watermark_below_what_it_had_shown() -> None:
    """Found by a chaos run: the log was replayed within one term, and shown while it was."""
    with LocalCluster(state_machine="log", partitions=2) as cluster:
        async with Client(cluster.endpoints) as boom:
            # One batch each, so that the replay takes many turns.
            for start in range(0, RECORDS, 4):
                work = [boom.submit_many({0: [Record(b"%d" % k)]}, wait="committed") for k in range(start, start + 4)]
                await asyncio.gather(*work)
            await boom.barrier(boom.last_seen, scope="all", timeout=30)
            leader = await asyncio.to_thread(cluster.leader)
            follower = next(n for n in cluster.nodes if n != leader)
            address = cluster.addresses[follower]
            shown = await boom.watermarks(node=address)
            assert shown[0].applied_index == RECORDS
            cluster.restart(follower)
            after = []
            while len(after) < 20:
                try:
                    after.append(await boom.watermarks(node=address, timeout=0.2))
                except LogboomError:
                    continue
            for marks in after:
                for mark, before in zip(marks, shown, strict=True):
                    assert mark.applied_global_index >= before.applied_global_index
                    assert mark.applied_index >= before.applied_index
                    assert mark.log_index >= before.log_index
