"""What ``logboom submit`` reads of a pipe or a terminal: what has come is sent, though no more comes for now."""

from __future__ import annotations

import io
import os
import select
import stat
import time
from collections.abc import Callable
from typing import BinaryIO, Final, cast

QUIET_S: Final = 0.1
"""Nothing has come for so long: what has come is sent."""
LONGEST_S: Final = 1.0
"""Or if something always comes, after so long, about."""
BUFFER_BYTES: Final = 64 * 1024


def patient(file: BinaryIO, lull: Callable[[], None]) -> BinaryIO | None:
    """Reads the same; where no more comes for now it calls ``lull``. None: it is a regular file, where all is there.

    Nothing may have been read of the file, which stays open. What ``lull`` raises comes out of reading.
    """
    try:
        descriptor = file.fileno()
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except (AttributeError, OSError, ValueError):  # it is no file of the process's own
        return None
    if regular or not hasattr(select, "poll"):
        return None
    return cast(BinaryIO, io.BufferedReader(_Arriving(descriptor, lull), BUFFER_BYTES))


class _Arriving(io.RawIOBase):
    """Without a thread: one that waits in a read when the process ends would end it with a stack of the interpreter."""

    def __init__(self, descriptor: int, lull: Callable[[], None]) -> None:
        self._descriptor, self._lull = descriptor, lull
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._told_at = time.monotonic()

    def readable(self) -> bool:
        """See io.IOBase."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """See io.RawIOBase."""
        come = self._poll.poll(QUIET_S * 1000)
        if not come or time.monotonic() - self._told_at > LONGEST_S:
            self._lull()
            self._told_at = time.monotonic()
        if not come:
            self._poll.poll()
        return os.readv(self._descriptor, [buffer])
