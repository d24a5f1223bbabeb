"""Persist before send (I3)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ports.invariant import InvariantViolated
from ports.sync import Redo
from raftlog.journal.journal_base import Base
from raftlog.journal.outbox import _Chore
from tests.unit.raftlog.outbox_world import Offload, Target, group_of


def test_nothing_dirty_releases_at_once() -> None:
    sent: list[str] = []
    group = group_of(Offload(), Target(), [])
    group.hold(lambda: sent.append("heartbeat"))
    group.kick()
    assert sent == ["heartbeat"]


def test_a_write_queued_while_a_group_is_under_way_holds_its_message() -> None:
    """Found on a real cluster: the end of one group released what depended on the next."""
    offload, journal = Offload(), Target()
    sent: list[int] = []
    group = group_of(offload, journal, [])
    journal.queued = 1
    group.kick()
    journal.queued = 2
    group.hold(lambda: sent.append(journal.synced))
    offload.finish_one()
    assert sent == []
    offload.finish_one()
    assert sent == [2]


def test_a_failed_sync_releases_nothing_ever() -> None:
    offload, journal = Offload(), Target(broken=True)
    sent: list[str] = []
    failures: list[BaseException] = []
    group = group_of(offload, journal, failures)
    journal.queued = 1
    group.hold(lambda: sent.append("acknowledged"))
    group.kick()
    offload.finish_one()
    group.kick()
    assert sent == []
    assert [str(error) for error in failures] == ["no space"]


def test_with_inline_off_a_sync_that_writes_nothing_goes_to_threads_too() -> None:
    offload, journal = Offload(), Target()
    journal.pending_bytes = 0
    group = group_of(offload, journal, [])
    journal.queued = 1
    group.kick()
    assert len(offload.jobs) == 1


class _Journal(Target):
    """Carries what it is given; notes when it is told that it is needed no more."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_sequence = 7
        self.settled_when: list[tuple[int, list[int]]] = []
        self.logs: list[_Log] = []

    def redo(self, batch: Redo) -> None:
        self.queued += 1
        self.redo_bytes += 1

    def settled(self, sequence: int) -> None:
        self.settled_when.append((sequence, [log.own_syncs for log in self.logs]))

    def strip(self, through: int) -> None:
        pass


