"""A partition that applies nothing until somebody resumes it: who would wait for that is told at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline.pending import Pending
from dispatcher.pipeline.presence import Presence
from dispatcher.pipeline.proposing import Admitted, Proposing
from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest
from logboom.errors import PartitionPaused
from logboom.origins import Origin
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.types import MIXED, NO_PRODUCER, GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId
from partitions.apply.dedupe import Dedupe
from partitions.apply.ordered import Ordered
from tests.unit.dispatcher.barrier_desk import Desk as BarrierDesk
from tests.unit.dispatcher.pending_desk import A, B, Desk
from tests.unit.dispatcher.submitting_world import Node

PRODUCER = ProducerId(b"p" * 16)
ONE = RecordBlock.from_columns(payloads=[b"x"])


class Paused(Node):
    """One that leads; its partition A is paused, B is not."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**changes)
        pipeline: Any = self.submitting._pipeline
        dedupe = Dedupe(ApplySettings(producer_receipts=1))
        self.workers = {p: SimpleNamespace(dedupe=dedupe, remembered=(dedupe, 6), is_paused=p == A) for p in (A, B)}
        pipeline.workers, pipeline.node_id = self.workers, "n1"

    def request(
        self,
        wait: Level | None,
        *partitions: PartitionId,
        sequence: int = 0,
        wait_s: float = 0.0,
        producer: bytes = PRODUCER,
    ) -> SubmitRequest:
        now, parts = self.loop.now, tuple(SubmitPart(p, sequence, 0, ONE) for p in partitions)
        number = ProducerId(producer)
        return SubmitRequest(number, 0, False, wait, now + 60.0, parts, ONE.nbytes, admit_by=now + wait_s)

    def submit(self, *asked: Any, **how: Any) -> list[Any]:
        answers: list[Any] = []
        self.submitting.submit(self.request(*asked, **how), answers.append, "owner")
        return answers


@pytest.mark.parametrize(
    ("hole", "damage", "awaited", "shown"),
    [
        (True, True, False, "lost"),
        (False, True, False, "paused"),
        (False, True, True, "lost"),
        (False, False, False, "paused"),
    ],
)
def test_one_that_is_lost_as_well_is_shown_as_what_holds_up_more(
    *, hole: bool, damage: bool, awaited: bool, shown: str
) -> None:
    """A barrier for `durable` waited until its deadline, as if a pause were all: that holds up only what is applied.

    What waits for another node's set is not helped by whoever resumes it. Its log goes on.
    """
    told, desk = list[PartitionId](), BarrierDesk()
    answers, of_state = (desk.wait(5, [A], level)[1] for level in (Level.DURABLE, Level.APPLIED))
    pipeline = SimpleNamespace(
        _unshown=set(),
        _told_paused=set(),
        logs={A: SimpleNamespace(hole=object() if hole else None, committed_index=5, durable_index=2)},
        workers={A: SimpleNamespace(is_paused=True, idle=False)},
        rebuilding=SimpleNamespace(
            shown=lambda _: (SimpleNamespace(applied_index=2, applied_global_index=2), "paused"), fenced=lambda _: False
        ),
        voiding=SimpleNamespace(
            hole_of=lambda _: object() if hole or damage else None,
            awaited_hole_of=lambda _: object() if awaited else None,
        ),
        submitting=SimpleNamespace(paused=told.append),
        watermarks=desk.watermarks,
    )
    Presence._publish(cast("Presence", pipeline), A)
    assert desk.watermarks.of(A).state == shown
    assert [getattr(answer, "blocked", None) for answer in answers] == ([[[A, "lost"]]] if hole else [])
    assert [getattr(answer, "blocked", None) for answer in of_state] == [[[A, shown]]]
    assert told == [A], "who waits for what is applied is told of the pause"
    Presence._publish(cast("Presence", pipeline), A)
    assert told == [A], "once: whoever comes later is refused at once"
    for is_paused in (False, True):
        pipeline.workers[A].is_paused = is_paused
        Presence._publish(cast("Presence", pipeline), A)
    assert told == [A, A]


