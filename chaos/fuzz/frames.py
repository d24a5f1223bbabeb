"""Targets: frames of either port as a stream, SUBMIT and FORWARD, errors, and Raft messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from chaos.fuzz.samples import block, records, submit_header
from chaos.fuzz.target import FRAME_BYTES_MAX, Cursor, Target, counted, framed, holds, packed, packed_or_none
from dispatcher.requests.requests import SubmitRequest, encode_submit, parse_submit
from logboom.errors import (
    BY_CODE,
    BarrierBlocked,
    CorruptData,
    IncompatibleVersion,
    InvalidRequest,
    LogboomError,
    Overloaded,
    ProtocolError,
    RecordTooLarge,
    from_wire,
)
from logboom.records import RecordBlock
from logboom.types import NUMBER_MAX
from logboom.wire import PREFIX, Frame, FrameDecoder, Kind, encode
from raftlog.engine import messages
from raftlog.entries.configuration import REJOIN_TOKEN_BYTES
from raftlog.entries.entry import Route, pack_routes, unpack_routes

# -- streams


def stream(data: bytes) -> None:
    """First byte: how the rest is split. However it arrives, the same frames come out of it."""
    seed, raw = data[:1], data[1:]
    whole, end = _fed([raw])
    cuts = sorted(random.Random(seed).randrange(len(raw) + 1) for _ in range(8))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    split, split_end = _fed(pieces)
    single, single_end = _fed([raw], frames_max=1)
    placed, placed_end = _read(raw, cuts)
    holds(
        end == split_end == single_end == placed_end,
        f"whole: {end}, split: {split_end}, one by one: {single_end}, into their place: {placed_end}",
    )
    holds(single[: len(placed)] == placed, "read into their place, frames are others")
    holds([_plain_frame(frame) for frame in single] == list(islice(_walked(raw), len(single))), "not what was sent")
    if end is None:
        holds(whole == split, "a split stream gives other frames")
        holds(single == split, "taken one by one, frames are others")
        holds(placed == split, "read into their place, frames are missing")
    else:  # of one read, frames before the broken one may be lost with it
        holds(single[: len(split)] == split and split[: len(whole)] == whole, "frames before a broken one are others")


def _walked(raw: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, request id and body of each frame, by the letter of docs/protocol.md."""
    at = 0
    while at + PREFIX.size <= len(raw):
        length, kind, flags, _, header, request_id = PREFIX.unpack_from(raw, at)
        end = at + 4 + length
        yield kind, flags, request_id, raw[at + PREFIX.size + header : end]
        at = end


def _plain_frame(frame: Frame) -> tuple[int, int, int, bytes]:
    return int(frame.kind), frame.flags, frame.request_id, bytes(frame.body)


def _fed(pieces: list[bytes], *, frames_max: int = 0) -> tuple[list[Frame], type[Exception] | None]:
    """The frames and what ended it. ``frames_max`` as for FrameDecoder.feed, until it gives nothing more."""
    decoder = FrameDecoder(frame_bytes_max=FRAME_BYTES_MAX)
    frames: list[Frame] = []
    bodies: list[bytes] = []
    end: type[Exception] | None = None
    try:
        for piece in pieces:
            got = decoder.feed(piece, frames_max=frames_max)
            while got:
                frames += got
                bodies += [bytes(frame.body) for frame in got]
                got = decoder.feed(b"", frames_max=frames_max) if frames_max else []
    except (ProtocolError, IncompatibleVersion) as error:
        end = type(error)
    for frame, body in zip(frames, bodies, strict=True):
        holds(frame.body == body, "a body changed after it was handed out")
        _comes_back(frame)
    return frames, end


def _read(raw: bytes, cuts: list[int]) -> tuple[list[Frame], type[Exception] | None]:
    """As a connection reads: the rest of a frame into its place, as soon as there is one."""
    decoder = FrameDecoder(frame_bytes_max=FRAME_BYTES_MAX, place_bytes=PREFIX.size)
    frames: list[Frame] = []
    try:
        for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            piece = memoryview(raw)[start:end]
            while piece:
                room = decoder.room()
                size = min(len(room), len(piece))
                room[:size] = piece[:size]
                frames += decoder.received(size)
                piece = piece[size:]
    except (ProtocolError, IncompatibleVersion) as error:
        return frames, type(error)
    return frames, None


def _comes_back(frame: Frame) -> None:
    header = packed_or_none(frame.header)
    if header is None:
        return
    raw = b"".join(encode(frame.kind, frame.header, [frame.body], request_id=frame.request_id, flags=frame.flags))
    if len(raw) > FRAME_BYTES_MAX:
        return  # written longer than it was: msgpack has several forms of the same
    again = FrameDecoder(frame_bytes_max=FRAME_BYTES_MAX).feed(raw)
    holds(len(again) == 1 and packed(again[0].header) == header, "a header does not come back")
    holds(again[0]._replace(header={}) == frame._replace(header={}), "a frame does not come back")


