"""Scrubbing: what is at rest is read again, piece by piece, to find damage while a good copy is left elsewhere."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from logboom.errors import CorruptData
from logboom.types import MIB

PIECE_BYTES: Final = 1 * MIB
"""Read at a time, unless one thing is larger."""


class Piece(NamedTuple):
    """Something was read and checked: so many bytes. ``damage``: what is wrong with it."""

    nbytes: int
    damage: CorruptData | None = None


UNREADABLE: Final = (errno.EIO, errno.ENOENT)
"""What is said of a bad sector, and of a file that is gone. Any other error of a read is no damage."""

Pieces = Iterator[Piece]
"""Blocking; each step in any thread, one at a time. It goes on behind what is damaged, where that is possible."""
