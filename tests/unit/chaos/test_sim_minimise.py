"""Around many runs: the smallest schedule that still fails, and the sums."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.sim import main as sim_main
from chaos.sim import runner
from chaos.sim.drawing import draw
from chaos.sim.drawn_faults import Fault
from chaos.sim.parameters import Parameters
from chaos.sim.runner import Ran, Summary, minimise, replay_line
from chaos.sim.simulation import Failure, Outcome
from tests.unit.chaos.sim_world import chaos_sim

# -- the smallest schedule


class FakeRuns:
    """Instead of simulations: ``broken_by`` a schedule's indices (a fault's ``dice`` is its index)."""

    def __init__(self, broken_by: Any) -> None:
        self.broken_by = broken_by
        self.count = 0

    def __call__(self, parameters: Parameters, **_: Any) -> Ran:
        self.count += 1
        invariant = self.broken_by([fault.dice for fault in parameters.faults], parameters.faults)
        failure = Failure(invariant, "a story", 1.5) if invariant else None
        return Ran(Outcome(parameters.seed, failure=failure), 0.01)


def schedule(kinds: list[str]) -> Parameters:
    faults = tuple(Fault(1.0 + at, kind, 0, 0.5, at) for at, kind in enumerate(kinds))
    return replace(draw(1), faults=faults)


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(1, 40), data=st.data())
def test_minimising_finds_exactly_the_faults_it_takes(monkeypatch: pytest.MonkeyPatch, size: int, data: Any) -> None:
    needed = data.draw(st.sets(st.integers(0, size - 1), max_size=3))
    fake = FakeRuns(lambda dice, _: "I8" if needed <= set(dice) else "")
    monkeypatch.setattr(runner, "run", fake)
    found = minimise(schedule(["kill"] * size), "I8", lambda _: None)
    assert [fault.dice for fault in found] == sorted(needed)
    assert fake.count <= 4 * size + 10


def test_minimising_a_failure_of_one_kind_of_fault_leaves_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = random.Random(4).choices(["kill", "stop", "reset", "power"], k=40)
    fake = FakeRuns(lambda _, faults: "I8" if any(fault.kind == "power" for fault in faults) else "")
    monkeypatch.setattr(runner, "run", fake)
    said: list[str] = []
    (fault,) = minimise(schedule(kinds), "I8", said.append)
    assert fault.kind == "power"
    counts = [int(line.split()[0]) for line in said]
    assert counts == sorted(set(counts), reverse=True)
    assert counts[-1] == 1


def test_minimising_does_not_run_after_another_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda dice, _: "I8" if 3 in dice else "Liveness")
    monkeypatch.setattr(runner, "run", fake)
    (fault,) = minimise(schedule(["kill"] * 10), "I8", lambda _: None)
    assert fault.dice == 3


def test_the_smallest_schedule_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = draw(9, seconds=60.0)
    kind = drawn.faults[len(drawn.faults) // 2].kind
    fake = FakeRuns(lambda _, faults: "I8" if any(fault.kind == kind for fault in faults) else "")
    for module in (runner, sim_main):
        monkeypatch.setattr(module, "run", fake)
    status, out, err = chaos_sim(capsys, "--seed", "9", "--minimise")
    assert status == 1
    assert re.fullmatch(rf" *\d+\.\d{{3}}  {kind} +node +-?\d for \d+\.\d\d s\n", out)
    assert "1 faults are enough" in err


def test_a_run_that_holds_is_not_minimised(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeRuns(lambda *_: "")
    for module in (runner, sim_main):
        monkeypatch.setattr(module, "run", fake)
    assert chaos_sim(capsys, "--seed", "9", "--minimise")[:2] == (0, "")
    assert fake.count == 1


# -- summing up


def test_a_summary_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "commit", lambda: "1234abc")
    rng = random.Random(6)
    rans = []
    for seed in range(20):
        outcome = Outcome(
            seed,
            simulated_s=rng.uniform(60, 90),
            operations=Counter(ok=rng.randrange(2_000), fail=rng.randrange(50), info=rng.randrange(5)),
            refusals=Counter(not_leader=rng.randrange(50, 90), unavailable=rng.randrange(50)),
            faults=Counter(rng.choices(["kill", "power", "stop"], k=rng.randrange(20))),
            elections=rng.randrange(9),
            commits=rng.randrange(3_000),
            failure=Failure("I8", f"story {seed}", 3.25) if seed in (4, 11) else None,
        )
        rans.append(Ran(outcome, rng.uniform(2, 9)))
    summary = Summary(60.0)
    for ran in rans:
        summary.add(ran)
    outcomes = [ran.outcome for ran in rans]
    speeds = {ran.outcome.simulated_s / ran.cpu_s: ran.outcome.seed for ran in rans}
    assert summary.seeds == 20
    assert summary.simulated_s == pytest.approx(sum(outcome.simulated_s for outcome in outcomes))
    assert summary.cpu_s == pytest.approx(sum(ran.cpu_s for ran in rans))
    assert summary.slowest == (min(speeds), speeds[min(speeds)])
    assert [outcome.seed for outcome in summary.failures] == [4, 11]

    def total(of: str, key: str) -> int:
        return sum(getattr(outcome, of)[key] for outcome in outcomes)

    seeds, faults, operations, told, commits, moved, *rest = summary.lines()
    assert seeds.startswith(f"20 seeds, {summary.simulated_s:,.0f} simulated seconds in {summary.cpu_s:,.0f} s of CPU")
    assert seeds.endswith(f"(slowest {min(speeds):.1f}, seed {speeds[min(speeds)]})")
    assert faults.startswith(f"{sum(total('faults', kind) for kind in ('kill', 'power', 'stop'))} faults of 3 kinds: ")
    for kind in ("kill", "power", "stop"):
        assert f"{kind} {total('faults', kind)}" in faults
    for kind, word in (("ok", "ok"), ("fail", "refused"), ("info", "unknown")):
        assert f"{total('operations', kind):,} {word}" in operations
    refusals = sum((outcome.refusals for outcome in outcomes), Counter[str]())
    assert told == f"clients were told: not_leader {refusals['not_leader']}, unavailable {refusals['unavailable']}"
    elections = sum(outcome.elections for outcome in outcomes)
    snapshots, installs = (sum(getattr(outcome, of) for outcome in outcomes) for of in ("snapshots", "installs"))
    shared = sum(outcome.shared for outcome in outcomes)
    assert commits == (
        f"{sum(outcome.commits for outcome in outcomes):,} commits ({shared:,} requests shared batches), "
        f"{elections} elections, {snapshots} snapshots, {installs} installs"
    )
    assert moved == "changes of members: none; partitions: 0 created, 0 destroyed"
    failed = [replay_line(outcomes[seed], seconds=60.0) for seed in (4, 11)]
    assert rest == ["lag: none", *failed, "2 failed"]


def test_a_summary_of_nothing_says_so() -> None:
    lines = Summary(60.0).lines()
    assert lines[0].startswith("0 seeds, 0 simulated seconds")
    assert lines[-1] == "all invariants held"
