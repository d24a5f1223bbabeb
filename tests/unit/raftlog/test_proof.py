"""After a while of quiet, and at a clean stop, the journal says that its last group was synced."""

from __future__ import annotations

from pathlib import Path

import pytest

from logboom.errors import CorruptData
from raftlog.journal.journal import Journal
from raftlog.journal.outbox import PROVE_AFTER_S, GroupLimits, GroupSync
from tests.unit.raftlog.journal_files import files, grown, opened


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


class Bench:
    """A journal and its group sync, on the loop."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.clock = Clock()
        self.failures: list[BaseException] = []
        self.group = GroupSync(
            journal=journal,
            offload=None,  # type: ignore[arg-type]  # small groups need none
            clock=self.clock,
            synced=lambda: None,
            failed=self.failures.append,
            limits=GroupLimits(),
        )

    def write(self) -> None:
        self.journal.add(b"\x10" + b"r" * 32, self.journal.last_index + 1, 1000)
        self.group.kick()

    def rest(self, seconds: float) -> None:
        self.clock.now += seconds
        self.group.rest()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(grown(tmp_path, 3))


def rotten(directory: Path) -> bool:
    """Some byte of the last entry is turned: is that found, or is the entry forgotten?"""
    path = files(directory)[-1]
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"r" * 32)] ^= 1
    path.write_bytes(raw)
    try:
        opened(directory).close()
    except CorruptData:
        return True
    return False


def test_damage_to_the_last_group_is_found_once_it_was_quiet(bench: Bench, tmp_path: Path) -> None:
    bench.write()
    bench.rest(PROVE_AFTER_S)
    bench.journal.close()
    assert rotten(tmp_path)


def test_and_after_a_clean_stop(bench: Bench, tmp_path: Path) -> None:
    bench.write()
    bench.group.close()
    bench.journal.close()
    assert rotten(tmp_path)


def test_before_it_looks_like_a_torn_write(bench: Bench, tmp_path: Path) -> None:
    bench.write()
    bench.rest(PROVE_AFTER_S / 2)
    bench.journal.close()
    assert not rotten(tmp_path)


def test_it_is_said_once_for_each_time_of_quiet(bench: Bench) -> None:
    bench.write()
    bench.rest(PROVE_AFTER_S)
    written = bench.journal.taken_sequence
    for _ in range(5):
        bench.rest(PROVE_AFTER_S)
    assert bench.journal.taken_sequence == written
    bench.write()
    bench.rest(PROVE_AFTER_S)
    bench.group.close()
    assert bench.journal.taken_sequence == written + 2


def test_not_while_something_goes_on(bench: Bench) -> None:
    written = bench.journal.taken_sequence
    for _ in range(5):
        bench.clock.now += PROVE_AFTER_S
        bench.write()
        bench.group.rest()
    assert bench.journal.taken_sequence == written + 5


def test_a_journal_that_holds_nothing_says_nothing(tmp_path: Path) -> None:
    bench = Bench(opened(tmp_path))
    bench.rest(PROVE_AFTER_S)
    bench.group.close()
    assert bench.journal.taken_sequence == 0


def test_not_after_a_sync_that_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written then may never have reached the disk: nothing may say that it has."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no disk")

    with monkeypatch.context() as patch:
        patch.setattr(bench.journal, "write", refuse)
        bench.write()
    assert len(bench.failures) == 1
    bench.rest(PROVE_AFTER_S)
    bench.group.close()
    assert bench.journal.taken_sequence == 5, "the entry that failed is the last that was taken"


def test_a_disk_that_fails_at_the_end_is_told_of(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no disk")

    bench.write()
    monkeypatch.setattr(bench.journal, "write", refuse)
    bench.group.close()
    assert [str(error) for error in bench.failures] == ["no disk"]


def test_what_was_proven_is_as_it_was(bench: Bench, tmp_path: Path) -> None:
    bench.write()
    bench.rest(PROVE_AFTER_S)
    entries, term, vote = list(bench.journal.entries), bench.journal.term, bench.journal.vote
    bench.journal.close()
    again = opened(tmp_path)
    assert (list(again.entries), again.term, again.vote) == (entries, term, vote)
    again.close()