def apply(dedupe: Dedupe, *sequences: int, epoch: int = 0) -> None:
    """One record each; of the last one there is a receipt."""
    for number, sequence in enumerate(sequences, 1):
        at = PartitionLogIndex(number)
        origin = Origin(PRODUCER, epoch, at, 1, sequence, 0)
        dedupe.record(origin, dedupe.decide(origin), GlobalLogIndex(number))
        dedupe.remember(origin, GlobalLogIndex(number), b"\0")
        dedupe.commit()


@pytest.fixture
def node() -> Any:
    made = Paused(partition_ops=4)
    yield made
    made.submitting.close()
    made.loop.close()


def test_who_waits_until_it_is_applied_is_refused(node: Paused) -> None:
    """It was admitted, committed, and answered at its deadline: nobody could say what had become of it."""
    for asked in ((A,), (B, A)):
        with pytest.raises(PartitionPaused, match="partitions resume 0 --node n1") as refused:
            node.submit(Level.APPLIED, *asked)
        assert (refused.value.partition_id, refused.value.outcome) == (A, "not_applied")
        assert 0 < refused.value.retry_after < 60
    assert node.admission.used() == (0, 0)
    assert node.submit(Level.APPLIED, B) == ["admitted"]


@pytest.mark.parametrize("wait", [Level.COMMITTED, Level.DURABLE])
def test_who_waits_for_less_is_not(node: Paused, wait: Level) -> None:
    assert node.submit(wait, A) == ["admitted"]


def test_what_was_applied_before_is_answered(node: Paused) -> None:
    apply(node.workers[A].dedupe, 0)
    node.submitting._pipeline.repeated = 0
    (reply,) = node.submit(Level.APPLIED, A)
    assert isinstance(reply, SubmitReply)
    assert reply.parts == ((A, 1, 1, 1, 1, b"\0"),)


def test_what_was_ordered_before_may_take_effect_yet(node: Paused) -> None:
    """Another call with its sequence is not told that nothing has happened, nor will."""
    desk = Desk()
    node.submitting._pipeline.pending = desk.pending  # type: ignore[misc]
    desk.submit(Level.COMMITTED, (A,))  # sequences 0 and 1, of another producer
    with pytest.raises(PartitionPaused) as other:
        node.submit(Level.APPLIED, A, sequence=1)
    assert other.value.outcome == "not_applied"
    for sequence, outcome in ((0, "unknown"), (1, "unknown"), (2, "not_applied")):
        with pytest.raises(PartitionPaused) as refused:
            node.submit(Level.APPLIED, A, sequence=sequence, producer=bytes(range(16)))
        assert refused.value.outcome == outcome
    desk.apply(A, 2)
    with pytest.raises(PartitionPaused) as refused:
        node.submit(Level.APPLIED, A, sequence=1, producer=bytes(range(16)))
    assert refused.value.outcome == "not_applied"


def test_what_was_ordered_under_others_may_take_effect_yet(node: Paused) -> None:
    """It was paused on this node while that followed: what was written meanwhile is not applied when it leads."""
    node.submitting._pipeline.pending.ahead.inherit({A: PartitionLogIndex(7)})
    for producer, outcome in ((PRODUCER, "unknown"), (NO_PRODUCER, "not_applied")):
        with pytest.raises(PartitionPaused) as refused:
            node.submit(Level.APPLIED, A, producer=producer)
        assert refused.value.outcome == outcome
    node.workers[A].remembered = node.workers[A].dedupe, 7
    with pytest.raises(PartitionPaused) as refused:
        node.submit(Level.APPLIED, A)
    assert refused.value.outcome == "not_applied"


def test_what_was_applied_and_has_no_receipt_any_more_has_taken_effect(node: Paused) -> None:
    apply(node.workers[A].dedupe, 0, 1, 3)
    for sequence, outcome in ((0, "unknown"), (1, "unknown"), (2, "not_applied"), (4, "not_applied")):
        with pytest.raises(PartitionPaused) as refused:
            node.submit(Level.APPLIED, A, sequence=sequence)
        assert refused.value.outcome == outcome


