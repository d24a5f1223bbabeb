"""How many more partitions a process may have, by its descriptors and by what those that it has will open yet."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import InvalidRequest
from logboom.records import RecordBlock
from logboom.settings import LogSettings, Settings
from logboom.types import NO_DIGEST, DurabilityMode, PartitionId, Term
from partitions.log.batch import build_batch
from raftlog.entries.lifecycle import PartitionKind
from server.directory.descriptors import FILES_EACH, FILES_KEPT, FILES_OF_STATE, FILES_SPARE, Descriptors
from server.directory.partitions import PartitionRooms
from tests.unit.partitions.batches import PRODUCER, flush

ROOT = Path("/data/partitions")
LOGS = 100


class Few:
    """A process that can have so many more files open."""

    def __init__(self, left: int | None) -> None:
        self.left = left

    def files_left(self) -> int | None:
        return self.left

    def no_files_left(self, more: int) -> str | None:
        return None if self.left is None or more <= self.left else "250 of 256 file descriptors are taken"


def rooms_of(few: Few, *, logs: int = 0, settings: Settings | None = None, machine: str = "log") -> PartitionRooms:
    disk = SimDisk(random.Random(0))
    disk.make_directory(ROOT)
    rooms = PartitionRooms(
        settings=settings or Settings(),
        world=cast(
            Any, SimpleNamespace(disk=disk, clock=None, files_left=few.files_left, no_files_left=few.no_files_left)
        ),
        data_dir=cast(Any, SimpleNamespace(partition=lambda p: ROOT / str(p))),
        sets=cast(Any, None),
        fatal=lambda _: None,
    )
    for number in range(logs):
        partition = PartitionId(number)
        rooms.logs[partition] = rooms.open_log(partition, PartitionKind(machine, DurabilityMode.WRITE_AHEAD))
    return rooms


def write(rooms: PartitionRooms, number: int) -> None:
    """One committed batch."""
    log = rooms.logs[PartitionId(number)]
    batch = build_batch(
        partition_id=log.partition_id,
        first_index=1,
        term=Term(1),
        timestamp_ms=1,
        producer=PRODUCER,
        epoch=0,
        sequence=0,
        records=RecordBlock.from_columns(payloads=[b"x"]),
        previous_digest=NO_DIGEST,
    )
    assert log.append(batch)
    flush(log)
    log.commit(last_index=batch.last_index, digest=batch.digest, global_index=batch.last_index, term=1)


def test_another_partition_is_refused_while_there_is_no_room_for_its_files() -> None:
    """Found by review: whoever created partitions until descriptors ran out ended all nodes, at every start, too."""
    few = Few(FILES_SPARE + 2 * FILES_EACH)
    rooms = rooms_of(few)
    rooms.check_room(2)
    few.left = FILES_SPARE + 2 * FILES_EACH - 1
    with pytest.raises(InvalidRequest, match=r"no room for another partition: 250 of 256 file descriptors are taken$"):
        rooms.check_room(2)
    few.left = FILES_KEPT + 3 * FILES_EACH
    assert rooms.waits_for_files(3) is None
    few.left -= 1
    assert rooms.waits_for_files(3) is not None


def test_what_is_there_and_was_not_written_to_yet_has_its_files_to_come() -> None:
    """Found by reading: logs open nothing before their first batch, which nobody can refuse."""
    few = Few(LOGS + FILES_SPARE + FILES_EACH)
    rooms = rooms_of(few, logs=LOGS)
    rooms.check_room(1)
    assert rooms.room() == 1
    few.left = LOGS + 20
    with pytest.raises(InvalidRequest, match=f"taken; {LOGS} more are for partitions that nobody has written to"):
        rooms.check_room(1)
    assert rooms.waits_for_files(1) is not None
    assert rooms.room() == 0
    write(rooms, 0)
    few.left = LOGS - 1 + FILES_SPARE + FILES_EACH
    rooms.check_room(1)
    assert rooms.room() == 1
    few.left = LOGS - 1 + FILES_KEPT + FILES_EACH
    assert rooms.waits_for_files(1) is None


def test_what_was_destroyed_has_a_state_to_open_at_a_start() -> None:
    """Found by reading: a node that had room enough had none at its next start, nor at any other."""
    gone = 10
    few = Few(FILES_OF_STATE * gone + FILES_SPARE + FILES_EACH)
    rooms = rooms_of(few, logs=gone, machine="kv")
    for number in range(gone):
        write(rooms, number)
        rooms.destroyed.add(PartitionId(number))
    rooms.destroyed.add(PartitionId(gone))  # never opened here, nor will it be
    rooms.check_room(1)
    assert rooms.room() == 1
    few.left = FILES_OF_STATE * gone + FILES_SPARE + FILES_EACH - 1
    told = f"taken; {FILES_OF_STATE * gone} more are for partitions that were destroyed: two snapshots give them back"
    with pytest.raises(InvalidRequest, match=told):
        rooms.check_room(1)
    assert rooms.room() == 0
    few.left = FILES_OF_STATE * gone + FILES_KEPT + FILES_EACH - 1
    assert rooms.waits_for_files(1) is not None
    rooms.ending[PartitionId(0)] = cast(Any, None)  # not closed yet: those files are among what is taken
    assert rooms.waits_for_files(1) is None


@pytest.mark.parametrize("left", [FILES_KEPT, FILES_KEPT + 1])
def test_one_for_a_log_that_cannot_wait_is_left_whatever_was_destroyed(left: int) -> None:
    few = Few(LOGS - 1 + left)
    rooms = rooms_of(few, logs=LOGS, machine="kv")
    write(rooms, 0)
    rooms.destroyed.update(map(PartitionId, range(LOGS)))
    assert rooms.waits_for_files(1) is not None
    assert rooms.file_left() is (left > FILES_KEPT)


def test_what_was_destroyed_and_has_no_state_wants_none_at_a_start() -> None:
    few = Few(FILES_SPARE + FILES_EACH)
    rooms = rooms_of(few, logs=1)
    write(rooms, 0)
    rooms._kinds[PartitionId(0)] = PartitionKind("log", DurabilityMode.WRITE_AHEAD)
    rooms.destroyed.add(PartitionId(0))
    rooms.check_room(1)


@pytest.mark.parametrize(("spare", "counted"), [(0, 0), (-1, 1)])
def test_those_that_were_destroyed_are_counted_only_where_that_matters(spare: int, counted: int) -> None:
    """There may be thousands, and it is asked for each that is to be opened."""
    gone, asked = set(map(PartitionId, range(LOGS))), list[int]()
    few: Any = Few(FILES_OF_STATE * LOGS + FILES_KEPT + FILES_EACH + spare)
    descriptors = Descriptors(few, {}, gone, lambda: asked.append(1) or 1)  # type: ignore[func-returns-value]
    assert descriptors.waits(1) is None
    assert len(asked) == counted


def test_files_of_readers_are_none_that_a_start_lacks() -> None:
    """They are closed by then. Whoever opens one has not to count what was destroyed."""
    gone, few = set(map(PartitionId, range(LOGS))), cast(Any, Few(FILES_SPARE))
    readers, wanted = FILES_OF_STATE * LOGS - 5, FILES_KEPT + FILES_EACH
    descriptors = Descriptors(few, {}, gone, lambda: LOGS, lambda: readers)
    assert descriptors.to_spare()
    few.left -= 1
    assert not descriptors.to_spare()
    few.left = wanted + 5
    assert descriptors.waits(1) is None
    few.left -= 1
    assert "; 5 more are for partitions that were destroyed" in str(descriptors.waits(1))


@pytest.mark.parametrize(
    ("left", "room"), [(None, None), (0, 0), (FILES_SPARE + FILES_EACH - 1, 0), (FILES_SPARE + 2 * FILES_EACH + 1, 2)]
)
def test_others_are_told_for_how_many_more_there_are_files(left: int | None, room: int | None) -> None:
    assert rooms_of(Few(left)).room() == room


@pytest.mark.parametrize(("few", "kept"), [(False, 3), (True, 0)])
def test_over_all_logs_readers_keep_no_more_open_than_they_may(few: bool, kept: int) -> None:
    """Found by reading: each log kept a file for those who had read it, however many there are."""
    settings = Settings(log=LogSettings(open_files_node_max=3))
    process = Few(FILES_SPARE + 10)
    rooms = rooms_of(process, logs=10, settings=settings)
    for number in range(10):
        write(rooms, number)
    process.left = FILES_SPARE - 1 if few else FILES_SPARE
    for log in rooms.logs.values():
        assert log.read_committed(after_index=0, through_index=log.committed_index, max_bytes=1 << 20)
    assert sum(log._reader.files.count for log in rooms.logs.values()) == rooms._shelf.count == kept
    rooms.destroyed.update(map(PartitionId, range(5)))
    process.left = FILES_SPARE + FILES_EACH + FILES_OF_STATE * 5 - kept
    rooms.check_room(1)
    process.left -= 1
    with pytest.raises(InvalidRequest):
        rooms.check_room(1)
