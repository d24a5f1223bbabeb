"""A stream of bytes, cut into frames: large ones are read into a place of their own."""

from __future__ import annotations

import pytest

from logboom.errors import LogboomError, ProtocolError, Unavailable, from_wire
from logboom.types import KIB, MIB
from logboom.wire import (
    AGAIN_BYTES_MAX,
    BEHIND_BYTES,
    EARNED,
    PLACE_BYTES,
    PREFIX,
    PREFIX_BYTES,
    READ_BYTES,
    Alike,
    Frame,
    FrameDecoder,
    Kind,
    encode,
)

LARGE = bytes(range(256)) * KIB


def raw_of(body: bytes, *, request_id: int = 1) -> bytes:
    return b"".join(encode(Kind.PAYLOAD, {"term": 3}, [body], request_id=request_id))


def read(decoder: FrameDecoder, raw: bytes, at_a_time: int) -> list[Frame]:
    """As a connection does."""
    frames: list[Frame] = []
    while raw:
        room = decoder.room()
        size = min(at_a_time, len(raw), len(room))
        room[:size] = raw[:size]
        frames += decoder.received(size)
        raw = raw[size:]
    return frames


@pytest.mark.parametrize("at_a_time", [PLACE_BYTES, 100_000, 7_001, 1 << 30])
def test_frames_of_all_sizes_come_out_as_they_went_in(at_a_time: int) -> None:
    bodies = [LARGE, b"", b"small", LARGE[:PLACE_BYTES], LARGE, LARGE[: PLACE_BYTES - 60], b"x" * 3]
    raw = b"".join(raw_of(body, request_id=number) for number, body in enumerate(bodies))
    decoder = FrameDecoder(frame_bytes_max=MIB)
    frames = read(decoder, raw, at_a_time)
    assert [(frame.request_id, bytes(frame.body)) for frame in frames] == list(enumerate(bodies))
    assert not decoder.mid_frame


def test_the_place_is_the_rest_of_the_frame_and_a_little_of_what_follows() -> None:
    raw = raw_of(LARGE)
    shared = memoryview(bytearray(100))
    decoder = FrameDecoder(frame_bytes_max=MIB, shared=shared)
    assert decoder.room() is shared
    assert decoder.feed(raw[:PLACE_BYTES]) == []
    room, rest = decoder.room(), raw[PLACE_BYTES:]
    assert len(room) == len(rest) + BEHIND_BYTES
    assert decoder.mid_frame
    room[: len(rest)] = rest
    (frame,) = decoder.received(len(rest))
    assert frame.body == LARGE
    assert decoder.room() is shared
    assert not decoder.mid_frame


@pytest.mark.parametrize("frames_max", [0, 1])
@pytest.mark.parametrize("more", range(0, 3 * PREFIX_BYTES, 5))
def test_what_follows_a_large_frame_is_read_along_with_it(more: int, frames_max: int) -> None:
    behind = raw_of(b"orders", request_id=2) + raw_of(b"next", request_id=3)
    raw = raw_of(LARGE) + behind
    decoder = FrameDecoder(frame_bytes_max=MIB)
    assert decoder.feed(raw[:PLACE_BYTES]) == []
    size = len(raw) - len(behind) + more - PLACE_BYTES
    decoder.room()[:size] = raw[PLACE_BYTES : PLACE_BYTES + size]
    frames = decoder.received(size, frames_max=frames_max)
    ends = [0, len(raw_of(b"orders", request_id=2)), len(behind)]
    assert len(frames) == (frames_max or sum(end <= more for end in ends))
    assert decoder.mid_frame == (more not in ends or len(frames) <= ends.index(more))
    frames += decoder.feed(behind[more:])
    assert [bytes(frame.body) for frame in frames] == [LARGE, b"orders", b"next"]


def test_what_is_read_elsewhere_is_taken_out_before_somebody_else_reads_there() -> None:
    shared = memoryview(bytearray(1000))
    one, other = (FrameDecoder(frame_bytes_max=MIB, shared=shared) for _ in range(2))
    raws = [raw_of(b"one" * 100), raw_of(b"other" * 100)]
    got: list[list[Frame]] = [[], []]
    for half in (slice(0, 200), slice(200, None)):
        for decoder, raw, whole in zip((one, other), raws, got, strict=True):
            piece = raw[half]
            decoder.room()[: len(piece)] = piece
            whole.extend(decoder.received(len(piece)))
    assert [bytes(frame.body) for frames in got for frame in frames] == [b"one" * 100, b"other" * 100]


