"""What a run of the curves was asked for."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from bench.curves.drive import Drive, Driven, run
from bench.curves.sheet import Sheet
from logboom.testing import LocalCluster

GB: Final = 10**9
RESERVE_BYTES: Final = 5 * GB
"""Left free on the disk whatever is asked for."""
QUICK_MAX: Final = 3
"""Points of a curve in a quick run."""
T = TypeVar("T")


@dataclass(frozen=True)
class Given:
    """For every curve alike."""

    directory: Path
    seconds: float = 3.0
    """Per load."""
    runs: int = 3
    """Loads per point; a point is their median."""
    log_gb: float = 8.0
    """How long the longest log becomes (10^9 bytes)."""
    quick: bool = False

    def some(self, xs: Sequence[T]) -> Sequence[T]:
        """All of them, or the first few of a quick run."""
        return xs[:QUICK_MAX] if self.quick else xs

    def measure(self, cluster: LocalCluster, shape: Drive) -> list[Driven]:
        """The same load so often."""
        return [run(shape) for _ in range(self.runs)]


def affordable_gb(wanted: float, directory: Path, sheet: Sheet) -> float:
    """What of ``wanted`` fits on the disk beside the reserve; says so on the sheet if it is less."""
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    room = max(0.0, (free - RESERVE_BYTES) / GB / 1.05)
    if wanted > room:
        sheet.skip(f"a log of {wanted:g} GB: {free / GB:.0f} GB are free, which is room for {room:.0f} GB")
    return min(wanted, float(int(room)))
