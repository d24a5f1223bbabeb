"""How fast somebody writes or reads, and how much he has of a budget: no more than the settings say.

Counted beside the node: no client can see it. Who is let in too early has only been lucky.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from chaos.sim.host import Host
from dispatcher.admission.budgets import Parts
from logboom.settings import AdmissionSettings

SLACK_S: Final = 1e-4
"""Sums of fractions of a second, made in another order."""
ROUNDING: Final = 1e-9

Fail = Callable[[str, str], None]


class Ledger:
    """What each has taken and time has not paid yet, in seconds at the rate."""

    def __init__(self, burst_s: float) -> None:
        self._burst_s = burst_s
        self._due: dict[Hashable, float] = {}

    def ahead(self, who: Hashable, now: float, room: float = 0.0) -> float:
        """Seconds by which it is too early for so much more, unless nothing is owed."""
        owed = self._due.get(who, now) - now
        return min(owed, owed + room - self._burst_s)

    def take(self, who: Hashable, now: float, seconds: float) -> None:
        """It was let in."""
        self._due[who] = max(now, self._due.get(who, now)) + seconds


def look_at_writing(host: Host, admission: Any, settings: AdmissionSettings, fail: Fail) -> None:
    """Of principals and of partitions: nobody is admitted while a burst is owed."""
    try_admit, ledger = admission.try_admit, Ledger(settings.rate_burst_ms / 1000)
    of_principals = settings.principal_ops_per_s, settings.principal_bytes_per_s
    of_partitions = settings.partition_ops_per_s, settings.partition_bytes_per_s

    def costs(parts: Parts, principal: str) -> list[tuple[Hashable, int, int]]:
        """Whose rate takes how much, and what it is a second."""
        found = list[tuple[Hashable, int, int]]()
        for column in (1, 2):  # operations, bytes
            rows: list[tuple[Hashable, int, int]] = [(p[0], p[column], of_partitions[column - 1]) for p in parts]
            if principal:
                rows.append((principal, sum(part[column] for part in parts), of_principals[column - 1]))
            found += [((who, column), amount, per_s) for who, amount, per_s in rows if per_s]
        return found

    def tried(parts: Parts, now: float, principal: str = "", *number: int) -> Any:
        before = admission.admitted
        found = try_admit(parts, now, principal, *number)
        if admission.admitted > before:
            rows = costs(parts, principal)
            for who, _, per_s in rows:
                early = ledger.ahead(who, now, 1 / per_s)
                if early > SLACK_S:
                    fail("RateKept", f"{host.name} admits {parts} of {principal!r}, {early} s too early at {per_s}/s")
            for who, amount, per_s in rows:
                ledger.take(who, now, amount / per_s)
        return found

    admission.try_admit = tried


def look_at_reading(host: Host, rates: Any, fail: Fail) -> None:
    """Nothing is read for anybody while more than a burst is owed."""
    enter, now = rates.enter, rates.clock.monotonic

    def entered(principal: str) -> Any:
        pace = enter(principal)
        if not hasattr(pace, "ledger"):
            _look_at_pace(pace)
        return pace

    def _look_at_pace(pace: Any) -> None:
        admits, take = pace.admits, pace.take
        ledger = pace.ledger = Ledger(rates.burst_s)

        def check() -> None:
            early = ledger.ahead("", now())
            if early > SLACK_S:
                fail("RateKept", f"{host.name} reads for somebody {early} s too early at {rates.per_s} bytes/s")

        def admitted(who: object, go_on: Callable[[], None]) -> Any:
            def went_on() -> None:
                check()
                go_on()

            may = admits(who, went_on)
            if may:
                check()
            return may

        def taken(nbytes: int) -> None:
            ledger.take("", now(), nbytes / rates.per_s)
            take(nbytes)

        pace.admits, pace.take = admitted, taken

    if rates.per_s:
        rates.enter = entered


def look_at_shares(host: Host, admission: Any, settings: AdmissionSettings, fail: Fail) -> None:
    """Who has something of a budget already gets no more of it than its share; nor does a partition of the node's."""
    try_admit, share = admission.try_admit, settings.fair_share_percent / 100

    def uses(parts: Parts, principal: str) -> dict[Hashable, tuple[Any, Any]]:
        """Of those who have something: what, and of which gate."""
        partitions = [part[0] for part in parts if part[0] in admission._gates]  # noqa: SLF001 - an observer
        shares = admission._shares  # noqa: SLF001 - an observer
        found: dict[Hashable, tuple[Any, Any]] = {
            (principal, where): (shares.get((principal, where)), admission.gate(where)) for where in (*partitions, None)
        }
        found.update((partition, (admission.gate(partition), admission.gate())) for partition in partitions)
        return {who: (use, gate) for who, (use, gate) in found.items() if use is not None and use.batches}

    def tried(parts: Parts, now: float, principal: str = "", *number: int) -> Any:
        before, had = admission.admitted, uses(parts, principal)
        found = try_admit(parts, now, principal, *number)
        if admission.admitted > before:
            for who, (use, gate) in had.items():
                has, most = (use.operations, use.nbytes, use.batches), gate.limits[1:4]
                if any(used > share * limit * (1 + ROUNDING) for used, limit in zip(has, most, strict=True)):
                    fail("ShareKept", f"{host.name} admits {parts} of {principal!r}: {who} has {has} of {most}")
        return found

    if share < 1:
        admission.try_admit = tried