class _Log(Target):
    """A partition's log: synced by the journal unless it was asked to sync for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False
        self.own_syncs = 0

    def take(self) -> _Log | None:
        self.must_sync, self.asked = self.asked, False
        return self if super().take() is not None or self.must_sync else None

    def redo(self) -> list[Redo]:
        return [] if self.must_sync else [Redo(bytes(16), [b"batch"])]

    def run(self) -> None:
        self.own_syncs += self.must_sync

    def request_sync(self) -> bool:
        self.asked = True
        return True


def test_the_journal_is_needed_until_every_log_that_it_carried_for_has_synced_for_itself() -> None:
    offload, journal = Offload(), _Journal()
    group = group_of(offload, journal, [], unsettled=2)
    journal.logs = [_Log() for _ in range(3)]
    for log in journal.logs:
        log.queued += 1
        group.dirty(log)
    group.kick()
    while offload.jobs:
        assert not journal.settled_when or journal.settled_when == [(7, [1, 1, 1])]
        offload.finish_one()
    assert journal.settled_when == [(7, [1, 1, 1])]


def test_the_journal_is_stripped_and_compacted_one_after_the_other() -> None:
    offload, journal = Offload(), _Journal()
    done: list[str] = []
    journal.strip = lambda through: done.append(f"strip {through}")  # type: ignore[method-assign]
    job = SimpleNamespace(run=lambda: done.append("base"), done=lambda: done.append("in memory"))
    journal.compaction = lambda base: job  # type: ignore[attr-defined]
    group = group_of(offload, journal, [], unsettled=1)
    group.compact(Base(5, 1, b""), lambda: done.append("told"))
    group._do(_Chore(lambda: journal.strip(3)))
    assert len(offload.jobs) == 1, "a strip began beside a compaction"
    offload.finish_one()
    assert done == ["base", "in memory", "told"]
    offload.finish_one()
    assert done[3:] == ["strip 3"]


def test_little_that_the_journal_carries_is_settled_once_it_is_compacted() -> None:
    """One small batch would keep all files behind it, however few follow."""
    offload, journal, log = Offload(), _Journal(), _Log()
    journal.compaction = lambda base: SimpleNamespace(run=lambda: None, done=lambda: None)  # type: ignore[attr-defined]
    group = group_of(offload, journal, [])
    journal.logs = [log]
    log.queued += 1
    group.dirty(log)
    group.kick()
    while offload.jobs:
        offload.finish_one()
    assert journal.settled_when == []
    group.compact(Base(5, 1, b""), lambda: None)
    while offload.jobs:
        offload.finish_one()
    group.kick()
    while offload.jobs:
        offload.finish_one()
    assert journal.settled_when == [(7, [1])]


def test_with_nothing_to_write_after_all_what_is_held_leaves() -> None:
    """A log says that it is dirty, and what it had queued was taken back since."""
    offload, sent = Offload(), list[str]()
    group = group_of(offload, Target(), [])
    group.dirty(Target())
    group.hold(lambda: sent.append("acknowledged"))
    group.kick()
    assert (sent, offload.jobs) == (["acknowledged"], [])


def test_the_journal_carries_so_much_of_a_group_and_no_more() -> None:
    offload, journal = Offload(), _Journal()
    group = group_of(offload, journal, [], redo_group=2)
    for log in [_Log() for _ in range(3)]:
        log.queued += 1
        group.dirty(log)
    group.kick()
    assert journal.redo_bytes == 2
    while offload.jobs:
        offload.finish_one()
    assert group.files == 2  # the journal, and the third


def test_what_the_journal_writes_is_never_more_than_all_that_is_written() -> None:
    """Nor while a group is under way: the difference is a counter outside, and went back."""
    offload, journal = Offload(), _Journal()
    group, log = group_of(offload, journal, []), _Log()
    log.queued += 1
    group.dirty(log)
    group.kick()
    assert offload.jobs
    assert 0 < group.journal_bytes <= group.bytes


@pytest.mark.parametrize("begun", [False, True], ids=["behind", "being settled"])
def test_a_log_that_is_closed_is_not_asked_to_sync_nor_waited_for(begun: bool) -> None:
    offload, journal = Offload(), _Journal()
    group = group_of(offload, journal, [], unsettled=2)
    journal.logs = gone, *others = [_Log() for _ in range(3)]
    for log in journal.logs:
        log.queued += 1
        group.dirty(log)
    group.kick()
    while begun and not any(log.asked or log.own_syncs for log in journal.logs):
        offload.finish_one()
    group.forget(gone)
    while offload.jobs:
        offload.finish_one()
    assert (gone.asked, gone.own_syncs, [log.own_syncs for log in others]) == (False, 0, [1, 1])
    assert len(journal.settled_when) == 1


def test_nothing_is_settled_while_the_journal_is_compacted() -> None:
    """What it carries is written anew meanwhile; a strip would have to wait for that."""
    offload, journal, log = Offload(), _Journal(), _Log()
    journal.compaction = lambda base: SimpleNamespace(run=lambda: None, done=lambda: None)  # type: ignore[attr-defined]
    group = group_of(offload, journal, [], unsettled=0)
    group.compact(Base(5, 1, b""), lambda: None)
    for _ in range(2):
        log.queued += 1
        group.dirty(log)
        group.kick()
        offload.jobs.append(offload.jobs.pop(0))  # the group goes first
        offload.finish_one()
    assert log.own_syncs == 0
    while offload.jobs:
        offload.finish_one()
    group.kick()
    while offload.jobs:
        offload.finish_one()
    assert log.own_syncs == 1


def test_whoever_is_told_of_a_compaction_may_ask_for_the_next() -> None:
    offload, journal, runs = Offload(), _Journal(), list[int]()

    def compaction(base: Base) -> object:
        return SimpleNamespace(run=lambda: runs.append(base.index), done=lambda: None)

    journal.compaction = compaction  # type: ignore[attr-defined]
    group = group_of(offload, journal, [])
    group.compact(Base(5, 1, b""), lambda: group.compact(Base(6, 1, b""), lambda: None))
    while offload.jobs:
        assert len(offload.jobs) == 1
        offload.finish_one()
    assert runs == [5, 6]


def test_closed_it_hands_nothing_to_threads_that_are_about_to_end() -> None:
    """A group's second half, and whatever else follows: they refuse it, and a node that stopped logged an error."""
    offload, journal, alone = Offload(), _Journal(), _Log()
    sent: list[str] = []
    journal.compaction = lambda base: SimpleNamespace(run=lambda: None, done=lambda: None)  # type: ignore[attr-defined]
    group = group_of(offload, journal, [])
    alone.asked, alone.queued, journal.queued = True, 1, 1
    group.dirty(alone)
    group.hold(lambda: sent.append("acknowledged"))
    group.kick()
    group.compact(Base(5, 1, b""), lambda: sent.append("compacted"))
    group.compact(Base(6, 1, b""), lambda: sent.append("compacted"))
    assert len(offload.jobs) == 2
    group.close()
    while offload.jobs:
        offload.finish_one()
    group.kick()
    assert (offload.jobs, sent, alone.own_syncs, journal.synced) == ([], [], 1, 0)


