"""Where a node stands in its term, for whoever mends."""

from __future__ import annotations

from typing import NamedTuple

from logboom.types import NodeId


class Standing(NamedTuple):
    """What the engine knows of itself."""

    term: int = 0
    leader: NodeId | None = None
    leads: bool = False
