"""What one producer has ordered in a partition and is not applied yet: it will be, in front of what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from logboom.types import PartitionLogIndex


class Ordered(NamedTuple):
    """A part that will be applied: its records' sequences, half-open, and what it says is settled."""

    epoch: int
    first: int
    stop: int
    floor: int


class OrderedParts:
    """Those of one producer, in the order of the log."""

    __slots__ = ("_high", "_low", "_newest", "_parts", "_said", "_stop", "runs")

    def __init__(self) -> None:
        self._parts: dict[PartitionLogIndex, Ordered] = {}
        self._newest = PartitionLogIndex(0)
        self._stop = -1
        """Where the newest ends; -1 when it is not there any more."""
        self._low = self._high = 0
        """All lie in between."""
        self._said = (0, 0)
        """The latest epoch, and the highest floor that one of it has said."""
        self.runs = 0
        """So many separate intervals they are at most: hardly ever more than one, however many parts there are."""

    def add(self, last_index: PartitionLogIndex, part: Ordered) -> None:
        """A batch that ends there."""
        if not self._parts:
            self._low, self._high, self._said = part.first, part.stop, (part.epoch, part.floor)
        self._said = max(self._said, (part.epoch, part.floor))
        if part.first != self._stop:
            self.runs += 1
            self._low = min(self._low, part.first)
        self._high = max(self._high, part.stop)
        self._parts[last_index] = part
        self._newest, self._stop = last_index, part.stop

    def drop(self, last_index: PartitionLogIndex) -> None:
        """It is applied, or lost."""
        self._parts.pop(last_index, None)
        if last_index == self._newest:
            self._stop = -1
        if not self._parts:
            self.runs = 0  # while there are any, it is not worth looking at each

    def may_have(self, first: int, stop: int) -> bool:
        """Something of these sequences may be among them; if not, nothing is."""
        return bool(self._parts) and first < self._high and self._low < stop

    def has(self, epoch: int, first: int, stop: int) -> bool:
        """Exactly this part is among them."""
        return self.may_have(first, stop) and any(each[:3] == (epoch, first, stop) for each in self)

    def settled(self, epoch: int, first: int, stop: int) -> list[tuple[int, int]]:
        """What of these sequences has no effect behind them, half-open, in no order, some of it twice."""
        latest, floor = self._said
        if not self._parts or latest < epoch:
            return []
        if latest > epoch:
            return [(first, stop)]
        found = [(first, min(stop, floor))] if first < floor else []
        if self.may_have(first, stop):
            found += [(max(e.first, first), min(e.stop, stop)) for e in self if e.epoch == epoch]
        return [(low, high) for low, high in found if low < high]

    def recount(self) -> None:
        """``runs`` as it is. Looks at each."""
        self.runs, stop = 0, -1
        for part in self._parts.values():
            self.runs += part.first != stop
            stop = part.stop

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Ordered]:
        return iter(self._parts.values())
