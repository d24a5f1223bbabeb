"""Linearizable reads by read index (Raft dissertation, 6.4). No clocks."""

from __future__ import annotations

from collections.abc import Callable

from logboom.errors import LogboomError
from raftlog.engine import Engine

Done = Callable[[LogboomError | None], None]


class ReadRounds:
    """Reads that wait for a round to be echoed by a quorum, and for its commit index to be handed up."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: list[Done] = []
        self._rounds: list[tuple[int, int, list[Done]]] = []

    @property
    def under_way(self) -> bool:
        """Somebody waits."""
        return bool(self._waiting or self._rounds)

    def ask(self, done: Done) -> None:
        """Part of the next round."""
        self._waiting.append(done)

    def start(self) -> None:
        """Leader only: a round for all that have asked."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            index = self._engine.commit_index
            self._rounds.append((self._engine.start_read_round(), index, waiting))

    def finish(self) -> None:
        """Answer those whose round is proven and whose index has been handed up."""
        if not self._rounds:
            return
        confirmed = self._engine.quorum_round()
        while self._rounds and self._rounds[0][0] <= confirmed and self._rounds[0][1] <= self._engine.applied_index:
            for done in self._rounds.pop(0)[2]:
                done(None)

    def fail(self, error: LogboomError) -> None:
        """Answer everyone with ``error``."""
        failed = [done for _, _, dones in self._rounds for done in dones] + self._waiting
        self._rounds, self._waiting = [], []
        for done in failed:
            done(error)
