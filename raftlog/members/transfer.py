"""Handing leadership over (Raft dissertation, 3.10): stop admitting, let one catch up, have it stand at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from logboom.errors import InvalidRequest, LogboomError, NotLeader, Unavailable
from logboom.types import NodeId
from ports.clock import Clock
from raftlog.engine import Engine
from raftlog.journal.membership import Membership

log = structlog.get_logger(__name__)

BEHIND_MAX: Final = 4_096
"""Raft entries; whoever lacks more would not have them before the time is over."""

Done = Callable[[LogboomError | None], None]


class Transfer:
    """Of one node; one at a time."""

    def __init__(self, *, membership: Membership, engine: Engine, clock: Clock, patience_s: float) -> None:
        """Given up: who has not caught up within ``patience_s``, and who has not taken over as long after it was asked.

        Whoever stood still for longer does not take over any more: that is so however late it was asked.
        """
        self._membership = membership
        self._engine = engine
        self._clock = clock
        self._patience_s = patience_s
        self._to: NodeId | None = None
        self._until = 0.0
        self._asked = False
        self._done: Done = lambda _: None
        self._failed: NodeId | None = None
        """Did not take over the last time: others first."""

    @property
    def under_way(self) -> bool:
        """Nothing is admitted for the moment."""
        return self._to is not None

    def begin(self, to: NodeId | None, done: Done, *, among: Sequence[NodeId] = ()) -> None:
        """To one voter, or whoever is nearest; ``done(None)`` when this node leads no more.

        ``among``: to the first of these that could, and did not fail to the last time. Leader only.
        Raises NotLeader, InvalidRequest (not a voter) or Unavailable (nobody could).
        """
        engine, voters = self._engine, self._membership.current.voters
        if not engine.is_leader:
            raise NotLeader("this node does not lead", leader=None)
        if to is not None and to not in voters:
            raise InvalidRequest(f"{to} is not a voter; voters are {', '.join(voters)}")
        if to == self._membership.node_id:
            done(None)
            return
        if self._to is not None:
            raise Unavailable("leadership is being handed over already", retry_after=0.1)
        last, connected = engine.journal.last_index, set(engine.connected_peers) - engine.forgetful.keys()
        able = [v for v in voters if v in connected and last - engine.acknowledged_by(v) <= BEHIND_MAX]
        if to is not None or among:
            able = [v for v in able if v == to or v in among]
        if not able:
            who = " or ".join([to] if to is not None else among) or "any other voter"
            raise Unavailable(f"{who} would have to be connected and have nearly all entries", retry_after=0.2)
        self._to = max(
            able,
            key=lambda voter: (
                voter != self._failed,
                -among.index(voter) if among else 0,
                engine.acknowledged_by(voter),
                voter in engine.quickest,
            ),
        )
        self._until, self._asked, self._done = self._clock.monotonic() + self._patience_s, False, done
        log.info("transfer_begins", to=self._to)

    def tick(self) -> None:
        """Every turn of a leader: ask the one that has all entries, once; or give up."""
        if self._to is None:
            return
        engine, last = self._engine, self._engine.journal.last_index
        if self._clock.monotonic() >= self._until or self._to not in self._membership.current.voters:
            self._failed = self._to
            self._end(Unavailable(f"{self._to} did not take over in time", retry_after=0.1))
        elif not self._asked and engine.acknowledged_by(self._to) == last == engine.commit_index:
            self._until, self._asked = self._clock.monotonic() + self._patience_s, True
            engine.hand_over(self._to)

    def lost(self) -> None:
        """This node leads no more."""
        self._failed = None
        if self._to is not None:
            self._end(None)

    def _end(self, error: LogboomError | None) -> None:
        log.info("transfer_ends", to=self._to, error=None if error is None else error.message)
        done, self._to, self._done = self._done, None, lambda _: None
        done(error)
