"""What clients were answered and have not taken: over all connections of a port, of which each may hold some."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from ports.net import Buffer

LOOK_S: Final = 0.1
"""Holders are asked at most so often whether they still hold what they did: most of them drain without a word."""
SLICE_BYTES: Final = 256 * 1024


class Holder(Protocol):
    """A connection."""

    def look(self) -> None:
        """Note anew what it holds."""
        ...

    def cut(self) -> None:
        """It has to go, and holds nothing any more."""
        ...


class Unread:
    """How much the connections of one port hold. Those that hold nothing are not known here, and cost nothing."""

    def __init__(self, bytes_max: int, now: Callable[[], float]) -> None:
        """``bytes_max`` 0: any number; ``now`` in seconds."""
        self._most = bytes_max or sys.maxsize
        self._now = now
        self._looked = -LOOK_S
        self._held: dict[Holder, int] = {}
        self.bytes = 0
        """Never less than what is held."""

    def note(self, holder: Holder, held: int) -> None:
        """It holds so much now."""
        self.bytes += held - self._held.pop(holder, 0)
        if held:
            self._held[holder] = held

    def knows(self, holder: Holder) -> bool:
        """It held something when that was last noted."""
        return holder in self._held

    @property
    def tight(self) -> bool:
        """Half of what there may be is there: whoever holds something gets no more, if that can wait."""
        if 2 * self.bytes > self._most and self._now() - self._looked >= LOOK_S:
            self._look()
        return 2 * self.bytes > self._most

    def make_room(self) -> None:
        """Whoever holds most is cut, until there is no more than there may be. One alone has a bound of its own."""
        if self.bytes > self._most:
            self._look()
        while self.bytes > self._most and len(self._held) > 1:
            max(self._held, key=self._held.__getitem__).cut()

    def _look(self) -> None:
        self._looked = self._now()
        for holder in list(self._held):
            holder.look()


def sliced(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The same bytes in order, a little at a time.

    TLS does not count what it has passed on, and takes all that it is given before it finds that nobody reads.
    """
    some, left = list[Buffer](), SLICE_BYTES
    for buffer in buffers:
        rest = memoryview(buffer)
        while len(rest) > left:
            yield [*some, rest[:left]]
            rest = rest[left:]
            some, left = [], SLICE_BYTES
        some.append(rest)
        left -= len(rest)
    yield some


def passed_on_by(tls: Any) -> Callable[[], int]:
    """What a TLS transport has passed on and is not sent: it counts only what it has not passed on.

    Where the transport below it is not found it is 0, and what counts begins behind that.
    """
    below = beneath(tls)
    return (lambda: 0) if below is None else below.get_write_buffer_size


def beneath(tls: Any) -> Any | None:
    """What it passes bytes on to. Both loops keep that to themselves, uvloop out of reach of Python's attributes."""
    below = getattr(getattr(tls, "_ssl_protocol", None), "_transport", None)
    if below is None:
        protocols = [part for part in gc.get_referents(tls) if type(part).__name__ == "SSLProtocol"]
        parts = (part for part in gc.get_referents(*protocols) if part is not tls)
        below = next((part for part in parts if hasattr(part, "get_write_buffer_size")), None)
    return below
