"""When a snapshot is due after a start: what was written before it counts.

Found by reading: it counted for nothing, and who was never up for long took no set.
"""

from __future__ import annotations

import pytest

from dispatcher.upkeep.snapshotting import CUT
from dispatcher.upkeep.written import LOOKED_AT
from logboom.types import MIB, PartitionId
from tests.unit.dispatcher.snapshotting_bench import Bench


def with_a_set(**settings: int) -> Bench:
    """A node that starts with one, at 15, and whose logs are not recovered yet."""
    before = Bench(partitions=settings.get("partitions", 2))
    before.cut(15)
    before.offload.run()
    bench = Bench(store=before.store, **settings)
    bench.global_index = 15
    return bench


@pytest.mark.parametrize("reclaimable", [True, False])
def test_what_was_written_since_the_last_set_counts(*, reclaimable: bool) -> None:
    bench = with_a_set(log_bytes=3 * MIB)
    bench.found(3 * MIB, reclaimable=reclaimable)
    bench.taking.tick()
    assert bench.proposed == []
    bench.recovered = True
    bench.taking.tick()
    assert bench.proposed == [CUT]


def test_but_not_what_is_in_the_set() -> None:
    bench = with_a_set(log_bytes=3 * MIB)
    bench.workers[PartitionId(0)].log.batches = [(9, 3 * MIB), (10, 3 * MIB)]
    bench.found(3 * MIB - 1)
    bench.recovered = True
    bench.taking.tick()
    assert bench.proposed == []
    bench.applied(1)
    bench.taking.tick()
    assert bench.proposed == [CUT]


@pytest.mark.parametrize("partitions", [2, LOOKED_AT + 1])
def test_what_is_replayed_counts_once(partitions: int) -> None:
    """Of many it is replayed while they are looked at, in turn."""
    bench = with_a_set(log_bytes=3 * MIB, partitions=partitions)
    bench.found(MIB)
    bench.found(MIB)
    bench.applied(MIB)  # the first of both, and the other one is still to come
    bench.workers[PartitionId(0)].applied_index -= 1
    bench.recovered = True
    bench.taking.tick()
    bench.applied(MIB)
    bench.workers[PartitionId(0)].applied_index += 1
    bench.taking.tick()
    assert bench.proposed == []
    bench.applied(MIB)
    bench.taking.tick()
    assert bench.proposed == [CUT]


def test_what_is_in_the_set_and_is_replayed_does_not() -> None:
    bench = with_a_set(log_bytes=3 * MIB)
    bench.global_index += 1
    worker = bench.workers[PartitionId(0)]
    worker.log.batches, worker.applied_index = [(9, MIB), (10, 3 * MIB)], 9
    bench.recovered = True
    bench.taking.tick()
    bench.applied(3 * MIB)
    bench.taking.tick()
    assert bench.proposed == []


def test_what_is_in_the_set_and_will_never_be_replayed_takes_nothing_from_what_others_have() -> None:
    bench = with_a_set(log_bytes=3 * MIB)
    bench.found(3 * MIB)
    gone = bench.workers[PartitionId(1)]
    gone.log.batches, gone.applied_index, gone.useless = [(10, 3 * MIB)], 9, True
    bench.recovered = True
    bench.taking.tick()
    assert bench.proposed == [CUT]


def test_where_many_are_looked_at_a_set_that_comes_meanwhile_is_the_last() -> None:
    bench = with_a_set(partitions=LOOKED_AT + 1, log_bytes=3 * MIB)
    bench.found(3 * MIB)
    bench.recovered = True
    bench.taking.tick()
    assert bench.proposed == []
    bench.workers[PartitionId(0)].applied_index = 10
    bench.cut(16)
    bench.workers[PartitionId(0)].log.batches = [(10, 3 * MIB)]
    bench.offload.run()
    bench.global_index += 1
    for _ in range(4):
        bench.taking.tick()
    assert bench.proposed == []


def test_what_was_written_before_one_that_came_to_nothing_counts() -> None:
    """Its cut is in the journal, and replayed; at each start anew."""
    bench = with_a_set(log_bytes=3 * MIB)
    bench.found(3 * MIB)
    bench.cut(16)  # which is past
    bench.global_index += 1
    bench.recovered = True
    bench.taking.tick()
    assert bench.proposed == [CUT]


@pytest.mark.parametrize("set_back", [False, True])
def test_it_is_as_old_as_the_last_set_says(*, set_back: bool) -> None:
    bench = with_a_set(age_ms=3_600_000)
    bench.recovered = True
    bench.wall_ms = -5_000_000 if set_back else 1 + 3_599_000
    bench.taking.tick()
    bench.global_index += 1
    bench.now = 0.9
    bench.taking.tick()
    assert bench.proposed == []
    bench.now = 3600.0 if set_back else 1.0
    bench.taking.tick()
    assert bench.proposed == [CUT]
