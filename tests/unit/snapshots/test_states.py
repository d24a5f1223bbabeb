"""A set's states file."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IncompatibleVersion, RecordTooLarge
from logboom.state_machine import Entry, Space
from logboom.types import GlobalLogIndex, PartitionId
from ports.disk import File
from ports.invariant import InvariantViolated
from snapshots import states
from snapshots.meta import STATES_HEADER_BYTES, SetMeta
from snapshots.states import FRAME_BYTES, PIECE_BYTES, StatesWriter, read_section, verify_states
from tests.unit.snapshots.states_world import Dump, dumps, entries, set_meta

PATH = Path("/s/1.states")
G = GlobalLogIndex(40)


def new_file(content: bytes = b"") -> File:
    disk = SimDisk(random.Random(0))
    disk.make_directory(PATH.parent)
    file = disk.open(PATH, create=True)
    file.write([content], offset=0)
    return file


def written(file: File, given: dict[PartitionId, Dump], **more: Any) -> SetMeta:
    writer = StatesWriter(file, G, **more)
    for partition_id, dump in given.items():
        writer.add(partition_id, "kv", dump)
    return set_meta(writer.finish())


def raw_of(file: File) -> bytes:
    return file.read(offset=0, length=file.size())


def read_all(file: File, meta: SetMeta) -> dict[PartitionId, list[Entry]]:
    return {each.partition_id: list(read_section(file, each)) for each in meta.partitions}


class TestRoundTrip:
    def test_sections_come_back_and_are_where_their_metas_say(self) -> None:
        file, given = new_file(), dumps(40)
        meta = written(file, given)
        verify_states(file, meta)
        assert read_all(file, meta) == {partition: dump.given for partition, dump in given.items()}
        assert [each.position for each in meta.partitions] == [dump.position for dump in given.values()]
        raw = raw_of(file)
        assert (meta.states_bytes, meta.states_digest) == (len(raw), blake3(raw).digest(16))
        for each in meta.partitions:
            assert each.digest == blake3(raw[each.offset : each.offset + each.length]).digest(16)

    def test_no_partitions_is_a_header(self) -> None:
        file = new_file()
        meta = written(file, {})
        verify_states(file, meta)
        assert file.size() == meta.states_bytes == STATES_HEADER_BYTES

    def test_frames_are_bounded_and_a_large_entry_has_one_to_itself(self) -> None:
        large = [(Space.STATE, b"a2", bytes(3 * FRAME_BYTES)), (Space.STATE, b"a3", bytes(10))]
        given = {PartitionId(0): Dump([(Space.STATE, b"a1", b""), *large, *entries(60_000)])}
        file = new_file()
        meta = written(file, given)
        raw, at, lengths = raw_of(file), STATES_HEADER_BYTES, []
        while at < len(raw):
            lengths.append(struct.unpack_from("<I", raw, at)[0])
            at += 8 + lengths[-1]
        assert lengths[:2] == [9 + 2, 9 + 2 + 3 * FRAME_BYTES]
        assert lengths[-1] == 0
        assert all(length <= FRAME_BYTES for length in lengths[2:])
        assert all(length > FRAME_BYTES - 100 for length in lengths[2:-2])
        assert read_all(file, meta)[PartitionId(0)] == given[PartitionId(0)].given

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.lists(st.tuples(st.sampled_from(Space), st.binary(max_size=5), st.binary(max_size=300)))))
    def test_whatever_entries(self, given: list[list[Entry]]) -> None:
        tidy = [sorted({row[:2]: row for row in rows}.values()) for rows in given]
        file = new_file()
        meta = written(file, {PartitionId(k): Dump(rows) for k, rows in enumerate(tidy)})
        verify_states(file, meta)
        assert list(read_all(file, meta).values()) == tidy

    def test_pace_is_told_every_byte_in_pieces(self) -> None:
        paced: list[int] = []
        file = new_file()
        given = {PartitionId(k): Dump(entries(8000, value=bytes(100))) for k in range(4)}
        meta = written(file, given, pace=paced.append)
        assert sum(paced) == meta.states_bytes
        assert all(PIECE_BYTES <= size < PIECE_BYTES + FRAME_BYTES + 100 for size in paced[:-1])
        assert len(paced) > 3
        verify_states(file, meta)


class TestWriter:
    @pytest.mark.parametrize("second", [1, 0])
    def test_partitions_ascend(self, second: int) -> None:
        writer = StatesWriter(new_file(), G)
        writer.add(PartitionId(1), "kv", Dump([]))
        with pytest.raises(InvariantViolated):
            writer.add(PartitionId(second), "kv", Dump([]))

    def test_a_dump_that_is_not_in_order_ends_it(self) -> None:
        writer = StatesWriter(new_file(), G)
        with pytest.raises(CorruptData):
            writer.add(PartitionId(1), "kv", Dump(entries(2)[::-1]))
        with pytest.raises(InvariantViolated):
            writer.finish()
        with pytest.raises(InvariantViolated):
            writer.add(PartitionId(2), "kv", Dump([]))

    def test_an_entry_that_no_reader_would_take_is_not_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(states, "ENTRY_BYTES_MAX", 100)
        for entry in ((Space.STATE, b"k", bytes(100)), (Space.STATE, b"k" * 65_536, b"")):
            with pytest.raises(RecordTooLarge, match="partition 1"):
                StatesWriter(new_file(), G).add(PartitionId(1), "kv", Dump([entry]))

    def test_it_is_synced_once_finished(self) -> None:
        disk = SimDisk(random.Random(0))
        disk.make_directory(PATH.parent)
        meta = written(disk.open(PATH, create=True), dumps(40))
        assert len(disk.stable(PATH)) == meta.states_bytes


class TestDamage:
    def test_every_flipped_byte_is_noticed_with_its_place(self) -> None:
        file = new_file()
        meta = written(file, dumps(40))
        raw = raw_of(file)
        for at in range(len(raw)):
            flipped = bytearray(raw)
            flipped[at] ^= 0x04
            other = new_file(bytes(flipped))
            with pytest.raises(CorruptData, match=str(PATH)) as caught:
                verify_states(other, meta)
            for each in meta.partitions:
                hit = each.offset <= at < each.offset + each.length
                if hit:
                    with pytest.raises(CorruptData, match=str(PATH)) as caught:
                        list(read_section(other, each))
                    assert each.offset <= caught.value.fields["offset"] <= at
                else:
                    list(read_section(other, each))

    def test_every_end_is_noticed(self) -> None:
        file = new_file()
        meta = written(file, dumps(40))
        raw = raw_of(file)
        for size in range(len(raw)):
            cut = new_file(raw[:size])
            with pytest.raises(CorruptData):
                verify_states(cut, meta)
            with pytest.raises(CorruptData):
                read_all(cut, meta)
        with pytest.raises(CorruptData):
            verify_states(new_file(raw + b"\0"), meta)

    def test_frames_that_changed_places_are_noticed(self) -> None:
        """Each is whole; only the section's digest tells."""
        file = new_file()
        meta = written(file, {PartitionId(0): Dump(entries(2 * FRAME_BYTES // 100, value=bytes(150)))})
        raw = raw_of(file)[STATES_HEADER_BYTES:]
        size = 8 + struct.unpack_from("<I", raw)[0]
        second = size + 8 + struct.unpack_from("<I", raw, size)[0]
        swapped = raw[size:second] + raw[:size] + raw[second:]
        other = new_file(raw_of(file)[:STATES_HEADER_BYTES] + swapped)
        with pytest.raises(CorruptData, match="another digest"):
            list(read_section(other, meta.partitions[0]))

    @pytest.mark.parametrize("body", [b"\0", struct.pack("<BII", 2, 0, 0), struct.pack("<BII", 0, 1, 0)])
    def test_entries_are_checked_though_checksums_hold(self, body: bytes) -> None:
        section = struct.pack("<II", len(body), google_crc32c.value(body)) + body + bytes(8)
        file = new_file(states.header(G) + section)
        meta = written(new_file(), {PartitionId(0): Dump([])})
        row = msgspec.structs.replace(meta.partitions[0], length=len(section), digest=blake3(section).digest(16))
        with pytest.raises(CorruptData):
            list(read_section(file, row))

    def test_a_length_that_is_claimed_is_not_read(self) -> None:
        file = new_file()
        meta = written(file, {PartitionId(0): Dump(entries(5))})
        file.write([struct.pack("<I", (1 << 32) - 1)], offset=STATES_HEADER_BYTES)
        reads: list[int] = []
        file._disk.hook = lambda what, _, length: reads.append(length)  # type: ignore[attr-defined]
        row = msgspec.structs.replace(meta.partitions[0], length=1 << 40)
        with pytest.raises(CorruptData, match="a frame of"):
            list(read_section(file, row))
        assert max(reads) < 100

    def test_another_version_says_so(self) -> None:
        file = new_file()
        meta = written(file, {})
        newer = raw_of(file)[:6] + b"\2" + raw_of(file)[7 : STATES_HEADER_BYTES - 4]
        file.write([newer, struct.pack("<I", google_crc32c.value(newer))], offset=0)
        with pytest.raises(IncompatibleVersion, match=str(PATH)):
            verify_states(file, meta)