def test_an_earlier_epoch_may_have_taken_effect_and_a_later_one_has_not() -> None:
    dedupe = Dedupe(ApplySettings())
    apply(dedupe, 0, epoch=1)
    assert [dedupe.may_have(PRODUCER, epoch, 0, 1) for epoch in (0, 1, 2)] == [True, True, False]
    assert [dedupe.may_have(PRODUCER, epoch, 5, 6) for epoch in (0, 1, 2)] == [True, False, False]
    assert not dedupe.may_have(ProducerId(b"q" * 16), 0, 0, 1)


def test_who_waits_for_admission_is_told_when_it_is_paused(node: Paused) -> None:
    node.workers[A].is_paused = False
    taken = node.admission.admit([(A, 4, 10)], node.loop.now)
    told, stays = (node.submit(wait, A, wait_s=10.0) for wait in (Level.APPLIED, Level.COMMITTED))
    assert (told, stays) == ([], [])
    node.workers[A].is_paused = True
    node.submitting.paused(A)
    assert [(type(error), error.outcome) for error in told] == [(PartitionPaused, "not_applied")]
    assert stays == []
    node.play(lambda: taken.release(A))
    assert stays == ["admitted"]


@pytest.mark.parametrize("linearizable", [True, False])
def test_who_waits_for_admission_is_told_by_what_his_partition_says_by_then(node: Paused, linearizable: bool) -> None:
    """What is set while he waits counts for him: he was judged by what counted when he came."""
    pipeline: Any = node.submitting._pipeline
    before, after = (Level.COMMITTED, Level.APPLIED) if linearizable else (Level.APPLIED, Level.COMMITTED)
    pipeline.level_of = lambda asked, _: before if asked is None else asked
    node.workers[A].is_paused = False
    taken = node.admission.admit([(A, 4, 10)], node.loop.now)
    silent, says = (node.submit(wait, A, wait_s=10.0) for wait in (None, before))
    pipeline.level_of = lambda asked, _: after if asked is None else asked
    node.workers[A].is_paused = True
    node.submitting.paused(A)
    told, stays = (silent, says) if linearizable else (says, silent)
    assert [(type(error), error.outcome) for error in told] == [(PartitionPaused, "not_applied")]
    assert stays == []
    node.play(lambda: taken.release(A))
    assert stays == ["admitted"]
    assert len(told) == 1


@pytest.mark.parametrize("wait", [Level.COMMITTED, Level.DURABLE, None])
def test_who_waits_for_a_rate_and_less_than_applied_is_let_in_when_it_opens(wait: Level | None) -> None:
    """He was refused as overloaded, for what the pause held up: nothing there had been applied for so long."""
    node = Paused(partition_ops_per_s=100, rate_burst_ms=10)
    pipeline: Any = node.submitting._pipeline
    pipeline.level_of = lambda asked, _: Level.COMMITTED if asked is None else asked
    node.admission.admit([(A, 1, 10)], node.loop.now - 50.0)  # not given back before somebody resumes A
    answers: list[Any] = []

    def ask() -> None:
        answers.extend(node.submit(wait, A, sequence=sequence, wait_s=10.0) for sequence in (1, 2))
        assert answers == [["admitted"], []]

    node.play(ask)
    assert answers == [["admitted"], ["admitted"]]
    node.submitting.close()
    node.loop.close()


def test_who_waits_with_the_numbers_of_what_is_on_its_way_is_not_told_that_nothing_has_happened(node: Paused) -> None:
    """The same pause told the first of the two calls `unknown`."""
    desk = Desk()
    node.submitting._pipeline.pending = desk.pending  # type: ignore[misc]
    node.workers[A].is_paused = False
    _, first = desk.submit(Level.APPLIED)
    node.admission.admit([(A, 4, 10)], node.loop.now)
    again, other = (
        node.submit(Level.APPLIED, A, sequence=sequence, producer=bytes(range(16)), wait_s=10.0) for sequence in (1, 2)
    )
    node.workers[A].is_paused = True
    node.submitting.paused(A)
    outcomes = [(type(error), error.outcome) for (error,) in (first, again, other)]  # type: ignore[union-attr]
    assert outcomes == [(PartitionPaused, "unknown"), (PartitionPaused, "unknown"), (PartitionPaused, "not_applied")]