class _Noting(Target):
    """Says what happens to it."""

    def __init__(self, name: str, notes: list[str]) -> None:
        super().__init__()
        self.name, self.notes = name, notes

    def redo(self) -> list[Redo]:
        return []

    def begin(self) -> None:
        self.notes.append(f"begin {self.name}")

    def run(self) -> None:
        super().run()
        self.notes.append(f"run {self.name}")


def _two_shares(notes: list[str], failures: list[BaseException]) -> tuple[Offload, list[_Noting], list[str]]:
    """Of three logs on two threads, and the journal; under way."""
    offload, journal, sent = Offload(), _Noting("journal", notes), []
    group = group_of(offload, journal, failures, parallel=2)
    logs = [_Noting(name, notes) for name in "abc"]
    for each in logs:
        group.dirty(each)
    for each in (*logs, journal):
        each.queued = 1
    group.hold(lambda: sent.append("acknowledged"))
    group.kick()
    return offload, logs, sent


def test_whose_share_ends_last_writes_the_journal_and_no_other_thread_is_woken_for_it() -> None:
    notes: list[str] = []
    offload, _, sent = _two_shares(notes, [])
    offload.jobs.reverse()
    offload.finish_one()
    assert (notes, sent) == (["run b"], [])
    offload.finish_one()
    assert notes[-1] == "run journal"
    assert (sent, offload.jobs) == (["acknowledged"], [])


def test_a_thread_has_the_disk_begin_with_all_its_files_before_it_waits_for_one() -> None:
    notes: list[str] = []
    offload, _, _ = _two_shares(notes, [])
    offload.finish_one()
    assert notes == ["begin c", "run a", "run c"]
    offload.finish_one()
    assert notes[3:] == ["run b", "run journal"], "one alone is written and synced in one go"


def test_the_journal_is_not_written_if_any_log_has_failed_whichever_ends_last() -> None:
    for order in (1, -1):
        for broken in range(3):
            notes: list[str] = []
            failures: list[BaseException] = []
            offload, logs, sent = _two_shares(notes, failures)
            logs[broken].broken = True
            offload.jobs[:] = offload.jobs[::order]
            while offload.jobs:
                offload.finish_one()
            assert ("run journal" in notes, sent) == (False, [])
            assert [str(each) for each in failures] == ["no space"]


def test_a_compaction_that_fails_is_final() -> None:
    offload, journal = Offload(), _Journal()
    failures: list[BaseException] = []
    done: list[str] = []

    def run() -> None:
        raise OSError("no space")

    journal.compaction = lambda base: SimpleNamespace(run=run, done=lambda: done.append("in memory"))  # type: ignore[attr-defined]
    group = group_of(offload, journal, failures)
    group.compact(Base(5, 1, b""), lambda: done.append("told"))
    offload.finish_one()
    group.compact(Base(6, 1, b""), lambda: done.append("told"))
    assert (done, [str(each) for each in failures], offload.jobs) == ([], ["no space"], [])


@pytest.mark.parametrize("error", [OSError("no space"), MemoryError(), InvariantViolated("a story")])
@pytest.mark.parametrize("inline", [0, 1000])
def test_whatever_goes_wrong_with_a_group_ends_the_node_on_the_loop_as_on_threads(
    error: BaseException, inline: int
) -> None:
    """What was no OSError left one behind, on the loop, that lived and synced nothing any more."""
    offload, journal, failures, sent = Offload(), Target(raises=error), list[BaseException](), list[str]()
    group = group_of(offload, journal, failures, inline=inline)
    journal.queued = 1
    group.hold(lambda: sent.append("acknowledged"))
    group.kick()
    while offload.jobs:
        offload.finish_one()
    assert failures == [error]
    journal.raises, journal.queued = None, 2
    group.kick()
    assert (sent, journal.synced) == ([], 0), "final"
