"""``python -m bench.restart``: how long a node takes from exec to serving, beside etcd with the same payload.

Three nodes are filled and left alone for a while. Then, over and over, one follower or all nodes end, by SIGTERM or
SIGKILL, with the page cache as it is (*warm*) or dropped for their data (*cold*), and start again. A little is written
before each end, so that a kill leaves something to catch up with. What counts is the time from exec to the answer of
the first linearizable read through the node; for all nodes at once, through the last of them. A logboom node that
follows answers no linearizable reads: it counts once it knows the leader and shows all that was acknowledged before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.curves.length import forget
from bench.fill import VALUE_BYTES, Fill
from bench.report import RESULTS, SCRATCH, Check, say, three, verdict, write
from bench.subjects import Etcd, Logboom, Subject
from bench.systems import Missing
from bench.systems.http2 import CallFailed
from logboom.errors import LogboomError

GIB: Final = 1 << 30
TOUCH_BYTES: Final = 2 << 20
"""Written before each end."""
SETTLE_S: Final = 7.0
"""After the filling: longer than ``apply.unsaved_ms``, so that state machines have saved."""
PAUSE_S: Final = 1.0
"""Between what is written before an end and the end."""
WARM_S_MAX: Final = 0.7
COLD_S_MAX: Final = 3.0
OURS: Final = "logboom"
MAKERS: Final[dict[str, Callable[[Path], Subject]]] = {
    OURS: lambda directory: Logboom(directory, kv=4),
    "logboom-log": lambda directory: Logboom(directory, kv=0),
    "etcd": Etcd,
}


@dataclass(frozen=True)
class Case:
    """One way to end and start."""

    who: str
    how: str
    cache: str

    def __str__(self) -> str:
        return f"{self.who}, {self.how}, {self.cache}"


CASES: Final = tuple(
    Case(who, how, cache)
    for who in ("follower", "cluster")
    for how in ("SIGTERM", "SIGKILL")
    for cache in ("warm", "cold")
)


@dataclass(frozen=True)
class Row:
    """Seconds from exec, one per run; of a cluster: until the last node."""

    system: str
    case: str
    what: str
    runs: tuple[float, ...]

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | three(self.runs)


def files(directory: Path) -> list[Path]:
    """All that a node has on the disk."""
    return [path for path in sorted(directory.rglob("*")) if path.is_file()]


def drop(directory: Path) -> None:
    """Leave nothing of the directory in the page cache: what is dirty is written first."""
    found = files(directory)
    for path in found:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    forget(found)


def once(subject: Subject, case: Case, touch: Fill) -> dict[str, Any]:
    """End and start so; seconds from exec by what was waited for, and what the last node said at which second."""
    asyncio.run(subject.write(touch))
    time.sleep(PAUSE_S)
    leader = subject.leader()
    nodes = list(subject.nodes) if case.who == "cluster" else [next(n for n in subject.nodes if n != leader)]
    began = time.perf_counter()
    subject.end(nodes, signal.Signals[case.how])
    ended = time.perf_counter() - began
    if case.cache == "cold":
        for node in nodes:
            drop(subject.data(node))
    at, began = time.time(), time.perf_counter()
    for node in nodes:
        subject.start(node)
    found = asyncio.run(_served(subject, nodes))
    seconds = {what: max(each[what] for each in found) - began for what in found[0]}
    slowest = max(zip(nodes, found, strict=True), key=lambda each: each[1]["read"])[0]
    asyncio.run(subject.whole())
    return {"seconds": seconds, "stop_s": ended, "said": subject.said(slowest, at)}


async def _served(subject: Subject, nodes: Sequence[str]) -> list[dict[str, float]]:
    return await asyncio.gather(*map(subject.served, nodes))


def measured(subject: Subject, payload_bytes: int, runs: int, cases: Sequence[Case]) -> dict[str, Any]:
    """Everything about one system: rows, bytes on the disk, what was said, a profile. Raises the systems' errors."""
    wanted = Fill(payload_bytes)
    took: dict[tuple[Case, str], list[float]] = {}
    said: dict[str, dict[str, float]] = {}
    try:
        subject.begin()
        began = time.perf_counter()
        asyncio.run(subject.write(wanted))
        filled = time.perf_counter() - began
        time.sleep(SETTLE_S)
        sizes = {node: sum(p.stat().st_blocks for p in files(subject.data(node))) * 512 for node in subject.nodes}
        most = max(sizes.values())
        say(f"{subject.name}: filled in {filled:.0f} s; a node has {most / 1e6:,.0f} MB on the disk")
        for run in range(runs):
            for number, case in enumerate(cases):
                seed = 2 + run * len(cases) + number
                found = once(subject, case, replace(wanted, payload_bytes=TOUCH_BYTES, seed=seed))
                for what, seconds in found["seconds"].items():
                    took.setdefault((case, what), []).append(seconds)
                said[str(case)] = found["said"]
                answers = ", ".join(f"{what} {seconds:.3f} s" for what, seconds in found["seconds"].items())
                say(f"  {subject.name}, {case}: {answers} (stop {found['stop_s']:.2f} s)")
        follower = next(node for node in subject.nodes if node != subject.leader())
        subject.close()
        profile = subject.profile(follower)
    finally:
        subject.close()
    return {
        "version": subject.version(),
        "settings": subject.settings(),
        "fill_s": round(filled, 1),
        "disk_bytes": sizes,
        "rows": [Row(subject.name, str(case), what, tuple(runs_)) for (case, what), runs_ in took.items()],
        "said": said,
        "profile": profile,
    }


