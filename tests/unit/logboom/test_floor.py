"""Who numbers commands himself says what he will never send again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logboom import Client, Put, Record, RecordBlock, SyncClient
from logboom.errors import InvalidRequest
from logboom.wire import Kind
from tests.unit.logboom.fake_server import FakeNode, cluster, cuts

PRODUCER = bytes(range(16))


def floors(node: FakeNode) -> list[int]:
    return [part[2] for frame in node.of(Kind.SUBMIT) for part in frame.header["parts"]]


async def test_it_goes_with_each_try() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.SUBMIT, cuts)
        await boom.submit(0, Put(b"k", b"v"), producer_id=PRODUCER, sequence=9, floor=7)
        block = RecordBlock.from_records([Record(b"1"), Record(b"2")])
        await boom.submit_block(0, block, producer_id=PRODUCER, sequence=40, floor=40, dense=True)
        await boom.submit(0, [Put(b"k", b"v")] * 2, producer_id=PRODUCER, sequence=42)
        assert floors(node) == [7, 7, 40, 0]


async def test_a_clients_own_numbers_have_a_floor_of_their_own() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        for _ in range(3):
            await boom.submit(0, Put(b"k", b"v"))
        await boom.submit(0, Put(b"k", b"v"), producer_id=PRODUCER, sequence=9, floor=8)
        await boom.submit(0, [Put(b"k", b"v")] * 2)
        assert floors(node) == [0, 1, 2, 8, 3]


async def test_from_code_that_blocks() -> None:
    async with cluster() as [node]:
        await asyncio.to_thread(submit_blocking, node.address)
        assert floors(node) == [5]


def submit_blocking(address: str) -> None:
    with SyncClient(address) as boom:
        boom.submit(0, Put(b"k", b"v"), producer_id=PRODUCER, sequence=6, floor=5)


@pytest.mark.parametrize(
    ("said", "story"),
    [
        ({"floor": 5}, "floor"),
        ({"producer_id": PRODUCER, "sequence": 6, "floor": 7}, "above the sequence 6"),
        ({"producer_id": PRODUCER, "sequence": 6, "floor": -1}, "floor"),
        ({"producer_id": PRODUCER, "sequence": 6, "floor": "6"}, "floor"),
        ({"producer_id": PRODUCER, "sequence": 6, "floor": None}, "floor"),
        ({"producer_id": PRODUCER, "sequence": 6, "floor": True}, "floor"),
    ],
)
async def test_what_is_none_is_refused_and_nothing_is_sent(said: dict[str, Any], story: str) -> None:
    block = RecordBlock.from_records([Record(b"1")])
    async with cluster() as [node], Client(node.address) as boom:
        for submit in (lambda: boom.submit(0, Put(b"k", b"v"), **said), lambda: boom.submit_block(0, block, **said)):
            with pytest.raises(InvalidRequest, match=story):
                await submit()
        assert not node.of(Kind.SUBMIT)
