"""Forwarding: a node that does not lead passes a client's request to the leader and the answer back."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dispatcher.requests.requests import (
    LONGEST_MS,
    SubmitReply,
    SubmitRequest,
    encode_reply,
    encode_submit,
    parse_reply,
    parse_submit,
)
from dispatcher.requests.tracing import Trace, Tracer
from logboom.errors import DeadlineExceeded, LogboomError, Overloaded, UnknownOutcome, from_wire
from logboom.types import MIB, NodeId
from logboom.wire import Frame, Kind, encode
from ports.clock import Clock
from raftlog.links.links import Links

Done = Callable[[SubmitReply | LogboomError], None]
Submit = Callable[[SubmitRequest, Done, NodeId], object]
"""The last: who goes with everything that waits, when the link does."""
DEADLINES_KEPT: Final = 64
AHEAD_BYTES: Final = MIB
"""Of the link to the leader may be taken by what is passed on: this node's acknowledgements lie behind it."""


@dataclass(slots=True)
class _Forwarded:
    leader: NodeId
    nbytes: int
    done: Done


class _Answer(NamedTuple):
    number: int
    header: dict[str, Any]


class Forwarding:
    """Both sides. Bounded by ``bytes_max`` of requests under way."""

    def __init__(
        self, *, links: Links, submit: Submit, clock: Clock, bytes_max: int, longest_ms: int = LONGEST_MS
    ) -> None:
        self._links = links
        self._submit = submit
        self._clock = clock
        self._bytes_max = bytes_max
        self._longest_ms = longest_ms
        self._bytes = 0
        self._next = itertools.count(1)
        self._open: dict[int, _Forwarded] = {}
        self._deadlines: list[tuple[float, int]] = []
        """Of those, the first one first, and of some that were answered since."""
        self._owed: dict[NodeId, deque[_Answer]] = {}
        """Answers that wait for a congested link; not more than the other side has requests under way."""
        self.tracer: Tracer | None = None

    def forward(self, leader: NodeId, request: SubmitRequest, done: Done) -> bool:
        """Send a request on; ``done`` gets the leader's answer, or UnknownOutcome if the link breaks.

        False: it is too large for a frame between nodes, and the client has to go to the leader itself.
        """
        if self._bytes + request.nbytes > self._bytes_max:
            raise Overloaded(
                "too many forwarded requests are under way; go to the leader",
                partition_id=None,
                limit="forward_bytes",
                maximum=self._bytes_max,
                used=self._bytes,
                retry_after=0.05,
            )
        ahead = self._links.queued(leader)
        if ahead > AHEAD_BYTES:
            raise Overloaded(
                "the line to the leader takes no more for now; go to the leader",
                partition_id=None,
                limit="forward_queue",
                maximum=AHEAD_BYTES,
                used=ahead,
                retry_after=0.05,
            )
        number = next(self._next)
        header, body = encode_submit(request, now=self._clock.monotonic())
        frame = encode(Kind.FORWARD, header, body, request_id=number, checked=True)
        if sum(map(len, frame)) > self._links.limits.frame_bytes:
            return False
        if not self._links.send_frame(leader, Kind.FORWARD, frame):
            raise UnknownOutcome("the leader cannot be reached from here", outcome="not_applied")
        self._open[number] = _Forwarded(leader, request.nbytes, done)
        self._bytes += request.nbytes
        if len(self._deadlines) > 2 * len(self._open) + DEADLINES_KEPT:
            self._deadlines = [each for each in self._deadlines if each[1] in self._open]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (request.deadline, number))
        return True

    def on_frame(self, peer: NodeId, frame: Frame) -> None:
        """FORWARD: a request from another node's client. FORWARDED: the answer to one of ours."""
        number = frame.request_id
        if frame.kind is Kind.FORWARDED:
            error = frame.header.get("error")
            reply = from_wire(error) if isinstance(error, dict) else parse_reply(frame.header)
            found = self._take(number)
            if found is not None:
                found.done(reply)
        elif frame.kind is Kind.FORWARD:
            trace, link = self._trace(peer, frame), self._links.ups[peer]

            def answer(reply: SubmitReply | LogboomError) -> None:
                if trace is not None:
                    trace.end(reply)
                if self._links.ups[peer] != link:
                    return  # whoever asked is gone with it; the number may be that of another request by now
                header = {"error": reply.to_wire()} if isinstance(reply, LogboomError) else encode_reply(reply)
                self._answer(peer, _Answer(number, header))

            try:
                request = parse_submit(frame, now=self._clock.monotonic(), forwarded=True, longest_ms=self._longest_ms)
            except LogboomError as error:
                answer(error)
                return
            self._submit(request._replace(trace=trace), answer, peer)

    def _trace(self, peer: NodeId, frame: Frame) -> Trace | None:
        """Only what is traced where it was asked for."""
        said = frame.header.get("traceparent")
        return None if self.tracer is None or said is None else self.tracer.begin("forwarded", said, {"from": peer})

    def _answer(self, peer: NodeId, answer: _Answer) -> None:
        owed = self._owed.get(peer)
        if owed is not None:
            owed.append(answer)  # behind those that wait already
        elif not self._send(peer, answer) and self._links.connected(peer):
            self._owed[peer] = deque((answer,))

    def _send(self, peer: NodeId, answer: _Answer) -> bool:
        return self._links.send(peer, Kind.FORWARDED, answer.header, request_id=answer.number)

    def peer_drained(self, peer: NodeId) -> None:
        """The link takes frames again."""
        owed = self._owed.get(peer)
        while owed and self._send(peer, owed[0]):
            owed.popleft()
        if not owed:
            self._owed.pop(peer, None)

    def peer_down(self, peer: NodeId) -> None:
        """Answers that were to go over this link, either way, never will: the other side knows, too."""
        self._owed.pop(peer, None)
        for number in [n for n, f in self._open.items() if f.leader == peer]:
            self._fail(number, UnknownOutcome("the link to the leader broke; send it again"))

    def expire(self, now: float) -> None:
        """Give up on those past their deadline."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            self._fail(number, DeadlineExceeded("the leader did not answer in time", outcome="unknown"))

    def close(self) -> None:
        """The node stops."""
        for number in list(self._open):
            self._fail(number, UnknownOutcome("the node is shutting down; send it again elsewhere"))

    def _take(self, number: int) -> _Forwarded | None:
        found = self._open.pop(number, None)
        if found is not None:
            self._bytes -= found.nbytes
        return found

    def _fail(self, number: int, error: LogboomError) -> None:
        found = self._take(number)
        if found is not None:
            found.done(error)
