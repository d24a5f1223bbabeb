"""Targets: the two files of a snapshot set, and what machines make of entries that are loaded.

As in ``batches``: an odd first byte puts checksums right before the decoder sees the rest.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import google_crc32c
import msgspec
from blake3 import blake3

from chaos.fuzz.disk import MemoryDisk, MemoryFile
from chaos.fuzz.samples import PRODUCER
from chaos.fuzz.target import Cursor, Target, holds
from chaos.sim.state_file import StateFiles
from logboom.commands import pack_numbers
from logboom.errors import CorruptData, IncompatibleVersion
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, SPACES, Entry, Machine, Position, Space, in_order
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, RaftIndex, Term
from partitions.machines.kv import KvMachine
from partitions.machines.log import LogMachine
from snapshots.meta import FIRST_LINEAGE, STATES_HEADER_BYTES, VERSION, PartitionMeta, SetMeta, decode, encode
from snapshots.states import FRAME, HEADER, StatesWriter, check_header, header, read_section, verify_states

HERE: Final = Path("/data")
G: Final = GlobalLogIndex(9)
AT: Final = Position(PartitionLogIndex(5), GlobalLogIndex(6))

# -- sets


def snapshot_set(data: bytes) -> None:
    """First byte odd: sealed. Its next bit: of another history than the first."""
    given = data[1:]
    if data[:1] and data[0] & 1:
        given = b"LBSNAP" + struct.pack("<H", VERSION if data[0] & 2 else FIRST_LINEAGE) + given[8:]
        given += struct.pack("<I", google_crc32c.value(given))
    try:
        meta = decode(given, path="here")
    except (CorruptData, IncompatibleVersion):
        return
    end, before = STATES_HEADER_BYTES, -1
    for each in meta.partitions:
        holds(each.partition_id > before, "partitions ascend")
        holds(each.offset == end and each.length > 0, "sections follow each other")
        holds(each.applied_global_index <= meta.global_index, "a position beyond the cut")
        before, end = each.partition_id, end + each.length
    holds(end == meta.states_bytes < 1 << 63, "sections fill the states file")
    holds(meta.raft_index > 0 and meta.cluster, "a cut somewhere")
    holds(encode(meta) == given, "a set does not come back")


def _meta(*sections: tuple[int, str, bytes]) -> SetMeta:
    """Id, machine and bytes of each section."""
    end, partitions = STATES_HEADER_BYTES, []
    for partition_id, name, raw in sections:
        digest = blake3(raw).digest(16)
        partitions.append(PartitionMeta(PartitionId(partition_id), name, *AT, end, len(raw), digest))
        end += len(raw)
    whole = blake3(header(G) + b"".join(raw for _, _, raw in sections)).digest(16)
    return SetMeta("fuzz", G, RaftIndex(7), Term(2), b"parent", tuple(partitions), end, whole, 1_700_000_000_000)


def _set_seeds() -> list[bytes]:
    each = [encode(_meta()), encode(_meta((0, "kv", bytes(8)), (2, "log", bytes(40)), (3, "kv", bytes(9))))]
    restored = encode(msgspec.structs.replace(_meta((0, "kv", bytes(8))), lineage="ab" * 16))
    each_of_both = [b"\0" + restored, b"\3" + restored[:-4]]
    return [*each_of_both, b"\0" + each[0], b"\0" + each[1], *(b"\1" + raw[:-4] for raw in each), b"\0" + each[1][:-9]]


# -- states


def _sealed(data: bytes) -> bytes:
    """Frames with the checksums that they have to have, as far as their lengths reach."""
    sealed, at = [], 0
    while len(data) - at >= FRAME.size:
        (length,) = struct.unpack_from("<I", data, at)
        body = data[at + FRAME.size : at + FRAME.size + length]
        sealed.append(FRAME.pack(length, google_crc32c.value(body)) + body)
        at += FRAME.size + length
    return b"".join(sealed) + data[at:]


def snapshot_states(data: bytes) -> None:
    """First byte odd: sealed. A header, then one section."""
    cursor = Cursor(data)
    sealed = cursor.number(1) & 1
    head, section = cursor.take(HEADER.size), cursor.rest()
    if sealed:
        head, section = header(G), _sealed(section)
    file = MemoryFile(HERE / "states", bytearray(head.ljust(HEADER.size, b"\0") + section))
    meta = _meta((1, "kv", section))
    try:
        check_header(file, G)
    except (CorruptData, IncompatibleVersion):
        holds(not sealed, "a sound header was refused")
    else:
        holds(head == header(G), "a header was taken that nobody wrote")
        verify_states(file, meta)
    try:
        entries = list(read_section(file, meta.partitions[0]))
    except CorruptData as error:
        offset: object = error.fields["offset"]
        holds(isinstance(offset, int) and HEADER.size <= offset <= file.size(), "damage lies in the section")
        return
    size = sum(len(key) + len(value) + 9 for _, key, value in entries)
    holds(size <= len(section) - FRAME.size, "more comes out than there is")
    framed, at = [], 0
    while (length := struct.unpack_from("<I", section, at)[0]) > 0:
        framed.append(section[at + FRAME.size : at + FRAME.size + length])
        at += FRAME.size + length
    written = b"".join(struct.pack("<BII", space, len(key), len(value)) + key + value for space, key, value in entries)
    holds(b"".join(framed) == written, "other entries come out than are there")
    _written_again(entries)


def _written_again(entries: list[Entry]) -> None:
    file = MemoryFile(HERE / "again", bytearray())
    writer = StatesWriter(file, G)
    try:
        writer.add(PartitionId(1), "kv", _Dump(entries))
    except CorruptData:  # out of order
        return
    (partition,) = writer.finish().partitions
    holds(list(read_section(file, partition)) == entries, "a section does not come back")


class _Dump:
    position = AT

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    def entries(self) -> Iterator[Entry]:
        return iter(self._entries)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _frame(entries: list[Entry]) -> bytes:
    body = b"".join(struct.pack("<BII", space, len(key), len(value)) + key + value for space, key, value in entries)
    return FRAME.pack(len(body), google_crc32c.value(body)) + body


def _kv_entries() -> list[Entry]:
    values = [b"bvalue", b"b", pack_numbers((1, -2)), pack_numbers((0.5,))]
    return [*((Space.STATE, b"k%d" % k, value) for k, value in enumerate(values)), (Space.META, bytes(PRODUCER), b"m")]


def _log_entries() -> list[Entry]:
    state = ((b"bytes", bytes(8)), (b"digest", bytes(range(16))), (b"records", b"\7" + bytes(7)))
    return [*((Space.STATE, key, value) for key, value in state), (Space.META, bytes(PRODUCER), b"m")]


def _states_seeds() -> list[bytes]:
    rows = _kv_entries()
    sections = [_frame(rows) + bytes(8), _frame(rows[:2]) + _frame(rows[2:]) + bytes(8), bytes(8), _frame(rows)]
    return [flag + header(G) + section for flag in (b"\0", b"\1") for section in sections]


# -- loading


def state_load(data: bytes) -> None:
    """First byte odd: sorted, each once. Entries as (u8 space, u16 key length, u16 value length, key, value)."""
    cursor = Cursor(data)
    tidy = cursor.number(1) & 1
    entries: list[Entry] = []
    while cursor.left:
        space, key_bytes, value_bytes = (cursor.number(size) for size in (1, 2, 2))
        entries.append((SPACES[space & 1], cursor.take(key_bytes), cursor.take(value_bytes)))
    if tidy:
        entries = sorted({entry[:2]: entry for entry in entries}.values())
    files, disk = StateFiles(random.Random(0)), MemoryDisk()
    opened: list[Callable[[], Machine]] = [
        lambda: KvMachine(files.open(HERE, ApplySettings())),
        lambda: LogMachine(disk, HERE / "checkpoint"),
    ]
    for open_machine in opened:
        machine = open_machine()
        try:
            machine.load(iter(entries), AT)
        except CorruptData:
            machine.close()
            again = open_machine()
            holds(again.position() == NOWHERE, "a load that was refused has a position")
            again.close()
            continue
        holds(list(in_order(entries)) == entries, "entries that are not in order were taken")
        for _ in range(2):
            with machine.dump() as dump:
                holds((list(dump.entries()), dump.position) == (entries, AT), "a state does not come back")
            machine.digest()
            if isinstance(machine, KvMachine):
                holds(len(list(machine.scan(start=b"", end=None, limit=0, chunk=8))) > 0, "every scan has an end")
            machine.close()
            machine = open_machine()
        machine.close()


def _load_seeds() -> list[bytes]:
    return [
        flag + b"".join(map(_packed, entries))
        for flag in (b"\0", b"\1")
        for entries in (_kv_entries(), _log_entries(), _log_entries()[:2], [])
    ]


def _packed(entry: Entry) -> bytes:
    space, key, value = entry
    return struct.pack("<BHH", space, len(key), len(value)) + key + value


TARGETS = [
    Target("snapshot_set", snapshot_set, _set_seeds, "what a snapshot set is of: .set"),
    Target("snapshot_states", snapshot_states, _states_seeds, "states of a snapshot set: .states"),
    Target("state_load", state_load, _load_seeds, "entries of a dump, loaded into machines"),
]
