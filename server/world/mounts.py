"""Which file systems sync what they are told to write through (``RWF_DSYNC``), and which may only write it.

The flag comes with a write, and nobody says whether it was heeded: FUSE leaves it to the file system's own program,
which with direct I/O, and in older kernels always, is not told to sync; 9p and others hand on the write alone. There
``fdatasync`` does what it says.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

THROUGH: Final = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay", "tmpfs"))
"""Those that are known to heed it: the kernel's own, on a disk or in memory."""
MOUNTS: Final = Path("/proc/self/mountinfo")
ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mounts:
    """What was found out of the file systems that hold some directories. Any thread."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}
        """By device."""

    def write_through(self, directory: Path) -> bool:
        """What is written through to files there is synced. False: who knows."""
        with suppress(OSError):
            device = directory.stat().st_dev
            if device not in self._known:
                mounts = os.fsdecode(MOUNTS.read_bytes())
                self._known[device] = file_system(os.path.realpath(directory), mounts) in THROUGH
            return self._known[device]
        return False


def file_system(path: str, mounts: str) -> str:
    """Of which type the one is that holds an absolute path without links. Empty: it is not said."""
    found, longest = "", -1
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        fields = where.split(" ")
        point = ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4]) if len(fields) > 4 else ""
        holds = path == point or path.startswith(point.rstrip("/") + "/")
        if point and holds and len(point) >= longest:  # of two at one place the later one is seen
            found, longest = what.split(" ")[0], len(point)
    return found
