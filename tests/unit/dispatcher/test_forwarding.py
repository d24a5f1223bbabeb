"""Requests that go to the leader by way of another node: both sides over one pair of links."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pytest

from dispatcher.pipeline.forwarding import AHEAD_BYTES, DEADLINES_KEPT, Done, Forwarding
from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest
from dispatcher.requests.tracing import Span, Tracer
from logboom.errors import DeadlineExceeded, LogboomError, Overloaded, UnknownOutcome
from logboom.records import RecordBlock
from logboom.types import Level, NodeId, PartitionId, ProducerId
from logboom.wire import Buffer, FrameDecoder, Kind, encode
from ports.net import ConnectionLimits
from tests.unit.raftlog.world import VirtualClock, VirtualLoop

FOLLOWER, LEADER = NodeId("f"), NodeId("l")


class Wire:
    """``Links`` of one side: what is sent arrives at the other at once, unless the link is full or cut."""

    def __init__(self) -> None:
        self.full = self.cut = False
        self.ahead = 0
        self.ups: Counter[NodeId] = Counter()
        self.limits = ConnectionLimits(frame_bytes=1 << 20)
        self.other: Forwarding
        self.own: NodeId

    def connected(self, peer: NodeId) -> bool:
        return not self.cut

    def queued(self, peer: NodeId) -> int:
        return self.ahead

    def send(
        self, peer: NodeId, kind: Kind, header: Mapping[str, Any], body: Sequence[Buffer] = (), *, request_id: int = 0
    ) -> bool:
        return self.send_frame(peer, kind, encode(kind, header, body, request_id=request_id))

    def send_frame(self, peer: NodeId, kind: Kind, buffers: Sequence[Buffer]) -> bool:
        if self.full or self.cut:
            return False
        raw = b"".join(bytes(part) for part in buffers)
        for frame in FrameDecoder(frame_bytes_max=1 << 20).feed(raw):
            self.other.on_frame(self.own, frame)
        return True


class Pair:
    """A follower and a leader whose pipeline answers when the test says so."""

    def __init__(self, *, bytes_max: int = 1 << 20) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.asked: list[tuple[SubmitRequest, Done]] = []
        self.answers: list[SubmitReply | LogboomError] = []
        self.up, self.down = Wire(), Wire()
        refuse = lambda request, done, _: done(UnknownOutcome("nobody asks a follower"))  # noqa: E731
        self.follower = Forwarding(links=self.up, submit=refuse, clock=self.clock, bytes_max=bytes_max)  # type: ignore[arg-type]
        self.leader = Forwarding(
            links=self.down,  # type: ignore[arg-type]
            submit=lambda request, done, _: self.asked.append((request, done)),
            clock=self.clock,
            bytes_max=bytes_max,
            longest_ms=3_000,
        )
        self.up.other, self.up.own = self.leader, FOLLOWER
        self.down.other, self.down.own = self.follower, LEADER

    def forward(self, sequence: int = 0) -> bool:
        return self.follower.forward(LEADER, _request(self.loop.now + 5.0, sequence), self.answers.append)

    def answer(self, number: int) -> None:
        request, done = self.asked[number]
        done(UnknownOutcome(f"answer {request.parts[0].first_sequence}"))

    @property
    def told(self) -> list[str]:
        return [str(answer) for answer in self.answers]

    def restart(self) -> None:
        """The follower begins anew: another process, another link, numbers from the beginning."""
        self.leader.peer_down(FOLLOWER)
        self.down.ups[FOLLOWER] += 1
        refuse = lambda request, done, _: done(UnknownOutcome("nobody asks a follower"))  # noqa: E731
        self.follower = self.down.other = Forwarding(links=self.up, submit=refuse, clock=self.clock, bytes_max=1 << 20)  # type: ignore[arg-type]


def _request(deadline: float, sequence: int) -> SubmitRequest:
    records = RecordBlock.from_columns(payloads=[b"x" * 100])
    return SubmitRequest(
        producer=ProducerId(bytes(16)),
        epoch=0,
        dense=False,
        wait=Level.COMMITTED,
        deadline=deadline,
        parts=(SubmitPart(PartitionId(0), sequence, 0, records),),
        nbytes=records.nbytes,
    )


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    yield made  # type: ignore[misc]
    made.loop.close()


def test_an_answer_comes_back(pair: Pair) -> None:
    for sequence in range(3):
        pair.forward(sequence)
    for number in (2, 0, 1):
        pair.answer(number)
    assert pair.told == ["answer 2", "answer 0", "answer 1"]
    assert pair.follower._bytes == 0


def test_a_deadline_is_no_further_away_than_the_leader_is_told(pair: Pair) -> None:
    pair.forward()
    assert pair.asked[0][0].deadline == pair.clock.monotonic() + 3.0


def test_answers_wait_for_a_link_that_is_full_and_keep_their_order(pair: Pair) -> None:
    """They were dropped: the client waited until its deadline, and the bytes stayed taken."""
    for sequence in range(4):
        pair.forward(sequence)
    pair.answer(0)
    pair.down.full = True
    pair.answer(1)
    pair.answer(2)
    assert pair.told == ["answer 0"]
    pair.down.full = False
    pair.answer(3)  # not in front of those that wait
    assert pair.told == ["answer 0"]
    pair.leader.peer_drained(FOLLOWER)
    assert pair.told == [f"answer {k}" for k in range(4)]
    assert pair.follower._bytes == 0


def test_a_link_that_is_full_again_keeps_the_rest(pair: Pair) -> None:
    for sequence in range(3):
        pair.forward(sequence)
    pair.down.full = True
    for number in range(3):
        pair.answer(number)
    pair.leader.peer_drained(FOLLOWER)
    assert pair.told == []
    pair.down.full = False
    pair.leader.peer_drained(FOLLOWER)
    pair.leader.peer_drained(FOLLOWER)
    assert pair.told == ["answer 0", "answer 1", "answer 2"]


def test_a_link_that_breaks_takes_what_waited_for_it_along(pair: Pair) -> None:
    pair.forward()
    pair.down.full = True
    pair.answer(0)
    pair.leader.peer_down(FOLLOWER)
    pair.follower.peer_down(LEADER)
    pair.down.full = False
    pair.leader.peer_drained(FOLLOWER)
    assert [type(answer) for answer in pair.answers] == [UnknownOutcome]
    assert "link to the leader broke" in pair.told[0]
    assert pair.follower._bytes == 0


def test_nothing_waits_for_a_link_that_is_gone(pair: Pair) -> None:
    pair.forward()
    pair.down.cut = True
    pair.answer(0)
    pair.follower.peer_down(LEADER)
    pair.down.cut = False  # another link
    pair.leader.peer_drained(FOLLOWER)
    assert len(pair.answers) == 1


def test_what_cannot_be_sent_on_was_not_applied(pair: Pair) -> None:
    pair.up.full = True
    with pytest.raises(UnknownOutcome) as caught:
        pair.forward()
    assert caught.value.outcome == "not_applied"
    assert pair.follower._bytes == 0


def test_what_is_too_large_for_a_frame_between_nodes_is_not_sent_on(pair: Pair) -> None:
    """Found by reading: the leader cut the link, Raft's, too, at each attempt."""
    sizes: list[int] = []
    pair.up.send_frame = lambda peer, kind, buffers: sizes.append(sum(map(len, buffers))) or True  # type: ignore[method-assign]
    assert pair.forward()
    for limit, sent in ((sizes[0], True), (sizes[0] - 1, False)):
        pair.up.limits = ConnectionLimits(frame_bytes=limit)
        assert pair.forward() is sent
    assert len(sizes) == len(pair.follower._open) == 2


