"""Members that are refused for their data: somebody has to do something, till then they are seldom dialled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from logboom.errors import LineageMismatch, LogboomError
from logboom.types import NodeId
from ports.seldom import Seldom

STRANGER_S = 5.0
"""Before a node of another history is dialled again: somebody has to remove its data first, or this one's."""
SAY_AGAIN_S: Final = 60.0
"""Before the same is said of the same member again."""


class Refusals:
    """Members that one node has refused for their data, and when that was said."""

    def __init__(self, now: Callable[[], float], seldom: Seldom) -> None:
        """``now`` in seconds; ``seldom``: what else bounds the lines."""
        self._now = now
        self._seldom = seldom
        self.strangers: set[NodeId] = set()
        """Of another history."""
        self.former: set[NodeId] = set()
        """With another disk; one that is empty finds that out, and may be back at once."""
        self._said: dict[NodeId, tuple[str, float]] = {}

    def refused(self, peer: NodeId | None, error: LogboomError, write: Callable[..., Any]) -> None:
        """``write`` why, unless that was said just now. ``peer``: a member, if it is one."""
        now = self._now()
        if peer is not None:
            self.let_in(peer)
            if isinstance(error, LineageMismatch):
                self.strangers.add(peer)
            elif error.fields.get("former"):
                self.former.add(peer)
            text, since = self._said.get(peer, ("", now))
            if text == error.message and now - since < SAY_AGAIN_S:
                return
            self._said[peer] = error.message, now
        self._seldom.say(write, "peer_refused", error=str(error), code=error.code)

    def let_in(self, peer: NodeId) -> None:
        """It may come at any time."""
        self.strangers.discard(peer)
        self.former.discard(peer)

    def keep(self, peers: set[NodeId]) -> None:
        """Others are no members any more."""
        self.strangers &= peers
        self.former &= peers
        self._said = {peer: said for peer, said in self._said.items() if peer in peers}

    def pause(self, peer: NodeId, usual: float) -> float:
        """Seconds until it is dialled again."""
        return STRANGER_S if peer in self.strangers else usual

    def most(self, peer: NodeId, usual: float) -> float:
        """To which that grows from time to time."""
        return STRANGER_S if peer in self.former else usual

    def __contains__(self, peer: NodeId) -> bool:
        """It was refused the last time that it was there."""
        return peer in self.strangers or peer in self.former
