"""``python -m bench.storm``: ten times what can be done is asked for; does what is done stay what it was?

First a closed loop finds the capacity. Then the storm: for a minute client processes begin ten times as many requests
per second, each with a deadline, whether they are answered or not. Then the closed loop again: a machine, and a node
with snapshots and compaction to do, is not as fast at one time as at another. A quiet client goes on beside all of
them. Last, every acknowledged and every refused request is counted in the states.

Then, on a cluster that is told what light clients may notice (``admission.light_commit_ms``), the quiet client alone,
beside a hot client on another partition, and beside one on the same, in turn and three times: its p99 is the median of
the three. What it is where nobody has said anything is taken once, on the first cluster, and has no bound. With
``--throttled`` one cluster has to keep all bounds, by rates.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.crowd import PATIENCE_S, Crowd, Memory
from bench.report import RESULTS, SCRATCH, Check, quantiles_ms, say, verdict, write
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
LIGHT_COMMIT_MS: Final = 2
"""Below twice what a quiet client's command takes here, all in all."""


@dataclass(frozen=True)
class Shape:
    """Of the load, and of what the nodes are told of it."""

    processes: int
    records: int
    value_bytes: int
    timeout_s: float
    wait_s: float
    """For admission, in the storm."""
    ops_per_s: int = 0
    """Records a second that each partition takes: rates bound what can be done; 0: the machine does."""
    light_commit_ms: int = 0
    """What light clients may notice, where fairness is measured; not beside rates."""

    def settings(self, *, fair: bool) -> dict[str, Any]:
        """Of the nodes, in the storm, or where fairness is measured."""
        if self.ops_per_s:
            return SETTINGS | {"admission.partition_ops_per_s": self.ops_per_s, "admission.rate_burst_ms": BURST_MS}
        return SETTINGS | ({"admission.light_commit_ms": self.light_commit_ms} if fair else {})


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
        tally, *hot = self._play(plan, *beside)
        p50, p99 = quantiles_ms(tally.latencies)
        self.figures[name] = {
            "p50_ms": p50,
            "p99_ms": p99,
            "acknowledged": tally.acknowledged,
            "errors": tally.errors,
            "beside_records_per_s": sum(each.acknowledged * self._shape.records for each in hot) / plan.seconds,
        }
        return p99

    def warm_up(self, seconds: float) -> None:
        """The first requests of a cluster are not like others."""
        self.quiet("warm-up", self._quiet("warm-up", seconds))

    def fairness(self, seconds: float) -> list[Check]:
        """A quiet client alone and beside hot ones, in turn."""
        p99s = self._beside_hot(seconds, ("committed", "applied"), ROUNDS)
        self.figures["quiet_p99_ms"] = p99s
        return [
            Check(f"quiet client's p99 {case} / alone", p99 / p99s[alone], at_most=UNFAIR_MAX)
            for case, p99 in p99s.items()
            if (alone := _alone(case)) != case
        ]

    def unbounded(self, seconds: float) -> None:
        """The same once, where nothing but the machine bounds what a hot client does: no bound, but a figure."""
        p99s = self._beside_hot(seconds, ("applied",), 1)
        self.figures["quiet_p99_ms_unbounded"] = p99s
        for case, p99 in p99s.items():
            say(f"storm: quiet client's p99 {case}: {p99 / p99s[_alone(case)]:.1f} times alone, without a target")

    def _beside_hot(self, seconds: float, waits: tuple[str, ...], rounds: int) -> dict[str, float]:
        """p99 in ms by case, medians of the rounds."""
        p99s: dict[str, list[float]] = {}
        for number in range(rounds):
            for wait in waits:
                cases = (
                    (f"alone, until {wait}", HOT[0], ()),
                    (f"beside a hot partition, until {wait}", PARTITIONS - 1, (HOT[0],)),
                    (f"on the hot partition, until {wait}", HOT[1], (HOT[1],)),
                )
                for case, partition, hot in cases:
                    name = f"quiet {case}, {number + 1}"
                    plans = [self.hot(f"hot beside {name}", each, seconds) for each in hot]
                    p99 = self.quiet(name, self._quiet(name, seconds, partition, wait), *plans)
                    p99s.setdefault(case, []).append(p99)
                    rate = f", {self.figures[name]['beside_records_per_s']:,.0f} records/s" if hot else ""
                    say(f"storm: {name}{rate}: p99 {p99:.1f} ms")
        return {case: statistics.median(each) for case, each in p99s.items()}

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

    def counted(self) -> tuple[int, int]:
        """What the states say of everything that was ever asked for: lost, and too much."""
        lost = phantom = 0
        with self._cluster.client(timeout=PATIENCE_S) as client:
            client.barrier(client.last_seen, scope="all")
            for name, tally in self._all.items():
                for partition, (acknowledged, unknown) in tally.by_partition.items():
                    found = client.get(partition, counter(name))
                    applied = int(found[0]) if isinstance(found, tuple) else 0
                    lost += max(0, acknowledged - applied)
                    phantom += max(0, applied - acknowledged - unknown)
        return lost, phantom


