"""What a benchmark writes down: when, where and with what it was taken, the figures, and which floors they meet."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results"
SCRATCH: Final = ROOT / ".bench"
"""Where clusters keep their data, unless told otherwise: on the disk of the checkout."""


@dataclass(frozen=True)
class Check:
    """A figure and its bound: one of ``at_most`` and ``at_least``."""

    name: str
    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool:
        """The figure keeps within the bound."""
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    def row(self) -> dict[str, Any]:
        """For JSON; only the bound that there is."""
        bounds = {"at_most": self.at_most, "at_least": self.at_least}
        return (
            {"name": self.name, "value": self.value}
            | {k: v for k, v in bounds.items() if v is not None}
            | {"met": self.met}
        )

    def __str__(self) -> str:
        bound = f"<= {self.at_most:,g}" if self.at_most is not None else f">= {self.at_least:,g}"
        return f"{'met   ' if self.met else 'MISSED'} {self.name}: {self.value:,.4g} ({bound})"


def three(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def quantiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds. Raises ValueError for fewer than two."""
    if len(seconds) < 2:
        raise ValueError("fewer than two operations: nothing was measured")
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1000, cuts[98] * 1000


def write(
    path: Path, *, settings: dict[str, Any], checks: Sequence[Check], packages: Sequence[str] = (), **figures: Any
) -> None:
    """Everything as JSON. ``packages``: whose versions belong to the figures, besides logboom's own."""
    report = {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "load_average_at_end": os.getloadavg(),
        },
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("logboom", "uvloop", *packages)},
        "settings": settings,
        **figures,
        "checks": [check.row() for check in checks],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    say(f"written: {path}")


def verdict(checks: Sequence[Check], *, floors: bool) -> int:
    """Say which floors were met. The exit status: 1 if one was missed and ``floors`` count."""
    for check in checks:
        print(check)
    return int(floors and not all(check.met for check in checks))


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)