def test_requests_on_the_way_are_bounded() -> None:
    pair = Pair(bytes_max=250)
    pair.forward()
    pair.forward()
    with pytest.raises(Overloaded) as caught:
        pair.forward()
    assert caught.value.fields["limit"] == "forward_bytes"
    pair.loop.close()


def test_those_who_have_time_are_not_looked_at_and_those_who_were_answered_not_kept(pair: Pair) -> None:
    """All under way were looked at twenty times a second: a hundred thousand small ones took a third of it."""

    class Seen(dict[int, object]):
        def items(self) -> NoReturn:
            pytest.fail("looked at")

    pair.follower._open = Seen(pair.follower._open)  # type: ignore[arg-type,assignment]
    for sequence in range(1_000):
        assert pair.forward(sequence)
    for number in range(1_000):
        pair.follower.expire(pair.loop.now)
        pair.answer(number)
        assert pair.forward(1_000 + number)
    assert len(pair.follower._open) == 1_000
    assert len(pair.follower._deadlines) <= 2 * 1_000 + DEADLINES_KEPT + 1
    pair.follower.expire(pair.loop.now + 5.0)
    assert not pair.follower._open
    assert len(pair.answers) == 2_000


def test_nobody_waits_beyond_the_deadline(pair: Pair) -> None:
    pair.forward()
    pair.follower.expire(pair.loop.now + 4.9)
    assert pair.answers == []
    pair.follower.expire(pair.loop.now + 5.1)
    assert [type(answer) for answer in pair.answers] == [DeadlineExceeded]
    pair.answer(0)  # too late, and for nobody
    assert len(pair.answers) == 1


