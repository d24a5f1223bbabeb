"""``python -m bench.endless``: does what a node takes stay the same while ever more is written?

Three nodes with settings that let them keep little are written to at a steady rate, ``--times`` what they may keep on
the disk, over a bounded number of keys. Every second: what each node's data takes on the disk part by part, its
resident memory, how far the parent log is. In the last half of the run the disk use has to stay below a bound that
the settings alone decide, and memory must not have grown since the quarter before it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from bench import fill
from bench.disk_use import MIB, Retention, Use
from bench.fill import Fill
from bench.report import RESULTS, SCRATCH, Check, say, verdict, write
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

SAMPLE_S: Final = 1.0
MEMORY_GROWTH_MAX: Final = 1.25
SHOWN: Final = 12
"""Rows of the table."""


@dataclass(frozen=True)
class Sample:
    """One node at one time."""

    seconds: float
    """Since the writing began."""
    node: str
    use: Use
    resident_bytes: int
    raft_index: int
    """Of the last committed entry of the parent log; -1: the node did not say."""


def resident(pid: int) -> int:
    """Resident memory of a process. Raises OSError when it is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


class Sampler:
    """Looks at all nodes every second, from a thread of its own, until it is left."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._began = time.perf_counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._cluster.client(timeout=SAMPLE_S) as client:
                while not self._ended.wait(SAMPLE_S):
                    for node in self._cluster.nodes:
                        self.samples.append(self._one(node, client))
        except Exception as error:  # noqa: BLE001 - raised where the run ends
            self.error = error

    def _one(self, node: str, client: Any) -> Sample:
        try:
            raft_index = int(client.status(node=self._cluster.addresses[node], timeout=SAMPLE_S)["raft_index"])
        except LogboomError:
            raft_index = -1  # busy: there is another sample soon
        seconds = round(time.perf_counter() - self._began, 2)
        pid = self._cluster.pid(node)
        return Sample(seconds, node, Use.of(self._cluster.data_dirs[node]), resident(pid), raft_index)


def measured(
    directory: Path, kept: Retention, *, payload_bytes: int, bytes_per_s: float, snapshots: bool
) -> list[Sample]:
    """Write so much, and look. Raises the errors of logboom, OSError, and ExceptionGroups of them."""
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="endless-", dir=directory)).resolve()
    partitions = kept.kv + kept.log
    kv, log = range(kept.kv), range(kept.kv, partitions)
    settings = {
        "cluster.overrides": {str(p): {"state_machine": "log"} for p in log},
        "node.log_level": "warning",
        **kept.settings(snapshots=snapshots),
    }
    wanted = Fill(payload_bytes, keys=kept.keys, bytes_per_s=bytes_per_s)
    try:
        with LocalCluster(nodes=3, partitions=partitions, directory=place, settings=settings) as cluster:
            with Sampler(cluster) as sampler:
                asyncio.run(fill.logboom(tuple(cluster.addresses.values()), wanted, kv=kv, log=log))
            if sampler.error is not None:
                raise sampler.error
            return sampler.samples
    finally:
        shutil.rmtree(place, ignore_errors=True)


# -- what comes of it


def between(samples: Sequence[Sample], begin: float, end: float) -> list[Sample]:
    """The part of the run between two shares of its time, 0 to 1. Raises ValueError if there is nothing."""
    last = max((sample.seconds for sample in samples), default=0.0)
    found = [sample for sample in samples if begin * last <= sample.seconds <= end * last]
    if not found:
        raise ValueError("the run was too short: nothing was seen")
    return found


def judge(samples: Sequence[Sample], most: Use) -> list[Check]:
    """The last half of the run."""
    half = between(samples, 0.5, 1.0)
    checks = [
        Check(
            f"MB on a node's disk at most, last half: {what}",
            max(size(sample.use) for sample in half) / 1e6,
            at_most=round(size(most) / 1e6, 1),
        )
        for what, size in PARTS.items()
    ]

    def memory(begin: float, end: float) -> int:
        return max(sample.resident_bytes for sample in between(samples, begin, end))

    grown = memory(0.75, 1.0) / memory(0.5, 0.75)
    return [*checks, Check("resident memory, last quarter / the one before", grown, at_most=MEMORY_GROWTH_MAX)]


PARTS: Final[dict[str, Callable[[Use], int]]] = {
    "everything": lambda use: use.total,
    "journal": lambda use: use.journal,
    "partitions' logs": lambda use: use.logs,
    "states": lambda use: use.state,
    "snapshots": lambda use: use.snapshots,
}


def table(samples: Sequence[Sample], node: str) -> str:
    """Some of a node's samples, evenly chosen, as Markdown: MB."""
    mine = [sample for sample in samples if sample.node == node]
    step = -(-len(mine) // SHOWN) or 1
    lines = [
        "| s | " + " | ".join(PARTS) + " | resident | parent log's entries |",
        "| ---: |" + " ---: |" * (len(PARTS) + 2),
    ]
    for sample in mine[::step]:
        sizes = [*(size(sample.use) for size in PARTS.values()), sample.resident_bytes]
        cells = [f"{sample.seconds:.0f}", *(f"{size / 1e6:.1f}" for size in sizes), f"{sample.raft_index:,}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curves(samples: Sequence[Sample], most: Use) -> dict[str, Any]:
    """The run in the form of ``bench.curves``: what the pictures are drawn from."""
    last = max(sample.seconds for sample in samples)

    def point(x: float, y: float, series: str) -> dict[str, Any]:
        return {"x": x, "y": y, "low": y, "high": y, "series": series}

    disk = [point(s.seconds, s.use.total / 1e6, s.node) for s in samples]
    disk += [point(x, most.total / 1e6, "bound") for x in (samples[0].seconds, last)]
    node = samples[0].node
    parts = [
        point(s.seconds, size(s.use) / 1e6, what)
        for what, size in PARTS.items()
        if what != "everything"
        for s in samples
        if s.node == node
    ]
    memory = [point(s.seconds, s.resident_bytes / 1e6, s.node) for s in samples]
    return {
        "disk over time": {"x": "s", "unit": "MB", "linear": True, "points": disk},
        f"disk over time, {node}": {"x": "s", "unit": "MB", "linear": True, "points": parts},
        "memory over time": {"x": "s", "unit": "MB", "linear": True, "points": memory},
    }


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.endless", description="ever more is written")
    parser.add_argument("--times", type=float, default=20.0, help="written: so many times what may be kept")
    parser.add_argument("--mb-per-s", type=float, default=16.0, help="payload; 0: as fast as it goes")
    parser.add_argument("--without-snapshots", action="store_true", help="without the settings of snapshots: it grows")
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "endless.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.times <= 0 or asked.mb_per_s < 0:
        parser.error("--times is above 0, --mb-per-s not below")
    return asked


def main() -> int:
    """Exit status 1: a floor was missed; 2: it could not be measured."""
    asked = _asked()
    signal.signal(signal.SIGTERM, _on_term)
    kept = Retention()
    most = kept.most()
    payload = int(asked.times * (most.logs + most.journal))
    say(f"endless: {payload / MIB:,.0f} MiB to write; a node may keep {most.total / MIB:,.0f} MiB")
    try:
        samples = measured(
            asked.directory,
            kept,
            payload_bytes=payload,
            bytes_per_s=asked.mb_per_s * 1e6,
            snapshots=not asked.without_snapshots,
        )
        checks = judge(samples, most)
    except (LogboomError, TimeoutError, OSError, RuntimeError, ValueError, ExceptionGroup) as error:
        say(f"endless: {error!r}")
        return 2
    settings = {
        "nodes": 3,
        "times": asked.times,
        "mb_per_s": asked.mb_per_s,
        "written_bytes": payload,
        "work": asdict(kept),
        "servers": kept.settings(snapshots=not asked.without_snapshots),
    }
    rows = [asdict(sample) for sample in samples]
    write(
        asked.output,
        settings=settings,
        checks=checks,
        bound=asdict(most),
        samples=rows,
        curves=curves(samples, most),
    )
    print(table(samples, samples[0].node))
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
