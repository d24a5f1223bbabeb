"""Scrubbing logs and saved states: everything is read, damage is found where it is, and what is mended is whole."""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.log.columns import Columns
from partitions.log.committed import Committed
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from partitions.machines.kv import KvMachine
from partitions.machines.kv_file import KvFile
from tests.unit.partitions import compaction_world
from tests.unit.partitions.mending_world import COUNT, DIRECTORY, damage, flush, grown, read


def scrubbed(log: PartitionLog) -> tuple[int, list[int]]:
    """Bytes, and last indices of what is damaged."""
    pieces = list(log.scrub())
    found = [piece.damage for piece in pieces if piece.damage is not None]
    assert all(isinstance(each, DamagedBatch) for each in found)
    return sum(piece.nbytes for piece in pieces), [each.last_index for each in found if isinstance(each, DamagedBatch)]


class TestLogs:
    def test_all_that_is_whole_is_read(self) -> None:
        _, log, _ = grown()
        assert scrubbed(log) == (log.committed_bytes, [])

    def test_what_is_compacted_while_it_is_added_up_does_not_end_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Found by review: a pass over everything was given up for hours, as one log was compacted at that moment."""
        _, log, batches = compaction_world.grown()
        before = log.committed_bytes

        def compacted(committed: Committed) -> Columns:
            monkeypatch.undo()
            found = committed._columns
            compaction_world.settle(log, compaction_world.base_at(batches, 30))
            return found

        monkeypatch.setattr(Committed, "columns", property(compacted))
        assert log.committed_bytes == before
        assert log.first_available_index > 1
        assert log.committed_bytes < before

    @pytest.mark.parametrize("which", range(COUNT))
    def test_a_flipped_bit_is_found_wherever_it_is(self, which: int) -> None:
        disk, log, batches = grown()
        damage(disk, log, batches[which])
        assert scrubbed(log) == (log.committed_bytes, [batches[which].last_index])

    def test_batches_in_a_row_are_mended_in_any_order(self) -> None:
        disk, log, batches = grown()
        for batch in batches:
            damage(disk, log, batch)
        assert scrubbed(log)[1] == [batch.last_index for batch in batches]
        for batch in batches:
            assert log.lose(batch.last_index, batch.digest)
        for batch in reversed(batches):
            assert log.append(batch)
        assert scrubbed(log)[1] == []  # known already
        flush(log)
        assert scrubbed(log) == (log.committed_bytes, [])
        assert read(log) == [batch.digest for batch in batches]

    def test_a_segment_that_is_gone_is_damage_of_all_that_is_in_it(self) -> None:
        disk, log, batches = grown()
        first = min(name for name in disk.list(DIRECTORY) if name.endswith(".log"))
        disk.remove(DIRECTORY / first)
        found = scrubbed(log)[1]
        assert found
        assert found == [batch.last_index for batch in batches[: len(found)]]

    def test_what_compaction_takes_away_is_passed_over(self) -> None:
        disk, log, batches = grown()
        damage(disk, log, batches[0])
        pieces = log.scrub()
        log.compact(batches[5].last_index)()
        assert not [piece for piece in pieces if piece.damage]

    def test_compaction_in_the_midst_of_a_pass(self) -> None:
        _, log, batches = grown()
        pieces = log.scrub()
        assert next(pieces).nbytes > 0
        log.compact(batches[-1].last_index)()
        assert not [piece for piece in pieces if piece.damage]


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[KvMachine]:
    machine = KvMachine(KvFile(tmp_path, ApplySettings(kv_map_bytes=64 << 20)))
    yield machine
    machine.close()


class TestStates:
    def fill(self, machine: KvMachine, directory: Path) -> None:
        file = machine._file
        state = {b"k%05d" % k: b"b" + struct.pack("<Q", k) * 100 for k in range(4000)}
        file.write(state, {b"meta": b"x"}, Position(PartitionLogIndex(1), GlobalLogIndex(1)))

    def test_everything_is_read_in_pieces(self, kv: KvMachine, tmp_path: Path) -> None:
        self.fill(kv, tmp_path)
        pieces = list(kv.scrub())
        assert len(pieces) > 2
        nbytes = (tmp_path / "data.mdb").stat().st_size  # which is read as it is first
        assert sum(piece.nbytes for piece in pieces) == nbytes + 4000 * (6 + 801) + 5

    def test_a_value_that_rots_is_found(self, kv: KvMachine, tmp_path: Path) -> None:
        self.fill(kv, tmp_path)
        path = tmp_path / "data.mdb"
        with path.open("r+b") as file:
            for found in re.finditer(re.escape(struct.pack("<Q", 3210) * 50), path.read_bytes()):  # free space, too
                file.seek(found.start())
                file.write(b"\xff")
        with pytest.raises(CorruptData, match="k03210"):
            list(kv.scrub())

    def test_an_empty_state(self, kv: KvMachine, tmp_path: Path) -> None:
        assert [piece.nbytes for piece in kv.scrub()] == [(tmp_path / "data.mdb").stat().st_size, 0]


def test_a_disk_that_is_away_for_a_while_has_lost_nothing() -> None:
    disk, log, _ = grown()
    away = True

    def hook(operation: str, path: Path, _: int) -> None:
        if operation == "read" and path.suffix == ".log" and away:
            raise OSError(errno.EIO, "no")

    disk.hook = hook
    pieces = log.scrub()
    assert next(pieces).again
    away = False
    rest = list(pieces)
    assert not [piece for piece in rest if piece.damage or piece.again]
    assert sum(piece.nbytes for piece in rest) == log.committed_bytes


@pytest.mark.parametrize(("number", "damaged"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_a_bad_sector_is_damage_and_a_lack_of_descriptors_is_not(number: int, damaged: bool) -> None:
    disk, log, batches = grown()

    def hook(operation: str, path: Path, _: int) -> None:
        if operation == "read" and path.suffix == ".log":
            raise OSError(number, "no")

    disk.hook = hook
    if damaged:
        assert scrubbed(log)[1] == [batch.last_index for batch in batches]
    else:
        with pytest.raises(OSError, match="no"):
            scrubbed(log)
