"""A submit as bytes: what a client sends is read back whole, or refused with what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.requests.requests import (
    PARTS_MAX,
    SubmitPart,
    SubmitReply,
    SubmitRequest,
    copied,
    encode_reply,
    encode_submit,
    field_of,
    parse_reply,
    parse_submit,
)
from logboom.errors import InvalidRequest, LogboomError, RecordTooLarge
from logboom.records import KEY_BYTES_MAX, RECORDS_MAX, RecordBlock
from logboom.types import GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId, Record
from logboom.wire import Frame, FrameDecoder, Kind, encode

PRODUCER = ProducerId(bytes(range(16)))
NOW = 50.0
BLOCK = RecordBlock.from_columns(payloads=[b"one", b"two"])
ROW = [3, 7, 5, 2, len(BLOCK.metadata), len(BLOCK.data)]
BODY = bytes(BLOCK.metadata) + bytes(BLOCK.data)
ABSENT = object()


def frame(body: bytes = BODY, **changes: Any) -> Frame:
    header = {"producer": PRODUCER, "epoch": 4, "wait": "applied", "timeout_ms": 2000, "parts": [ROW], **changes}
    header = {name: value for name, value in header.items() if value is not ABSENT}
    return Frame(Kind.SUBMIT, 1, header, memoryview(body))


def row(**changes: int) -> list[int]:
    fields = dict(zip(("partition", "first", "floor", "count", "metadata", "data"), ROW, strict=True))
    return list({**fields, **changes}.values())


def refused(kind: type[LogboomError], message: str, *arguments: Any, **changes: Any) -> Any:
    with pytest.raises(kind, match=message) as error:
        parse_submit(frame(*arguments, **changes), now=NOW)
    assert not error.value.retryable
    assert error.value.outcome == "not_applied"
    return error.value


class TestReading:
    def test_every_field_arrives(self) -> None:
        request = parse_submit(frame(dense=True, forward=True), now=NOW)
        (part,) = request.parts
        assert (request.producer, request.epoch, request.dense, request.wait) == (PRODUCER, 4, True, Level.APPLIED)
        assert (request.deadline, request.nbytes, request.forward, request.forwarded) == (52.0, len(BODY), True, False)
        assert (part.partition_id, part.first_sequence, part.floor) == (3, 7, 5)
        assert part.records.payloads() == [b"one", b"two"]

    def test_what_may_be_left_out(self) -> None:
        request = parse_submit(frame(), now=NOW)
        assert (request.dense, request.forward) == (False, False)

    @pytest.mark.parametrize("wait", ["committed", "durable", "applied"])
    def test_the_levels_that_a_submit_can_wait_for(self, wait: str) -> None:
        assert parse_submit(frame(wait=wait), now=NOW).wait == wait

    def test_a_forwarded_request_is_not_forwarded_again(self) -> None:
        assert parse_submit(frame(forward=True), now=NOW, forwarded=True).forwarded

    def test_a_deadline_is_cut_to_ten_minutes(self) -> None:
        assert parse_submit(frame(timeout_ms=1 << 40), now=NOW).deadline == NOW + 600

    def test_a_deadline_is_cut_to_what_is_set(self) -> None:
        assert parse_submit(frame(timeout_ms=3_001), now=NOW, longest_ms=3_000).deadline == NOW + 3

    def test_payload_is_not_copied(self) -> None:
        received = frame()
        (part,) = parse_submit(received, now=NOW).parts
        assert isinstance(part.records.data, memoryview)
        assert part.records.data.obj is received.body.obj

    def test_parts_lie_back_to_back(self) -> None:
        other = RecordBlock.from_records([Record(b"three", b"key")])
        second = [9, 0, 0, 1, len(other.metadata), len(other.data)]
        body = BODY + bytes(other.metadata) + bytes(other.data)
        first, last = parse_submit(frame(body, parts=[ROW, second]), now=NOW).parts
        assert first.records.payloads() == [b"one", b"two"]
        assert (last.partition_id, last.records.keys(), last.records.payloads()) == (9, [b"key"], [b"three"])


class TestBadHeader:
    @pytest.mark.parametrize("name", ["producer", "epoch", "parts", "timeout_ms"])
    def test_a_missing_field_is_named(self, name: str) -> None:
        refused(InvalidRequest, f"field {name} is missing", **{name: ABSENT})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("producer", "sixteen letters."),
            ("producer", None),
            ("producer", 16),
            ("epoch", "1"),
            ("epoch", 1.0),
            ("epoch", True),
            ("epoch", None),
            ("timeout_ms", 1.5),
            ("timeout_ms", [1]),
            ("parts", None),
            ("parts", {"0": 1}),
            ("parts", b"rows"),
        ],
    )
    def test_a_field_of_another_type_is_named_with_both(self, name: str, value: object) -> None:
        message = refused(InvalidRequest, f"field {name} must be", **{name: value}).message
        assert message.endswith(f"not {type(value).__name__}")

    @pytest.mark.parametrize("name", ["epoch", "timeout_ms"])
    @pytest.mark.parametrize("value", [-1, 1 << 63])
    def test_a_number_out_of_range_is_named(self, name: str, value: int) -> None:
        refused(InvalidRequest, f"field {name} is out of range: {value}", **{name: value})

    def test_an_epoch_has_32_bits(self) -> None:
        assert parse_submit(frame(epoch=0xFFFFFFFF), now=NOW).epoch == 0xFFFFFFFF
        refused(InvalidRequest, "epoch 4294967296", epoch=1 << 32)

    @pytest.mark.parametrize("length", [0, 15, 17])
    def test_a_producer_has_16_bytes(self, length: int) -> None:
        refused(InvalidRequest, f"16 bytes, not {length}", producer=bytes(length))

    @pytest.mark.parametrize("wait", ["ordered", "APPLIED", "", 3, b"applied"])
    def test_a_level_that_is_none_is_refused(self, wait: object) -> None:
        refused(InvalidRequest, "wait must be committed, durable or applied", wait=wait)

    @pytest.mark.parametrize("wait", [["applied"], {"applied": 1}])
    def test_a_level_that_cannot_be_hashed_is_refused_as_well(self, wait: object) -> None:
        refused(InvalidRequest, "wait must be committed, durable or applied", wait=wait)


class TestBadParts:
    @pytest.mark.parametrize("count", [0, PARTS_MAX + 1])
    def test_too_few_or_too_many(self, count: int) -> None:
        refused(InvalidRequest, f"1 to {PARTS_MAX} parts, not {count}", parts=[ROW] * count)

    @pytest.mark.parametrize(
        "bad",
        [
            None,
            7,
            "123456",
            [],
            ROW[:5],
            [*ROW, 0],
            row(first=-1),
            row(first=1 << 63),
            [float(ROW[0]), *ROW[1:]],
            [True, *ROW[1:]],
            [None, *ROW[1:]],
            [[3], *ROW[1:]],
        ],
    )
    def test_a_part_that_is_not_six_numbers(self, bad: object) -> None:
        refused(InvalidRequest, "six numbers", parts=[bad])

    def test_a_partition_has_32_bits(self) -> None:
        refused(InvalidRequest, "partition 4294967296", parts=[row(partition=1 << 32)])

    def test_a_partition_that_appears_twice(self) -> None:
        refused(InvalidRequest, "appears twice", BODY + BODY, parts=[ROW, ROW])

    def test_sections_that_end_beyond_the_body_name_the_partition(self) -> None:
        refused(InvalidRequest, f"partition 3: .* end at {len(BODY) + 1}, .* at {len(BODY)}", parts=[row(data=7)])

    def test_a_body_that_parts_do_not_cover(self) -> None:
        refused(InvalidRequest, f"cover {len(BODY)} bytes of a body of {len(BODY) + 1}", BODY + b"!")

    @pytest.mark.parametrize("count", [0, RECORDS_MAX + 1])
    def test_a_count_of_records_that_no_block_has(self, count: int) -> None:
        refused(InvalidRequest, f"records, not {count}", parts=[row(count=count)])

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_count_that_is_not_the_block_s(self, count: int) -> None:
        refused(InvalidRequest, "metadata section|offsets", parts=[row(count=count)])

    def test_a_key_that_is_too_long_tells_its_size_and_the_limit(self) -> None:
        size = KEY_BYTES_MAX + 1
        metadata = b"\x01\0\0\0" + (1).to_bytes(4, "little") + size.to_bytes(4, "little") + bytes(size)
        error = refused(RecordTooLarge, "512", metadata + b"x", parts=[[0, 0, 0, 1, len(metadata), 1]])
        assert (error.size, error.limit) == (size, KEY_BYTES_MAX)

    @pytest.mark.parametrize("position", range(len(BLOCK.metadata)))
    def test_metadata_that_is_damaged_anywhere(self, position: int) -> None:
        damaged = bytearray(BODY)
        damaged[position] ^= 0x80
        refused(InvalidRequest, "metadata section|offsets", bytes(damaged))


# What msgpack can bring, less what `wait` cannot take (see above).
SCALARS = st.none() | st.booleans() | st.integers(-5, 1 << 64) | st.floats() | st.text(max_size=3) | st.binary()
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=7) | st.dictionaries(st.text(), v, max_size=2))
NUMBER = st.integers(-1, 40) | st.just(1 << 62)
ROWS = st.lists(st.lists(NUMBER, min_size=6, max_size=6) | VALUES, max_size=3)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "producer": st.just(PRODUCER) | VALUES,
        "epoch": NUMBER | VALUES,
        "wait": st.sampled_from(["committed", "applied"]) | SCALARS,
        "timeout_ms": NUMBER | VALUES,
        "parts": ROWS | VALUES,
        "dense": VALUES,
        "forward": VALUES,
        "wide": st.lists(NUMBER | VALUES, max_size=2) | VALUES,
    },
)


@settings(max_examples=500, deadline=None)
@given(HEADERS, st.binary(max_size=40) | st.just(BODY))
def test_whatever_comes_is_read_or_refused(header: dict[str, Any], body: bytes) -> None:
    try:
        request = parse_submit(frame(body, **header), now=NOW)
    except InvalidRequest:
        return
    assert request.nbytes == len(body) == sum(part.records.nbytes for part in request.parts)


RECORDS = st.builds(
    Record,
    st.binary(max_size=5),
    st.none() | st.binary(min_size=1, max_size=3),
    st.lists(st.tuples(st.text(max_size=2), st.binary(max_size=2)), max_size=2).map(tuple),
)
PARTS = st.lists(
    st.tuples(
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 1 << 62),
        st.integers(0, 1 << 62),
        st.lists(RECORDS, min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda part: part[0],
)


@settings(max_examples=150, deadline=None)
@given(PARTS, st.integers(0, 0xFFFFFFFF), st.booleans(), st.sampled_from(["committed", "durable", "applied"]))
def test_what_is_sent_on_to_the_leader_is_what_came(
    parts: list[tuple[int, int, int, list[Record]]], epoch: int, dense: bool, wait: str
) -> None:
    request = SubmitRequest(
        PRODUCER,
        epoch,
        dense,
        Level(wait),
        NOW + 30,
        tuple(SubmitPart(PartitionId(p), first, floor, RecordBlock.from_records(r)) for p, first, floor, r in parts),
        0,
        admit_by=NOW + 7,
        principal="spark",
    )
    header, sections = encode_submit(request, now=NOW)
    raw = b"".join(bytes(buffer) for buffer in encode(Kind.FORWARD, header, sections, request_id=9))
    (received,) = FrameDecoder(frame_bytes_max=1 << 20).feed(raw)
    again = parse_submit(received, now=NOW, forwarded=True)
    assert (again.producer, again.epoch, again.dense, again.wait) == (PRODUCER, epoch, dense, wait)
    assert (again.deadline, again.forwarded) == (NOW + 30, True)
    assert (again.admit_by, again.principal) == (NOW + 7, "spark")
    assert [(p.partition_id, p.first_sequence, p.floor, p.records.records()) for p in again.parts] == parts


def test_it_waits_for_admission_no_longer_than_it_has_time_and_nobody_names_himself() -> None:
    request = parse_submit(
        frame(timeout_ms=500, admission_wait_ms=9_000, principal="somebody"), now=NOW, principal="me"
    )
    assert (request.admit_by, request.principal) == (NOW + 0.5, "me")
    assert parse_submit(frame(), now=NOW).admit_by == 0.0


def test_a_request_that_is_kept_holds_nothing_else() -> None:
    request = parse_submit(frame(), now=NOW)
    kept = copied(request)
    assert kept == request
    assert all(type(p.records.data) is bytes and type(p.records.metadata) is bytes for p in kept.parts)


def test_a_request_that_is_sent_on_too_late_still_has_a_time_limit() -> None:
    header, _ = encode_submit(parse_submit(frame(timeout_ms=0), now=NOW), now=NOW + 5)
    assert header["timeout_ms"] == 1


def test_a_reply_is_read_as_it_was_sent() -> None:
    index, place = PartitionLogIndex, GlobalLogIndex
    reply = SubmitReply(
        (
            (PartitionId(0), index(1), index(2), place(5), 1, b"\0\1"),
            (PartitionId(3), index(9), index(9), place(6), 0, None),
        ),
        place(6),
    )
    raw = b"".join(bytes(buffer) for buffer in encode(Kind.FORWARDED, encode_reply(reply), request_id=9))
    (received,) = FrameDecoder(frame_bytes_max=1 << 20).feed(raw)
    assert parse_reply(received.header) == reply


class TestField:
    def test_a_default_stands_in_for_what_is_missing_only(self) -> None:
        assert field_of({}, "limit", int, 5) == 5
        assert field_of({"limit": 0}, "limit", int, 5) == 0
        with pytest.raises(InvalidRequest, match="limit must be int, not NoneType"):
            field_of({"limit": None}, "limit", int, 5)

    def test_a_whole_number_will_do_for_a_float_and_not_the_other_way(self) -> None:
        assert field_of({"seconds": 2}, "seconds", float) == 2
        with pytest.raises(InvalidRequest, match="seconds must be int, not float"):
            field_of({"seconds": 2.0}, "seconds", int)
