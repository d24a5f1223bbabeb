"""A line of what ``bench.feeds`` measures, and how it comes about: the best of some runs after one that warms up."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.cpu import cpu_seconds
from bench.report import say

VALUE_BYTES: Final = 256
CPU_LEAST_S: Final = 0.01
"""What CPU time is counted in."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    seconds: float
    payload_bytes: int
    records: int
    server_cpu_s: float
    system: str = "logboom"

    @property
    def per_cpu_s(self) -> float:
        """Payload bytes per second of the servers' CPU time."""
        return self.payload_bytes / max(self.server_cpu_s, CPU_LEAST_S)

    @property
    def records_per_s(self) -> float:
        """By the clock."""
        return self.records / self.seconds

    @property
    def cpu_us_per_record(self) -> float:
        """Of the servers."""
        return self.server_cpu_s * 1e6 / self.records

    def for_json(self) -> dict[str, Any]:
        """With what follows from it."""
        return asdict(self) | {
            "records_per_s": self.records_per_s,
            "mb_per_s": self.payload_bytes / self.seconds / 1e6,
            "server_cpu_us_per_record": self.cpu_us_per_record,
        }


async def best(
    what: str, records: int, work: Callable[[], Awaitable[object]], *, pid: int, runs: int, system: str = "logboom"
) -> Row:
    """Of ``runs``. ``work``: returns how many records it saw, or None if it cannot tell. Raises RuntimeError."""
    taken = []
    for _ in range(runs + 1):
        before, began = cpu_seconds([pid]), time.perf_counter()
        seen = await work()
        took = time.perf_counter() - began
        if seen is not None and seen != records:
            raise RuntimeError(f"{system}, {what}: {seen} records were read, not {records}")
        cpu = cpu_seconds([pid]) - before
        taken.append(Row(what, took, records * VALUE_BYTES, records, cpu, system))
    row = min(taken[1:], key=lambda each: each.seconds)
    mb = row.payload_bytes / row.seconds / 1e6
    say(f"{system}, {what}: {mb:,.0f} MB/s, {row.per_cpu_s / 1e6:,.0f} MB per CPU second of the server, "
        f"{row.cpu_us_per_record:,.2f} us of it a record, {row.records_per_s:,.0f} records/s")  # fmt: skip
    return row
