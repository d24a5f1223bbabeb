"""What this process takes of memory, and how much of it whoever runs it lets it have: a container, a unit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NO_LIMIT_BYTES: Final = 1 << 60
"""The first version of control groups has no word for `none`: it says some number near 2^63."""
FILES: Final = {"": ("", ("memory.max", "memory.high")), "memory": ("memory", ("memory.limit_in_bytes",))}
"""Controller, as /proc/self/cgroup has it (none: the second version), to its mount and its limits."""


def taken_bytes() -> int:
    """Memory of this process without mapped files (states are): the system takes their pages back as it likes."""
    _, resident, mapped, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(mapped)) * os.sysconf("SC_PAGE_SIZE")


def limit_bytes(root: Path = Path("/")) -> int | None:
    """The least limit of its control group and those above; None: there is none, or nobody can tell."""
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[int]:
    try:
        rows = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for row in rows:
        _, controllers, place = row.split(":", maxsplit=2)
        for controller in controllers.split(","):
            mount, names = FILES.get(controller, ("", ()))
            base = root / "sys/fs/cgroup" / mount
            # In a container the mount may begin where the group is, and the group be named from the machine's root.
            groups = [part for part in Path(place.lstrip("/")).parts if part != ".."]
            for depth in range(len(groups) + 1):
                for name in names:
                    limit = _number(base.joinpath(*groups[:depth], name))
                    if limit is not None:
                        yield limit


def _number(file: Path) -> int | None:
    try:
        found = int(file.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None
    return found if found < NO_LIMIT_BYTES else None
