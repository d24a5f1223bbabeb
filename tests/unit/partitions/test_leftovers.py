"""What crashes leave beside a log's segments goes at the next start; segments are numbered as long as it takes."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from chaos.sim.disk import SimDisk
from logboom.settings import LogSettings
from logboom.types import DurabilityMode
from partitions.log.log import PartitionLog
from partitions.log.segment import segment_name, segment_ordinal
from tests.unit.partitions.batches import P, chain, commit, flush, make, open_log


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_halves_of_files_go_at_a_start(tmp_path: Path) -> None:
    """A node that was killed while it wrote an index kept the half for ever, long after its segment had gone."""
    batches = chain(80)
    log = open_log(tmp_path)
    for batch in batches:
        log.append(batch)
        flush(log)
    commit(log, batches)
    log.close()
    wanted = names(tmp_path)
    index = min(path for path in tmp_path.glob("*.idx"))
    (tmp_path / f"{index.name}.new").write_bytes(index.read_bytes()[:100])
    index.unlink()  # it is made anew, through a file of that very name
    (tmp_path / "00000000000000000001-00009999.idx.new").write_bytes(b"half")
    (tmp_path / "places.new").write_bytes(b"half")
    again = open_log(tmp_path)
    commit(again, batches)
    again.close()
    assert names(tmp_path) == wanted


@pytest.mark.parametrize("ordinal", [1, 99_999_999, 100_000_000, (1 << 32) - 1])
def test_the_number_of_a_segment_is_in_its_name(ordinal: int) -> None:
    """The nine digits of the hundred millionth were read as eight: the next start took its file for a misplaced one."""
    assert segment_ordinal(segment_name(1 << 40, ordinal)) == ordinal


@pytest.mark.parametrize("name", ["{}.save.log", "notes.log", "{}-copy.log", "\u00b2.log"])
def test_a_copy_beside_a_segment_is_none(tmp_path: Path, name: str) -> None:
    """It was written to in the place of the segment that it was a copy of, or the start ended with a stack."""
    batches = chain(8)
    log = open_log(tmp_path)
    for batch in batches[:4]:
        log.append(batch)
        flush(log)
    log.close()
    segment = max(tmp_path.glob("*.log"))
    copy = tmp_path / name.format(segment.stem)
    copy.write_bytes(segment.read_bytes())
    before = copy.read_bytes()
    log = open_log(tmp_path)
    for batch in batches[4:]:
        log.append(batch)
        flush(log)
    log.close()
    assert copy.read_bytes() == before
    copy.unlink()
    again = open_log(tmp_path)
    commit(again, batches)
    again.close()


@pytest.mark.parametrize("fails", ["create", "write"])
@pytest.mark.parametrize("suffix", [".broken", ".idx"])
def test_a_full_disk_keeps_no_log_from_opening_for_a_file_that_it_does_without(suffix: str, fails: str) -> None:
    """A node that was killed in the midst of a write ended at each start, and so could give back no room."""
    disk, batches = SimDisk(random.Random(1)), chain(80)
    log = log_on(disk)
    for batch in batches:
        log.append(batch)
        flush(log)
    log.close()
    last = max(path for path in disk.paths() if path.suffix == ".log")
    if suffix == ".idx":
        disk.remove(min(path for path in disk.paths() if path.suffix == ".idx"))
    else:
        tear(disk, last)

    def full(operation: str, path: Path, _: int) -> None:
        if operation == fails and path.name.endswith(f"{suffix}.new"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    disk.hook = full
    again = log_on(disk)
    assert [batch for batch in batches if not again.holds(batch.last_index, batch.digest)] == []
    again.append(make(batches[-1].last_index + 1, batches[-1].digest, [b"short"]))
    flush(again)
    again.close()
    assert not [path for path in disk.paths() if path.suffix == ".new"]
    disk.hook = None
    third = log_on(disk)
    assert (third.highest_index, third.damage) == (batches[-1].last_index + 1, [])
    third.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_whatever_else_the_disk_says_of_it_ends_the_start(number: int) -> None:
    disk, batches = SimDisk(random.Random(1)), chain(3)
    log = log_on(disk)
    for batch in batches:
        log.append(batch)
        flush(log)
    log.close()
    tear(disk, max(path for path in disk.paths() if path.suffix == ".log"))

    def fails(_: str, path: Path, __: int) -> None:
        if path.name.endswith(".broken.new"):
            raise OSError(number, "injected", str(path))

    disk.hook = fails
    with pytest.raises(OSError, match="injected"):
        log_on(disk)


def log_on(disk: SimDisk) -> PartitionLog:
    settings = LogSettings(segment_bytes=4096)
    mode = DurabilityMode.WRITE_AHEAD
    return PartitionLog.open(disk=disk, directory=Path("/n1/3"), partition_id=P, settings=settings, mode=mode)


def tear(disk: SimDisk, segment: Path) -> None:
    """It ends in a write that a crash has cut, longer than what is appended next."""
    raw = disk.read_file(segment)
    file = disk.open(segment)
    file.write([b"half of a batch" * 40], offset=len(raw.rstrip(b"\0")) + 8)
    file.sync()
    file.close()
