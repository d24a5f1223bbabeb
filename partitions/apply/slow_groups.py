"""Groups that were applied on the loop and held it for long: for how long all partitions of a node keep off it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

S_MAX: Final = 0.002
AGAIN_S: Final = 10.0
"""Whose state is slow to read is not applied on the loop for so long."""
NODE_AGAIN_S: Final = 1.0
"""Nor is any other: partitions share a disk, and there may be thousands of them."""


@dataclass(slots=True)
class SlowGroups:
    """When groups may be applied on one node's loop again, after one that held it."""

    again: float = -1e9
    """From when on groups are applied on the loop."""

    def took(self, began: float, now: float) -> float | None:
        """A group has been. From when on its partition's are again; None: at once."""
        if now - began <= S_MAX:
            return None
        self.again = began + NODE_AGAIN_S
        return began + AGAIN_S
