"""The file behind a ``kv`` partition: keys and values, meta entries, and the position that they are of.

One ``write`` is one transaction: on return it is on stable storage, and on an exception nothing
of it has happened. A crash of the process leaves the last transaction that returned; a power
loss may undo that one, wholly, never part of it. ``position`` tells which one it is, and the
log is replayed from there.

One thread writes at a time; views may be taken and read in any thread meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol, Self, runtime_checkable

from logboom.state_machine import Position
from ports.scrub import Pieces

Changes = Mapping[bytes, bytes | None]
"""New values by key; None: the key goes. Keys have 1 to 511 bytes (``KEY_BYTES_MAX``)."""
KEY_BYTES_MAX: Final = 511


class StateFull(Exception):
    """There is no room in the file for what a transaction was to write: less may fit."""


class StateView(Protocol):
    """Keys and values as of one moment. A context manager: leave it soon, the file keeps what it shows until then."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def get(self, key: bytes) -> bytes | None:
        """The value; None: no such key, as for one that no key can be. Raises CorruptData."""
        ...

    def has(self, key: bytes) -> bool:
        """There is such a key. It takes no memory for its value, and does not say whether that is damaged.

        The disk may be asked for that all the same. Raises CorruptData.
        """
        ...

    def entries(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from ``start`` on, ascending, with their values. Raises CorruptData."""
        ...

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """Meta entries, ascending by key, as of the same moment. Raises CorruptData."""
        ...


class StateFile(Protocol):
    """One open file. Opening or reading raises CorruptData rather than give what is damaged."""

    def position(self) -> Position:
        """As of the last transaction."""
        ...

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """All meta entries, in any order."""
        ...

    def view(self) -> StateView:
        """What is in the file now, unchanged by later writes."""
        ...

    def write(self, state: Changes, meta: Changes, position: Position) -> None:
        """One transaction; see the module. Raises StateFull. After an OSError the process must not go on using it."""
        ...

    def clear(self) -> None:
        """One transaction, as ``write``, after which the file is as it was when it was new."""
        ...

    def close(self) -> None:
        """Idempotent. Saves nothing."""
        ...


@runtime_checkable
class RereadableFile(Protocol):
    """A state file that is mapped: to touch what the disk cannot read of it ends the process (SIGBUS)."""

    def reread(self) -> Pieces:
        """All of it, from the disk, by calls that fail where that cannot be read. Raises OSError."""
        ...
