"""Spans: who is sampled, which stages there are, and that nothing happens for anybody else."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.admission.admission import Admission
from dispatcher.pipeline.pending import Pending
from dispatcher.pipeline.pipeline import Pipeline
from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest
from dispatcher.requests.tracing import Parent, Span, Trace, Tracer, begin, parse_traceparent
from dispatcher.sessions.session import Session
from logboom.errors import LogboomError, NotLeader, Overloaded
from logboom.records import RecordBlock
from logboom.settings import AdmissionSettings
from logboom.types import GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId, Term
from logboom.wire import Frame, Kind
from partitions.apply.apply_core import AppliedBatch
from raftlog.entries.entry import Route

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
WALL_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return WALL_MS


class Desk:
    """A tracer with what it has emitted."""

    def __init__(self, sample: float = 1.0) -> None:
        self.clock = Clock()
        self.spans: list[Span] = []
        self.tracer = Tracer(sample=sample, clock=self.clock, rng=random.Random(7), emit=self.spans.append)

    def begin(self, said: object = None) -> Trace | None:
        return self.tracer.begin("submit", said, {"request_id": 5})

    def later(self, seconds: float) -> None:
        self.clock.now += seconds


@pytest.mark.parametrize(
    ("said", "parent"),
    [
        (SAMPLED, Parent(TRACE, SPAN, sampled=True)),
        (NOT_SAMPLED, Parent(TRACE, SPAN, sampled=False)),
        (f"00-{TRACE}-{SPAN}-ff", Parent(TRACE, SPAN, sampled=True)),
        (f"01-{TRACE}-{SPAN}-01-more", Parent(TRACE, SPAN, sampled=True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}-01" + "-" + "x" * 200, None),
        (SAMPLED.encode(), None),
        (None, None),
        (7, None),
    ],
)
def test_a_traceparent_is_taken_as_w3c_says(said: object, parent: Parent | None) -> None:
    assert parse_traceparent(said) == parent


@given(st.one_of(st.text(), st.binary(), st.integers(), st.lists(st.integers())))
def test_whatever_else_is_said_is_none(said: object) -> None:
    assert parse_traceparent(said) is None


def test_what_the_frame_says_of_the_request_is_in_its_span() -> None:
    desk = Desk(1e-9)
    trace = begin(desk.tracer, "barrier", Frame(Kind.BARRIER, 9, {"traceparent": SAMPLED}), "10.0.0.1:5")
    assert trace is not None
    trace.end([])
    (span,) = desk.spans
    assert (span.name, span.parent_id, span.error) == ("barrier", SPAN, None)
    assert span.attributes == {"request_id": 9, "remote": "10.0.0.1:5"}
    assert begin(desk.tracer, "barrier", Frame(Kind.BARRIER, 9, {}), "10.0.0.1:5") is None


def test_who_asks_decides_else_chance_does() -> None:
    never, always, some = Desk(1e-9), Desk(1.0), Desk(0.25)
    assert never.begin(SAMPLED) is not None
    assert never.begin() is None
    assert always.begin(NOT_SAMPLED) is None
    assert always.begin() is not None
    assert 150 < sum(some.begin() is not None for _ in range(1000)) < 350
    assert some.tracer.started < 350


def request(trace: Trace | None, wait: Level) -> SubmitRequest:
    records = RecordBlock.from_columns(payloads=[b"x", b"y"])
    parts = tuple(SubmitPart(PartitionId(p), 0, 0, records) for p in (0, 1))
    return SubmitRequest(ProducerId(bytes(16)), 0, False, wait, 1e9, parts, 32, trace=trace)


def batch(duplicate: int = 0) -> AppliedBatch:
    one = PartitionLogIndex(1)
    return AppliedBatch(
        one, PartitionLogIndex(2), GlobalLogIndex(1), ProducerId(bytes(16)), 0, 0, 2, 32, duplicate, None, None
    )


def run(desk: Desk, trace: Trace | None, wait: Level) -> list[SubmitReply | LogboomError]:
    """A request over two partitions, 1 ms per stage."""
    pending, answers = Pending(), list[SubmitReply | LogboomError]()
    admission = Admission(AdmissionSettings(), [PartitionId(0), PartitionId(1)])
    ticket = admission.admit([(PartitionId(p), 2, 16) for p in (0, 1)], 0.0)

    def done(answer: SubmitReply | LogboomError) -> None:
        answers.append(answer)
        if trace is not None:
            trace.end(answer)

    desk.later(0.001)
    if trace is not None:
        trace.stage("admit")
    desk.later(0.001)
    ends = [(PartitionId(p), PartitionLogIndex(1), PartitionLogIndex(2)) for p in (0, 1)]
    pending.add(request(trace, wait), ends=ends, ticket=ticket, done=done)
    desk.later(0.001)
    for p in (0, 1):
        pending.committed(PartitionId(p), PartitionLogIndex(2), GlobalLogIndex(10 + p))
    for p in (0, 1):
        desk.later(0.001)
        pending.applied(batch(duplicate=p), PartitionId(p))
    return answers


@pytest.mark.parametrize("wait", [Level.COMMITTED, Level.APPLIED])
def test_stages_follow_each_other_and_applying_is_per_partition(wait: Level) -> None:
    desk = Desk()
    assert len(run(desk, desk.begin(SAMPLED), wait)) == 1
    spans = {(span.name, span.attributes.get("partition")): span for span in desk.spans}
    assert len(spans) == len(desk.spans) == 7
    root = spans["submit", None]
    assert (root.trace_id, root.parent_id, root.error) == (TRACE, SPAN, None)
    assert root.attributes == {"request_id": 5}
    start = WALL_MS * 1_000_000

    def times(name: str, partition: int | None = None) -> tuple[float, float]:
        span = spans[name, partition]
        return round((span.start_ns - start) / 1e6, 3), round((span.end_ns - start) / 1e6, 3)

    assert times("admit") == (0, 1)
    assert times("append") == (1, 2)
    assert times("replicate") == (2, 3)
    assert times("commit") == (3, 3)
    assert times("apply", 0) == (3, 4)
    assert times("apply", 1) == (3, 5)
    assert times("submit") == (0, 3 if wait is Level.COMMITTED else 5)
    for span in desk.spans:
        assert span.trace_id == TRACE
        if span is not root:
            assert span.parent_id == root.span_id
            assert span.linked == (span.name == "apply")
    assert len({span.span_id for span in desk.spans}) == 7
    assert spans["commit", None].attributes["global_index"] == 10
    applied = spans["apply", 1].attributes
    assert (applied["first_index"], applied["last_index"], applied["global_index"], applied["duplicate"]) == (
        1,
        2,
        11,
        1,
    )


def test_a_request_that_is_not_sampled_leaves_nothing() -> None:
    desk = Desk()
    assert len(run(desk, None, Level.APPLIED)) == 1
    assert desk.spans == []


def test_a_refusal_is_a_span_with_its_code() -> None:
    desk = Desk()
    trace = desk.begin()
    assert trace is not None
    trace.end(Overloaded("full", partition_id=None, limit="node_ops", maximum=1, used=1, retry_after=0.1))
    (span,) = desk.spans
    assert (span.name, span.error, span.parent_id) == ("submit", "overloaded", "")


@pytest.mark.parametrize("said", [SAMPLED, NOT_SAMPLED, None, 7])
def test_a_followers_span_ends_once_the_batch_is_synced(said: object) -> None:
    desk, held = Desk(sample=0.0), list[Callable[[], None]]()
    group = SimpleNamespace(hold=held.append)
    node: Any = SimpleNamespace(tracer=desk.tracer, raft=SimpleNamespace(group=group))
    Pipeline.traced(node, Route(PartitionId(3), Term(1), PartitionLogIndex(9), bytes(16)), said)
    if said is not SAMPLED:
        assert held == []
        return
    desk.later(0.25)
    assert desk.spans == []
    (synced,) = held
    synced()
    (span,) = desk.spans
    assert (span.name, span.trace_id, span.parent_id, span.attributes) == ("replica", TRACE, SPAN, {"partition": 3})
    assert span.end_ns - span.start_ns == 250_000_000


def test_a_node_that_does_not_trace_does_nothing_for_a_batch_that_is_traced() -> None:
    node: Any = SimpleNamespace(tracer=None)
    Pipeline.traced(node, Route(PartitionId(3), Term(1), PartitionLogIndex(9), bytes(16)), SAMPLED)


def test_a_barrier_that_is_refused_at_once_has_its_span() -> None:
    desk, refused = Desk(), NotLeader("elsewhere", leader=None)

    def barrier(*_: object) -> None:
        raise refused

    session = SimpleNamespace(
        _service=SimpleNamespace(tracer=desk.tracer),
        _waits=SimpleNamespace(barrier=barrier),
        _principal=lambda: "me",
        remote="somewhere",
    )
    with pytest.raises(NotLeader):
        Session._barrier(cast("Session", session), Frame(Kind.BARRIER, 9, {}), 1.0)
    assert [(span.name, span.error) for span in desk.spans] == [("barrier", "not_leader")]
