"""``python -m bench.storm``: ten times what can be done is asked for; does what is done stay what it was?

First a closed loop finds the capacity, and a quiet client its latency. Then the storm: for a minute client processes
begin ten times as many requests per second, each with a deadline, whether they are answered or not. Then the closed
loop again: a machine, and a node with snapshots and compaction to do, is not as fast at one time as at another. The
quiet client goes on beside all of them. Then the quiet client alone, beside a hot client on another partition, and
beside one on the same, in turn and three times: its p99 is the median of the three. Last, every acknowledged and every
refused request is counted in the states.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from bench.endless import resident
from bench.report import RESULTS, ROOT, SCRATCH, Check, quantiles_ms, say, verdict, write
from bench.storm_client import Plan, Tally, counter
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

PARTITIONS: Final = 8
GOODPUT_MIN: Final = 0.9
MEMORY_GROWTH_MAX: Final = 1.25
UNFAIR_MAX: Final = 2.0
HOT: Final = (0, 1)
"""Partitions of hot clients: one beside which, and one on which somebody is quiet."""
QUIET_RATE: Final = 50.0
"""Per second: in ten seconds its p99 is the fifth worst, and not one hiccup of the machine."""
ROUNDS: Final = 3
"""Of quiet clients: a machine that stands still for a tenth of a second is the p99 of one of them."""
CONNECTIONS: Final = 4
"""Per process: principals without certificates are connections."""
PATIENCE_S: Final = 60.0
QUIET: Final = Plan(
    (), "quiet", (PARTITIONS - 1,), 1, 100, 0.0, rate=QUIET_RATE, timeout_s=30.0, admission_wait_s=5.0, niceness=0
)
SETTINGS: Final = {
    "node.log_level": "warning",
    # What is admitted waits this long at most before the next is refused: the latency that a user is willing to see.
    "admission.node_age_ms": 500,
}

OPS_PER_S: Final = 2_500
"""Records that a partition takes, with ``--throttled``."""
BURST_MS: Final = 200
LIGHT_COMMIT_MS: Final = 3
"""With ``--paced``: below twice what a lone command takes here, all in all."""


@dataclass(frozen=True)
class Shape:
    """Of the load."""

    processes: int
    records: int
    value_bytes: int
    timeout_s: float
    wait_s: float
    """For admission, in the storm."""
    ops_per_s: int = 0
    """Records a second that each partition takes: settings bound what can be done; 0: the machine does."""
    light_commit_ms: int = 0
    """What light clients may notice of the others bounds what can be done; 0: it does not."""

    @property
    def settings(self) -> dict[str, Any]:
        """Of the nodes."""
        settings = dict(SETTINGS)
        if self.ops_per_s:
            settings |= {"admission.partition_ops_per_s": self.ops_per_s, "admission.rate_burst_ms": BURST_MS}
        if self.light_commit_ms:
            settings |= {"admission.light_commit_ms": self.light_commit_ms}
        return settings

    @property
    def is_bound(self) -> bool:
        """By settings, so that nobody need wait for the machine."""
        return self.ops_per_s > 0 or self.light_commit_ms > 0


class Crowd:
    """Client processes that begin together. Ends those that are left."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        command = [sys.executable, "-m", "bench.storm_client"]
        self._processes = [
            subprocess.Popen(
                [*command, json.dumps(asdict(plan))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for plan in plans
        ]
        self._patience_s = max(plan.seconds + plan.timeout_s for plan in plans) + PATIENCE_S

    def run(self) -> list[Tally]:
        """All of them. Raises RuntimeError if one fails."""
        watchdog = threading.Timer(self._patience_s, self._end)
        watchdog.start()
        try:
            if any(self._line(each) != "ready" for each in self._processes):
                raise RuntimeError("a client did not get ready")
            for each in self._processes:
                if each.stdin is not None:
                    each.stdin.write("go\n")
                    each.stdin.flush()
            return [_tally(json.loads(self._line(each))) for each in self._processes]
        finally:
            watchdog.cancel()
            self._end()

    def _line(self, process: subprocess.Popen[str]) -> str:
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line.endswith("\n"):
            raise RuntimeError(f"a client ended with status {process.wait()}; its error is above")
        return line.strip()

    def _end(self) -> None:
        for each in self._processes:
            if each.poll() is None:
                each.kill()
            each.wait()


def _tally(raw: dict[str, Any]) -> Tally:
    return Tally(**{**raw, "by_partition": {int(p): rows for p, rows in raw["by_partition"].items()}})


class Memory:
    """Resident memory of all nodes, twice a second, until it is left."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self.samples: list[dict[str, int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            self.samples.append({node: resident(self._cluster.pid(node)) for node in self._cluster.nodes})

    def growth(self) -> float:
        """Most of any node in the last half, by its most in the first."""
        half = len(self.samples) // 2
        if not half:
            return 1.0
        first, last = self.samples[:half], self.samples[half:]
        return max(max(s[n] for s in last) / max(s[n] for s in first) for n in first[0])


class Storm:
    """One run over one cluster."""

    def __init__(self, cluster: LocalCluster, shape: Shape) -> None:
        self._cluster = cluster
        self._shape = shape
        self._base = Plan(
            endpoints=tuple(cluster.addresses.values()),
            name="",
            partitions=tuple(range(PARTITIONS - 1)),
            records=shape.records,
            value_bytes=shape.value_bytes,
            seconds=0.0,
            timeout_s=shape.timeout_s,
            connections=CONNECTIONS,
        )
        self._all: dict[str, Tally] = {}
        self.figures: dict[str, Any] = {}

    def _play(self, *plans: Plan) -> list[Tally]:
        tallies = Crowd(plans).run()
        self._all |= {plan.name: tally for plan, tally in zip(plans, tallies, strict=True)}
        return tallies

    def _crowd(self, name: str, **changes: Any) -> list[Plan]:
        return [replace(self._base, name=f"{name}{k}", **changes) for k in range(self._shape.processes)]

    def _quiet(self, name: str, seconds: float, partition: int = PARTITIONS - 1, wait: str = "applied") -> Plan:
        return replace(
            QUIET,
            endpoints=self._base.endpoints,
            name=name,
            seconds=seconds,
            partitions=(partition,),
            wait=wait,
        )

    def capacity(self, when: str, seconds: float) -> float:
        """Acknowledged requests per second of a closed loop."""
        _, *tallies = self._play(
            self._quiet(f"quiet in the closed loop {when}", seconds),
            *self._crowd(f"closed {when}", seconds=seconds, concurrency=16, timeout_s=30.0),
        )
        per_s = sum(tally.acknowledged for tally in tallies) / seconds
        self.figures[f"capacity_per_s_{when}"] = per_s
        return per_s

    def quiet(self, name: str, plan: Plan, *beside: Plan) -> float:
        """p99 of a quiet client in ms."""
        tally = self._play(plan, *beside)[0]
        p50, p99 = quantiles_ms(tally.latencies)
        self.figures[name] = {"p50_ms": p50, "p99_ms": p99, "acknowledged": tally.acknowledged, "errors": tally.errors}
        return p99

    def warm_up(self, seconds: float) -> None:
        """The first requests of a cluster are not like others."""
        self.quiet("warm-up", self._quiet("warm-up", seconds))

    def fairness(self, seconds: float) -> list[Check]:
        """A quiet client alone and beside hot ones, in turn."""
        waits = ("committed", "applied") if self._shape.is_bound else ("applied",)
        p99s: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            for wait in waits:
                cases = (
                    (f"alone, until {wait}", HOT[0], ()),
                    (f"beside a hot partition, until {wait}", PARTITIONS - 1, (HOT[0],)),
                    (f"on the hot partition, until {wait}", HOT[1], (HOT[1],)),
                )
                for case, partition, hot in cases:
                    name = f"quiet {case}, {number + 1}"
                    say(f"storm: {name}")
                    plans = [self.hot(f"hot beside {name}", each, seconds) for each in hot]
                    p99 = self.quiet(name, self._quiet(name, seconds, partition, wait), *plans)
                    p99s.setdefault(case, []).append(p99)
        middle = {case: statistics.median(each) for case, each in p99s.items()}
        self.figures["quiet_p99_ms"] = middle
        return [
            Check(f"quiet client's p99 {case} / alone", p99 / middle[alone], at_most=UNFAIR_MAX)
            for case, p99 in middle.items()
            if (alone := f"alone, until {case.split()[-1]}") != case
        ]

    def storm(self, seconds: float, short: float) -> list[Check]:
        """The storm, ``short`` closed loops before and after it, and what is to be said of it."""
        per_s = self.capacity("before", short)
        say(f"storm: {per_s:,.0f} requests of {self._shape.records} records per second is what can be done")
        rate = 10 * per_s / self._shape.processes
        with Memory(self._cluster) as memory:
            _, *tallies = self._play(
                self._quiet("quiet in the storm", seconds),
                *self._crowd("storm", seconds=seconds, rate=rate, admission_wait_s=self._shape.wait_s),
            )
        goodput = sum(tally.acknowledged for tally in tallies) / seconds
        p50, p99 = quantiles_ms([each for tally in tallies for each in tally.latencies])
        self.figures["storm"] = {
            "offered_per_s": sum(tally.offered for tally in tallies) / seconds,
            "goodput_per_s": goodput,
            "p50_ms": p50,
            "p99_ms": p99,
            "errors": dict(sum((Counter(tally.errors) for tally in tallies), Counter())),
            "memory": memory.samples,
            "nodes": self._nodes(),
        }
        per_s = (per_s + self.capacity("after", short)) / 2
        return [
            Check("goodput in the storm / capacity", goodput / per_s, at_least=GOODPUT_MIN),
            Check("memory, last half of the storm / first", memory.growth(), at_most=MEMORY_GROWTH_MAX),
            Check("p99 of what was admitted / its deadline", p99 / 1000 / self._shape.timeout_s, at_most=1.0),
        ]

    def _nodes(self) -> dict[str, Any]:
        """What the nodes say of it: admitted, and refused by which gate; which of them leads, in which term."""
        with self._cluster.client(timeout=PATIENCE_S) as client:
            said = {n: client.status(node=address) for n, address in self._cluster.addresses.items()}
        return {n: {key: each[key] for key in ("role", "term", "admission")} for n, each in said.items()}

    def hot(self, name: str, partition: int, seconds: float) -> Plan:
        """One client that does as much as it can, on one partition."""
        return replace(self._base, name=name, partitions=(partition,), seconds=seconds, concurrency=64, connections=1)

    def counted(self) -> list[Check]:
        """What the states say of everything that was ever asked for."""
        lost = phantom = 0
        with self._cluster.client(timeout=PATIENCE_S) as client:
            client.barrier(client.last_seen, scope="all")
            for name, tally in self._all.items():
                for partition, (acknowledged, unknown) in tally.by_partition.items():
                    found = client.get(partition, counter(name))
                    applied = int(found[0]) if isinstance(found, tuple) else 0
                    lost += max(0, acknowledged - applied)
                    phantom += max(0, applied - acknowledged - unknown)
        return [
            Check("acknowledged and lost", float(lost), at_most=0.0),
            Check("refused or sent once, and applied (again)", float(phantom), at_most=0.0),
        ]


def measured(shape: Shape, seconds: float, directory: Path) -> tuple[dict[str, Any], list[Check]]:
    """A fresh cluster. Raises the errors of logboom, OSError, RuntimeError and ValueError."""
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="storm-", dir=directory)).resolve()
    short = max(2.0, seconds / 6)
    try:
        with LocalCluster(partitions=PARTITIONS, directory=place, settings=shape.settings) as cluster:
            storm = Storm(cluster, shape)
            storm.warm_up(short)
            checks = [*storm.storm(seconds, short), *storm.fairness(short), *storm.counted()]
            return storm.figures, checks
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a floor was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.storm", description="ten times what can be done")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the storm")
    parser.add_argument("--processes", type=int, default=2, help="of clients")
    parser.add_argument("--records", type=int, help="per request; 1,000, or 100 if --throttled")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--deadline", type=float, default=2.0, help="of a request in the storm, in seconds")
    parser.add_argument("--admission-wait", type=float, default=1.0, help="of a request in the storm, in seconds")
    parser.add_argument(
        "--throttled",
        type=int,
        nargs="?",
        const=OPS_PER_S,
        default=0,
        metavar="OPS_PER_S",
        help=f"settings bound what can be done, not the machine: records a second and partition, {OPS_PER_S:,}",
    )
    parser.add_argument(
        "--paced",
        type=int,
        nargs="?",
        const=LIGHT_COMMIT_MS,
        default=0,
        metavar="MS",
        help=f"what light clients may notice bounds what can be done: `admission.light_commit_ms`, {LIGHT_COMMIT_MS}",
    )
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "storm.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.records is None:
        # Ten times what can be done has to be asked for with a part of two CPUs, so requests are large.
        asked.records = 100 if asked.throttled else 1_000
    if min(asked.seconds, asked.processes, asked.records, asked.deadline) <= 0:
        parser.error("everything is above 0")
    signal.signal(signal.SIGTERM, _on_term)
    shape = Shape(
        asked.processes,
        asked.records,
        asked.value_bytes,
        asked.deadline,
        asked.admission_wait,
        asked.throttled,
        asked.paced,
    )
    try:
        figures, checks = measured(shape, asked.seconds, asked.directory)
    except (LogboomError, TimeoutError, OSError, RuntimeError, ValueError) as error:
        say(f"storm: {error!r}")
        return 2
    settings = {"seconds": asked.seconds, "shape": asdict(shape), "servers": shape.settings}
    write(asked.output, settings=settings, checks=checks, figures=figures)
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
