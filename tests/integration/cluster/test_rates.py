"""Rates on real nodes: who is too fast waits or is told, others do not notice, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from logboom import Add, Client, Put, RecordBlock
from logboom.errors import Overloaded
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

PER_S = 1_000
BURST_MS = 100
BLOCK = 50
BLOCKS = 20
AT_LEAST_S = (BLOCK * (BLOCKS - 3) - PER_S * BURST_MS / 1000) / PER_S
"""No earlier can the last of them be let in, if the first ones went by way of the two nodes that do not lead: on other
connections."""


@pytest.fixture(scope="module")
def bounded() -> Iterator[LocalCluster]:
    settings = {"admission.principal_ops_per_s": PER_S, "admission.rate_burst_ms": BURST_MS}
    with LocalCluster(partitions=4, settings=settings) as cluster:
        yield cluster


def block(name: bytes) -> RecordBlock:
    rows = [Add(name, 1), *(Put(name + b"%d" % k, b"") for k in range(BLOCK - 1))]
    return RecordBlock.from_records(row.record() for row in rows)


@pytest.mark.parametrize("admission_wait", [0.0, 20.0])
async def test_who_is_too_fast_ends_up_at_that_rate_and_loses_nothing(
    bounded: LocalCluster, admission_wait: float
) -> None:
    name = b"fast-%d" % int(admission_wait)
    loop = asyncio.get_running_loop()
    async with Client(bounded.endpoints, timeout=60.0) as boom:
        await boom.partitions()
        began = loop.time()
        rows = block(name)
        await asyncio.gather(
            *(boom.submit_block(k % 4, rows, wait="applied", admission_wait=admission_wait) for k in range(BLOCKS))
        )
        assert loop.time() - began >= AT_LEAST_S
        counted = [await boom.get(p, name) for p in range(4)]
        assert counted == [(BLOCKS // 4,)] * 4


async def test_others_write_meanwhile_as_if_nobody_did(bounded: LocalCluster) -> None:
    async with Client(bounded.endpoints, timeout=60.0) as hot, Client(bounded.endpoints) as quiet:
        rows = block(b"hot")
        load = [asyncio.ensure_future(hot.submit_block(1, rows, admission_wait=30.0)) for _ in range(3 * BLOCKS)]
        for k in range(5):
            await quiet.submit(1, Put(b"quiet", b"%d" % k), timeout=10.0)
        assert not all(each.done() for each in load)
        await asyncio.gather(*load)


async def test_who_has_no_time_is_told_which_rate_it_was(bounded: LocalCluster) -> None:
    async with Client(bounded.endpoints) as boom:
        await boom.submit(2, [Put(b"%d" % k, b"") for k in range(4 * PER_S)])  # a request of any size goes
        with pytest.raises(Overloaded, match="your own requests reach principal_ops_per_s") as told:
            await boom.submit(3, Put(b"k", b""), timeout=0.3)
        error = told.value
        assert (error.limit, error.maximum, error.outcome) == ("principal_ops_per_s", PER_S, "not_applied")
        assert await boom.get(3, b"k") is None
        for node in bounded.addresses.values():
            refused = (await boom.status(node=node))["admission"]["refused"]
            assert set(refused) <= {"principal_ops_per_s"}
