"""Barriers that a node cannot see reached while nobody leads: clients are sent to other nodes, a few at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from dispatcher.barriers.answers import SLICE

AWAY_S: Final = 0.5
"""Between two looks: within that others say how far they are, if they can."""


class Leaderless(Protocol):
    """See dispatcher.pipeline.leaderless."""

    @property
    def for_long(self) -> bool:
        """For longer than an election takes."""
        ...


class Client(Protocol):
    """Who waits: the session."""

    def send_away(self, most: int) -> int:
        """See Waits."""
        ...


class SendingAway:
    """Has the sessions of one node send their clients away, a slice of them at a time."""

    def __init__(self) -> None:
        self._next = 0.0

    def look(self, now: float, leaderless: Leaderless, clients: Iterable[Client]) -> None:
        """Again and again: of more than a slice the others are told the next time."""
        if now < self._next or not leaderless.for_long:
            return
        left = SLICE
        for client in list(clients):
            left -= client.send_away(left)
            if left <= 0:
                return
        self._next = now + AWAY_S
