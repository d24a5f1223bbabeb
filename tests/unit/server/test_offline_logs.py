"""What ``verify`` says of one partition's log whose places were written before a batch of it was declared void."""

from __future__ import annotations

import random
from collections.abc import Container
from pathlib import Path

import pytest

from chaos.sim.disk import SimDisk
from chaos.sim.inode import ShortWrite
from logboom.types import DIGEST_BYTES, PartitionLogIndex
from partitions.log.segment import SEGMENT_HEADER_BYTES
from raftlog.entries.parent_state import Tail
from server.offline.findings import Report
from server.offline.inspect import inspect
from server.offline.logs import check_log
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import DIRECTORY, append, base_at, chain, commit, grown, open_log


def checked(disk: SimDisk, tail: Tail, void: Container[bytes]) -> Report:
    report = Report(DIRECTORY, "data")
    check_log(disk, DIRECTORY, P, tail=tail, routes=[], carried=(), void=void, report=report)
    return report


def test_what_became_void_behind_the_places_is_not_missed() -> None:
    disk, log, batches = grown()
    base = base_at(batches, len(batches))
    log.save_places(base.last_index)()
    ref = log.find(batches[2].last_index, batches[2].digest)
    assert ref is not None
    tail = Tail(base.last_index, base.digest)
    assert not checked(disk, tail, ()).damaged
    disk.flip(log._path(ref.segment), ref.offset + 130, 1)
    assert checked(disk, tail, ()).damaged, "the batch is damaged, and somebody needs it"
    assert not checked(disk, tail, (batches[2].digest,)).damaged, "nobody needs it any more"
    assert checked(disk, tail, (batches[3].digest,)).damaged, "another one is void"


def test_what_is_lost_on_all_nodes_is_no_damage_to_a_segment(tmp_path: Path) -> None:
    """It was, to one that was whole, at an offset of 2^62, and a peer would mend it."""
    disk, batches = SimDisk(random.Random(1)), chain(9)
    log, lost = open_log(disk), batches[4]
    append(log, batches[:4])
    log.concede(lost.last_index, lost.digest)
    append(log, batches[5:])
    commit(log, batches)
    log.excuse(lost.last_index)
    base = base_at(batches, len(batches))
    log.save_places(base.last_index)()
    (found,) = checked(disk, Tail(base.last_index, base.digest), ()).findings
    assert (found.path, found.offset) == (str(DIRECTORY / "places"), None)
    assert found.problem == f"the committed batch that ends at {lost.last_index} was lost on all nodes"
    assert "`logboom partitions void`" in found.advice
    (tmp_path / "places").write_bytes(disk.read_file(DIRECTORY / "places"))
    _, rows = inspect("places", tmp_path / "places")
    assert [row["lost"] for row in rows] == [number == 4 for number in range(9)]


def test_damage_that_a_log_begins_behind_is_none_once_its_places_say_so() -> None:
    """Its segment stays until the log is compacted, with what others have removed, and what is damaged."""
    disk, log, batches = grown()
    base, gone = base_at(batches, len(batches)), batches[5]
    log.save_places(base.last_index)()
    ref = log.find(gone.last_index, gone.digest)
    assert ref is not None
    disk.flip(log._path(ref.segment), ref.offset + 130, 1)
    tail = Tail(base.last_index, base.digest)
    assert checked(disk, tail, ()).damaged
    assert log.begin_behind(gone.last_index, gone.digest, now=0.0)
    log.save_places(base.last_index)()
    report = checked(disk, tail, ())
    assert not report.damaged, [each.problem for each in report.findings]


@pytest.mark.parametrize("kept", [*range(1, SEGMENT_HEADER_BYTES)])
def test_a_segment_with_a_part_of_its_header_is_made_anew_by_the_next_start(kept: int) -> None:
    """Found by reading: a sound data directory was to be moved away."""
    disk = SimDisk(random.Random(1))
    disk.make_directory(DIRECTORY)

    def hook(operation: str, path: Path, size: int) -> None:
        if operation == "write":
            raise ShortWrite(kept)

    disk.hook = hook
    with pytest.raises(OSError, match="Input/output"):
        append(open_log(disk), chain(1))
    disk.hook = None
    disk.kill()
    report = checked(disk, Tail(PartitionLogIndex(0), bytes(DIGEST_BYTES)), ())
    assert not report.damaged
    assert [finding.problem for finding in report.findings] == ["its header was never written"]
    append(open_log(disk), chain(1))


def test_one_with_batches_behind_a_part_of_its_header_is_damaged() -> None:
    disk, batches = SimDisk(random.Random(1)), chain(1)
    log = open_log(disk)
    append(log, batches)
    (path,) = (each for each in disk.paths() if each.suffix == ".log")
    for at in range(16, SEGMENT_HEADER_BYTES):
        disk.flip(path, at, disk.read_file(path)[at])
    assert checked(disk, Tail(PartitionLogIndex(0), bytes(DIGEST_BYTES)), ()).damaged
