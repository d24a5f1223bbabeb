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
from logboom.errors import LogboomError
from logboom.wire import Frame, Kind

LOOK_S: Final = 30.0
"""Between two looks, about: nobody asks more than one node in so long,"""
SOON_S: Final = 2.0
"""unless a connection was lost, or nobody answered: then it is within this."""


class Lookout(Known, Home):
    """A part of ``Cluster``: what is known, kept fresh."""

    chance: Callable[[], float]

    def __init__(self) -> None:
        super().__init__()
        self._connections: dict[str, NodeConnection] = {}
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
            self._look_at = self.now + self._within(LOOK_S)
        if lost:
            self._look_at = min(self._look_at, self.now + self._within(SOON_S))
        # Not over one of somebody's own, who may have stopped reading.
        if self.now >= self._look_at and self._connections.get(connection.address) is connection:
            self._look_at = self.now + self._within(LOOK_S)
            connection.post(Kind.ADMIN, {"action": "members"}, (), self._told)

    def _within(self, most: float) -> float:
        """Not all clients at once."""
        return most * (0.5 + self.chance() / 2)

    def _told(self, answer: Frame | LogboomError) -> None:
        if isinstance(answer, LogboomError):
            if answer.retryable:  # else it is of a release that does not say it, or does not tell us
                self._look_at = self.now + self._within(SOON_S)
            return
        said = answer.header.get("members")
        if isinstance(said, dict):
            members, at = addresses_of(said)
            if members:  # it may know of nobody yet
                self._learn_members(members, at)


def addresses_of(said: dict[str, Any]) -> tuple[dict[str, str], list[int]]:
    """Client addresses of the members, of an answer to ADMIN ``members``, and the entry that says so."""
    return {row["id"]: row["client_address"] for row in said["members"]}, [said["term"], said["index"]]