def _stream_seeds() -> list[bytes]:
    frames = [
        encode(Kind.HELLO, {"version": 1, "client": "fuzz", "cluster": "c", "token": "t"}, request_id=1),
        encode(Kind.SUBMIT, submit_header(block()), [block().metadata, block().data], request_id=2),
        encode(Kind.GET, {"partition": 0, "keys": [b"a", b"b"], "timeout_ms": 100}, request_id=3),
        encode(Kind.PING, {}),
        encode(Kind.PEER_HELLO, {"version": 1, "node": "n2", "cluster": "c", "settings": bytes(16)}),
        encode(Kind.RAFT, {}, [packed({"type": "pre_vote_ok", "term": 3})]),
        encode(Kind.ENTRIES, {"count": 0, "metadata": 0, "data": 0, "global_index": 9}, request_id=3, flags=1),
        encode(Kind.ERROR, Overloaded("full", partition_id=None, retry_after=0.05).to_wire(), request_id=2),
    ]
    each = [b"".join(frame) for frame in frames]
    return [b"\0" + raw for raw in each] + [b"\1" + b"".join(each), b"\2" + each[1] + each[1][:40]]


# -- SUBMIT


def submit(data: bytes) -> None:
    """u16 header length, header, body."""
    cursor = Cursor(data)
    frame = framed(Kind.SUBMIT, cursor.take(cursor.number(2)), cursor.rest())
    if frame is None:
        return
    try:
        request = parse_submit(frame, now=0.0)
    except (InvalidRequest, RecordTooLarge):
        return
    holds(request.nbytes == len(frame.body), "parts cover the body")
    header, body = encode_submit(request, now=0.0)
    again = parse_submit(Frame(Kind.FORWARD, 1, header, memoryview(b"".join(body))), now=0.0, forwarded=True)
    holds(_plain(again) == _plain(request), "a forwarded request is another request")
    for part in request.parts:
        check_block(part.records)


def _plain(request: SubmitRequest) -> list[object]:
    parts = [
        (p.partition_id, p.first_sequence, p.floor, p.records.count, bytes(p.records.metadata), bytes(p.records.data))
        for p in request.parts
    ]
    return [request.producer, request.epoch, request.dense, request.wait, request.nbytes, *parts]


def check_block(found: RecordBlock) -> None:
    """Every field of a block that was accepted can be read, and says the same however it is read."""
    keys, payloads = found.keys(), found.payloads()
    holds(len(keys) == len(payloads) == found.count, "a key and a payload per record")
    holds(b"".join(payloads) == found.data, "the payloads are the data section")
    holds(b"".join(keys) == found.key_bytes, "the keys are the key bytes")
    middle = found.count // 2
    half = found.take(middle, found.count) if middle < found.count else found
    holds(half.payloads() == payloads[middle:], "part of a block has other payloads")
    holds(half.keys() == keys[middle:], "part of a block has other keys")
    rows = found.records()
    holds([(row.payload, row.key or b"") for row in rows] == list(zip(payloads, keys, strict=True)), "rows differ")
    for row in rows:
        holds(all(type(n) is str and type(v) is bytes for n, v in row.headers), "headers are text and bytes")
    try:
        again = RecordBlock.from_records(rows)
    except RecordTooLarge:
        return
    holds(again.records() == rows, "records do not come back")
    holds(half.records() == rows[middle:], "part of a block has other records")


def _submit_seeds() -> list[bytes]:
    lone = RecordBlock.from_records(records(1))
    bare = RecordBlock.from_columns(payloads=[b"x", b"", b"yz"])
    each: list[tuple[RecordBlock, dict[str, object]]] = [
        (block(), {}),
        (lone, {"wait": "committed"}),
        (bare, {"dense": True, "wait": "durable", "forward": True}),
    ]
    found = [counted(packed({**submit_header(b), **more}), b"".join((b.metadata, b.data))) for b, more in each]
    two = {**submit_header(lone), "parts": [[p, 5, 2, 1, len(lone.metadata), len(lone.data)] for p in (0, 7)]}
    return [*found, counted(packed(two), b"".join((lone.metadata, lone.data) * 2))]


def blocks(data: bytes) -> None:
    """u32 count, u16 length of the metadata section, metadata, data."""
    cursor = Cursor(data)
    count, metadata = cursor.number(4), cursor.take(cursor.number(2))
    try:
        found = RecordBlock.parse(count, metadata, cursor.rest())
    except (InvalidRequest, RecordTooLarge):
        return
    check_block(found)


def _block_seeds() -> list[bytes]:
    headers = [RecordBlock.from_records(records(n, headers=True)) for n in (1, 3)]
    plain = [RecordBlock.from_records(records(n)) for n in (1, 2, 20)]
    bare = RecordBlock.from_columns(payloads=[b"x", b"", b"yz"])
    return [b.count.to_bytes(4, "little") + counted(bytes(b.metadata), bytes(b.data)) for b in (*headers, *plain, bare)]


# -- errors


