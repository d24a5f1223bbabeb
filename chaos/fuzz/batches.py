"""Targets: batches as on disk and between nodes, and what kv commands do.

A checksum keeps mutations out; so with an odd first byte the input is sealed first: magic, lengths and
checksums are put right, and the decoder meets all the rest.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import partial
from typing import Final

import google_crc32c
from blake3 import blake3

from chaos.fuzz.frames import check_block
from chaos.fuzz.samples import batch, commands, mixed_batch, raw, records
from chaos.fuzz.target import Cursor, Target, holds
from dispatcher.reading.reads import encode_value
from logboom.batch_layout import CRC, HEAD, HEADER_BYTES, MAGIC, VERSION
from logboom.commands import (
    ADD_NUMBERS_MAX,
    DELETE_KEYS_MAX,
    DELETE_LEAST,
    OP_DELETE_RANGE,
    OP_TXN,
    Add,
    Compare,
    DeletePrefix,
    Put,
    Txn,
    from_record,
    pack_numbers,
    parse_txn,
    unpack_numbers,
)
from logboom.errors import CorruptData, IncompatibleVersion, InvalidRequest
from logboom.records import RecordBlock
from logboom.state_machine import ApplyBatch
from logboom.types import GlobalLogIndex, PartitionLogIndex, WideRecord
from partitions.log.batch import Batch, build_batch, parse_batch, parse_header
from partitions.machines.kv_apply import apply_blocks
from partitions.machines.kv_layers import Layer, merged

LENGTHS_AT: Final = 80


def seal_batch(data: bytes) -> bytes:
    """A whole batch out of any bytes: what cannot be told apart by a checksum."""
    data = data.ljust(HEADER_BYTES, b"\0")
    size = len(data) - HEADER_BYTES
    (metadata,) = struct.unpack_from("<I", data, LENGTHS_AT)
    metadata = min(metadata, size)
    lengths = struct.pack("<II", metadata, size - metadata)
    head = MAGIC + struct.pack("<H", VERSION) + data[6:60] + bytes(4) + data[64:LENGTHS_AT] + lengths
    previous, sections = data[88:104], data[HEADER_BYTES:]
    checked = head + previous + batch_digest(previous, head, sections)
    return checked + CRC.pack(google_crc32c.value(checked)) + sections


def batch_digest(previous: bytes, head: bytes, sections: bytes) -> bytes:
    """Written down a second time, so that a slip in the first does not go unseen."""
    return blake3(previous + head + sections).digest(16)


def whole_batch(data: bytes) -> None:
    """First byte odd: sealed."""
    given = seal_batch(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        header = parse_header(given)
    except (CorruptData, IncompatibleVersion):
        header = None
    try:
        found = parse_batch(given)
    except (CorruptData, IncompatibleVersion):
        return
    holds(found.header == header, "the header alone reads otherwise")
    check_batch(found, given)


def check_batch(found: Batch, given: bytes) -> None:
    """What was accepted is what its digest says, all of it can be read, and it is what we would write."""
    header = found.header
    digest = batch_digest(header.previous_digest, given[: HEAD.size], given[HEADER_BYTES:])
    holds(digest == header.digest, "a digest was accepted that is another")
    holds(found.nbytes == len(given), "a batch of another size")
    holds(b"".join(found.buffers) == given, "the buffers are the batch")
    holds(0 < header.first_index <= found.last_index < 1 << 63, f"indices {header.first_index} to {found.last_index}")
    try:
        records_of = found.records()
    except CorruptData:
        return
    check_block(records_of)
    again = build_batch(
        partition_id=header.partition_id,
        first_index=header.first_index,
        term=header.term,
        timestamp_ms=header.timestamp_ms,
        producer=header.producer,
        epoch=header.epoch,
        sequence=header.sequence,
        floor=header.floor,
        dense=header.dense,
        records=records_of,
        previous_digest=header.previous_digest,
        origins=found.origins,
    )
    holds(len(found.origins) == header.mixed, "a batch with other origins than its header says")
    ends = [origin.last_index for origin in found.origins]
    holds(not ends or (ends == sorted(ends) and ends[-1] == header.last_index), f"origins that end at {ends}")
    holds(again.header == header, "a batch does not come back")


def _batch_seeds() -> list[bytes]:
    one = batch()
    each = [one, batch(previous=one), batch(RecordBlock.from_records(records(3, headers=True))), mixed_batch()]
    return [flag + raw(b) for flag in (b"\0", b"\1") for b in each]


# -- kv


def kv(data: bytes) -> None:
    """u8 records of the first block, then commands as (u8 key, u8 length, payload): two blocks, applied in two ways.

    With an odd number of them they are wide.
    """
    cursor = Cursor(data)
    first = cursor.number(1)
    keys: list[bytes] = []
    payloads: list[bytes] = []
    while cursor.left and len(keys) < 256:
        keys.append(bytes([cursor.number(1)]).rstrip(b"\0"))
        payloads.append(cursor.take(cursor.number(1)))
    if sum(payload[:1] == bytes((OP_DELETE_RANGE,)) for payload in payloads) * DELETE_LEAST > DELETE_KEYS_MAX:
        return  # more than one batch does
    blocks = [
        RecordBlock.from_columns(keys=keys[part], payloads=payloads[part]).as_wide(wide=len(keys) % 2 == 1)
        for part in (slice(0, first), slice(first, None))
        if keys[part]
    ]
    statuses, state = _applied(blocks)
    alone = [each.take(n, n + 1) for each in blocks for n in range(each.count)]
    singles, single_state = _applied(alone)
    holds(state == single_state, "a block leaves another state than its records one by one")
    holds(statuses == singles, "a block gives other statuses than its records one by one")
    for encoded in state.values():
        if encoded is not None:
            _value(encoded)


def entries_of(state: Layer, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Of a state that is a dictionary, as `apply_blocks` asks for them."""
    return merged((), state, start=start, end=end)


