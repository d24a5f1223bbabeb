"""All runs of all works on all systems, and what came of them."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench import failover, load, results
from bench.load import Load, Measured, NothingMeasured
from bench.systems import SYSTEMS, Cluster, Missing, started
from bench.targets import VALUE_BYTES
from bench.works import FIGURES, FIRST_WRITE, KILLED, Work, works
from logboom.errors import LogboomError

FAILURES: Final = (LogboomError, TimeoutError, OSError, RuntimeError)
DEATHS: Final[Mapping[str, int]] = {"logboom": 7}
"""Leaders killed per run; 20 and more over three runs."""
DEATHS_OF_OTHERS: Final = 3
TUNE_S: Final = 1.5


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long."""

    directory: Path
    systems: Sequence[str]
    works: Sequence[str] = ("",)
    """Parts of the works' names."""
    runs: int = 3
    seconds: float = 5.0
    """Per load."""
    deaths: int | None = None
    """Leaders killed per run and system, if not as many as usual."""
    trials: bool = True
    """Try all shapes; if not, the likely best is taken."""

    def wants(self, work: str) -> bool:
        """The work is among those that were asked for."""
        return any(part in work for part in self.works)

    def chosen(self) -> list[Work]:
        """The loads."""
        return [work for work in works() if self.wants(work.name)]