def test_one_that_was_paused_while_somebody_waited_and_nobody_told_is_seen_at_the_end(node: Paused) -> None:
    node.workers[A].is_paused = False
    taken = node.admission.admit([(A, 4, 10)], node.loop.now)
    told = node.submit(Level.APPLIED, A, wait_s=10.0)
    node.workers[A].is_paused = True
    node.play(lambda: taken.release(A))
    assert [type(error) for error in told] == [PartitionPaused]
    assert node.proposing.admitted == []
    assert node.admission.used() == (0, 0)


@pytest.mark.parametrize(("again", "outcome"), [(False, "not_applied"), (True, "unknown")])
def test_what_was_gathered_in_this_turn_is_not_proposed(node: Paused, again: bool, outcome: str) -> None:
    pipeline: Any = node.submitting._pipeline
    if again:
        pipeline.pending.ahead.add(A, ProducerId(b"\1" * 16), PartitionLogIndex(1), Ordered(0, 0, 1, 0))
    pipeline.parent.agreed, pipeline.raft.poke = {MIXED}, lambda: None
    node.submitting.proposing = proposing = Proposing(pipeline)
    answers: dict[tuple[Level, PartitionId], list[Any]] = {}
    for number, (wait, partition) in enumerate([(Level.APPLIED, A), (Level.COMMITTED, A), (Level.APPLIED, B)]):
        told = answers[wait, partition] = list[Any]()
        ticket = node.admission.admit([(partition, 1, ONE.nbytes)], node.loop.now)
        proposing.propose(
            Admitted(node.request(wait, partition, producer=bytes([number + 1]) * 16), ticket, told.append)
        )
    node.submitting.paused(A)
    (error,) = answers.pop((Level.APPLIED, A))
    assert (type(error), error.outcome) == (PartitionPaused, outcome)
    assert list(answers.values()) == [[], []]
    assert proposing.holding() == {A: 1, B: 1}
    assert node.admission.used()[0] == 2


class TestPending:
    def paused(self, desk: Desk, partition: PartitionId) -> None:
        desk.pending.paused(partition, lambda: PartitionPaused("p", partition_id=partition, outcome="unknown"))

    def test_who_waits_until_it_is_applied_is_told_and_its_budget_is_free_once_it_is(self) -> None:
        desk = Desk()
        _, waits = desk.submit(Level.APPLIED)
        _, both = desk.submit(Level.APPLIED, (A, B))
        _, other = desk.submit(Level.APPLIED, (B,))
        _, durable = desk.submit(Level.DURABLE)
        self.paused(desk, A)
        assert [(type(error), error.outcome) for (error,) in (waits, both)] == [(PartitionPaused, "unknown")] * 2  # type: ignore[union-attr]
        assert (other, durable) == ([], [])
        used = desk.used
        for number, (partition, last) in enumerate([(A, 2), (A, 4), (B, 2), (B, 4), (A, 6)]):
            desk.commit(partition, last, number + 1)
            desk.apply(partition, last)
        assert (len(waits), len(both), len(other)) == (1, 1, 1)
        assert isinstance(other[0], SubmitReply)
        assert used[0] == 10
        assert desk.used == (0, 0)
        assert not desk.pending.awaits_applied(A)

    def test_nobody_is_looked_at_where_nobody_waits(self) -> None:
        pending = Pending()
        pending.paused(A, lambda: pytest.fail("nobody waits"))


def test_it_goes_by_what_the_partition_says_where_the_request_does_not(node: Paused) -> None:
    """Or where it says less than a linearizable one does."""
    node.submitting._pipeline.level_of = lambda asked, partitions: Level.APPLIED  # type: ignore[method-assign]
    for wait in (None, Level.COMMITTED):
        with pytest.raises(PartitionPaused):
            node.submit(wait, A)
    node.submitting._pipeline.level_of = lambda asked, partitions: asked or Level.COMMITTED  # type: ignore[method-assign]
    assert node.submit(None, A) == node.submit(Level.COMMITTED, A) == ["admitted"]
