"""What clients saw, for those who look at it."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.checkers.watermarks import Sample
from chaos.history import History, Operation
from chaos.sim.readers import Places
from chaos.sim.waiting import Told


@dataclass
class Seen:
    """What clients saw, for the checkers."""

    history: History
    addresses: dict[str, str]
    """Client addresses of those who are, or were a moment ago, members, and their ids."""
    heard: dict[tuple[str, int], Sample] = field(default_factory=dict)
    """By node and partition: the highest watermarks that anybody heard of."""
    sampled: int = 0
    together: list[list[Operation]] = field(default_factory=list)
    """Operations of one request each: all of them or none."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(invariant, story), found on the spot."""
    created: dict[int, str] = field(default_factory=dict)
    """Partitions that were created, as far as anybody was told, and their state machines."""
    gone: set[int] = field(default_factory=set)
    """Those that somebody was told are destroyed."""
    places: Places = field(default_factory=Places)
    """What was read of the logs."""
    kept: int = 0
    """How often the last partition was to be destroyed, and was not."""
    told: Told = field(default_factory=Told)
    """Writes that were acknowledged last."""
    again: bool = False
    """In another history than the cluster's first: registers have other names, which nobody has written."""
    doomed: set[int] = field(default_factory=set)
    """Those that somebody has asked to be destroyed: what is in there may be gone."""
