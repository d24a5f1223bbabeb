"""Rates: how fast a principal, and all together at one partition, may write. Sans-io.

A token bucket each, kept as what is owed (the generic cell rate algorithm, ITU-T I.371): a request owes as many seconds
as it takes at the rate, and time pays. It goes as soon as anything more may be owed, ``rate_burst_ms`` at most, however
large it is, and the next one waits for it: if it had to fit, whoever asks for little and often would keep it out for
ever. At a partition that goes for whoever owes hardly anything there; of others it has to fit, so that they leave
room for the next. Nothing is ever given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dispatcher.admission.budgets import Parts, Refusal
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId
from ports.invariant import invariant

KEPT_MIN: Final = 1024
"""Principals; of more those who owe nothing are forgotten."""
NOTHING_S: Final = 1e-6
"""Who owes less of what a partition's principals owe together owes nothing."""
LITTLE: Final = 0.01
"""Who owes less than so much of a burst at a partition is let in as if he asked for little."""


class Bound(NamedTuple):
    """One rate that is set: of each principal, or at each partition."""

    gate: str
    column: int
    """What of a part is counted: 1 operations, 2 bytes."""
    per_s: int

    def cost(self, parts: Parts) -> float:
        """Seconds that these take."""
        return sum(part[self.column] for part in parts) / self.per_s

    @property
    def least(self) -> float:
        """Seconds that one operation, or one byte, takes."""
        return 1 / self.per_s


class Owed:
    """What those who write to one partition owe, in seconds at its rate, as of ``at``. All pay in proportion."""

    __slots__ = ("_look_at", "_most", "_parts", "_scale", "at", "whole")

    def __init__(self, now: float) -> None:
        self.at = now
        self.whole = 0.0
        self._parts: dict[str, float] = {}
        """By principal, times ``_scale``."""
        self._scale = 1.0
        self._most = 0.0
        """The largest of the parts."""
        self._look_at = KEPT_MIN

    def pay(self, now: float) -> None:
        """What time pays. One that is earlier, as of who was asked about before, pays nothing."""
        if now <= self.at:
            return
        paid, self.at = now - self.at, now
        if paid >= self.whole:
            self.whole, self._scale, self._most = 0.0, 1.0, 0.0
            self._parts.clear()
        else:
            self._scale *= 1 - paid / self.whole
            self.whole -= paid
            if self._scale < NOTHING_S:
                self._tidy()

    def of(self, principal: str) -> float:
        """This one's part."""
        return self._parts.get(principal, 0.0) * self._scale

    @property
    def most(self) -> float:
        """What the principal that owes most owes."""
        return self._most * self._scale

    def wait(self, principal: str, cost: float, least: float, *, burst_s: float, factor: float) -> tuple[float, float]:
        """Seconds until so much more may be owed, and until this principal may, whose share is all that it lacks.

        ``least`` is what the smallest request costs: whoever owes hardly anything goes by that, whatever it wants.
        """
        whole, own = self.whole, self.of(principal)
        room = cost if own > LITTLE * burst_s else min(cost, least)
        share = 0.0
        if whole > 0 and principal and factor:
            # As ``Gate.share``: nobody owes more than so many times what is left of the burst. Both pay meanwhile.
            share = min(whole, (own + room - factor * (burst_s - whole - room)) / (own / whole + factor))
        return beyond(whole, room, burst_s), share

    def add(self, principal: str, cost: float) -> None:
        """More is owed; '': by nobody."""
        self.whole += cost
        if principal:
            part = self._parts[principal] = self._parts.get(principal, 0.0) + cost / self._scale
            self._most = max(self._most, part)
            if len(self._parts) > self._look_at:
                self._tidy()

    def _tidy(self) -> None:
        scale, self._scale = self._scale, 1.0
        self._parts = {who: part * scale for who, part in self._parts.items() if part * scale > NOTHING_S}
        self._most *= scale
        self._look_at = max(KEPT_MIN, 2 * len(self._parts))

    def audit(self) -> None:
        """Nobody's part is below zero, and all of them are not more than is owed."""
        invariant(min(self._parts.values(), default=0.0) >= 0, "somebody owes less than nothing: {}", self._parts)
        parts = sum(self._parts.values()) * self._scale
        invariant(parts <= self.whole * (1 + NOTHING_S) + NOTHING_S, "{} s are owed, in parts {}", self.whole, parts)


