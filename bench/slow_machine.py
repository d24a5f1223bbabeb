"""A state machine that is slow: ``log``, at 4 MB a second. ``site`` makes nodes find it as a user's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from logboom.state_machine import ApplyBatch, Results, Sealed
from partitions.machines.log import LogMachine
from server.world.disk_os import OsDisk

NAME: Final = "slow"
BYTES_PER_S: Final = 4e6


class SlowMachine(LogMachine):
    """See the module."""

    @classmethod
    def open(cls, directory: Path, partition_id: int, settings: object) -> Self:
        """One partition's."""
        return cls(OsDisk(), directory / "checkpoint")

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        """As a ``log`` does, after a while."""
        time.sleep(sum(batch.nbytes for batch in batches) / BYTES_PER_S)
        return super().apply(batches, seal)


def site(directory: Path) -> Path:
    """Put it on nodes' ``PYTHONPATH``: it says that a distribution has this machine."""
    about = directory / "slow_machine-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: slow_machine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[logboom.state_machines]\n{NAME} = {__name__}:{SlowMachine.__name__}\n")
    return directory
