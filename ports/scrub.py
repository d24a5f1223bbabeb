"""Scrubbing: what is at rest is read again, piece by piece, to find damage while a good copy is left elsewhere."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from logboom.errors import CorruptData
from logboom.types import MIB

T = TypeVar("T")
PIECE_BYTES: Final = 1 * MIB
"""So much is read at a time, unless one thing is larger."""

AGAIN_S: Final = 10.0
"""Seconds until what could not be read is read again: a path to the disk that fails over has come back by then."""


class Piece(NamedTuple):
    """Something was read and checked: so many bytes. ``damage``: what is wrong with it."""

    nbytes: int
    damage: CorruptData | None = None
    again: bool = False
    """Something could not be read: whoever asks for pieces waits a while, and it is tried a second time."""


AGAIN: Final = Piece(0, again=True)


UNREADABLE: Final = (errno.EIO, errno.ENOENT)
"""What is said of a bad sector, and of a file that is gone. Any other error of a read is no damage."""

Pieces = Iterator[Piece]
"""Blocking; each step in any thread, one at a time. It goes on behind what is damaged, where that is possible."""


@contextmanager
def unreadable_is_damage() -> Iterator[None]:
    """What cannot be read in here is CorruptData: for reads of what there is elsewhere, too, or what nobody needs."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        path = str(error.filename or "a file")
        raise CorruptData(f"{path}: {error.strerror}", path=path) from error


def read_twice(read: Callable[[], T]) -> T:
    """What cannot be read is read a second time; then it is CorruptData. See ``twice``."""
    try:
        return read()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    with unreadable_is_damage():
        return read()


def twice(read: Callable[[], Pieces]) -> Pieces:
    """What cannot be read is read a second time, from its beginning. A disk that says EIO once has lost nothing."""
    try:
        yield from read()
        return
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    yield AGAIN
    yield from read()
