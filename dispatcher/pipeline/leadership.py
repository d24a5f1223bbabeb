"""Who leads, as this node sees it: told in the log, and counted, when it changes."""

from __future__ import annotations

import structlog

from logboom.types import NodeId
from raftlog.engine import Engine

log = structlog.get_logger(__name__)


class Leadership:
    """Looked at now and then: what came and went in between is not seen."""

    def __init__(self) -> None:
        self.changes = 0
        """Times that there was a leader, and another one than before, or of another term."""
        self._known: tuple[NodeId | None, int] = (None, 0)
        self._last: tuple[NodeId | None, int] = (None, 0)
        """That was one: he may have been silent for a while, and lead on."""

    def notice(self, engine: Engine) -> None:
        """Has it changed?"""
        leader, term = engine.leader, engine.term
        if leader == self._known[0] and (leader is None or term == self._known[1]):
            return
        self._known = leader, term
        if leader is not None and self._known != self._last:
            self.changes += 1
            self._last = self._known
        log.info("leader", leader=leader, term=term)
