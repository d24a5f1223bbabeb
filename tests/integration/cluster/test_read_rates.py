"""Rates of reading on real nodes: who reads fast pauses and gets all of it, and others do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from logboom import Client, Put, RecordBlock
from logboom.errors import DeadlineExceeded
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

PER_S = 100_000
BURST_MS = 200
VALUE = bytes(10_000)
ROWS = 40
"""Four seconds' worth."""
AT_LEAST_S = (ROWS * len(VALUE) - 2 * PER_S * BURST_MS / 1000) / PER_S
"""One burst is not waited for, and what is read last is not paid when it comes."""


@pytest.fixture(scope="module")
def bounded() -> Iterator[LocalCluster]:
    settings = {"reads.principal_bytes_per_s": PER_S, "admission.rate_burst_ms": BURST_MS}
    with LocalCluster(partitions=2, settings=settings) as cluster:
        asyncio.run(filled(cluster))
        yield cluster


async def filled(cluster: LocalCluster) -> None:
    rows = [Put(b"%03d" % k, VALUE).record() for k in range(ROWS)]
    async with Client(cluster.endpoints) as boom:
        for partition in range(2):
            for row in rows:
                await boom.submit_block(partition, RecordBlock.from_records([row]), wait="applied")


async def tailed(boom: Client) -> int:
    return sum([batch.records.count async for batch in boom.tail(0)])


async def scanned(boom: Client) -> int:
    return sum([batch.records.count async for batch in boom.scan_log([0])])


async def keys(boom: Client) -> int:
    return len([key async for key, _ in boom.scan(0)])


async def got(boom: Client) -> int:
    return sum([await boom.get(0, b"%03d" % k) == VALUE for k in range(ROWS)])


async def got_at_once(boom: Client) -> int:
    return sum(value == VALUE for value in await asyncio.gather(*(boom.get(0, b"%03d" % k) for k in range(ROWS))))


@pytest.mark.parametrize("read", [tailed, scanned, keys, got, got_at_once], ids=lambda read: read.__name__)
async def test_who_reads_fast_ends_up_at_that_rate_and_gets_all_of_it(bounded: LocalCluster, read: object) -> None:
    loop = asyncio.get_running_loop()
    async with Client(bounded.endpoints, timeout=60.0) as boom:
        await boom.partitions()
        began = loop.time()
        assert await read(boom) == ROWS  # type: ignore[operator]
        assert loop.time() - began >= AT_LEAST_S


async def test_others_read_meanwhile_as_if_nobody_did(bounded: LocalCluster) -> None:
    async with Client(bounded.endpoints, timeout=60.0) as hot, Client(bounded.endpoints) as quiet:
        load = [asyncio.ensure_future(scanned(hot)) for _ in range(4)]
        for k in range(2):
            assert await quiet.get(1, b"%03d" % k, timeout=10.0) == VALUE
        assert not all(each.done() for each in load)
        assert await asyncio.gather(*load) == [ROWS] * 4


async def test_who_has_no_time_is_told_what_it_waited_for(bounded: LocalCluster) -> None:
    async with Client(bounded.endpoints) as boom:
        found = await boom.get_many(0, [b"%03d" % k for k in range(ROWS)])  # at once: what is owed comes after
        assert found == [VALUE] * ROWS
        with pytest.raises(DeadlineExceeded, match=r"reads\.principal_bytes_per_s") as late:
            await boom.get(0, b"000", timeout=1.0)
        assert late.value.outcome == "not_applied"