def _alone(case: str) -> str:
    return f"alone, until {case.rsplit(maxsplit=1)[-1]}"


@contextmanager
def _storm(shape: Shape, directory: Path, warm_up_s: float, *, fair: bool) -> Iterator[Storm]:
    """Over a fresh cluster."""
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="storm-", dir=directory)).resolve()
    try:
        with LocalCluster(partitions=PARTITIONS, directory=place, settings=shape.settings(fair=fair)) as cluster:
            storm = Storm(cluster, shape)
            storm.warm_up(warm_up_s)
            yield storm
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measured(shape: Shape, seconds: float, directory: Path) -> tuple[dict[str, Any], list[Check]]:
    """The storm and what is fair. Raises the errors of logboom, OSError, RuntimeError and ValueError."""
    short = max(2.0, seconds / 6)
    with _storm(shape, directory, short, fair=False) as storm:
        checks = storm.storm(seconds, short)
        if shape.ops_per_s:
            checks += storm.fairness(short)
        else:
            storm.unbounded(short)
        figures, counts = storm.figures, [storm.counted()]
    if not shape.ops_per_s:
        say(f"storm: light clients' commands are to be committed within {shape.light_commit_ms} ms from here on")
        with _storm(shape, directory, short, fair=True) as storm:
            checks += storm.fairness(short)
            figures, counts = figures | {"fair": storm.figures}, [*counts, storm.counted()]
    lost, phantom = (float(sum(each)) for each in zip(*counts, strict=True))
    checks += [
        Check("acknowledged and lost", lost, at_most=0.0),
        Check("refused or sent once, and applied (again)", phantom, at_most=0.0),
    ]
    return figures, checks


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
        help=f"rates bound what can be done, not the machine: records a second and partition, {OPS_PER_S:,}",
    )
    parser.add_argument(
        "--light-commit-ms",
        type=int,
        default=LIGHT_COMMIT_MS,
        metavar="MS",
        help=f"what light clients may notice where fairness is measured, {LIGHT_COMMIT_MS}; not with --throttled",
    )
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "storm.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.records is None:
        # Ten times what can be done has to be asked for with a part of two CPUs, so requests are large.
        asked.records = 100 if asked.throttled else 1_000
    if min(asked.seconds, asked.processes, asked.records, asked.deadline, asked.light_commit_ms) <= 0:
        parser.error("everything is above 0")
    signal.signal(signal.SIGTERM, _on_term)
    shape = Shape(
        asked.processes,
        asked.records,
        asked.value_bytes,
        asked.deadline,
        asked.admission_wait,
        asked.throttled,
        0 if asked.throttled else asked.light_commit_ms,
    )
    try:
        figures, checks = measured(shape, asked.seconds, asked.directory)
    except (LogboomError, TimeoutError, OSError, RuntimeError, ValueError) as error:
        say(f"storm: {error!r}")
        return 2
    settings = {"seconds": asked.seconds, "shape": asdict(shape), "servers": shape.settings(fair=True)}
    write(asked.output, settings=settings, checks=checks, figures=figures)
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
