"""Who is connected to a port: from where, and which have not said yet who they are.

Whoever only connects keeps a place until it has to introduce itself, and comes again. So once there is no room left,
one of those goes for each that comes: of the address that has most of them the oldest. One that means to introduce
itself does so at once, and whoever has done so is never cut for another.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any, Final

NETWORK_BYTES: Final = 8
"""So much of an IPv6 address counts: a machine has as many addresses as it wants that begin alike."""


def address_of(peer: Any) -> str:
    """The address of whom ``accept`` tells, as such are counted."""
    host = str(peer[0]) if isinstance(peer, tuple) else str(peer)
    if ":" not in host:
        return host
    # Not socket.inet_ntop: PySyncObj puts one of its own there, which works on Windows alone.
    packed = IPv6Address(host.partition("%")[0]).packed
    return str(IPv6Address(packed[:NETWORK_BYTES].ljust(len(packed), b"\0")))


class Crowd:
    """Who is connected to one port, from where, and who goes for others. On the loop."""

    def __init__(self, *, per_address: int = 0) -> None:
        """``per_address``: so many from one of them, 0: any number."""
        self.open: dict[Any, None] = {}
        """Each connection, from its opening to its end."""
        self._per_address = per_address
        self._from: dict[Any, str] = {}
        self._counts: dict[str, int] = {}
        self._strangers: dict[str, dict[Any, Callable[[], None]]] = {}
        """Who has not introduced himself, by address, the oldest first: how to cut him."""

    def __len__(self) -> int:
        """How many have been let in; those that were cut count no more."""
        return len(self._from)

    def comes(self, one: Any, address: str, cut: Callable[[], None]) -> None:
        """It is let in, and ``ended`` is called some time, if only once for what never opens."""
        self._from[one] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        self._strangers.setdefault(address, {})[one] = cut

    def opened(self, one: Any) -> None:
        """It is a connection now."""
        self.open[one] = None

    def introduced(self, one: Any) -> None:
        """It has said who it is."""
        self._no_stranger(one)

    def ended(self, one: Any) -> None:
        """Idempotent."""
        self.open.pop(one, None)
        self._goes(one)

    def admits(self, address: str) -> bool:
        """One more from there; if too many are, one of them may have to go for that."""
        if not self._per_address or self._counts.get(address, 0) < self._per_address:
            return True
        return self._cut_one(address)

    @property
    def loudest(self) -> int:
        """So many strangers has the address that has most of them."""
        return max(map(len, self._strangers.values()), default=0)

    def make_room(self) -> bool:
        """One goes. False: all have introduced themselves."""
        most = max(self._strangers, key=lambda address: len(self._strangers[address]), default=None)
        return most is not None and self._cut_one(most)

    def _cut_one(self, address: str) -> bool:
        one, cut = next(iter(self._strangers.get(address, {}).items()), (None, None))
        if cut is None:
            return False
        self._goes(one)
        cut()
        return True

    def _goes(self, one: Any) -> None:
        self._no_stranger(one)
        address = self._from.pop(one, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _no_stranger(self, one: Any) -> None:
        address = self._from.get(one)
        if address is None:
            return
        there = self._strangers.get(address, {})
        there.pop(one, None)
        if not there:
            self._strangers.pop(address, None)
