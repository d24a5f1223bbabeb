"""Pace: those who ask for much are slowed down as far as those who ask for little would notice, and no further."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Any, Final

import pytest

from dispatcher.admission.admission import Admission, Ticket
from dispatcher.admission.budgets import Parts
from dispatcher.admission.pace import ALONE_S, BATCH_COST, GATE, SMALL, STEP_S, Pace
from logboom.errors import Overloaded
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId

A: Final = PartitionId(0)
TARGET_S: Final = 0.010
LEAST: Final = 100_000
BLOCK: Final = 50_000
COMMAND: Final = 100


def settings(**changes: Any) -> AdmissionSettings:
    return AdmissionSettings(**{"light_commit_ms": round(TARGET_S * 1000), "pace_bytes_per_s_min": LEAST, **changes})


def parts(nbytes: int) -> Parts:
    return [(A, 1, nbytes)]


class Machine:
    """Commits so many bytes a second, first come, first served; asks every millisecond on behalf of everybody."""

    def __init__(self, pace: Pace, *, bytes_per_s: float = 20e6) -> None:
        self.pace = pace
        self.bytes_per_s = bytes_per_s
        self.now = 0.0
        self.done: Counter[str] = Counter()
        """Bytes, by principal."""
        self.refused: Counter[str] = Counter()
        self.took: list[float] = []
        """Of light ones."""
        self._free_at = 0.0
        self._under_way: deque[tuple[float, float | None]] = deque()

    def ask(self, principal: str, nbytes: int) -> bool:
        if self.pace.refusal(parts(nbytes), self.now, principal) is not None:
            self.refused[principal] += 1
            return False
        timed = self.pace.take(parts(nbytes), self.now, principal)
        self._free_at = max(self._free_at, self.now) + (nbytes + BATCH_COST) / self.bytes_per_s
        self._under_way.append((self._free_at, self.now if timed else None))
        self.done[principal] += nbytes
        return True

    def run(self, seconds: float, *, light: int = 1, heavy: int = 1, size: int = BLOCK, queue_s: float = 0.2) -> None:
        """Light ones ask fifty times a second; heavy ones whenever less is under way than ``queue_s`` takes."""
        began, last = self.now, self.now + seconds
        step = round(began * 1000)
        while self.now < last:
            step += 1
            self.now = step / 1000
            while self._under_way and self._under_way[0][0] <= self.now:
                at, since = self._under_way.popleft()
                if since is not None:
                    self.pace.committed(since, at)
                    self.took.append(at - since)
            for k in range(light):
                if (step + k) % 20 == 0:
                    self.ask(f"light {k}", COMMAND)
            for k in range(heavy):
                if self._free_at - self.now < queue_s:
                    self.ask(f"heavy {(k + step) % heavy}", size)
            self.pace.tick(self.now)
        self.pace.audit()

    def late(self) -> float:
        """Share of those since this was asked last."""
        took, self.took = self.took, []
        return sum(each > TARGET_S for each in took) / len(took)


@pytest.fixture
def machine() -> Machine:
    return Machine(Pace(settings()))


def test_without_a_target_there_is_none() -> None:
    assert not Pace(settings(light_commit_ms=0)).on
    admission = Admission(settings(light_commit_ms=0), [A])
    ticket = admission.try_admit(parts(COMMAND), 0.0, "p")
    assert isinstance(ticket, Ticket)
    assert ticket.timed_since is None


def test_until_somebody_light_is_late_nobody_is_slowed_down(machine: Machine) -> None:
    machine.run(5.0, queue_s=0.001)
    assert machine.late() == 0
    assert (machine.pace.per_s, sum(machine.refused.values())) == (math.inf, 0)


def test_it_settles_where_one_light_command_in_a_hundred_is_late(machine: Machine) -> None:
    """Without it nine of ten are, as the queue is twenty times as long as the target."""
    machine.run(1.0)
    assert machine.late() > 0.1
    machine.run(20.0)
    machine.late()
    before = machine.done["heavy 0"]
    machine.run(200.0)
    assert 0.001 <= machine.late() <= 0.02
    assert machine.done["heavy 0"] - before > 0.2 * 200 * machine.bytes_per_s
    assert machine.refused["light 0"] == 0


def test_many_light_ones_mean_the_same_as_a_few(machine: Machine) -> None:
    """Each that is late counted as much as the only one: a hundred of them had stopped whoever asks for much."""
    machine.run(10.0, light=100)
    machine.late()
    before = machine.done["heavy 0"]
    machine.run(30.0, light=100)
    assert machine.late() <= 0.03
    assert machine.done["heavy 0"] - before > 0.2 * 30 * machine.bytes_per_s


def test_light_ones_are_let_in_however_much_is_owed(machine: Machine) -> None:
    """A large request of somebody else was owed for longer than a burst, and whoever came then waited for that."""
    machine.run(20.0, size=1_000_000, queue_s=0.5)
    assert machine.pace.per_s < math.inf
    assert machine.refused["heavy 0"] > 0
    assert machine.refused["light 0"] == 0


def test_heavy_ones_share_it(machine: Machine) -> None:
    machine.run(30.0, heavy=3)
    done = [machine.done[f"heavy {k}"] for k in range(3)]
    assert min(done) > 0.7 * max(done)


def test_while_nobody_light_is_there_it_grows(machine: Machine) -> None:
    machine.run(10.0)
    slow = machine.pace.per_s
    assert slow < machine.bytes_per_s
    machine.run(ALONE_S + 10.0, light=0)
    assert machine.pace.per_s > machine.bytes_per_s > 1.2 * slow


def test_it_stays_while_nobody_asks_for_more(machine: Machine) -> None:
    machine.run(10.0)
    machine.run(1.0, heavy=0)
    slow = machine.pace.per_s
    machine.run(60.0, heavy=0)
    assert machine.pace.per_s == slow


@pytest.mark.parametrize(("light", "is_lowered"), [(2, True), (100, False)])
def test_it_falls_only_where_heavy_ones_have_most_of_it(light: int, is_lowered: bool) -> None:
    """A disk that stands still makes everybody late: slowing down the few that write more would help nobody."""
    pace = Pace(settings())
    for step in range(50):
        now = step * STEP_S
        for _ in range(20):
            pace.take(parts(COMMAND), now, "heavy")
        timed = [pace.take(parts(COMMAND), now, f"light {k}") for k in range(light)]
        assert all(timed[1:])
        for _ in timed:
            pace.committed(now - 1.0, now)
        pace.tick(now)
    assert (pace.per_s < math.inf) is is_lowered


def test_there_is_a_least() -> None:
    """A target that cannot be met stops nobody for good."""
    machine = Machine(Pace(settings()), bytes_per_s=400_000)
    machine.run(20.0)
    assert machine.pace.per_s == pytest.approx(LEAST, rel=0.1)
    before = machine.done["heavy 0"]
    machine.run(20.0)
    assert machine.done["heavy 0"] - before > 0.8 * 20 * LEAST


def test_one_moment_does_not_take_more_than_half_of_it(machine: Machine) -> None:
    machine.run(30.0)
    before = machine.pace.per_s
    for _ in range(1_000):
        machine.pace.committed(machine.now - 1.0, machine.now)
    machine.pace.tick(machine.now + STEP_S)
    assert machine.pace.per_s >= 0.5 * before


def test_who_asks_as_much_as_the_others_is_not_light() -> None:
    pace = Pace(settings())
    for k in range(100):
        for principal in ("a", "b", "c"):
            assert not pace.take(parts(COMMAND), k / 100, principal)


def test_large_requests_are_not_timed(machine: Machine) -> None:
    machine.run(1.0, light=0)
    assert not machine.pace.take(parts(SMALL), machine.now, "light")
    assert machine.pace.take(parts(SMALL - 2 * BATCH_COST), machine.now, "another")


def test_it_is_forgotten_with_the_leadership(machine: Machine) -> None:
    machine.run(10.0)
    machine.pace.forget()
    assert machine.pace.refusal(parts(BLOCK), machine.now, "heavy 0") is None


def test_who_is_refused_is_told_by_what_and_for_how_long() -> None:
    admission = Admission(settings(), [A])
    machine = Machine(admission.pace)
    machine.run(10.0)
    while isinstance(found := admission.try_admit(parts(BLOCK), machine.now, "heavy 0"), Ticket):
        pass
    error = admission.refuse(found)
    assert isinstance(error, Overloaded)
    assert f"your own requests reach {GATE}" in str(error)
    assert error.fields["limit"] == GATE
    assert 0 < error.fields["retry_after"] < 1
    assert isinstance(admission.try_admit(parts(COMMAND), machine.now, "light 0"), Ticket)


def test_whoever_comes_while_others_owe_it_all_is_not_told_that_it_was_he() -> None:
    admission = Admission(settings(), [A])
    machine = Machine(admission.pace)
    machine.run(10.0)
    assert isinstance(admission.try_admit(parts(20 * BLOCK), machine.now, "another"), Ticket)
    found = admission.try_admit(parts(20 * BLOCK), machine.now, "the third")
    assert not isinstance(found, Ticket)
    assert found.lane is None
    assert f"{GATE} is used up" in str(admission.refuse(found))


def test_however_high_it_has_grown_it_falls_from_what_is_admitted(machine: Machine) -> None:
    machine.run(10.0)
    machine.pace.per_s = 1e15
    machine.run(1.0)
    assert machine.pace.per_s < 2 * machine.bytes_per_s


def test_it_begins_at_what_goes_where_somebody_began_a_moment_ago(machine: Machine) -> None:
    """What was admitted in a fifth of a second was taken for that of a whole one: it began at a fifth of what goes."""
    machine.run(2.05, heavy=0)
    while machine.pace.per_s == math.inf:
        machine.run(0.001, queue_s=0.05)
    assert machine.now < 2.5
    assert machine.pace.per_s > 0.4 * machine.bytes_per_s
