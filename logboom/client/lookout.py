"""Who the members are, by now: asked over whatever is open, every half a minute, and when a connection was lost.

A node says it when a connection is made. Whoever makes no new ones, since it does nothing but follow a stream, would
know nobody in the end if all members were replaced meanwhile, one after the other. It takes no task and no timer of its
own: the connections look whether they are alive once a second, and each may be the one that asks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from logboom.client.connection import NodeConnection
from logboom.client.home import Home
from logboom.client.known import Known
from logboom.errors import LogboomError, Unavailable
from logboom.wire import Frame, Kind

LOOK_S: Final = 30.0
"""Between two looks, about: nobody asks more than one node in so long,"""
LONE_S: Final = 5.0
"""While a single member is known: one that grows may be replaced as a whole before half a minute is over."""
SOON_S: Final = 2.0
"""unless a connection was lost, or nobody answered: then it is within this."""
SPREAD: Final = 997.0


class Lookout(Known, Home):
    """A part of ``Cluster``: what is known, kept fresh."""

    def __init__(self) -> None:
        super().__init__()
        self._removed: frozenset[str] = frozenset()
        """Ids that were members once. Such a node may run on, and hears nothing new."""
        self._connections: dict[str, NodeConnection] = {}
        self._down: dict[str, tuple[float, float]] = {}  # address: not before, pause
        self._look_at: float | None = None
        """When they are asked for again; None: no connection is a second old."""

    def _beats(self) -> Callable[[NodeConnection], None]:
        """What a connection calls once a second; it keeps nothing alive."""
        own = weakref.ref(self)

        def beat(connection: NodeConnection) -> None:
            cluster = own()
            if cluster is not None:
                cluster._look(connection)  # noqa: SLF001 - its own class

        return beat

    def _look(self, connection: NodeConnection) -> None:
        lost = [address for address, each in self._connections.items() if each.closed]
        for address in lost:
            del self._connections[address]
        if self._look_at is None:
            self._look_at = self.now + self._within(self._pause)
        if lost:
            self._look_at = min(self._look_at, self.now + self._within(SOON_S))
        # Not over one of somebody's own, who may have stopped reading.
        if self.now >= self._look_at and self._connections.get(connection.address) is connection:
            self._look_at = self.now + self._within(self._pause)
            connection.post(Kind.ADMIN, {"action": "members"}, (), self._told)

    @property
    def _pause(self) -> float:
        return LOOK_S if len(self.members) > 1 else min(LOOK_S, LONE_S)

    def _within(self, most: float) -> float:
        """Not all clients at once: the clock is chance enough, and nothing else's chance changes."""
        return most * (0.5 + self.now * SPREAD % 1.0 / 2)

    def _told(self, answer: Frame | LogboomError) -> None:
        if isinstance(answer, LogboomError):
            if answer.retryable:  # else it is of a release that does not say it, or does not tell us
                self._look_at = self.now + self._within(SOON_S)
            return
        self.told_members(answer.header.get("members"))

    def told_members(self, said: Any) -> None:
        """What a node answers who is asked for the members, or to change them."""
        if isinstance(said, dict) and said.get("members"):  # it may know of nobody yet
            self._learn_members(*addresses_of(said))
            self._removed |= set(said["removed"])
            self._leave_removed()

    def _leave_removed(self) -> None:
        """Whoever follows something there would wait for ever: it goes on at a member."""
        for each in list(self._connections.values()):
            if self._is_removed(each) and each.has_streams and not each.closed:
                self._down[each.address] = (self.now + LOOK_S, SOON_S)  # others are asked before it
                each.close(Unavailable(f"{each.welcome['node']} is no member any more"))

    def _is_removed(self, connection: NodeConnection) -> bool:
        return connection.welcome.get("node") in self._removed


def addresses_of(said: dict[str, Any]) -> tuple[dict[str, str], list[int]]:
    """Client addresses of the members, of an answer to ADMIN ``members``, and the entry that says so."""
    return {row["id"]: row["client_address"] for row in said["members"]}, [said["term"], said["index"]]