@dataclass
class System:
    """What is known of a system so far."""

    version: str = ""
    settings: str = ""
    deaths: list[float] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why something is missing, or is of fewer runs: by what it is, or by "" for everything."""


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def measure(cluster: Cluster, shape: Load) -> Measured:
    """One load on a serving cluster."""
    cluster.wait_serving()
    pids = {node: cluster.pid(node) for node in cluster.nodes}
    asked = replace(shape, endpoints=tuple(cluster.client_addresses()))
    return load.run(asked, list(pids.values()), leader=pids[cluster.leader()])


class Runs:
    """The whole of it; what fails on one system leaves the others alone."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.systems = {name: System() for name in plan.systems}
        self.measured: dict[tuple[Load, ...], list[Measured]] = {}
        self._best: dict[tuple[Load, ...], Load] = {}

    @property
    def failed(self) -> dict[str, str]:
        """Why figures of a system, or some of them, are missing, or are of fewer runs."""
        return {
            f"{name}, {what}" if what else name: story
            for name, each in self.systems.items()
            for what, story in each.failed.items()
        }

    def go(self) -> None:
        """Every system in turn, so often; who goes first changes."""
        for name in self.plan.systems:
            try:
                SYSTEMS[name].find()
            except Missing as error:
                self._fail(name, "", error)
        for number in range(self.plan.runs):
            for name in self.plan.systems if number % 2 == 0 else reversed(self.plan.systems):
                say(f"run {number + 1} of {self.plan.runs}: {name}")
                # Deaths in a cluster of their own: a node that comes back would have all the loads to look through.
                for what, part in (("loads", self._loads), (KILLED, self._deaths)):
                    if "" not in self.systems[name].failed:
                        try:
                            part(name)
                        except Missing as error:
                            self._fail(name, "", error)
                        except FAILURES as error:  # the next run may fare better
                            self._fail(name, f"{what}, run {number + 1}", error)

    def _fail(self, name: str, what: str, error: Exception) -> None:
        self.systems[name].failed[what] = str(error)
        say(f"bench: {name}{', ' if what else ''}{what}: not measured: {error}")

    @contextmanager
    def _started(self, name: str) -> Iterator[Cluster]:
        with started(name, self.plan.directory) as cluster:
            self.systems[name].version, self.systems[name].settings = cluster.version(), cluster.settings
            yield cluster

    def _loads(self, name: str) -> None:
        asked: dict[tuple[Load, ...], Work] = {}
        for work in self.plan.chosen():
            if name in work.shapes:
                asked.setdefault(work.shapes[name], work)
        if asked:
            with self._started(name) as cluster:
                for shapes, work in asked.items():
                    self._load(name, cluster, shapes, work)

    def _load(self, name: str, cluster: Cluster, shapes: tuple[Load, ...], work: Work) -> None:
        try:
            shape = self._choose(name, cluster, shapes, work)
            found = measure(cluster, replace(shape, seconds=self.plan.seconds))
        except RuntimeError as error:  # a client failed; the servers may well be sound
            self._fail(name, work.name, error)
            return
        self.measured.setdefault(shapes, []).append(found)
        say(f"  {work.name}, {shape.shape}: {_speak(found)}")

    def _deaths(self, name: str) -> None:
        prober = SYSTEMS[name].prober
        if prober is not None and self.plan.wants(KILLED):
            times = self.plan.deaths or DEATHS.get(name, DEATHS_OF_OTHERS)
            with self._started(name) as cluster:
                for found_ms in failover.measure(cluster, prober, times):
                    self.systems[name].deaths.append(found_ms)
                    say(f"  {KILLED}: {found_ms:.0f} ms")

    def _choose(self, name: str, cluster: Cluster, shapes: tuple[Load, ...], work: Work) -> Load:
        if shapes not in self._best:
            found = {}
            for shape in shapes if self.plan.trials and len(shapes) > 1 else ():
                try:
                    found[shape] = measure(cluster, replace(shape, seconds=min(TUNE_S, self.plan.seconds)))
                except NothingMeasured:  # so deep that no operation ended in time: not a best shape
                    continue
                except RuntimeError as error:
                    self._fail(name, f"{work.name}, trying {shape.shape}", error)
                    continue
                say(f"    trying {shape.shape}: {_speak(found[shape])}")
            self._best[shapes] = min(found, key=lambda each: _cost(found[each], work.figure)) if found else shapes[0]
        return self._best[shapes]

    def table(self) -> list[results.Row]:
        """A row per figure of each work."""
        rows = []
        for work in self.plan.chosen():
            runs = {name: self.measured.get(shapes, []) for name, shapes in work.shapes.items()}
            for figure, unit in FIGURES.items():
                values = {name: [getattr(each, figure) for each in found] for name, found in runs.items()}
                rows.append(results.row(work.name, figure, unit, values))
        if self.plan.wants(KILLED):
            deaths = {name: each.deaths for name, each in self.systems.items()}
            rows.append(results.row(KILLED, FIRST_WRITE, "ms", deaths))
        return [each for each in rows if each["systems"]]

    def report(self) -> dict[str, Any]:
        """Everything, for the JSON."""
        known = {name: each for name, each in self.systems.items() if each.version}
        programs = {"python": platform.python_version(), "uvloop": version("uvloop")}
        return {
            "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {
                "cpus": os.cpu_count(),
                "kernel": platform.release(),
                "load_average_at_end": os.getloadavg(),
            },
            "versions": {name: each.version for name, each in known.items()} | programs,
            "settings": {
                "nodes": 3,
                "value_bytes": VALUE_BYTES,
                "runs": self.plan.runs,
                "seconds": self.plan.seconds,
                "shapes_tried": self.plan.trials,
                **{name: each.settings for name, each in known.items()},
            },
            "not_measured": self.failed,
            "table": self.table(),
            "loads": [
                {"system": shapes[0].system, "shape": asdict(self._best[shapes]), "runs": [asdict(m) for m in found]}
                for shapes, found in self.measured.items()
            ],
            "leader_killed_ms": {name: each.deaths for name, each in self.systems.items() if each.deaths},
        }


def _cost(found: Measured, figure: str) -> float:
    value = float(getattr(found, figure))
    return value if FIGURES[figure] == "ms" else -value


def _speak(found: Measured) -> str:
    drain = f", applied {found.drain_s:.1f} s later" if found.drain_s > 0.1 else ""
    return (
        f"{found.commands_per_s:,.0f}/s, p50 {found.p50_ms:.2f} ms, p99 {found.p99_ms:.2f} ms, "
        f"{found.cpu_us_per_command:.1f} us CPU{drain}"
    )
