"""A request over several partitions is ordered only where all of it takes effect, or nothing does.

Given up while it waits or is on its way, its numbers are settled: by whatever its client writes next, to one of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.requests.requests import SubmitPart, SubmitRequest
from logboom.errors import PartitionPaused, Unavailable, UnknownOutcome
from logboom.origins import Origin
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId
from partitions.apply.dedupe import Dedupe
from partitions.apply.ordered import Ordered, OrderedParts
from tests.unit.dispatcher.submitting_world import Node

A, B = PartitionId(0), PartitionId(1)
PRODUCER = ProducerId(b"p" * 16)
TWO = RecordBlock.from_columns(payloads=[b"x", b"y"])


class Leader(Node):
    """One that has applied 6 records of each partition."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**changes)
        self.pipeline: Any = self.submitting._pipeline
        self.workers = {p: SimpleNamespace(remembered=(), is_paused=False) for p in (A, B)}
        for worker in self.workers.values():
            worker.dedupe = Dedupe(ApplySettings())
            worker.remembered = (worker.dedupe, 6)
        self.pipeline.workers, self.ahead = self.workers, self.pipeline.pending.ahead

    def submit(
        self,
        *parts: tuple[PartitionId, int],
        wait_s: float = 0.0,
        epoch: int = 0,
        floor: int = 0,
        producer: bytes = PRODUCER,
    ) -> list[Any]:
        """Two records each, from these sequences on."""
        now, shares = self.loop.now, tuple(SubmitPart(p, sequence, floor, TWO) for p, sequence in parts)
        request = SubmitRequest(
            ProducerId(producer), epoch, False, Level.COMMITTED, now + 60.0, shares, TWO.nbytes, admit_by=now + wait_s
        )
        answers: list[Any] = []
        self.submitting.submit(request, answers.append, "owner")
        return answers

    def apply(
        self, partition: PartitionId, sequence: int, *, floor: int = 0, epoch: int = 0, receipt: bool = True
    ) -> None:
        dedupe = self.workers[partition].dedupe
        origin = Origin(PRODUCER, epoch, PartitionLogIndex(5), 2, sequence, floor)
        at = GlobalLogIndex(5 + sequence)
        dedupe.record(origin, dedupe.decide(origin), at)
        if receipt:
            dedupe.remember(origin, at, b"\0")
        dedupe.commit()

    def order(self, partition: PartitionId, sequence: int, *, floor: int = 0, epoch: int = 0) -> None:
        ordered = Ordered(epoch, sequence, sequence + 2, floor)
        self.ahead.add(partition, PRODUCER, PartitionLogIndex(8), ordered)


@pytest.fixture
def node() -> Any:
    made = Leader(partition_ops=4)
    yield made
    made.submitting.close()
    made.loop.close()


@pytest.mark.parametrize("applied", [True, False])
def test_of_what_waits_and_is_given_up_nothing_takes_effect_once_a_part_is_settled(node: Leader, applied: bool) -> None:
    """Passed on by another node it is not taken out of its lane: half of it was ordered when there was room."""
    taken = node.admission.admit([(B, 4, 10)], node.loop.now)
    told = node.submit((A, 5), (B, 3), wait_s=10.0)
    (node.apply if applied else node.order)(A, 7, floor=7)
    node.play(lambda: taken.release(B))
    assert [(type(error), error.outcome) for error in told] == [(UnknownOutcome, "unknown")]
    assert node.proposing.admitted == []
    assert node.admission.used() == (0, 0)


def test_what_waits_and_is_wanted_is_ordered_whatever_else_its_producer_has_written(node: Leader) -> None:
    taken = node.admission.admit([(B, 4, 10)], node.loop.now)
    told = node.submit((A, 5), (B, 3), wait_s=10.0)
    node.apply(A, 7, floor=5)
    node.order(B, 9, floor=3)
    node.order(A, 9, floor=5)
    node.play(lambda: taken.release(B))
    assert told == ["admitted"]


@pytest.mark.parametrize("applied", [True, False])
def test_what_comes_late_is_not_ordered_once_a_part_is_settled(node: Leader, applied: bool) -> None:
    (node.apply if applied else node.order)(A, 7, floor=7)
    with pytest.raises(UnknownOutcome):
        node.submit((A, 5), (B, 3))
    with pytest.raises(UnknownOutcome):
        node.submit((B, 3), (A, 6))  # a part of a part
    assert node.proposing.admitted == []
    assert node.submit((A, 9), (B, 3)) == node.submit((A, 5), (B, 3), producer=b"q" * 16) == ["admitted"]
    assert node.submit((A, 5)) == node.submit((B, 3)) == ["admitted"]  # alone it is whole, whatever becomes of it


def test_what_is_settled_altogether_has_no_effect_and_is_answered_as_before(node: Leader) -> None:
    node.apply(A, 7, floor=7)
    node.order(B, 9, floor=9)
    assert node.submit((A, 5), (B, 3)) == ["admitted"]