def test_whoever_only_announces_a_large_frame_gets_no_memory_for_it() -> None:
    whole = 64 * MIB
    decoder = FrameDecoder(frame_bytes_max=whole)
    begun = PREFIX.pack(whole - 4, Kind.PAYLOAD, 0, 1, 1, 1) + b"\x80"
    missing = whole // EARNED - len(begun)
    assert decoder.feed(begun + bytes(missing - 1)) == []
    assert len(decoder.room()) == READ_BYTES
    assert decoder.feed(b"\0") == []
    assert len(decoder.room()) == whole - whole // EARNED + BEHIND_BYTES


def test_what_is_fed_while_a_frame_has_its_place_goes_there_first() -> None:
    raw = raw_of(LARGE) + raw_of(b"next", request_id=2) + raw_of(b"last", request_id=3)
    decoder = FrameDecoder(frame_bytes_max=MIB)
    assert decoder.feed(raw[:PLACE_BYTES]) == []
    assert decoder.feed(raw[PLACE_BYTES : PLACE_BYTES + 9]) == []
    (frame,) = decoder.feed(raw[PLACE_BYTES + 9 :], frames_max=1)
    assert frame.body == LARGE
    assert [bytes(each.body) for each in decoder.feed(b"", frames_max=1)] == [b"next"]
    assert [bytes(each.body) for each in decoder.feed(b"")] == [b"last"]


def test_a_frame_that_is_none_says_so_when_it_is_whole() -> None:
    raw = bytearray(raw_of(LARGE))
    raw[4] = 255  # its kind
    decoder = FrameDecoder(frame_bytes_max=MIB)
    with pytest.raises(ProtocolError, match="unknown frame kind 255"):
        read(decoder, bytes(raw), PLACE_BYTES)


def test_bodies_stay_what_they_were() -> None:
    decoder = FrameDecoder(frame_bytes_max=MIB)
    first = read(decoder, raw_of(LARGE), PLACE_BYTES)
    second = read(decoder, raw_of(bytes(len(LARGE))), PLACE_BYTES)
    assert first[0].body == LARGE
    assert second[0].body == bytes(len(LARGE))


@pytest.mark.parametrize("size", [10, 100_000])
def test_nobody_writes_to_what_has_come(size: int) -> None:
    """Found by review: a machine of a user that did was right live, and failed when the same was read from the disk."""
    raw = b"".join(map(bytes, encode(Kind.PING, {}, [bytes(size)], request_id=1)))
    for pieces in ([raw], [raw[:9000], raw[9000:]], [raw + raw]):
        decoder = FrameDecoder(frame_bytes_max=1 << 20)
        frames = [frame for piece in pieces for frame in decoder.feed(piece)]
        assert frames
        assert all(frame.body.readonly for frame in frames)


def test_an_error_may_name_a_file_whose_name_is_no_text() -> None:
    """Found by review: it ended the connection of whoever was to be told, who asked again until his deadline."""
    error = Unavailable("/data \u00e4/d\udcff: no room", path="/data/d\udcff", free=7)
    (frame,) = FrameDecoder(frame_bytes_max=KIB).feed(b"".join(encode(Kind.ERROR, error.to_wire(), request_id=1)))
    told = from_wire(frame.header)
    assert (type(told), str(told), told.free) == (Unavailable, "/data \u00e4/d\\udcff: no room", 7)


def test_a_frame_to_many_is_what_each_would_have_been_sent() -> None:
    header = {"node": "n1", "watermarks": [[0, *[7] * 5, "running"]]}
    ids = [1, 2**40, 2**64 - 1]
    apart = b"".join(bytes(each) for number in ids for each in encode(Kind.REACHED, header, request_id=number))
    assert Alike(Kind.REACHED, header).to(ids) == apart
    frames = FrameDecoder(frame_bytes_max=KIB).feed(apart)
    assert [(frame.request_id, frame.kind, frame.header, frame.flags) for frame in frames] == [
        (number, Kind.REACHED, header, 0) for number in ids
    ]


