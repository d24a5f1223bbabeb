"""What is larger than a node takes is not sent; what a node answers may be large."""

from __future__ import annotations

from typing import Any

import pytest

from logboom import Client
from logboom.client.log_batches import Descriptor
from logboom.errors import RecordTooLarge
from logboom.records import RecordBlock
from logboom.types import MIB, PartitionId, PartitionLogIndex
from logboom.wire import HEADER_BYTES_MAX, Frame, FrameDecoder, Kind, encode
from tests.unit.logboom.fake_server import Session, cluster

MANY = [b"%08d" % number + b"x" * 52 for number in range(10_000)]


def values(session: Session, frame: Frame) -> None:
    """Each key is its own value."""
    keys, at = frame.header.get("keys"), 0
    if keys is None:
        keys = []
        for length in frame.header["lengths"]:
            keys.append(bytes(frame.body[at : at + length]))
            at += length
    block = RecordBlock.from_columns(payloads=[b"b" + key for key in keys])
    body = [bytes(block.metadata), bytes(block.data)]
    header: dict[str, Any] = {"found": [True] * len(keys), "metadata": len(body[0]), "data": len(body[1])}
    session.send(frame, Kind.VALUES, {**header, "global_index": 1}, body)


async def test_an_answer_may_be_all_header() -> None:
    """Found by reading: a status with 10,000 partitions ended the connection."""
    rows = [[p, 1 << 40, 1 << 40, 1 << 40, 0, 1 << 50, "running"] for p in range(12_000)]
    header = {"watermarks": rows, "commit_index": 7, "node": "n1"}
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.WATERMARKS] = lambda session, frame: session.send(frame, Kind.WATERMARKS_REPLY, header)
        assert len(await boom.watermarks()) == 12_000
        assert len(node.of(Kind.HELLO)) == 1


async def test_many_keys_are_asked_for_in_one_request_all_the_same() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.features = ["keys_in_body"]
        node.answers[Kind.GET] = values
        assert await boom.get_many(0, MANY) == MANY
        assert await boom.get_many(0, MANY[:9]) == MANY[:9]
        large, small = node.of(Kind.GET)
        assert "keys" not in large.header
        assert (small.header["keys"], bytes(small.body)) == (MANY[:9], b"")


async def test_a_node_of_an_earlier_release_is_not_sent_what_it_cuts() -> None:
    """Found by reading: it cut the connection, and was asked again until the deadline."""
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(RecordTooLarge, match="GET: a header of") as refused:
            await boom.get_many(0, MANY)
        assert refused.value.limit == HEADER_BYTES_MAX < refused.value.size
        assert node.of(Kind.GET) == []
        assert len(node.of(Kind.HELLO)) == 1


async def test_nor_is_any_node_sent_a_frame_larger_than_it_says() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.features, node.frame_bytes = ["keys_in_body"], len(MANY) * 60
        with pytest.raises(RecordTooLarge, match="GET: a frame of"):
            await boom.get_many(0, MANY)
        with pytest.raises(RecordTooLarge, match="SCAN: a header of"):
            await anext(boom.scan(0, start=bytes(HEADER_BYTES_MAX)))
        assert {frame.kind for frame in node.frames} == {Kind.HELLO}


async def test_parts_of_many_records_are_fetched_in_several_requests() -> None:
    async with cluster() as [node], Client(node.address) as boom:

        def data(session: Session, frame: Frame) -> None:
            rows = frame.header["rows"]
            lengths = [sum(length for _, length in ranges) for _, _, ranges in rows]
            header = {"rows": list(range(len(rows))), "lengths": lengths}
            session.send(frame, Kind.DATA, header, [bytes(sum(lengths))])

        node.answers[Kind.DATA_READ] = data
        wanted = [Descriptor(PartitionId(0), PartitionLogIndex(1 << 60), 1 << 21) for _ in range(1000)]
        ranges = [((1 << 20) + k, 1) for k in range(64)]
        assert await boom.fetch(wanted, lambda _: ranges) == [bytes(64)] * 1000
        assert len(node.of(Kind.DATA_READ)) == 8


def test_what_the_other_side_would_not_read_is_not_written() -> None:
    header = {"bytes": bytes(100)}
    (raw,) = encode(Kind.PING, header)
    size = len(raw)
    assert encode(Kind.PING, header, header_bytes_max=size - 20, frame_bytes_max=size) == [raw]
    for bounds in ({"header_bytes_max": size - 21}, {"frame_bytes_max": size - 1}):
        with pytest.raises(RecordTooLarge, match="PING"):
            encode(Kind.PING, header, **bounds)
    (frame,) = FrameDecoder(frame_bytes_max=MIB, header_bytes_max=size - 20).feed(raw)
    assert frame.header == header
