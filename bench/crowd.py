"""Client processes of ``bench.storm`` that begin together, and what the nodes' memory is meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, Self

from bench.endless import resident
from bench.report import ROOT
from bench.storm_client import Plan, Tally
from logboom.testing import LocalCluster

PATIENCE_S: Final = 60.0
"""Beyond what a plan takes, until its process counts as lost."""


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
