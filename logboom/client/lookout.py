"""Who the members are, by now: asked over whatever is open, every half a minute, or sooner.

Sooner when a connection was lost, and when a node over which somebody follows something says that there are others.

A node says it when a connection is made. Whoever makes no new ones, since it does nothing but follow a stream, would
know nobody in the end if all members were replaced meanwhile, one after the other. It takes no task and no timer of its
own: the connections look whether they are alive once a second, and each may be the one that asks.
"""

from __future__ import annotations

import asyncio
import weakref
from abc import abstractmethod
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from logboom.client.connection import NodeConnection
from logboom.client.home import Home
from logboom.client.known import Known
from logboom.errors import LogboomError, Unavailable
from logboom.wire import Frame, Kind

LOOK_S: Final = 30.0
"""Between two questions who the members are, about."""
LONE_S: Final = 5.0
"""The same while a single member is known: one that grows may be replaced as a whole before half a minute is over."""
SOON_S: Final = 2.0
"""The same, at most, once a connection was lost, or nobody answered."""
SPREAD: Final = 997.0
LED_S: Final = 5.0
"""Between two questions to a node, over which somebody follows something, whether it hears of a leader."""
LEADERLESS_MS: Final = 2_000
"""What goes on for longer is no election: others are asked whether somebody leads, of whom that node hears nothing."""


class Lookout(Known, Home):
    """A part of ``Cluster``: what is known, kept fresh."""

    def __init__(self) -> None:
        Known.__init__(self)
        Home.__init__(self)
        self._removed: frozenset[str] = frozenset()
        """Ids that were members once. Such a node may run on, and hears nothing new."""
        self._connections: dict[str, NodeConnection] = {}
        self._down: dict[str, tuple[float, float]] = {}  # address: not before, pause
        self._look_at: float | None = None
        """When they are asked for again; None: no connection is a second old."""
        self._led_at: dict[str, float] = {}
        """By address: when a node is asked next whether it hears of a leader."""
        self._shunned: dict[str, float] = {}
        """By address, until when: it hears of no leader, or of nothing new, and another node does."""
        self._turn = 0

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
            self._led_at.pop(address, None)
        if self._look_at is None:
            self._look_at = self.now + self._within(self._pause)
        if lost:
            self._look_at = min(self._look_at, self.now + self._within(SOON_S))
        if self._connections.get(connection.address) is not connection:
            return  # it is somebody's own, who may have stopped reading
        if self.now >= self._look_at:
            self._look_at = self.now + self._within(self._pause)
            connection.post(Kind.ADMIN, {"action": "members"}, (), self._told)
        if connection.has_roaming and self.now >= self._led_at.setdefault(
            connection.address, self.now + self._within(LED_S)
        ):
            self._led_at[connection.address] = self.now + self._within(LED_S)
            connection.post(Kind.PING, {}, (), partial(self._told_of_leader, connection))

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

    @abstractmethod
    def addresses(self) -> list[str]:
        """Where nodes are, as far as is known."""

    @abstractmethod
    def _open(self, address: str) -> asyncio.Task[NodeConnection]: ...

    @abstractmethod
    def _is_down(self, address: str) -> bool: ...

    @abstractmethod
    def _live(self) -> list[NodeConnection]: ...

    @abstractmethod
    async def connection(self, address: str) -> NodeConnection:
        """An open connection to one node. Raises Unavailable."""

    async def another(self, but: Collection[str]) -> NodeConnection | None:
        """A connection to a node that is none of these, in turn, as ``any`` chooses; None: there is none."""
        self._turn += 1
        addresses = [each for each in self.addresses() if each not in but]
        at = self._turn % max(1, len(addresses))
        addresses = addresses[at:] + addresses[:at]
        live = [each for each in self._led(self._live()) if each.address not in but]
        if live:
            for address in addresses[:1]:
                known = self._connections.get(address)
                if known is not None and known in live:
                    return known
                if (known is None or known.closed) and not self._is_down(address):
                    self._open(address)  # for the next time round
            return live[self._turn % len(live)]
        for address in sorted(addresses, key=lambda each: (self._was_removed(each), self._is_down(each))):
            try:
                return await self.connection(address)
            except LogboomError:  # it cannot be reached, refuses us, or is of another history; or we are closed
                continue
        return None

    def _was_removed(self, address: str) -> bool:
        known = self._connections.get(address)
        return known is not None and self._is_removed(known)

    def _leave_removed(self) -> None:
        """Whoever follows something there would wait for ever: it goes on at a member."""
        for each in list(self._connections.values()):
            if self._is_removed(each) and each.has_streams and not each.closed:
                self._down[each.address] = (self.now + LOOK_S, SOON_S)  # others are asked before it
                each.close(Unavailable(f"{each.welcome['node']} is no member any more"))

    # -- nodes that are cut off from the others, and not from here

    def _told_of_leader(self, connection: NodeConnection, answer: Frame | LogboomError) -> None:
        """A node over which somebody follows something has said who leads: where nobody does nothing new comes."""
        if self._are_others(answer):
            connection.post(Kind.ADMIN, {"action": "members"}, (), self._told)
        if _leaderless_ms(answer) < LEADERLESS_MS:
            return
        self._led_at[connection.address] = self.now + self._within(SOON_S)
        others = [each for each in self._connections.values() if not each.closed and each is not connection]
        for each in others:
            each.post(Kind.PING, {}, (), partial(self._told_elsewhere, connection))
        for address in self.addresses():
            if not self._is_down(address) and address not in self._connections:
                self._open(address)  # it is asked with the next look

    def _are_others(self, answer: Frame | LogboomError) -> bool:
        """The members, by a PONG, than are known here. All may be replaced before half a minute is over."""
        at = None if isinstance(answer, LogboomError) else answer.header.get("members_at")
        return isinstance(at, list) and all(type(n) is int for n in at) and at > self._members_at

    def _told_elsewhere(self, connection: NodeConnection, answer: Frame | LogboomError) -> None:
        """Where nobody leads, a stream stays where it is."""
        if _leaderless_ms(answer) == 0 and not connection.closed:
            self._shunned[connection.address] = self.now + LOOK_S
            story = f"{connection.welcome['node']} hears of no leader, or of nothing new, and others do"
            connection.end_roaming(Unavailable(story))

    def _led(self, live: list[NodeConnection]) -> list[NodeConnection]:
        """Those of them that are not shunned; all, if there is none."""
        if not self._shunned:
            return live
        self._shunned = {each: until for each, until in self._shunned.items() if self.now < until}
        return [each for each in live if each.address not in self._shunned] or live

    def _is_removed(self, connection: NodeConnection) -> bool:
        return connection.welcome.get("node") in self._removed


def _leaderless_ms(answer: Frame | LogboomError) -> int:
    """How long a node has heard of no leader, as a PONG says; -1: it does not say it, as of an earlier release."""
    said = -1 if isinstance(answer, LogboomError) else answer.header.get("leaderless_ms", -1)
    return said if type(said) is int else -1


def addresses_of(said: dict[str, Any]) -> tuple[dict[str, str], list[int]]:
    """Client addresses of the members, of an answer to ADMIN ``members``, and the entry that says so."""
    return {row["id"]: row["client_address"] for row in said["members"]}, [said["term"], said["index"]]
