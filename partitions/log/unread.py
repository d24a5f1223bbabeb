"""What a disk cannot read of a log, and when that is damage: in one place, for all who read batches.

A path to the disk that fails over has come back after a while. What cannot be read then either is fetched from others,
as what is not what its digest says. The scrub waits as long (``ports.scrub.AGAIN_S``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from logboom.errors import CorruptData
from partitions.log.files import OpenFiles
from ports.clock import Clock
from ports.scrub import AGAIN_S, UNREADABLE

PLACES_MAX: Final = 1024
"""That are remembered: the oldest is forgotten, and so begins anew."""
FORGOTTEN_S: Final = 6 * AGAIN_S
"""Where nobody has failed for so long, another failure is another story: in between others may have read it well."""


class NotRead(OSError):
    """A batch could not be read. Whoever tries again for ``AGAIN_S`` has it then, or is told that it is damaged."""


class _Failed(NamedTuple):
    """One place: when it failed first and last, and how many bytes were wanted."""

    first: float
    last: float
    length: int


class Unread:
    """All reading of one log; any thread. Remembers the places where the last one failed."""

    def __init__(self, clock: Clock | None) -> None:
        """``clock`` None: nothing is called damaged for that; an OSError stays one."""
        self._clock = clock
        self._since: dict[tuple[int, int], _Failed] = {}
        """By segment and offset."""

    def read(
        self,
        files: OpenFiles,
        segment: int,
        offset: int,
        length: int,
        damaged: Callable[[str], CorruptData] | None = None,
    ) -> bytes:
        """Raises an OSError that says nothing of single batches; see ``apart``.

        With ``damaged`` it is one batch that begins there: NotRead, or ``damaged(why)`` once that has lasted.
        """
        try:
            with files.use(segment) as file:
                raw = file.read(offset=offset, length=length)
        except OSError as error:
            if self._clock is None or damaged is None or error.errno not in UNREADABLE:
                raise
            now = self._clock.monotonic()
            before = self._since.get((segment, offset))
            first = now if before is None or now - before.last >= FORGOTTEN_S else before.first
            self._since[segment, offset] = _Failed(first, now, length)
            if now - first >= AGAIN_S:
                raise damaged(f"cannot be read: {error}") from error
            if len(self._since) > PLACES_MAX:
                self._since.pop(next(iter(self._since)), None)
            raise NotRead(error.errno, error.strerror, error.filename) from error
        if self._since:
            self._was_read(segment, offset, offset + length)
        return raw

    def _was_read(self, segment: int, start: int, end: int) -> None:
        for (where, at), failed in list(self._since.items()):
            if where == segment and start <= at and at + failed.length <= end:
                self._since.pop((where, at), None)


def apart(error: OSError) -> bool:
    """Of several batches that were read as one: each may be whole by itself."""
    return error.errno in UNREADABLE
