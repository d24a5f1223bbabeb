"""What the journal alone had synced of a log when the power went: it comes back whatever lies in front of it."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.sim.disk import SimDisk
from dispatcher.pipeline.payloads import PartitionPayloads
from logboom.types import PartitionLogIndex, Term
from partitions.log.batch import Batch
from ports.sync import Redo
from raftlog.entries.entry import Route, pack_control, pack_routes
from raftlog.entries.voids import Void
from raftlog.journal.journal import Journal
from raftlog.repair.recovery import recover
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import append, chain, flush, open_log

JOURNAL = Path("/n1/journal")
COUNT = 6


def journal_on(disk: SimDisk) -> Journal:
    return Journal.open(disk=disk, directory=JOURNAL, cluster_id="c", random_bytes=random.Random(0).randbytes)


def route_of(batch: Batch) -> Route:
    return Route(P, Term(1), PartitionLogIndex(batch.last_index), batch.digest)


@pytest.mark.parametrize("void", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_behind_a_batch_that_is_damaged_or_void_all_that_the_journal_carries_comes_back(
    bad: int, *, void: bool
) -> None:
    """Acknowledged, and synced on every node: they were thrown away at the next start of each."""
    disk, batches = SimDisk(random.Random(1)), chain(COUNT)
    log = open_log(disk)
    append(log, batches[: bad + 1])
    ref = log.find(batches[bad].last_index, batches[bad].digest)
    assert ref is not None
    log.close()
    journal = journal_on(disk)
    for number, batch in enumerate(batches, 2):
        if number - 2 > bad:
            journal.redo(Redo(batch.digest, batch.buffers))
        journal.add(pack_routes([route_of(batch)]), number, 1)
    if void:
        lost = batches[bad]
        said = Void(P, lost.header.first_index, PartitionLogIndex(lost.last_index), lost.digest, cast(Any, bad + 1))
        journal.add(pack_control(said.fields()), COUNT + 2, 1)
    journal.flush()
    journal.close()
    disk.flip(log._path(ref.segment), ref.offset + 90, 1)

    again, journal = open_log(disk), journal_on(disk)
    assert not again.holds(batches[bad].last_index, batches[bad].digest)
    payloads = PartitionPayloads({P: again}, lambda _: None)
    found = recover(journal, payloads, cast(Any, SimpleNamespace(flush=lambda: flush(again))))
    assert found.put_back == COUNT - 1 - bad
    assert all(again.holds(batch.last_index, batch.digest) for batch in batches[bad + 1 :])
    assert [wanted.route for wanted in found.missing] == ([] if void else [route_of(batches[bad])])
    if not void:
        assert payloads.receive(memoryview(b"".join(batches[bad].buffers))) == route_of(batches[bad])
        flush(again)
    for number, batch in enumerate(batches, 1):
        again.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)
    left = [batch for batch in batches if not (void and batch is batches[bad])]
    after = batches[bad].last_index if void else 0
    read = again.read_committed(after_index=after, through_index=1 << 40, max_bytes=1 << 30)
    assert [each.header.digest for each in read] == [each.digest for each in left if each.last_index > after]
