"""Linearizable reads by read index (Raft dissertation, 6.4). No clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from logboom.errors import LogboomError
from logboom.types import NodeId
from raftlog.engine import Engine

Done = Callable[[LogboomError | None], None]


class _Round(NamedTuple):
    number: int
    commit_index: int
    """When it was asked."""
    dones: list[Done]


class ReadRounds:
    """Reads that wait for a round to be echoed by a quorum, and for its commit index to be handed up."""

    def __init__(self, engine: Engine, flush: Callable[[NodeId], None]) -> None:
        """``flush`` sends now what is queued for a peer."""
        self._engine = engine
        self._flush = flush
        self._waiting: list[Done] = []
        self._rounds: list[_Round] = []

    @property
    def under_way(self) -> bool:
        """Somebody waits."""
        return bool(self._waiting or self._rounds)

    def ask(self, done: Done, *, lone: bool) -> bool:
        """Part of the next round: False. Or, ``lone``, of one that is on its way to the quickest followers: True."""
        if lone and not self.under_way:
            index = self._engine.commit_index
            if self._engine.start_lone_round():
                self._rounds.append(_Round(self._engine.round, index, [done]))
                for peer in self._engine.quickest:
                    self._flush(peer)
                return True
        self._waiting.append(done)
        return False

    def start(self) -> None:
        """Leader only: a round for all that have asked."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            index = self._engine.commit_index
            self._rounds.append(_Round(self._engine.start_read_round(), index, waiting))

    def finish(self) -> None:
        """Answer those whose round is proven and whose index has been handed up."""
        if not self._rounds:
            return
        confirmed, applied = self._engine.quorum_round(), self._engine.applied_index
        while self._rounds and self._rounds[0].number <= confirmed and self._rounds[0].commit_index <= applied:
            for done in self._rounds.pop(0).dones:
                done(None)
        if not self._rounds:
            self._engine.round_due = None

    def fail(self, error: LogboomError) -> None:
        """Answer everyone with ``error``."""
        failed = [done for each in self._rounds for done in each.dones] + self._waiting
        self._rounds, self._waiting = [], []
        self._engine.round_due = None
        for done in failed:
            done(error)
