"""After a start nothing is shown that may be less than what was shown before (I7)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline.recovered import Recovered
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex

P0, P7 = PartitionId(0), PartitionId(7)


class Replay:
    """A log of which entries up to 20 are known to be committed; ``handed_up`` so far."""

    def __init__(self) -> None:
        self.marks = Watermarks([P0])
        self.recovered = Recovered([P0])
        self.engine: Any = SimpleNamespace(applied_index=1, covering_commit=lambda: 20)

    def applied(self, partition_id: PartitionId, global_index: int) -> None:
        index = PartitionLogIndex(global_index)
        self.marks.update(
            partition_id,
            log_index=index,
            durable_index=index,
            applied_index=index,
            applied_global_index=GlobalLogIndex(global_index),
            state="running",
        )

    def look(self, handed_up: int, global_index: int) -> None:
        self.engine.applied_index = handed_up
        self.recovered.notice(self.engine, GlobalLogIndex(global_index), self.marks)


def test_a_partition_that_the_log_creates_again_is_shown_when_it_has_come_as_far_as_all() -> None:
    """Found by the simulator (I7, seed 39): it took longer to open than the others took to recover."""
    replay = Replay()
    replay.recovered.add(P7)  # handed up, and not open yet
    replay.applied(P0, 9)
    replay.look(handed_up=20, global_index=9)
    assert replay.recovered.of([P0])
    assert not replay.recovered.over
    replay.recovered.add(P7)  # open, with less than it has shown before
    replay.marks.add(P7)
    replay.applied(P7, 5)
    replay.look(handed_up=20, global_index=9)
    assert not replay.recovered.of([P7])
    replay.applied(P7, 9)
    replay.look(handed_up=20, global_index=9)
    assert replay.recovered.over


def test_all_partitions_are_known_when_what_was_committed_is_handed_up_though_not_all_is_applied() -> None:
    replay = Replay()
    assert not replay.recovered.complete
    replay.look(handed_up=19, global_index=9)
    assert not replay.recovered.complete
    replay.look(handed_up=20, global_index=9)
    assert replay.recovered.complete
    assert not replay.recovered.over


def test_a_log_has_come_back_as_soon_as_what_was_committed_is_durable_however_far_it_is_applied() -> None:
    replay = Replay()

    def logged(partition: PartitionId, undurable_from: int | None) -> bool:
        waits = None if undurable_from is None else GlobalLogIndex(undurable_from)
        return replay.recovered.logged(partition, undurable_from=waits)

    replay.look(handed_up=19, global_index=9)
    assert not logged(P0, None)  # more may have been committed
    assert logged(P7, None)
    replay.look(handed_up=20, global_index=9)
    assert logged(P0, None)
    assert not logged(P0, 9)
    assert logged(P0, 10)  # it came since
    assert not replay.recovered.of([P0])
    replay.applied(P0, 9)
    replay.look(handed_up=20, global_index=9)
    assert logged(P0, 9)


def test_a_partition_that_is_created_later_is_shown_at_once() -> None:
    replay = Replay()
    replay.applied(P0, 9)
    replay.look(handed_up=20, global_index=9)
    assert replay.recovered.over
    replay.recovered.add(P7)
    assert replay.recovered.over


def test_a_partition_that_is_gone_is_not_waited_for() -> None:
    replay = Replay()
    replay.recovered.add(P7)
    replay.applied(P0, 9)
    replay.look(handed_up=20, global_index=9)
    replay.recovered.remove(P7)
    assert replay.recovered.over


def test_nothing_is_shown_before_all_that_was_committed_is_handed_up_and_applied() -> None:
    replay = Replay()
    replay.engine.covering_commit = lambda: None  # nobody has said how far it goes
    replay.applied(P0, 9)
    replay.look(handed_up=99, global_index=9)
    assert not replay.recovered.over
    replay.engine.covering_commit = lambda: 20
    replay.look(handed_up=19, global_index=9)
    assert not replay.recovered.over
    replay.engine.covering_commit = lambda: 40  # what was heard first will do
    replay.look(handed_up=20, global_index=12)
    assert not replay.recovered.over
    replay.applied(P0, 12)
    replay.look(handed_up=30, global_index=50)  # nor is what comes later waited for
    assert replay.recovered.over


def test_a_partition_of_which_nothing_is_known_yet_is_hidden_until_all_is() -> None:
    replay = Replay()
    replay.recovered.remove(P0)
    replay.recovered.add(P7)
    assert not replay.recovered.of([P7])


def test_ten_thousand_partitions_are_not_all_looked_at_again_for_each_that_comes_further() -> None:
    """Each group that one of them applied had all others looked at that had not recovered: half of 10,000 squared."""
    count = 1_000
    looked = 0

    class Counted(Watermarks):
        def of(self, partition_id: PartitionId) -> Any:
            nonlocal looked
            looked += 1
            return super().of(partition_id)

    replay, partitions = Replay(), [PartitionId(p) for p in range(count)]
    replay.marks, replay.recovered = Counted(partitions), Recovered(partitions)
    replay.look(handed_up=20, global_index=9)
    assert looked == count
    for partition in partitions:
        replay.applied(partition, 9)
        before, looked = looked, 0
        if partition % 2:
            replay.recovered.applied(partition, replay.marks)
        else:  # as when something of it was committed
            moved = {partition, PartitionId(count + 1)}
            replay.recovered.notice(replay.engine, GlobalLogIndex(9), replay.marks, moved)
        assert looked == 1, before
        assert replay.recovered.of([partition])
    assert replay.recovered.over


def test_what_is_applied_before_it_is_known_how_far_is_seen_when_that_is() -> None:
    replay = Replay()
    replay.applied(P0, 9)
    replay.recovered.applied(P0, replay.marks)
    assert not replay.recovered.over
    replay.recovered.notice(replay.engine, GlobalLogIndex(9), replay.marks, set())
    assert not replay.recovered.over  # handed up to 1, of 20
    replay.engine.applied_index = 20
    replay.recovered.notice(replay.engine, GlobalLogIndex(9), replay.marks, set())
    assert replay.recovered.over
