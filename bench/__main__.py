"""``python -m bench``: every work on both systems in turn, a table, the floors. See DESIGN.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench import etcd, failover, load
from bench.etcd import EtcdCluster
from bench.load import Load, Measured, NothingMeasured
from bench.targets import PARTITIONS, VALUE_BYTES
from logboom.testing import LocalCluster

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results" / "latest.json"
TUNE_S: Final = 1.5
BLOCK: Final = 1_000
NODES: Final = 3
FIGURES: Final = (
    ("commands_per_s", "/s"),
    ("until_applied_per_s", "/s"),
    ("p50_ms", "ms"),
    ("p99_ms", "ms"),
    ("cpu_us_per_command", "us"),
)

System = EtcdCluster | LocalCluster


@dataclass(frozen=True)
class Work:
    """One thing to do, in the shapes among which each system's best is chosen before anything counts."""

    name: str
    etcd: tuple[Load, ...]
    logboom: tuple[Load, ...]
    figure: str = "commands_per_s"
    """Which of the figures the floor is about."""
    floor: float = 1.0
    """How many times better than etcd logboom must be."""


def _shapes(
    system: str, rows: list[tuple[int, int, int]], *, spread: tuple[int, ...] = (PARTITIONS,), **rest: Any
) -> tuple[Load, ...]:
    return tuple(
        Load(system, (), concurrency=c, processes=p, connections=n, partitions=s, **rest)
        for c, p, n in rows
        for s in spread
    )


def works() -> list[Work]:
    """All of them. Whatever of etcd's has the same shapes is measured once."""
    bulk = _shapes("etcd", [(16, 1, 1), (64, 1, 1), (128, 1, 2), (64, 2, 1)], records=etcd.TXN_OPS_MAX)
    blocks = [(16, 1, 1), (32, 1, 1), (32, 2, 1)]
    deep = [(16, 1, 1), (32, 1, 1), (64, 1, 1)]
    single = {c: _shapes("etcd", [(c, 1, 1), (c, 1, 4), (c, 2, 2)]) for c in (64, 1000)}
    one = _apart(_shapes("etcd", [(1, 1, 1)]))
    mine: dict[str, Any] = {"wait": "committed"}
    # Every partition that a group touches costs a sync; with few commands under way one partition is best.
    few = (1, PARTITIONS)
    return [
        Work("bulk, log, committed", bulk, _shapes("logboom", blocks, records=BLOCK, machine="log", **mine), floor=3.0),
        Work("bulk, kv, committed", bulk, _shapes("logboom", blocks, records=BLOCK, **mine)),
        Work("bulk, kv, applied", bulk, _shapes("logboom", deep, records=BLOCK, wait="applied")),
        Work("64 at once", single[64], _shapes("logboom", [(64, 1, 1)], spread=few, **mine)),
        Work("1,000 at once", single[1000], _shapes("logboom", [(1000, 1, 1)], spread=few, **mine)),
        Work("one at a time", one, _apart(_shapes("logboom", [(1, 1, 1)], spread=few, **mine)), figure="p50_ms"),
    ]


def _apart(shapes: tuple[Load, ...]) -> tuple[Load, ...]:
    """With and without CPUs of their own for the followers: a lone command waits for nobody's turn then."""
    return (*shapes, *(replace(shape, apart=True) for shape in shapes))


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def started(system: str, directory: Path, binary: str) -> Iterator[System]:
    """A fresh cluster, ended and removed with its data afterwards."""
    place = Path(tempfile.mkdtemp(prefix=f"{system}-", dir=directory))
    try:
        if system == "etcd":
            with EtcdCluster(binary, place) as cluster:
                yield cluster
        else:
            log = {str(p): {"state_machine": "log"} for p in range(PARTITIONS, 2 * PARTITIONS)}
            settings = {"cluster.overrides": log, "node.log_level": "warning"}
            with LocalCluster(nodes=NODES, partitions=2 * PARTITIONS, directory=place, settings=settings) as local:
                yield local
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measure(cluster: System, shape: Load) -> Measured:
    """One load; etcd is asked at its leader, logboom's client finds it."""
    cluster.wait_serving()
    leader = cluster.leader()
    if isinstance(cluster, EtcdCluster):
        endpoints: tuple[str, ...] = (cluster.addresses[leader],)
    else:
        endpoints = tuple(cluster.addresses.values())
    pids = {node: cluster.pid(node) for node in cluster.nodes}
    return load.run(replace(shape, endpoints=endpoints), list(pids.values()), leader=pids[leader])


