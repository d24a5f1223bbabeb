"""Reads that are at most so old: an index that covers all that was committed at a moment of this node's own clock.

A round asks the leader, which has its leadership confirmed by a quorum (raftlog/reads.py) before it answers. What was
committed when the round began is in the answer, however long that took: only this node's clock is looked at.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple, Protocol

from dispatcher.admission.places import Places
from dispatcher.barriers.exchange import FEATURE
from logboom.errors import (
    BarrierFuture,
    LogboomError,
    NotLeader,
    ProtocolError,
    Unavailable,
    from_wire,
)
from logboom.types import NUMBER_MAX, GlobalLogIndex, NodeId
from logboom.wire import Frame, Kind
from ports.clock import Clock
from ports.timers import wait
from raftlog.core import RaftLog

ROUND_S: Final = 0.5
"""Then another is begun: the leader may have changed, or an answer found the link full. One that comes later counts."""
ASKED_MAX: Final = 64
"""Rounds whose answers may still come, behind what else is on a slow line."""
AGAIN_S: Final = 0.01
AHEAD_MAX: Final = 8_192
"""Who waits for a time to come, for as long as a request may take; half of them for one principal."""
INDICES: Final = frozenset((Kind.INDEX_ASK, Kind.INDEX_TOLD))


class _Asked(NamedTuple):
    leader: NodeId
    began: float
    answer: asyncio.Future[GlobalLogIndex]


class Leads(Protocol):
    """The node, as far as it leads, or knows who does."""

    node_id: NodeId
    clock: Clock
    raft: RaftLog

    def leader_address(self) -> str | None:
        """Where clients reach the leader, if there is one."""
        ...

    def global_commit_index(self) -> GlobalLogIndex:
        """Highest ``global_log_index`` that this node knows to be committed."""
        ...

    async def read_index(self, deadline: float) -> GlobalLogIndex:
        """A global index that covers everything committed before this call (a quorum has said so)."""
        ...


class Freshness:
    """One round at a time, for all who wait for one."""

    def __init__(self, backend: Leads, *, check: Callable[[], None] = lambda: None) -> None:
        """``check`` raises Unavailable where another node is to be asked."""
        self._backend = backend
        self._check = check
        self._next = itertools.count(1)
        self._open: dict[int, _Asked] = {}
        self._round: asyncio.Task[None] | None = None
        self._began = 0.0
        self._known: tuple[float, GlobalLogIndex] | None = None
        """When the last round that was answered began, and what it said."""
        self._error: LogboomError | None = None
        self.rounds = 0
        """Begun since the start."""
        self.ahead = Places("requests wait for times to come")

    async def recent(self, max_age: float, deadline: float) -> GlobalLogIndex:
        """Everything committed ``max_age`` seconds before this call is at or below it. Raises Unavailable."""
        clock = self._backend.clock
        since = clock.monotonic() - max_age
        while self._known is None or self._known[0] < since:
            left = deadline - clock.monotonic()
            if left <= 0:
                why = f": {self._error}" if self._error is not None else ""
                raise Unavailable(f"no leader confirmed in time what is committed{why}")
            self._check()
            if self._round is None:
                self._began = clock.monotonic()
                self.rounds += 1
                self._round = asyncio.get_running_loop().create_task(self._ask())
            await asyncio.wait({self._round}, timeout=left)
        return self._known[1]

    async def index_at(self, timestamp_ms: int, deadline: float, *, principal: Hashable = None) -> GlobalLogIndex:
        """Everything that was committed before this leader's clock showed ``timestamp_ms`` is at or below it.

        Raises NotLeader, Unavailable, BarrierFuture for a time that comes after the deadline, and QuotaExceeded.
        """
        backend = self._backend
        if not backend.raft.admits:
            raise NotLeader("this node does not lead", leader=backend.leader_address())
        while (ahead_ms := timestamp_ms - (now_ms := backend.clock.wall_ms())) > 0:
            if ahead_ms / 1000 > deadline - backend.clock.monotonic():  # at once, or since the clock was set back
                raise BarrierFuture(
                    f"{timestamp_ms} ms is {ahead_ms} ms ahead of the leader's clock, beyond the deadline",
                    timestamp_ms=timestamp_ms,
                    now_ms=now_ms,
                )
            self.ahead.check(principal, 1, most=AHEAD_MAX)
            self.ahead.take(principal, 1)
            try:
                await wait(ahead_ms / 1000)
            finally:
                self.ahead.take(principal, -1)
        return await backend.read_index(deadline)

    async def _ask(self) -> None:
        try:
            self._known = self._began, await self._index()
            self._error = None
        except LogboomError as error:
            self._error = error
            await wait(AGAIN_S)
        finally:
            self._round = None

    async def _index(self) -> GlobalLogIndex:
        backend = self._backend
        leader = backend.raft.engine.leader
        if leader == backend.node_id:
            return await backend.read_index(self._began + ROUND_S)
        if leader is None:
            raise Unavailable("there is no leader right now")
        if not backend.raft.links.speaks(leader, FEATURE):
            raise Unavailable(f"{leader}, which leads, cannot be asked from here")
        number, loop = next(self._next), asyncio.get_running_loop()
        answer: asyncio.Future[GlobalLogIndex] = loop.create_future()
        if not backend.raft.links.send(leader, Kind.INDEX_ASK, {}, request_id=number):
            raise Unavailable(f"{leader}, which leads, cannot be reached from here")
        self._open[number] = _Asked(leader, self._began, answer)
        if len(self._open) > ASKED_MAX:
            del self._open[min(self._open)]
        timer = loop.call_later(ROUND_S, lambda: _fail(answer, Unavailable(f"{leader} did not answer")))
        try:
            return await answer
        finally:
            timer.cancel()

    def on_frame(self, peer: NodeId, frame: Frame) -> None:
        """One of INDICES. Raises ProtocolError."""
        if frame.kind is Kind.INDEX_ASK:
            self._answer(peer, frame.request_id)
            return
        asked = self._open.get(frame.request_id)
        if asked is None or asked.leader != peer:
            return
        answer = asked.answer
        error, index = frame.header.get("error"), frame.header.get("global_index")
        if isinstance(error, dict):
            del self._open[frame.request_id]
            _fail(answer, from_wire(error))
        elif type(index) is int and 0 <= index < NUMBER_MAX:
            del self._open[frame.request_id]
            if not answer.done():
                answer.set_result(GlobalLogIndex(index))
            elif self._known is None or self._known[0] < asked.began:
                self._known = asked.began, GlobalLogIndex(index)
        else:
            raise ProtocolError("INDEX_TOLD: bad field global_index")

    def _answer(self, peer: NodeId, number: int) -> None:
        backend = self._backend
        link = backend.raft.links.ups[peer]

        def done(error: LogboomError | None) -> None:
            if backend.raft.links.ups[peer] != link:
                return  # the number may be that of a younger question by now
            header: dict[str, Any] = (
                {"error": error.to_wire()} if error is not None else {"global_index": backend.global_commit_index()}
            )
            backend.raft.links.send(peer, Kind.INDEX_TOLD, header, request_id=number)

        backend.raft.read_index(done)

    def peer_down(self, peer: NodeId) -> None:
        """It does not answer any more."""
        for number, asked in list(self._open.items()):
            if asked.leader == peer:
                del self._open[number]
                _fail(asked.answer, Unavailable(f"the link to {peer} broke"))

    async def close(self) -> None:
        """Ask nothing more."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait({self._round})


def _fail(answer: asyncio.Future[GlobalLogIndex], error: LogboomError) -> None:
    if not answer.done():
        answer.set_exception(error)
