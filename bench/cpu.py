"""CPU time of the servers, and which CPUs they run on: whole families of processes, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")
PARENT, FIRST_TIME, LAST_TIME = 1, 11, 15
"""Fields of /proc/<pid>/stat after the name: the parent; utime, stime and those of children that were waited for."""


def _stats() -> dict[int, list[str]]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
    return found


def family(pids: Iterable[int]) -> set[int]:
    """These processes and all under them."""
    return _under(set(pids), _stats())


def _under(known: set[int], stats: dict[int, list[str]]) -> set[int]:
    while more := {pid for pid, fields in stats.items() if int(fields[PARENT]) in known} - known:
        known |= more
    return known & set(stats)


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time so far of these processes and all under them, those that ended included.

    An ended process counts once its parent has waited for it, as servers do at once.
    """
    stats = _stats()
    ticks = (int(raw) for pid in _under(set(pids), stats) for raw in stats[pid][FIRST_TIME:LAST_TIME])
    return sum(ticks) / TICKS


def halves() -> tuple[set[int], set[int]]:
    """This machine's CPUs in two; both the same if there is but one."""
    cpus = sorted(os.sched_getaffinity(0))
    middle = max(1, len(cpus) // 2)
    return set(cpus[:middle]), set(cpus[middle:] or cpus)


def place(pid: int, cpus: set[int]) -> None:
    """All threads of a process and of those under it run on these CPUs."""
    for member in family([pid]):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            for thread in Path(f"/proc/{member}/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), cpus)
