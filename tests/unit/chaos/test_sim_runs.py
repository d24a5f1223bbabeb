"""Whole runs: a seed decides everything, a broken promise is found and reported, the tools around it do their sums."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import structlog

from chaos.sim import main as sim_main
from chaos.sim import runner
from chaos.sim.drawing import draw
from chaos.sim.drawn_faults import FOLLOWER, KINDS, LAG_KINDS, LEADER, Fault
from chaos.sim.runner import SEEDS_AHEAD, Ran, replay_line, run, run_many
from chaos.sim.simulation import Outcome
from chaos.sim.timeline import Timeline
from logboom import config
from logboom.cli.chaos import sim as sim_command
from raftlog.journal.outbox import GroupSync
from tests.unit.chaos.sim_world import chaos_sim, real

ROOT: Final = Path(__file__).parents[3]
SECONDS: Final = 8.0
SEEDS: Final = (2, 3, 17)

PRINT_OUTCOMES: Final = """
import sys
from chaos.sim.drawing import draw
from chaos.sim.runner import run
for seed in sys.argv[2:]:
    print(run(draw(int(seed), seconds=float(sys.argv[1]))).outcome)
"""

DISKS = ("lose_disk", "put_back")
LATER = ("thin_lines", "slow_cpu", "client_lines", "rot_state", "lose_sets")


def outcome_of(seed: int, *, seconds: float = SECONDS, **more: Any) -> Outcome:
    print(f"seed {seed}")
    return run(draw(seed, seconds=seconds), **more).outcome


@cache
def whole(seed: int) -> Outcome:
    """Of the code as it is, SECONDS long: once for all who compare with it."""
    return outcome_of(seed)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on a sync does not wait for it any more (I3)."""
    monkeypatch.setattr(GroupSync, "hold", lambda _, send: send())


# -- a seed decides everything


