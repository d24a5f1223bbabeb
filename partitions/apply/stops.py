"""Where a worker stops until somebody has seen the state of there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logboom.state_machine import Machine
from logboom.types import PartitionLogIndex


@dataclass(slots=True, eq=False)
class Stop:
    """Where to stop until something of the state is captured."""

    through_index: PartitionLogIndex
    capture: Callable[[Machine], Any]
    taken: Callable[[Any], None]
    is_cut: bool = False
    """For a snapshot."""