class Bench:
    """All runs of all works."""

    def __init__(self, *, runs: int, seconds: float, deaths: int, directory: Path) -> None:
        self._runs = runs
        self._seconds = seconds
        self._deaths = deaths
        self._directory = directory
        self._binary = etcd.find()
        self._best: dict[tuple[Load, ...], Load] = {}
        self.measured: dict[tuple[Load, ...], list[Measured]] = {}
        self.deaths: dict[str, list[float]] = {"etcd": [], "logboom": []}

    def run(self) -> None:
        """Both systems in turn, so often; who goes first changes."""
        for number in range(self._runs):
            order = ["etcd", "logboom"] if number % 2 == 0 else ["logboom", "etcd"]
            for system in order:
                say(f"run {number + 1} of {self._runs}: {system}")
                with started(system, self._directory, self._binary) as cluster:
                    self._one(system, cluster)

    def _one(self, system: str, cluster: System) -> None:
        asked = {work.etcd if system == "etcd" else work.logboom: work.figure for work in works()}
        for shapes, figure in asked.items():
            shape = self._choose(cluster, shapes, figure)
            found = measure(cluster, replace(shape, seconds=self._seconds))
            self.measured.setdefault(shapes, []).append(found)
            say(f"  {_describe(shape)}: {_speak(found)}")
        found_ms = failover.measure(cluster, self._deaths)
        self.deaths[system] += found_ms
        say(f"  leader killed: {', '.join(f'{ms:.0f}' for ms in found_ms)} ms")

    def _choose(self, cluster: System, shapes: tuple[Load, ...], figure: str) -> Load:
        if shapes not in self._best:
            best = shapes[0]
            if len(shapes) > 1:
                found = {}
                for shape in shapes:
                    try:
                        found[shape] = measure(cluster, replace(shape, seconds=TUNE_S))
                    except NothingMeasured:  # so deep that no operation ended in time: not a best shape
                        continue
                    say(f"    trying {shape.shape}: {_speak(found[shape])}")
                best = min(found or shapes, key=lambda each: _merit(found, each, figure))
            self._best[shapes] = best
        return self._best[shapes]

    def table(self) -> list[dict[str, Any]]:
        """A row per figure: median, least and most of either system, ratio, floor."""
        rows = []
        for work in works():
            theirs, ours = self.measured[work.etcd], self.measured[work.logboom]
            for name, unit in FIGURES:
                row = _row(work.name, name, unit, [getattr(m, name) for m in theirs], [getattr(m, name) for m in ours])
                if name == work.figure:
                    _judge(row, work.floor, larger=unit == "/s")
                rows.append(row)
        row = _row("leader killed", "to the first write", "ms", self.deaths["etcd"], self.deaths["logboom"])
        _judge(row, 1.0, larger=False)
        return [*rows, row]

    def report(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Everything, for latest.json."""
        return {
            "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {
                "cpus": os.cpu_count(),
                "kernel": platform.release(),
                "load_average_at_end": os.getloadavg(),
            },
            "versions": {
                "etcd": etcd.version(self._binary),
                "logboom": version("logboom"),
                "python": platform.python_version(),
                "uvloop": version("uvloop"),
            },
            "settings": {
                "nodes": NODES,
                "value_bytes": VALUE_BYTES,
                "runs": self._runs,
                "seconds": self._seconds,
                "leader_kills_per_run": self._deaths,
                "etcd_txn_puts": etcd.TXN_OPS_MAX,
                "logboom_block_records": BLOCK,
                "servers": "defaults of either; every acknowledged write is synced on a majority",
            },
            "table": rows,
            "loads": [
                {"shape": asdict(self._best[shapes]), "runs": [asdict(m) for m in found]}
                for shapes, found in self.measured.items()
            ],
            "leader_killed_ms": self.deaths,
        }


def _row(work: str, name: str, unit: str, theirs: list[float], ours: list[float]) -> dict[str, Any]:
    def three(values: list[float]) -> dict[str, float]:
        return {"median": statistics.median(values), "min": min(values), "max": max(values)}

    row: dict[str, Any] = {"work": work, "figure": name, "unit": unit, "etcd": three(theirs), "logboom": three(ours)}
    row["ratio"] = row["logboom"]["median"] / max(row["etcd"]["median"], 1e-9)
    return row


def _judge(row: dict[str, Any], floor: float, *, larger: bool) -> None:
    row["floor"] = f">= {floor:g}" if larger else f"<= {1 / floor:g}"
    row["met"] = row["ratio"] >= floor if larger else row["ratio"] <= 1 / floor


def _merit(found: dict[Load, Measured], shape: Load, figure: str) -> float:
    if shape not in found:
        return 0.0
    measured = float(getattr(found[shape], figure))
    return measured if figure.endswith("_ms") else -measured


def _describe(shape: Load) -> str:
    kind = f"{shape.machine}, {shape.wait}, " if shape.system == "logboom" else ""
    return kind + shape.shape


def _speak(found: Measured) -> str:
    drain = f", applied {found.drain_s:.1f} s later" if found.drain_s > 0.1 else ""
    return (
        f"{found.commands_per_s:,.0f}/s, p50 {found.p50_ms:.2f} ms, p99 {found.p99_ms:.2f} ms, "
        f"{found.cpu_us_per_command:.1f} us CPU{drain}"
    )


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""

    def spread(values: dict[str, float]) -> str:
        digits = 0 if values["median"] >= 1000 else 1 if values["median"] >= 10 else 2
        return f"{values['median']:,.{digits}f} ({values['min']:,.{digits}f}-{values['max']:,.{digits}f})"

    form = "{:<22} {:<23} {:>28} {:>30} {:>8}  {}"
    print(form.format("work", "figure", "etcd", "logboom", "ratio", "floor"))
    before = ""
    for row in rows:
        floor = f"{row['floor']} {'met' if row['met'] else 'MISSED'}" if "floor" in row else ""
        work, before = ("" if row["work"] == before else row["work"]), row["work"]
        figure = f"{row['figure'].replace('_', ' ').removesuffix(' ms')}{', ms' if row['unit'] == 'ms' else ''}"
        print(form.format(work, figure, spread(row["etcd"]), spread(row["logboom"]), f"{row['ratio']:.2f}", floor))


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a floor was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="logboom and etcd side by side")
    parser.add_argument("--quick", action="store_true", help="one run of 2 seconds each: a look, not a measurement")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="per load")
    parser.add_argument("--deaths", type=int, default=3, help="leaders killed per run and system")
    parser.add_argument("--directory", type=Path, default=ROOT / ".bench", help="on the disk to be measured")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    given = parser.parse_args()
    if given.quick:
        given.runs, given.seconds, given.deaths = 1, 2.0, 2
    if given.runs < 1 or given.deaths < 1 or given.seconds <= 0:
        parser.error("--runs, --deaths and --seconds are above 0")
    signal.signal(signal.SIGTERM, _on_term)
    given.directory.mkdir(parents=True, exist_ok=True)
    try:
        bench = Bench(runs=given.runs, seconds=given.seconds, deaths=given.deaths, directory=given.directory)
        bench.run()
    except (TimeoutError, OSError, RuntimeError) as error:
        say(f"bench: {error}")
        return 2
    rows = bench.table()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(bench.report(rows), indent=1) + "\n")
    show(rows)
    say(f"written: {RESULTS.relative_to(ROOT)}")
    missed = [f"{row['work']} ({row['figure']})" for row in rows if row.get("met") is False]
    if missed:
        say(f"floors missed: {', '.join(missed)}")
    return 1 if missed and not given.no_floors else 0


if __name__ == "__main__":
    sys.exit(main())