class Traced:
    """A pair whose nodes note what they do."""

    def __init__(self, pair: Pair, *, leader: bool = True) -> None:
        self.pair = pair
        self.spans: list[Span] = []
        self.tracer = Tracer(sample=1.0, clock=self.pair.clock, rng=random.Random(7), emit=self.spans.append)
        self.pair.leader.tracer = self.tracer if leader else None

    def forward(self, *, sampled: bool) -> None:
        trace = self.tracer.begin("submit", None, {}) if sampled else None
        request = _request(self.pair.loop.now + 5.0, 0)._replace(trace=trace)
        self.pair.follower.forward(LEADER, request, self.pair.answers.append)


def test_what_the_leader_does_for_a_traced_request_belongs_to_its_trace(pair: Pair) -> None:
    traced = Traced(pair)
    traced.forward(sampled=True)
    ((request, _),) = pair.asked
    assert request.trace is not None
    request.trace.stage("admit")
    pair.answer(0)
    admit, forwarded = traced.spans
    assert (admit.name, admit.parent_id) == ("admit", forwarded.span_id)
    assert (forwarded.name, forwarded.error) == ("forwarded", "unknown_outcome")
    assert forwarded.attributes == {"from": FOLLOWER}
    trace = request.trace.trace_id
    assert forwarded.trace_id == admit.trace_id == trace
    assert forwarded.parent_id not in ("", forwarded.span_id)


@pytest.mark.parametrize(("sampled", "leader"), [(False, True), (True, False)])
def test_who_is_not_traced_at_both_nodes_leaves_nothing(*, pair: Pair, sampled: bool, leader: bool) -> None:
    traced = Traced(pair, leader=leader)
    traced.forward(sampled=sampled)
    ((request, _),) = pair.asked
    pair.answer(0)
    assert request.trace is None
    assert traced.spans == []
    assert len(pair.answers) == 1


def test_the_answer_to_a_request_of_a_former_life_is_nobodys(pair: Pair) -> None:
    """It went to the request that had the same number in the new one: acknowledged, and never applied."""
    pair.forward(7)
    pair.restart()
    pair.forward(8)
    pair.answer(0)
    assert pair.told == []
    pair.answer(1)
    assert pair.told == ["answer 8"]


def test_what_is_passed_on_leaves_the_line_to_acknowledgements(pair: Pair) -> None:
    """Found by review: on a slow line a node's acknowledgements lay behind all that a buffer of 16 MiB takes."""
    pair.up.ahead = AHEAD_BYTES
    assert pair.forward()
    pair.up.ahead += 1
    with pytest.raises(Overloaded) as caught:
        pair.forward()
    assert caught.value.fields["limit"] == "forward_queue"
    pair.up.ahead = 0
    assert pair.forward()
