"""One gate's budgets: what is taken of them, since when, how fast it drains, and what a signal withholds. Sans-io."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from dispatcher.admission.reservations import NEWCOMER, NOTHING_KEPT, Amounts, Reservation
from logboom.types import PartitionId

AGES_KEPT: Final = 64
RATE_S: Final = 0.1
"""A rate is measured over so long at least."""
RATE_S_MAX: Final = 5.0
"""What was given back over a longer time says nothing of now: nobody may have wanted more."""
RATE_KEPT: Final = 0.6
"""So much of a new rate is what it was before."""
UNITS: Final = ("ops", "bytes", "batches")
BUDGETS: Final = {scope: frozenset(f"{scope}_{unit}" for unit in UNITS) for scope in ("partition", "node")}

Parts = Sequence[tuple[PartitionId, int, int]]
"""(partition, operations, bytes) of one request, each partition once."""


class Limits(NamedTuple):
    """What may be taken at one gate. ``age_s`` 0: any age will do."""

    scope: str
    """`partition` or `node`: the gates' names begin with it."""
    operations: int
    nbytes: int
    batches: int
    age_s: float


class Refusal(NamedTuple):
    """Which gate, and what would have to be given back before it opens."""

    gate: str
    partition_id: PartitionId | None
    used: float
    maximum: float
    retry_after: float = 0.0
    share_of: str | None = None
    """Only this principal is held back, by its fair share or its rate; None: everybody is."""
    opens_at: float = 0.0
    """When time opens it, if it is a rate: nothing that is given back does. 0: it is none."""

    @property
    def is_own_rate(self) -> bool:
        """A rate of this principal stands in the way, wherever it writes."""
        return self.opens_at > 0 and self.partition_id is None and self.share_of is not None

    @property
    def is_budget(self) -> bool:
        """What anybody gives back at this very gate opens it."""
        scope = "node" if self.partition_id is None else "partition"
        return self.share_of is None and self.gate in BUDGETS[scope]

    @property
    def lane(self) -> PartitionId | str | None:
        """Where those wait who lack it: a partition's, the node's or, for its own rate, a principal's."""
        return self.share_of if self.is_own_rate else self.partition_id


class Verdict(NamedTuple):
    """What a signal says of a partition or the node: how much of all budgets is withheld, 1: nothing is admitted."""

    signal: str
    pressure: float
    refusal: dict[str, object] | None = None
    """A typed error in its wire form: what to refuse with in place of Overloaded."""


class Taken:
    """One partition's part of a ticket."""

    __slots__ = ("given", "nbytes", "operations", "partition_id", "principal", "since")

    def __init__(self, partition_id: PartitionId, operations: int, nbytes: int, principal: str, since: float) -> None:
        self.partition_id = partition_id
        self.operations = operations
        self.nbytes = nbytes
        self.principal = principal
        self.since = since
        self.given = False


class Use:
    """What is taken: operations, bytes, batches."""

    __slots__ = ("batches", "nbytes", "operations")

    def __init__(self) -> None:
        self.operations = 0
        self.nbytes = 0
        self.batches = 0

    def take(self, operations: int, nbytes: int, batches: int) -> None:
        """Or, below zero, give back."""
        self.operations += operations
        self.nbytes += nbytes
        self.batches += batches

    @property
    def whole(self) -> bool:
        """Nothing below zero, and nothing left over when everything has been given back."""
        if self.batches <= 0:
            return self.batches == self.operations == self.nbytes == 0
        return self.operations >= 0 and self.nbytes >= 0