# -- what comes of it


def judge(rows: Sequence[Row]) -> list[Check]:
    """A follower's start, by the median over both ways to end."""

    def of(cache: str) -> list[float]:
        cases = {str(case) for case in CASES if case.who == "follower" and case.cache == cache}
        return [t for row in rows if row.system == OURS and row.what == "read" and row.case in cases for t in row.runs]

    bounds = (("warm", WARM_S_MAX), ("cold", COLD_S_MAX))
    return [
        Check(
            f"s from a follower's exec to its first linearizable read, {cache}",
            three(of(cache))["median"],
            at_most=most,
        )
        for cache, most in bounds
        if of(cache)
    ]


def markdown(table: Sequence[Mapping[str, Any]]) -> str:
    """The rows of the JSON as a table: cases down, systems and what was waited for across."""
    columns = list(dict.fromkeys((row["system"], row["what"]) for row in table))
    cases = list(dict.fromkeys(row["case"] for row in table))
    cells = {(row["case"], row["system"], row["what"]): row for row in table}
    lines = [
        "| | " + " | ".join(f"{system}: {what}" for system, what in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for case in cases:
        found = [cells.get((case, *column)) for column in columns]
        shown = [f"{c['median']:.2f} ({c['min']:.2f}-{c['max']:.2f})" if c else "-" for c in found]
        lines.append(f"| {case} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def spent(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """For people: what the nodes said when, and the tops of the profiles."""
    lines: list[str] = []
    for name, found in systems.items():
        for case, said in found["said"].items():
            if said:
                lines.append(f"{name}, {case}: " + ", ".join(f"{event} {at:.2f}" for event, at in said.items()))
        profile = found["profile"]
        if profile:
            plain = ", ".join(f"imports {p['import_s']:.2f} s, Node() {p['node_s']:.2f} s" for p in profile["plain"])
            lines += [f"{name}, a follower's start without a network, twice: {plain}", *profile["profile"]["tottime"]]
    return "\n".join(lines)


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description="from exec to serving")
    parser.add_argument("--quick", action="store_true", help="32 MiB, one run: a look, not a measurement")
    parser.add_argument("--gb", type=float, default=1.0, help="payload on each node, in GiB, alike for all systems")
    parser.add_argument("--runs", type=int, default=5, help="ends and starts of each kind")
    parser.add_argument(
        "--systems", type=lambda text: text.split(","), default=list(MAKERS), help=f"of {','.join(MAKERS)}"
    )
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "restart.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    parser.add_argument("--table", action="store_true", help="only print the last run's table as Markdown")
    asked = parser.parse_args()
    if asked.gb <= 0 or asked.runs < 1 or set(asked.systems) - set(MAKERS):
        parser.error(f"--gb and --runs are above 0, --systems of {', '.join(MAKERS)}")
    if asked.quick:
        asked.gb, asked.runs = 1 / 32, 1
    return asked


def main() -> int:
    """Exit status 1: a floor was missed; 2: something could not be measured."""
    asked = _asked()
    if asked.table:
        print(markdown(json.loads(asked.output.read_text())["table"]))
        return 0
    signal.signal(signal.SIGTERM, _on_term)
    systems: dict[str, dict[str, Any]] = {}
    asked.directory.mkdir(parents=True, exist_ok=True)
    for name in asked.systems:
        place = Path(tempfile.mkdtemp(prefix="restart-", dir=asked.directory)).resolve()
        try:
            systems[name] = measured(MAKERS[name](place), int(asked.gb * GIB), asked.runs, CASES)
        except (Missing, CallFailed, LogboomError, OSError, TimeoutError, RuntimeError, ExceptionGroup) as error:
            say(f"{name}: {error!r}")
        finally:
            shutil.rmtree(place, ignore_errors=True)
    rows: list[Row] = [row for found in systems.values() for row in found.pop("rows")]
    table, checks = [row.figures() for row in rows], judge(rows)
    settings = {
        "gib": asked.gb,
        "runs": asked.runs,
        "nodes": 3,
        "value_bytes": VALUE_BYTES,
        "keys": Fill(1).keys,
        "written_before_each_end_bytes": TOUCH_BYTES,
        "cold": "the nodes' data is synced and dropped from the page cache; programs and libraries stay there",
    }
    write(asked.output, settings=settings, checks=checks, systems=systems, table=table)
    print(markdown(table))
    print(spent(systems))
    missed = verdict(checks, floors=not asked.no_floors)
    return missed if len(systems) == len(asked.systems) else 2


if __name__ == "__main__":
    sys.exit(main())
