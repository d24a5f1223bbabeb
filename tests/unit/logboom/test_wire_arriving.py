"""What is known of a frame before it is whole: what it is, and what its header says."""

from __future__ import annotations

import pytest

from logboom.wire import ARRIVING_BYTES, PLACE_BYTES, PREFIX_BYTES, Frame, FrameDecoder, Kind, encode


def decoder() -> FrameDecoder:
    return FrameDecoder(frame_bytes_max=1 << 24)


def raw(kind: Kind, header: dict[str, object], size: int) -> bytes:
    return b"".join(encode(kind, header, [bytes(size)], request_id=3))


@pytest.mark.parametrize("size", [10, PLACE_BYTES, 40 * PLACE_BYTES])
def test_it_is_known_from_the_end_of_its_header_to_its_own(size: int) -> None:
    it, frame = decoder(), raw(Kind.PAYLOAD, {"term": 7}, size)
    head = len(frame) - size
    seen = list[Frame | None]()
    for at in range(head + 1):
        assert it.feed(frame[at : at + 1]) == []
        seen.append(it.arriving)
    assert seen == [*[None] * (head - 1), *[Frame(Kind.PAYLOAD, 3, {"term": 7}, memoryview(b""))] * 2]
    step = size // 5 or 1
    for at in range(head + 1, len(frame), step):
        assert it.arriving == seen[-1]
        done = it.feed(frame[at : at + step])
    assert [each.header for each in done] == [{"term": 7}]
    assert it.arriving is None


def test_of_several_it_is_the_last_that_is_not_whole() -> None:
    it, frame = decoder(), raw(Kind.PAYLOAD, {"term": 7}, 100)
    assert len(it.feed(frame * 2 + raw(Kind.NEED, {"raft_index": 4}, 100)[:-1])) == 2
    begun = it.arriving
    assert begun is not None
    assert (begun.kind, begun.header, len(begun.body)) == (Kind.NEED, {"raft_index": 4}, 0)


@pytest.mark.parametrize(
    "begun",
    [
        raw(Kind.SUBMIT, {"k": "x" * ARRIVING_BYTES}, 1000),
        raw(Kind.SUBMIT, {}, 1000)[:4] + b"\xff" + raw(Kind.SUBMIT, {}, 1000)[5:],
        raw(Kind.SUBMIT, {}, 1000)[:PREFIX_BYTES] + b"\xc1" + bytes(999),
    ],
    ids=["a long header", "no kind that there is", "no header at all"],
)
def test_what_cannot_be_known_yet_is_not(begun: bytes) -> None:
    it = decoder()
    assert it.feed(begun[:-5]) == []
    assert it.arriving is None