class Gate(Use):
    """All budgets of a partition, or of the node."""

    __slots__ = (
        "_ages",
        "_drained",
        "_measured_at",
        "_rates",
        "_verdicts",
        "limits",
        "partition_id",
        "reservation",
        "verdict",
    )

    def __init__(self, limits: Limits, partition_id: PartitionId | None) -> None:
        super().__init__()
        self.limits = limits
        self.partition_id = partition_id
        self.verdict: Verdict | None = None
        """The worst of all sources'; None: all is well."""
        self.reservation: Reservation | None = None
        """What is kept back for a large request that waits."""
        self._verdicts: dict[str, Verdict] | None = None
        self._ages: deque[Taken] | None = None  # an idle partition costs no queue
        self._drained = self._rates = (0.0, 0.0, 0.0)
        self._measured_at = 0.0

    def judge(self, source: str, verdict: Verdict | None) -> bool:
        """What a source says now; True: less is withheld than before."""
        before, known = self.verdict, self._verdicts or {}
        if verdict is None:
            known.pop(source, None)
        else:
            known[source] = verdict
        self._verdicts = known or None
        self.verdict = max(known.values(), key=lambda each: each.pressure) if known else None
        return before is not None and (self.verdict is None or self.verdict.pressure < before.pressure)

    def admitted(self, taken: Taken) -> None:
        """A part was taken of this."""
        ages = self._ages
        if ages is None:
            ages = self._ages = deque()
        elif len(ages) > 2 * self.batches + AGES_KEPT:
            ages = self._ages = deque(each for each in ages if not each.given)
        ages.append(taken)
        if self.reservation is not None:
            self.reservation.fit(self._free())

    def drained(self, taken: Taken) -> None:
        """A part was given back."""
        operations, nbytes, batches = self._drained
        self._drained = (operations + taken.operations, nbytes + taken.nbytes, batches + 1)
        if self.reservation is not None:
            self.reservation.add_half((taken.operations, taken.nbytes, 1), self._free())

    @property
    def keeps_what_is_free(self) -> bool:
        """And nothing that somebody has taken."""
        kept = NOTHING_KEPT if self.reservation is None else self.reservation.amounts
        return all(0 <= some <= free for some, free in zip(kept, self._free(), strict=True))

    def _free(self) -> Amounts:
        _, most_operations, most_bytes, most_batches, _ = self.limits
        return most_operations - self.operations, most_bytes - self.nbytes, most_batches - self.batches

    def outstanding(self) -> list[Taken]:
        """All that is not given back."""
        return [each for each in self._ages or () if not each.given]

    def age(self, now: float) -> float:
        """Seconds since the oldest part was taken that is not given back."""
        ages = self._ages
        while ages and ages[0].given:
            ages.popleft()
        return now - ages[0].since if ages else 0.0

    def refusal(self, wanted: Amounts, now: float, number: int = NEWCOMER) -> Refusal | None:
        """Why so much of each cannot be had now, by the request of that number."""
        limits, verdict = self.limits, self.verdict
        operations, nbytes, batches = wanted
        if (
            verdict is None
            and not limits.age_s
            and self.reservation is None
            and self.operations + operations <= limits.operations
            and self.nbytes + nbytes <= limits.nbytes
            and self.batches + batches <= limits.batches
        ):
            return None
        if verdict is not None and verdict.pressure >= 1:
            return Refusal(verdict.signal, self.partition_id, verdict.pressure, 1)
        if limits.age_s and (age := self.age(now)) > limits.age_s:
            return Refusal(f"{limits.scope}_age_ms", self.partition_id, age * 1000, limits.age_s * 1000)
        left = 1.0 if verdict is None else 1 - verdict.pressure
        for unit, (used, more, maximum) in enumerate(self._rows(wanted, number)):
            if used + more > maximum:
                wait = self._until(unit, used + more - maximum, now)
                return Refusal(f"{limits.scope}_{UNITS[unit]}", self.partition_id, used, maximum, wait)
            if verdict is not None and used and used + more > left * maximum:  # one always goes through
                wait = self._until(unit, used + more - left * maximum, now)
                return Refusal(verdict.signal, self.partition_id, verdict.pressure, 1, wait)
        return None

    def share(self, use: Use, wanted: Amounts, factor: float, now: float, number: int = NEWCOMER) -> Refusal | None:
        """``use`` is somebody's part of this: with more he would have over ``factor`` times what is left free.

        So whoever is alone gets factor / (1 + factor) of it, two get 2 factor / (1 + 2 factor) together, and however
        many there are something is left for the next (Choudhury and Hahne's dynamic thresholds).
        """
        held = (use.operations, use.nbytes, use.batches)
        if self.reservation is None:  # what the loop below would find, as nearly always
            limits = self.limits
            if (
                use.operations + wanted[0] <= factor * (limits.operations - self.operations - wanted[0])
                and use.nbytes + wanted[1] <= factor * (limits.nbytes - self.nbytes - wanted[1])
                and use.batches + wanted[2] <= factor * (limits.batches - self.batches - wanted[2])
            ):
                return None
        for unit, (used, more, maximum) in enumerate(self._rows(wanted, number)):
            allowed = factor * (maximum - used - more)
            if held[unit] + more > allowed:
                wait = self._until(unit, (held[unit] + more - allowed) / (1 + factor), now)
                return Refusal(f"{self.limits.scope}_{UNITS[unit]}", self.partition_id, used, maximum, wait)
        return None

    def _rows(self, wanted: Amounts, number: int) -> tuple[Amounts, ...]:
        limits = self.limits
        if self.reservation is not None:
            kept = self.reservation.kept_from(number)
            return (
                (self.operations + kept[0], wanted[0], limits.operations),
                (self.nbytes + kept[1], wanted[1], limits.nbytes),
                (self.batches + kept[2], wanted[2], limits.batches),
            )
        return (
            (self.operations, wanted[0], limits.operations),
            (self.nbytes, wanted[1], limits.nbytes),
            (self.batches, wanted[2], limits.batches),
        )

    def _until(self, unit: int, lacking: float, now: float) -> float:
        """Seconds in which so much drains, as it has of late; 0: nobody knows."""
        elapsed = now - self._measured_at
        if elapsed > RATE_S_MAX:
            self._rates = self._drained = (0.0, 0.0, 0.0)
            self._measured_at = now
        elif elapsed >= RATE_S:
            kept = RATE_KEPT if any(self._rates) else 0.0
            self._rates = tuple(  # type: ignore[assignment]  # three of three
                kept * rate + (1 - kept) * drained / elapsed
                for rate, drained in zip(self._rates, self._drained, strict=True)
            )
            self._drained, self._measured_at = (0.0, 0.0, 0.0), now
        rate = self._rates[unit]
        return lacking / rate if rate > 0 else 0.0
