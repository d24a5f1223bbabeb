"""Pace on real nodes: whoever writes much is slowed down where others would notice, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from logboom import Add, Client, Put, RecordBlock
from logboom.testing import LocalCluster

RECORDS = 500
UNDER_WAY = 8


async def _admission(boom: Client, local: LocalCluster) -> dict[str, Any]:
    leader = local.leader()
    assert leader is not None
    status = await boom.status(node=local.addresses[leader])
    found: dict[str, Any] = status["admission"]
    return found


async def test_who_writes_much_is_slowed_down_for_who_writes_little_and_loses_nothing() -> None:
    """A commit takes more than a millisecond beside somebody else's: the target is missed until that one is slower."""
    settings = {"admission.light_commit_ms": 1, "admission.pace_bytes_per_s_min": 4_000_000}
    with LocalCluster(partitions=2, settings=settings) as local:
        async with Client(local.endpoints, timeout=60.0) as hot, Client(local.endpoints, timeout=60.0) as quiet:
            rows = RecordBlock.from_records(
                row.record() for row in [Add(b"hot", 1), *(Put(b"%d" % k, bytes(100)) for k in range(RECORDS - 1))]
            )
            begun = itertools.count()
            is_slowed = asyncio.Event()

            async def load() -> None:
                while not is_slowed.is_set():
                    next(begun)
                    await hot.submit_block(0, rows, wait="applied", admission_wait=30.0)

            loads = [asyncio.ensure_future(load()) for _ in range(UNDER_WAY)]
            written = 0

            async def slowed() -> bool:
                nonlocal written
                await quiet.submit(1, Add(b"quiet", 1), wait="applied")
                written += 1
                return (await _admission(quiet, local))["pace"] is not None

            try:
                async with asyncio.timeout(60.0):
                    while not await slowed():
                        pass
            finally:
                is_slowed.set()
                await asyncio.gather(*loads)
            assert await quiet.get(1, b"quiet") == (written,)
            assert await hot.get(0, b"hot") == (next(begun),)
            assert (await _admission(quiet, local))["pace"] >= 4_000_000
