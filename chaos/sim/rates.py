"""How fast somebody writes or reads: no faster than the settings say, counted beside the node's own counting.

No client can see that: who is let in too early has only been lucky.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from chaos.sim.host import Host
from dispatcher.admission.budgets import Parts
from logboom.settings import AdmissionSettings

SLACK_S: Final = 1e-4
"""Sums of fractions of a second, made in another order."""

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

    def tried(parts: Parts, now: float, principal: str = "") -> Any:
        before = admission.admitted
        found = try_admit(parts, now, principal)
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
