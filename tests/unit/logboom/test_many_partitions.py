"""A client that outlives the partitions that it writes to: what it remembers of them is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logboom import Client, Put, Record
from logboom.client import pacing, submits
from logboom.records import RecordBlock
from logboom.wire import Kind
from tests.unit.logboom.fake_server import cluster, silent, until

KEPT, MANY = 8, 100


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pacing, submits):
        monkeypatch.setattr(module, "KEPT_MAX", KEPT, raising=False)


def remembered(boom: Client) -> int:
    found: Any = boom._submitter
    return max(len(found._sequences), len(found._lanes), len(found._pace._windows))


async def test_partitions_that_were_written_to_once_are_forgotten() -> None:
    async with cluster(partitions=MANY) as [node], Client(node.address) as boom:
        for partition in range(MANY):
            await boom.submit(partition, Put(b"k", b"v"))
            await boom.submit_many({partition: [Put(b"k", b"v")]})
            assert remembered(boom) <= 2 * KEPT + 1
        block = RecordBlock.from_records([Record(b"x")])
        for partition in range(MANY):
            await boom.submit_block(partition, block, producer_id=b"p" * 16, sequence=0)
        assert remembered(boom) <= 2 * KEPT + 1


async def test_no_number_is_given_twice() -> None:
    async with cluster(partitions=MANY) as [node], Client(node.address) as boom:
        for _ in range(3):
            for partition in range(0, MANY, 3):
                await boom.submit(partition, [Put(b"k", b"v")] * 5)
                await boom.submit(partition, Put(b"k", b"v"))
        given = [
            (part[0], part[1] + k) for f in node.of(Kind.SUBMIT) for part in f.header["parts"] for k in range(part[3])
        ]
        assert len(given) == len(set(given)) == 3 * 34 * 6
        floors = dict[int, int]()
        for frame in node.of(Kind.SUBMIT):
            for partition, first, floor, *_ in frame.header["parts"]:
                assert floors.get(partition, 0) <= floor <= first
                floors[partition] = floor


async def test_a_sender_goes_on_after_its_partition_was_forgotten() -> None:
    async with cluster(partitions=MANY) as [node], Client(node.address) as boom:
        out = boom.sender(0)
        for command in (b"a", b"b"):
            await out.send(Put(command, b""))
        for partition in range(1, MANY):
            await boom.submit(partition, Put(b"k", b"v"))
        assert not any(partition == 0 for partition, _ in boom._submitter._lanes)
        await asyncio.gather(*[out.send(Put(command, b"")) for command in (b"c", b"d")])
        *before, last = [f.header["parts"][0] for f in node.of(Kind.SUBMIT) if f.header["parts"][0][0] == 0]
        assert [part[1:4] for part in before] == [[0, 0, 1], [1, 1, 1]]
        first, floor, count = last[1:4]
        assert (first, count) == (floor, 2)
        assert first >= 2


async def test_what_is_on_its_way_is_not_forgotten() -> None:
    async with cluster(partitions=MANY) as [node], Client(node.address) as boom:
        await boom.submit(0, Put(b"k", b"v"))
        answers, node.answers[Kind.SUBMIT] = node.answers.get(Kind.SUBMIT), silent
        waiting = [asyncio.ensure_future(boom.submit(0, Put(b"k", b"v")))]
        await until(lambda: len(node.of(Kind.SUBMIT)) == 2)
        if answers is None:
            del node.answers[Kind.SUBMIT]
        else:
            node.answers[Kind.SUBMIT] = answers
        for partition in range(1, MANY):
            await boom.submit(partition, Put(b"k", b"v"))
        await boom.submit(0, Put(b"k", b"v"))
        of_one = [f.header["parts"][0] for f in node.of(Kind.SUBMIT) if f.header["parts"][0][0] == 0]
        assert [part[1:3] for part in of_one] == [[0, 0], [1, 1], [2, 1]]
        for each in waiting:
            each.cancel()
