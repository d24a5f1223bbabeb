"""What the commands that work without a node, or beside one, have of the world: the real one here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ports.disk import Disk
from server.world.disk_os import OsDisk


@dataclass(frozen=True, slots=True)
class OfflineWorld:
    """A disk, a clock, chance. Everything blocks."""

    disk: Disk
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    random_bytes: Callable[[int], bytes]


def real_offline_world() -> OfflineWorld:
    """This machine's."""
    return OfflineWorld(OsDisk(), time.monotonic, time.sleep, os.urandom)