def errors(data: bytes) -> None:
    """The header of an ERROR frame. Whoever reads one gets a typed error, whatever it says."""
    frame = framed(Kind.ERROR, data, b"")
    if frame is None:
        return
    error = from_wire(frame.header)
    holds(isinstance(error, LogboomError), "not an error of ours")
    holds(error.outcome in ("not_applied", "unknown", "applied"), f"outcome {error.outcome!r}")
    holds(type(error.message) is str and str(error) == error.message, "a message is text")
    again = from_wire(error.to_wire())
    holds(type(again) is type(error) and again.outcome == error.outcome, "an error does not come back")
    holds(again.message == error.message and repr(again.fields) == repr(error.fields), "an error does not come back")


def _error_seeds() -> list[bytes]:
    blocked = BarrierBlocked("stuck", blocked=[[0, "paused"]], target=9, watermarks=[[0, 1, 1, 1, 0, 5, "paused"]])
    each = [kind("why", partition_id=3, limit="x", used=4, retry_after=0.5) for kind in BY_CODE.values()]
    wires = [error.to_wire() for error in (*each, blocked, CorruptData("bad", outcome="not_applied", path="/x"))]
    return [packed(wire) for wire in (*wires, {}, {"code": "new_one", "message": "m", "outcome": None, "fields": None})]


# -- Raft


def raft_message(data: bytes) -> None:
    """The body of a RAFT frame."""
    try:
        message = messages.decode(memoryview(data))
    except ProtocolError:
        return
    for name in messages.FIELDS[message["type"]]:
        _in_range(message[name], bool if name in ("reset", "success") else int)
    if "prevLogIdx" in message:
        for name in ("prevLogIdx", "prevLogTerm"):
            _in_range(message[name], int)
        for position, (command, index, term) in enumerate(message["entries"]):
            holds(type(command) is bytes, "a command is bytes")
            _in_range(index, int)
            _in_range(term, int)
            holds(index == message["prevLogIdx"] + 1 + position, "entries are dense")
            routes(command)
    if "rejoining" in message:
        holds(message["type"] == "next_node_idx", "only who answers has forgotten")
        holds(len(message["rejoining"]) == REJOIN_TOKEN_BYTES, "a token of another length")
    if "term_before" in message:
        holds(message["type"] == "next_node_idx", "only an answer says what is before")
        _in_range(message["term_before"], int)
    raw = packed_or_none(message)
    if raw is not None:
        holds(messages.encode(messages.decode(memoryview(raw))) == raw, "a message does not come back")


def _in_range(value: object, wanted: type) -> None:
    holds(type(value) is wanted, f"{value!r} is not {wanted.__name__}")
    holds(not isinstance(value, int) or 0 <= value < NUMBER_MAX, f"{value!r} is out of range")


def _message_seeds() -> list[bytes]:
    append = {"type": "append_entries", "term": 4, "commit_index": 2, "seq": 17}
    command = pack_routes([_route(0), _route(1)])
    entries = [[command, 3, 4], [b"\x01", 4, 4]]
    reply = {"type": "next_node_idx", "term": 4, "next_node_idx": 5, "reset": True, "success": False, "seq": 17}
    votes = {"term": 5, "last_log_index": 9, "last_log_term": 4}
    each = [
        append,
        {**append, "prevLogIdx": 2, "prevLogTerm": 1, "entries": entries},
        {**append, "prevLogIdx": 2, "prevLogTerm": 1, "entries": []},
        {"type": "next_node_idx", "term": 4, "next_node_idx": 5, "reset": False, "success": True, "seq": 17},
        {**reply, "rejoining": b"t" * REJOIN_TOKEN_BYTES},
        {**reply, "rejoining": b"t"},
        {**reply, "term_before": 3},
        {**append, "term_before": 3},
        {**append, "rejoining": b"t" * REJOIN_TOKEN_BYTES},
        *({"type": kind, **votes} for kind in ("pre_vote", "request_vote")),
        *({"type": kind, "term": 5} for kind in ("pre_vote_ok", "pre_vote_no", "response_vote")),
    ]
    return [packed(message) for message in each]


def routes(data: bytes) -> None:
    """A Raft command."""
    try:
        found = unpack_routes(data)
    except CorruptData:
        return
    if data[:1] == b"\x10":
        holds(pack_routes(found) == data, "routes do not come back")
    else:
        holds(not found, "a no-op routes nothing")


def _route(partition: int) -> Route:
    return Route(*(partition, 3, 12, bytes(range(16))))  # type: ignore[arg-type]


def _route_seeds() -> list[bytes]:
    return [b"\x01", *(pack_routes([_route(p) for p in range(n)]) for n in (0, 1, 3))]


TARGETS = [
    Target("stream", stream, _stream_seeds, "frames, fed in any splits (client and peer port)"),
    Target("submit", submit, _submit_seeds, "SUBMIT and FORWARD: header, sections, records"),
    Target("blocks", blocks, _block_seeds, "record blocks"),
    Target("errors", errors, _error_seeds, "ERROR frames"),
    Target("raft_message", raft_message, _message_seeds, "Raft messages between nodes"),
    Target("routes", routes, _route_seeds, "routing entries"),
]
