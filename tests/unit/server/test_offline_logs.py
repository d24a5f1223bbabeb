"""What ``verify`` says of one partition's log whose places were written before a batch of it was declared void."""

from __future__ import annotations

from collections.abc import Container

from chaos.sim.disk import SimDisk
from raftlog.entries.parent_state import Tail
from server.offline.findings import Report
from server.offline.logs import check_log
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import DIRECTORY, base_at, grown


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