def _applied(blocks: list[RecordBlock]) -> tuple[list[int], dict[bytes, bytes | None]]:
    state: Layer = {}
    statuses: list[int] = []
    for number, each in enumerate(blocks, 1):
        at = PartitionLogIndex(number), GlobalLogIndex(number)
        given = ApplyBatch(*at, 0, each.count, each.nbytes, bytes(16), each)
        (result,), changed, _ = apply_blocks([given], state.get, partial(entries_of, state))
        state.update(changed)
        holds(len(result) in (1, each.count), "a status per record, or one for all")
        statuses += result if len(result) == each.count else result * each.count
    return statuses, state


def _value(encoded: bytes) -> None:
    if encoded[:1] == b"b":
        return
    numbers = unpack_numbers(encoded)
    if all(map(math.isfinite, numbers)):
        holds(encode_value(numbers) == encoded, "numbers do not come back")


def _kv_seeds() -> list[bytes]:
    mixed = [command.record() for command in commands()]
    adds = [Add(b"%c" % (97 + n % 3), n, -n).record() for n in range(40)]
    puts = [Add(b"p", 1).record(), *(records(1)[0] for _ in range(20))]
    wide = [Txn([Compare(b"a", "==", None)], [Put(b"b", b"1"), Add(b"c", 2)]).record(), DeletePrefix(b"b").record()]
    return [
        bytes([at]) + b"".join(_command(r.key or b"", r.payload) for r in rows)
        for rows in (mixed, adds, puts, [*wide, *puts])
        for at in (0, len(rows) // 2)
    ]


def _command(key: bytes, payload: bytes) -> bytes:
    return bytes([key[0] if key else 0, len(payload)]) + payload


def txn(data: bytes) -> None:
    """The payload of a Txn, whatever its first byte: what is read can be written, and is read as the same again."""
    payload = bytes((OP_TXN,)) + data[1:]
    try:
        parse_txn(payload)
        again = from_record(WideRecord(payload, b"key")).record()
    except InvalidRequest:
        return
    holds(from_record(again).record() == again, "a Txn does not come back")


def _txn_seeds() -> list[bytes]:
    compares = [
        Compare(b"a", "==", None),
        Compare(b"b", ">=", 3),
        Compare(b"c", "!=", (0.5, 1.0)),
        Compare(b"d", "<", b"x"),
    ]
    return [
        each.record().payload
        for each in (Txn(compares, commands()[:4], commands()[-2:]), Txn(compares), Txn((), [Put(b"k", b"v")]))
    ]


def numbers(data: bytes) -> None:
    """An encoded vector of numbers."""
    try:
        found = unpack_numbers(data)
    except InvalidRequest:
        return
    if len(found) <= ADD_NUMBERS_MAX:
        again = pack_numbers(found)
        nan = any(isinstance(n, float) and math.isnan(n) for n in found)
        holds(again == data or (nan and len(again) == len(data)), "numbers do not come back")


def _number_seeds() -> list[bytes]:
    return [pack_numbers(n) for n in ((1,), (1, -2, 1 << 62), (0.5, -1e300))] + [b"b", b"q", b"d" + bytes(8 * 70)]


TARGETS = [
    Target("batch", whole_batch, _batch_seeds, "batches, on disk and between nodes"),
    Target("kv", kv, _kv_seeds, "kv commands: whole blocks against one record at a time"),
    Target("txn", txn, _txn_seeds, "commands over several keys"),
    Target("numbers", numbers, _number_seeds, "vectors of numbers"),
]
