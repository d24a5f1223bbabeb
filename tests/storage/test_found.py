"""What the runs in this folder have found, each in its smallest form."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.sim.disk import ShortWrite, SimDisk
from logboom.errors import CorruptData
from logboom.types import DurabilityMode, PartitionId
from partitions.log.log import PartitionLog
from ports.sync import Redo
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal import Journal, cluster_hash
from server.directory.data_dir import MANIFEST, DataDir
from server.directory.manifest import Manifest
from tests.storage.partition_world import build, check_held, open_log, raw

LOGS, JOURNAL, P = Path("/n/p"), Path("/n/journal"), PartitionId(3)
COMMAND = b"\x10" + b"r" * 32


class Killed(Exception):
    pass


def empty() -> SimDisk:
    disk = SimDisk(random.Random(0))
    disk.make_directory(Path("/n"))
    return disk


def kill_before(disk: SimDisk, operation: str, at: Path) -> None:
    """The process dies when it comes to this operation."""

    def hook(done: str, path: Path, size: int) -> None:
        if done == operation and at in (path, path.parent):
            raise Killed

    disk.hook = hook


def dies(disk: SimDisk, work: Callable[[], object]) -> None:
    with pytest.raises(Killed):
        work()
    disk.hook = None
    disk.kill()


def lose_all(disk: SimDisk) -> None:
    """A power loss that leaves nothing of what was not synced."""

    class Never(random.Random):
        def random(self) -> float:
            return 1.0

        def choice(self, seq):  # type: ignore[no-untyped-def]
            return seq[0]

    disk._rng = Never()
    disk.power_loss()


def open_journal(disk: SimDisk) -> Journal:
    return Journal.open(
        disk=disk, directory=JOURNAL, cluster_id="c", segment_bytes=2048, random_bytes=random.Random(0).randbytes
    )


def open_partition(disk: SimDisk) -> PartitionLog:
    return open_log(disk, LOGS, P, DurabilityMode.WRITE_AHEAD)


def flush(log: PartitionLog) -> None:
    job = log.take()
    assert job is not None
    job.run()
    job.done()


def test_a_vote_that_a_killed_process_had_not_synced_is_synced_before_it_counts() -> None:
    """It was read from the page cache, repeated, and lost with the power: a second vote in one term."""
    disk = empty()
    journal = open_journal(disk)
    journal.setCurrentTerm(7, "n2")
    kill_before(disk, "sync", JOURNAL)
    dies(disk, journal.flush)
    again = open_journal(disk)
    assert (again.term, again.vote) == (7, "n2")
    lose_all(disk)
    last = open_journal(disk)
    assert (last.term, last.vote) == (7, "n2")


def test_a_journal_file_whose_name_was_not_synced_is_not_lost_later() -> None:
    disk = empty()
    kill_before(disk, "sync_directory", JOURNAL)
    dies(disk, lambda: open_journal(disk))
    journal = open_journal(disk)
    journal.add(COMMAND, 2, 1)
    journal.flush()
    assert journal.durable_index == 2
    lose_all(disk)
    assert open_journal(disk).last_index == 2


def test_a_first_start_that_was_killed_anywhere_is_made_up_for_by_the_next() -> None:
    """The next one found a directory whose name was not synced, and the whole node went with it."""
    path, manifest = Path("/v/n/data"), Manifest(node="n1", cluster="c", members=("n1",), partitions=())

    def start(disk: SimDisk) -> Journal:
        data = DataDir(path, disk=disk, manifest=manifest)
        return Journal.open(
            disk=disk,
            directory=data.journal,
            cluster_id="c",
            segment_bytes=2048,
            random_bytes=random.Random(0).randbytes,
        )

    for stop in itertools.count():
        disk, calls = SimDisk(random.Random(0)), itertools.count()

        def hook(operation: str, at: Path, size: int, calls: Iterator[int] = calls, stop: int = stop) -> None:
            if next(calls) == stop:
                raise Killed

        disk.hook = hook
        try:
            start(disk)
        except Killed:
            disk.hook = None
        if disk.hook is not None:
            break
        disk.kill()
        journal = start(disk)
        journal.add(COMMAND, 2, 1)
        journal.flush()
        lose_all(disk)
        assert disk.exists(path / MANIFEST), f"killed before call {stop}"
        assert start(disk).last_index == 2, f"killed before call {stop}"
    assert stop > 10


def test_a_segment_whose_name_was_not_synced_is_not_lost_later() -> None:
    disk = empty()
    log = open_partition(disk)
    rng = random.Random(1)
    batch = build(rng, P, None, 1)
    log.append(batch)
    kill_before(disk, "sync_directory", LOGS)
    dies(disk, lambda: flush(log))
    log = open_partition(disk)
    log.append(batch)
    flush(log)
    assert log.is_durable(batch.last_index, batch.digest)
    lose_all(disk)
    assert open_partition(disk).read_batch(batch.last_index, batch.digest) == raw(batch)


def test_a_journal_that_lost_acknowledged_entries_to_another_leader_opens() -> None:
    """It ended "below its acknowledged floor", and the node never started again."""
    disk = empty()
    journal = open_journal(disk)
    for index in range(2, 12):
        journal.add(COMMAND, index, 1)
    journal.flush()
    journal.acknowledged(11)
    journal.truncate_from(6)
    journal.add(COMMAND, 6, 2)
    journal.flush()
    journal.close()
    again = open_journal(disk)
    assert (again.last_index, again.floor) == (6, 5)


@pytest.mark.parametrize("kept", range(1, 32))
def test_a_journal_file_with_part_of_its_header_is_made_anew(kept: int) -> None:
    disk = empty()

    def hook(operation: str, path: Path, size: int) -> None:
        if operation == "write":
            raise ShortWrite(kept)

    disk.hook = hook
    with pytest.raises(OSError, match="Input/output"):
        open_journal(disk)
    disk.hook = None
    disk.kill()
    journal = open_journal(disk)
    journal.add(COMMAND, 2, 1)
    journal.flush()
    journal.close()
    assert open_journal(disk).last_index == 2


@pytest.mark.parametrize("kept", range(1, 64))
def test_a_segment_with_part_of_its_header_is_made_anew(kept: int) -> None:
    disk = empty()
    log, batch = open_partition(disk), build(random.Random(1), P, None, 1)
    log.append(batch)

    def hook(operation: str, path: Path, size: int) -> None:
        if operation == "write":
            raise ShortWrite(kept)

    disk.hook = hook
    with pytest.raises(OSError, match="Input/output"):
        flush(log)
    disk.hook = None
    disk.kill()
    log = open_partition(disk)
    log.append(batch)
    flush(log)
    log.close()
    assert check_held(open_partition(disk), {batch.digest: batch}) == {batch.digest}


def without_header(disk: SimDisk, suffix: str, size: int) -> Path:
    """The write of the header was lost although it was synced."""
    (path,) = [each for each in disk.paths() if each.name.endswith(suffix)]
    for at, byte in enumerate(disk.read_file(path)[:size]):
        disk.flip(path, at, byte)
    return path


def test_a_journal_file_that_lost_its_header_is_not_taken_for_a_new_one() -> None:
    disk = empty()
    journal = open_journal(disk)
    journal.setCurrentTerm(7, "n2")
    journal.flush()
    journal.close()
    path = without_header(disk, ".journal", codec.SEGMENT_HEADER.size)
    before = disk.read_file(path)
    with pytest.raises(CorruptData):
        open_journal(disk)
    assert disk.read_file(path) == before


def test_a_segment_that_lost_its_header_is_not_taken_for_a_new_one() -> None:
    disk = empty()
    log = open_partition(disk)
    batch = build(random.Random(1), P, None, 1)
    log.append(batch)
    flush(log)
    log.close()
    (path,) = (path for path in disk.paths() if path.suffix == ".log")
    before = disk.read_file(path)
    assert without_header(disk, ".log", 64) == path
    log = open_partition(disk)
    assert log.read_batch(batch.last_index, batch.digest) == raw(batch)
    assert [(damage.path, damage.offset) for damage in log.damage] == [(str(path), 0)]
    assert disk.read_file(path) == before


def test_stripping_keeps_what_the_last_of_its_records_said() -> None:
    """Else the floor went back when a stripped run was the last of the journal."""
    disk = empty()
    journal = open_journal(disk)
    for index in range(2, 8):
        journal.redo(Redo(bytes([index]) * 16, [b"batch"]))
        journal.flush()
        journal.add(COMMAND, index, 1)
        journal.flush()
        journal.acknowledged(index)
    for number in range(3):
        journal.redo(Redo(bytes([50 + number]) * 16, [b"batch"]))
        journal.flush()
    content = disk.read_file(next(path for path in disk.paths()))
    header = codec.check_segment_header(content[: codec.SEGMENT_HEADER.size], cluster=cluster_hash("c"), path="")
    records, _ = codec.scan(memoryview(content), header)
    stripped, _ = codec.scan(memoryview(codec.strip(content, records, header.salt)), header)
    assert stripped[-1].next_sequence == records[-1].next_sequence
    assert (stripped[-1].floor, stripped[-1].synced) == (records[-1].floor, records[-1].synced)


@pytest.mark.parametrize("guessed", [False, True])
def test_records_inside_a_payload_that_was_torn_are_nobodys(guessed: bool) -> None:
    """A client could make a node refuse to start: what it sent passed for a record that was synced later."""
    disk = empty()
    journal = open_journal(disk)
    journal.add(COMMAND, 2, 1)
    journal.flush()
    (path,) = (path for path in disk.paths() if path.suffix == ".journal")
    header = disk.read_file(path)[: codec.SEGMENT_HEADER.size]
    salt = codec.check_segment_header(header, cluster=cluster_hash("c"), path="").salt
    salt = salt if guessed else codec.Salt(salt.magic, salt.crc ^ 1)
    forged = codec.encode_record(codec.RecordKind.SETTLED, bytes(8), sequence=5, synced=1 << 40, floor=0, salt=salt)
    journal.redo(Redo(b"d" * 16, [bytes(1000), forged, b"y" * 100]))
    journal.flush()
    torn = disk.read_file(path).index(b"d" * 16)
    disk.kill()
    disk.flip(path, torn, 0xFF)
    if guessed:
        with pytest.raises(CorruptData):
            open_journal(disk)
    else:
        assert open_journal(disk).last_index == 2