class Rates:
    """What principals and partitions of one node owe for what they wrote."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._burst_s = settings.rate_burst_ms / 1000
        share = settings.fair_share_percent / 100
        self._factor = share / (1 - share) if share < 1 else 0.0
        self._of_principals = _bounds("principal", settings.principal_ops_per_s, settings.principal_bytes_per_s)
        self._of_partitions = _bounds("partition", settings.partition_ops_per_s, settings.partition_bytes_per_s)
        self._paid_at: dict[tuple[str, str], float] = {}
        """By gate and principal, when he will owe nothing; without an entry he owes nothing."""
        self._look_at = KEPT_MIN
        self._owed: dict[tuple[str, PartitionId], Owed] = {}
        self.unbounded = not (self._of_principals or self._of_partitions)

    def refusal(self, parts: Parts, now: float, principal: str) -> Refusal | None:
        """Which rate stands in the way now, and for how long. Of a principal '' only partitions' do."""
        for bound in self._of_principals if principal else ():
            owed = max(0.0, self._paid_at.get((bound.gate, principal), now) - now)
            if (wait := beyond(owed, bound.least, self._burst_s)) > 0:
                return self._refused(bound, None, owed=owed + bound.cost(parts), wait=wait, now=now, share_of=principal)
        for bound in self._of_partitions:
            for part in parts:
                refusal = self._at_partition(bound, part[0], bound.cost([part]), now, principal)
                if refusal is not None:
                    return refusal
        return None

    def _at_partition(
        self, bound: Bound, partition_id: PartitionId, cost: float, now: float, principal: str
    ) -> Refusal | None:
        owed = self._owed.get((bound.gate, partition_id))
        if owed is None:
            return None
        owed.pay(now)
        wait, share = owed.wait(principal, cost, bound.least, burst_s=self._burst_s, factor=self._factor)
        if max(wait, share) <= 0:
            return None
        share_of = principal if wait <= 0 and owed.of(principal) else None
        wait = max(wait, share)
        return self._refused(bound, partition_id, owed=owed.whole + cost, wait=wait, now=now, share_of=share_of)

    def take(self, parts: Parts, now: float, principal: str) -> None:
        """It was admitted."""
        for bound in self._of_principals if principal else ():
            key = bound.gate, principal
            self._paid_at[key] = max(now, self._paid_at.get(key, now)) + bound.cost(parts)
        if len(self._paid_at) > self._look_at:
            self._paid_at = {key: at for key, at in self._paid_at.items() if at > now}
            self._look_at = max(KEPT_MIN, 2 * len(self._paid_at))
        for bound in self._of_partitions:
            for part in parts:
                at = bound.gate, part[0]
                owed = self._owed.get(at)
                if owed is None:
                    owed = self._owed[at] = Owed(now)
                owed.pay(now)
                owed.add(principal, bound.cost([part]))

    def remove(self, partition_id: PartitionId) -> None:
        """It is gone."""
        for bound in self._of_partitions:
            self._owed.pop((bound.gate, partition_id), None)

    def audit(self) -> None:
        """Looks at each partition."""
        for owed in self._owed.values():
            owed.audit()

    def _refused(
        self,
        bound: Bound,
        partition_id: PartitionId | None,
        *,
        owed: float,
        wait: float,
        now: float,
        share_of: str | None,
    ) -> Refusal:
        used = round(bound.per_s * owed / self._burst_s)  # a second, over the burst's time, if it were let in
        most = bound.per_s
        return Refusal(bound.gate, partition_id, used, most, retry_after=wait, share_of=share_of, opens_at=now + wait)


def beyond(owed: float, room: float, burst_s: float) -> float:
    """Seconds until so much more may be owed, or nothing is; above 0: not yet."""
    return min(owed, owed + room - burst_s)


def _bounds(scope: str, ops_per_s: int, bytes_per_s: int) -> Sequence[Bound]:
    both = Bound(f"{scope}_ops_per_s", 1, ops_per_s), Bound(f"{scope}_bytes_per_s", 2, bytes_per_s)
    return [bound for bound in both if bound.per_s]