@pytest.mark.parametrize("applied", [True, False])
def test_what_was_ordered_before_was_ordered_as_a_whole_and_is_again(node: Leader, applied: bool) -> None:
    """A batch of it may have been declared void since: sent again it takes effect."""
    (node.apply if applied else node.order)(A, 5)
    assert node.submit((A, 5), (B, 3)) == ["admitted"]
    assert node.submit((B, 3), (A, 5)) == ["admitted"]


def test_what_was_applied_and_is_not_remembered_to_have_been_may_have_been_settled(node: Leader) -> None:
    node.apply(A, 5, receipt=False)
    with pytest.raises(UnknownOutcome):
        node.submit((A, 5), (B, 3))
    node.apply(B, 3, receipt=False)
    assert node.submit((A, 5), (B, 3)) == ["admitted"]


def test_while_what_others_have_ordered_is_not_applied_nobody_knows(node: Leader) -> None:
    node.ahead.inherit({A: PartitionLogIndex(7), B: PartitionLogIndex(6)})
    for parts, outcome in ((((A, 5), (B, 3)), "not_applied"), (((B, 3), (A, 5)), "not_applied")):
        with pytest.raises(Unavailable) as refused:  # of B nothing was ordered, hence nothing of A
            node.submit(*parts)
        assert (refused.value.outcome, refused.value.retry_after) == (outcome, 0.1)
    assert node.submit((A, 5)) == ["admitted"]
    node.apply(B, 3, receipt=False)
    with pytest.raises(Unavailable) as refused:
        node.submit((A, 5), (B, 3))
    assert refused.value.outcome == "unknown"
    node.workers[A].remembered = (node.workers[A].dedupe, 7)
    with pytest.raises(UnknownOutcome):
        node.submit((A, 5), (B, 3))


def test_of_one_that_is_paused_whoever_asks_is_told_so(node: Leader) -> None:
    """He may have it resumed; found by reading: he was told to try again, until his deadline."""
    node.ahead.inherit({A: PartitionLogIndex(7)})
    node.pipeline.node_id, node.workers[A].is_paused = "n1", True
    for parts in (((A, 5), (B, 3)), ((B, 3), (A, 5))):
        with pytest.raises(PartitionPaused, match="resume 0") as refused:
            node.submit(*parts)
        assert (refused.value.outcome, refused.value.fields["partition_id"]) == ("not_applied", A)
    assert node.submit((A, 5)) == ["admitted"]
    node.workers[A].is_paused = False
    with pytest.raises(Unavailable, match="partition 0 before this node led"):
        node.submit((A, 5), (B, 3))


def test_what_waits_while_another_node_comes_to_lead_is_not_ordered_before_that_is_known(node: Leader) -> None:
    taken = node.admission.admit([(B, 4, 10)], node.loop.now)
    told = node.submit((A, 5), (B, 3), wait_s=10.0)
    node.ahead.inherit({A: PartitionLogIndex(7)})
    node.play(lambda: taken.release(B))
    assert [type(error) for error in told] == [Unavailable]
    assert node.admission.used() == (0, 0)


def test_a_later_epoch_settles_what_earlier_ones_have_numbered_and_an_earlier_one_nothing(node: Leader) -> None:
    for prepare in (node.apply, node.order):
        prepare(A, 7, floor=7, epoch=1)
        with pytest.raises(UnknownOutcome):
            node.submit((A, 9), (B, 3))
        assert node.submit((A, 5), (B, 3), epoch=2) == ["admitted"]
        node.workers[A].dedupe.drop()
    assert node.submit((A, 9), (B, 3), epoch=1) == ["admitted"]


class TestOrderedParts:
    def test_a_floor_settles_what_is_below_it_as_do_the_parts_themselves(self) -> None:
        parts = OrderedParts()
        assert parts.settled(0, 0, 9) == []
        parts.add(PartitionLogIndex(1), Ordered(0, 6, 8, 4))
        parts.add(PartitionLogIndex(2), Ordered(0, 9, 11, 3))  # what comes later may say less
        assert sorted(parts.settled(0, 2, 12)) == [(2, 4), (6, 8), (9, 11)]
        assert parts.settled(0, 4, 6) == parts.settled(0, 11, 12) == parts.settled(1, 0, 12) == []
        assert parts.has(0, 6, 8)
        assert [parts.has(*other) for other in ((0, 6, 9), (1, 6, 8), (0, 4, 6))] == [False] * 3

    def test_what_was_said_goes_with_the_last_of_them(self) -> None:
        parts = OrderedParts()
        parts.add(PartitionLogIndex(1), Ordered(1, 6, 8, 4))
        assert parts.settled(0, 20, 21) == [(20, 21)]
        parts.drop(PartitionLogIndex(1))
        assert parts.settled(0, 20, 21) == parts.settled(1, 0, 9) == []
        parts.add(PartitionLogIndex(2), Ordered(0, 8, 9, 0))
        assert parts.settled(0, 0, 9) == [(8, 9)]