class TestChecked:
    """Found by review: of what nodes say to each other only batches, and what is on a disk, had checksums."""

    @pytest.mark.parametrize("body", [[], [b"some", memoryview(b"bytes")]])
    def test_it_comes_out_as_it_went_in(self, body: list[bytes]) -> None:
        raw = b"".join(map(bytes, encode(Kind.RAFT, {"term": 3}, body, request_id=9, checked=True)))
        (frame,) = FrameDecoder(frame_bytes_max=KIB).feed(raw)
        assert (frame.kind, frame.request_id, frame.header) == (Kind.RAFT, 9, {"term": 3})
        assert bytes(frame.body) == b"".join(map(bytes, body))

    def test_whatever_bit_is_changed_it_is_noticed(self) -> None:
        raw = b"".join(map(bytes, encode(Kind.RAFT, {"term": 3}, [b"some bytes"], request_id=9, checked=True)))
        name = raw.index(b"crc")
        for bit in range(8 * len(raw)):
            changed = bytearray(raw)
            changed[bit // 8] ^= 1 << bit % 8
            try:
                frames = FrameDecoder(frame_bytes_max=KIB).feed(bytes(changed))
            except LogboomError:
                continue
            if frames:  # by another name it is no checksum, and what it was of is as it was sent
                (frame,) = frames
                assert name <= bit // 8 < name + 3, f"bit {bit}"
                assert (frame.kind, frame.request_id, frame.header["term"]) == (Kind.RAFT, 9, 3)
                assert bytes(frame.body) == b"some bytes"

    def test_one_that_is_on_its_way_is_known_before_it_is_whole(self) -> None:
        raw = b"".join(map(bytes, encode(Kind.FORWARD, {"n": 1}, [LARGE], checked=True)))
        decoder = FrameDecoder(frame_bytes_max=MIB)
        assert decoder.feed(raw[:1000]) == []
        begun = decoder.arriving
        assert begun is not None
        assert begun.kind is Kind.FORWARD


class TestAgain:
    """What thousands are told by the same move is read once."""

    def reached(self, index: int, number: int, **more: object) -> bytes:
        return b"".join(map(bytes, encode(Kind.REACHED, {"at": [[0, index]], **more}, request_id=number)))

    def test_equal_answers_share_what_they_say_and_others_do_not(self) -> None:
        raw = [self.reached(7, 1), self.reached(7, 2), self.reached(8, 3), self.reached(7, 4), self.reached(7, 5)]
        frames = FrameDecoder(frame_bytes_max=MIB).feed(b"".join(raw))
        assert [(frame.request_id, frame.header["at"][0][1]) for frame in frames] == [
            (1, 7), (2, 7), (3, 8), (4, 7), (5, 7)
        ]  # fmt: skip
        first, second, other, again, last = (frame.header for frame in frames)
        assert first is second
        assert again is last
        assert len({*map(id, (first, other, again))}) == 3

    def test_what_else_is_equal_does_not(self) -> None:
        first, second = FrameDecoder(frame_bytes_max=MIB).feed(2 * raw_of(b""))
        assert first.header == second.header
        assert first.header is not second.header

    def test_what_cannot_be_read_is_told_each_time_and_what_comes_after_it_is_read(self) -> None:
        good, bad = self.reached(7, 1), bytearray(self.reached(7, 1))
        bad[PREFIX.size] = 0xC1  # no msgpack
        for decoder in (FrameDecoder(frame_bytes_max=MIB), FrameDecoder(frame_bytes_max=MIB)):
            assert len(decoder.feed(good)) == 1
            with pytest.raises(ProtocolError):
                decoder.feed(bytes(bad))
        assert FrameDecoder(frame_bytes_max=MIB).feed(good)[0].header == {"at": [[0, 7]]}

    def test_a_checksum_is_looked_at_each_time(self) -> None:
        raw = b"".join(map(bytes, encode(Kind.REACHED, {"at": 7}, [b"body"], checked=True)))
        changed = raw[:-1] + b"?"
        decoder = FrameDecoder(frame_bytes_max=MIB)
        assert decoder.feed(raw)[0].header == {"at": 7}
        with pytest.raises(ProtocolError, match="checksum"):
            decoder.feed(changed)

    def test_a_long_one_is_not_kept(self) -> None:
        raw = self.reached(7, 1, text="x" * AGAIN_BYTES_MAX)
        first, second = FrameDecoder(frame_bytes_max=MIB, header_bytes_max=MIB).feed(2 * raw)
        assert first.header == second.header
        assert first.header is not second.header