def test_a_seed_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever strings hash to, wherever it runs."""
    print(f"seeds {SEEDS}")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PRINT_OUTCOMES, str(SECONDS), *map(str, SEEDS)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        )
        for hash_seed, directory in (("1", ROOT), ("4242", tmp_path))
    ]
    first, second = [child.communicate(timeout=100)[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert [line.split(",")[0] for line in first] == [f"Outcome(seed={seed}" for seed in SEEDS]
    assert first == second


def test_a_seed_is_the_same_again_in_one_process() -> None:
    first = whole(SEEDS[0])
    outcome_of(SEEDS[1], seconds=2.0)  # what one run leaves behind is not the next one's concern
    assert outcome_of(SEEDS[0]) == first


def test_seeds_differ() -> None:
    outcomes = [whole(seed) for seed in SEEDS]
    assert len({outcome.trace_hash for outcome in outcomes}) == len(SEEDS)
    assert all(re.fullmatch("[0-9a-f]{16}", outcome.trace_hash) for outcome in outcomes)


def test_looking_does_not_change_the_run() -> None:
    assert outcome_of(SEEDS[0], timeline=Timeline(keep=True)) == whole(SEEDS[0])


def test_a_run_does_something_and_holds() -> None:
    outcome = whole(SEEDS[0])
    assert outcome.failure is None
    assert outcome.simulated_s >= SECONDS
    assert outcome.events > 1_000
    assert outcome.operations["ok"] > 20
    assert outcome.commits > 20
    assert outcome.elections >= 1
    assert sum(outcome.faults.values()) == len(draw(SEEDS[0], seconds=SECONDS).faults) > 0


def test_a_run_leaves_logging_and_chance_as_they_were() -> None:
    before = structlog.get_config(), random.getstate(), gc.isenabled()
    outcome_of(SEEDS[0], seconds=2.0)
    assert (structlog.get_config(), random.getstate(), gc.isenabled()) == before


# -- parameters


def test_drawing_is_a_pure_function() -> None:
    state = random.getstate()
    for seed in range(50):
        first = draw(seed)
        random.random()
        assert draw(seed) == first
        random.setstate(state)
        assert draw(seed) == first
        assert random.getstate() == state


def test_all_settings_that_are_drawn_are_valid() -> None:
    for seed in range(301):
        parameters = draw(seed)
        config.check(real(parameters.settings))
        for index in range(parameters.nodes):
            node = real(parameters.of_node(index))
            config.check(node)
            config.check_node(node)


def test_all_other_settings_that_are_drawn_are_valid() -> None:
    for seed in range(301):
        drawn = real(draw(seed).settings)
        config.check(msgspec.structs.replace(drawn, apply=msgspec.structs.replace(drawn.apply, linger_ms=1)))


def test_schedules_can_be_played() -> None:
    for seed in range(301):
        drawn = draw(seed, seconds=20.0)
        times = [fault.at for fault in drawn.faults]
        assert times == sorted(times), seed
        assert all(0 < fault.at < 20.0 and fault.duration > 0 for fault in drawn.faults), seed
        assert {fault.kind for fault in drawn.faults} <= set(drawn.kinds) <= {*KINDS, *LAG_KINDS, *DISKS, *LATER}, seed
        assert {fault.node for fault in drawn.faults} <= {LEADER, FOLLOWER, *range(5)}, seed
        assert drawn.victims <= set(range(drawn.nodes)), seed
        assert 2 * len(drawn.victims) < drawn.nodes, seed


def test_seeds_make_all_kinds_of_clusters_and_faults() -> None:
    drawn = [draw(seed) for seed in range(301)]
    assert {fault.kind for parameters in drawn for fault in parameters.faults} == {
        *KINDS,
        *LAG_KINDS,
        *DISKS,
        *LATER,
    }
    assert {parameters.nodes for parameters in drawn} == {1, 3, 5}
    assert {parameters.write_behind for parameters in drawn} == {True, False}
    assert {bool(parameters.log_partitions) for parameters in drawn} == {True, False}


# -- a broken promise


def test_a_broken_promise_is_found(broken: None) -> None:
    for seed in SEEDS:
        failure = outcome_of(seed).failure
        assert failure is not None
        assert failure.invariant
        assert failure.story
        assert 0 < failure.at < SECONDS


def test_a_failure_is_the_same_again(broken: None) -> None:
    first = outcome_of(SEEDS[0])
    assert first.failure is not None
    assert outcome_of(SEEDS[0]) == first


def test_a_failure_is_one_line_with_all_that_it_takes_to_see_it_again(
    broken: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "commit", lambda: "1234abc")
    status, out, err = chaos_sim(capsys, "--seed", "3", "--seconds", "8")
    assert (status, out) == (1, "")
    (line,) = [line for line in err.splitlines() if "FAILED" in line]
    found = re.fullmatch(r"FAILED (\w+) seed=3 commit=1234abc at=(\d+\.\d+)s: (.+) \| replay: logboom (.+)", line)
    assert found is not None
    failure = outcome_of(3).failure
    assert failure is not None
    assert found.groups()[:3] == (failure.invariant, f"{failure.at:.3f}", failure.story)
    chaos, sim, *args = shlex.split(found[4])
    assert (chaos, sim) == ("chaos", "sim")
    asked = sim_command.make_context("sim", args).params
    assert (asked["seed"], asked["seconds"], asked["trace"]) == (3, 8.0, True)
    assert (asked["seeds"], asked["budget_s"], asked["until"]) == (None, None, None)


def test_of_many_seeds_those_that_failed_are_named(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = chaos_sim(capsys, "--seed", "2", "--seeds", "2", "--seconds", "4", "--workers", "1")
    assert status == 1
    for text in (out, err):
        assert re.findall(r"^FAILED \w+ seed=(\d+)", text, re.MULTILINE) == ["2", "3"]
    assert out.splitlines()[-1] == "2 failed"


def test_a_run_that_holds_has_nothing_to_replay() -> None:
    assert replay_line(Outcome(1), seconds=8) == ""


def test_the_commit_is_named() -> None:
    assert re.fullmatch(r"\S+", runner.commit())


# -- one seed closely


def test_until_stops_there(capsys: pytest.CaptureFixture[str]) -> None:
    # Before anybody has acknowledged anything.
    status, out, err = chaos_sim(capsys, "--seed", "3", "--seconds", "8", "--until", "0.05")
    assert (status, out) == (0, "")
    assert " 0.1 simulated seconds in " in err


@pytest.mark.parametrize("until", [1.0, 4.5])
def test_until_stops_at_the_first_event_from_there_on(until: float) -> None:
    stopped = outcome_of(3, until=until)
    assert until <= stopped.simulated_s < until + 0.2
    assert stopped.events < whole(3).events


def test_a_run_that_was_stopped_in_the_middle_has_not_failed() -> None:
    failures = [outcome_of(seed, until=3.3).failure for seed in range(19, 24)]
    assert failures == [None] * 5


def test_a_run_that_was_stopped_does_not_fail_afterwards() -> None:
    """When what it left behind is collected."""
    outcome = outcome_of(3, until=0.05)
    gc.collect()
    assert outcome.failure is None


def test_a_trace_is_a_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = chaos_sim(capsys, "--seed", "2", "--seconds", "8", "--trace")
    lines = [re.fullmatch(r" *(\d+\.\d{4}) +(\S+)  (.+)", line) for line in out.splitlines()]
    assert status == 0
    assert "all invariants held" in err
    assert len(lines) > 20
    rows = [line.groups() for line in lines if line is not None]
    assert len(rows) == len(lines)
    times = [float(at) for at, _, _ in rows]
    assert times == sorted(times)
    assert {who for _, who, _ in rows} >= {"-", "n1", "n2", "n3"}
    faults = [what for _, _, what in rows if what.startswith("fault ")]
    assert len(faults) == len(draw(2, seconds=8.0).faults)


def test_a_trace_ends_with_the_failure(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = chaos_sim(capsys, "--seed", "3", "--seconds", "8", "--trace")
    assert re.search(r"  FAILED \w+: .+\n\Z", out)


def test_without_a_trace_nothing_is_kept() -> None:
    timeline = Timeline()
    outcome_of(3, seconds=2.0, timeline=timeline)
    assert timeline.lines == []


# -- the command line


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "name a --seed"),
        (["--until", "3"], "go with one --seed"),
        (["--trace"], "go with one --seed"),
        (["--minimise", "--seeds", "3"], "go with one --seed"),
        (["--seed", "1", "--seeds", "2", "--trace"], "go with one --seed"),
        (["--seed", "1", "--for", "20", "--until", "3"], "go with one --seed"),
        (["--seed", "-1"], "--seed"),
        (["--seed", "seven"], "seven"),
        (["--seeds", "0"], "--seeds"),
        (["--for", "0"], "--for"),
        (["--seed", "1", "--seconds", "long"], "long"),
        (["--seeds", "1", "--workers", "0"], "--workers"),
        (["--bogus"], "--bogus"),
        (["7"], "7"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], args: list[str], says: str) -> None:
    status, out, err = chaos_sim(capsys, *args)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_many_seeds_are_summed_up_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "summary.txt"
    status, out, _ = chaos_sim(
        capsys, "--seed", "5", "--seeds", "3", "--seconds", "2", "--workers", "2", "--summary", str(file)
    )
    assert status == 0
    assert out.startswith("3 seeds, ")
    assert out.endswith("all invariants held\n")
    assert file.read_text() == out


def test_for_begins_no_seed_after_its_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    played: list[int] = []

    def fake(seeds: Iterator[int], **_: Any) -> Iterator[Ran]:
        for seed in seeds:
            now[0] += 4.0
            played.append(seed)
            yield Ran(Outcome(seed), 0.1)

    monkeypatch.setattr(sim_main, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sim_main, "run_many", fake)
    status, out, _ = chaos_sim(capsys, "--for", "10", "--seed", "40")
    assert (status, played) == (0, [40, 41, 42])
    assert out.startswith("3 seeds, ")


# -- many


def test_processes_play_the_same_runs() -> None:
    print("seeds 5 to 8")
    alone = {ran.outcome.seed: ran.outcome for ran in run_many(range(5, 9), seconds=1.5, workers=1)}
    shared = {ran.outcome.seed: ran.outcome for ran in run_many(range(5, 9), seconds=1.5, workers=2)}
    assert list(alone) == [5, 6, 7, 8]
    assert shared == alone


def test_seeds_are_asked_for_when_it_is_nearly_their_turn() -> None:
    """Else a run that ends with its time has begun a thousand more."""
    asked: list[int] = []
    runs = run_many((asked.append(seed) or seed for seed in range(100)), seconds=1.1, workers=2)  # type: ignore[func-returns-value]
    next(runs)
    assert len(asked) <= SEEDS_AHEAD * 2
    runs.close()


def test_workers_end_though_whoever_made_them_does_not_mind_sigterm() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        runs = run_many(range(100), seconds=1.1, workers=2)
        next(runs)
        runs.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("dice", range(6))
def test_a_fault_that_outlasts_the_faults_takes_nobody_away(dice: int) -> None:
    """Else a quorum that was healed lost a node, and nobody started it again."""
    print("seed 8")
    faults = (Fault(at=1.9, kind="left_behind", node=LEADER, duration=1.4, dice=dice),)
    assert run(replace(draw(8, seconds=3.0), faults=faults)).outcome.failure is None


def test_who_finds_only_at_the_end_that_it_must_not_start_is_not_waited_for() -> None:
    print("seed 8")
    for dice in range(8):
        faults = (Fault(at=5.0, kind="rot_journal", node=0, duration=4.0, dice=dice),)
        assert run(replace(draw(8, seconds=6.0), faults=faults)).outcome.failure is None
