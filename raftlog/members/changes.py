"""The leader's part in changes of the members: one at a time, and none before it knows what is committed.

Raft dissertation, 4.1, with the condition that was found missing there later: an entry of the leader's own
term is committed before it proposes the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from logboom.errors import LogboomError, NotLeader, Unavailable, UnknownOutcome
from logboom.types import NodeId
from ports.clock import Clock
from raftlog.engine import Engine
from raftlog.entries.configuration import Configuration, Role
from raftlog.entries.entry import pack_control
from raftlog.journal.membership import Membership

log = structlog.get_logger(__name__)

CAUGHT_UP_ENTRIES: Final = 1_000
"""Whoever joins is made a voter once it has lacked at most so many of the journal's entries for ``CAUGHT_UP_S``."""
CAUGHT_UP_S: Final = 0.3
"""So long whoever joins keeps up before it is made a voter."""

Change = Callable[[Configuration], Configuration]
Done = Callable[[LogboomError | None], None]


class Changes:
    """Changes of the members that one node, which leads, is asked for: one at a time."""

    def __init__(self, *, membership: Membership, engine: Engine, clock: Clock, admits: Callable[[], bool]) -> None:
        self._membership = membership
        self._engine = engine
        self._clock = clock
        self._admits = admits
        self._waiting: tuple[int, Done] | None = None
        self._near_since: dict[NodeId, float] = {}
        self._waited_for: set[bytes] = set()
        """Tokens of those that cannot be let begin anew yet: said once."""

    def propose(self, change: Change, done: Done) -> None:
        """Have the configuration that ``change`` makes of the current one; ``done(None)`` once it is committed.

        Raises NotLeader, Unavailable (another change is under way, or the voters that would be left could commit
        nothing now) or what ``change`` raises.
        """
        engine, current = self._engine, self._membership.current
        if not self._admits():
            raise NotLeader("this node does not lead", leader=None)
        if current.index > engine.commit_index or self._waiting is not None:  # committed, maybe, and not handed up
            raise Unavailable("another change of the members is under way; try again", retry_after=0.1)
        following = change(current)
        if following is current:
            done(None)
            return
        current.check_step(following)
        if len(following.voters) < len(current.voters) and not engine.reaches_majority(following.voters):
            there = [voter for voter in following.voters if engine.reaches_majority([voter])]
            raise Unavailable(
                f"of the voters that would be left ({', '.join(following.voters)}) only {', '.join(there) or 'none'} "
                "can be reached: they could commit nothing. Bring others back first, or remove those that are gone",
                retry_after=0.5,
            )
        self._waiting = engine.append(pack_control(following.fields())), done
        log.info("members_change", voters=list(following.voters), members=list(following.ids))

    def committed(self, index: int) -> None:
        """A configuration's entry has been handed up."""
        if self._waiting is not None and self._waiting[0] <= index:
            done, self._waiting = self._waiting[1], None
            done(None)

    def lost(self) -> None:
        """This node leads no more."""
        self._near_since.clear()
        self._waited_for.clear()
        if self._waiting is not None:
            done, self._waiting = self._waiting[1], None
            done(UnknownOutcome("leadership was lost before the change of the members was committed; ask again"))

    def tick(self) -> None:
        """Leader only, every turn: who joins and has caught up becomes a voter; who has forgotten joins anew."""
        current, engine = self._membership.current, self._engine
        if engine.forgetful:
            self._let_rejoin()
        joining = current.joining
        if not joining or not self._admits():
            self._near_since.clear()
            return
        now, connected = self._clock.monotonic(), engine.connected_peers
        for node in joining:
            lacks = engine.journal.last_index - engine.acknowledged_by(node)
            ready = node in connected and node not in engine.forgetful and engine.acknowledged_by(node) >= current.index
            if not ready or lacks > CAUGHT_UP_ENTRIES:
                self._near_since.pop(node, None)
                continue
            since = self._near_since.setdefault(node, now)
            if now - since >= CAUGHT_UP_S and current.index <= engine.commit_index and self._waiting is None:
                log.info("caught_up", peer=node)
                self.propose(lambda now: now.giving(node, Role.VOTER), lambda _: None)  # noqa: B023 - called at once
                return

    def _let_rejoin(self) -> None:
        """Who has lost its journal begins anew, and votes no more: once for each time (docs/decisions/0019)."""
        current, engine = self._membership.current, self._engine
        for node, token in engine.forgetful.items():
            seat = current.seat(node)
            if seat is None or current.rejoined_with(node) == token or current.voters == (node,):
                continue
            if not self._admits() or current.index > engine.commit_index or self._waiting is not None:
                return
            if not engine.reaches_majority(current.rejoining(node, token).voters):
                # Nothing would be committed without it, nor with it: all that could come of it is one voter less.
                if token not in self._waited_for:
                    self._waited_for.add(token)
                    log.warning("rejoin_waits", peer=node, reason="the other voters that are connected are no quorum")
                continue
            log.warning("rejoins", peer=node, was=str(seat.role))
            self.propose(lambda now: now.rejoining(node, token), lambda _: None)  # noqa: B023 - called at once
            return
