"""A producer with as many separate ranges as are remembered, and a floor that has settled them."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline.pipeline import Pipeline
from dispatcher.requests.requests import SubmitPart, SubmitRequest
from dispatcher.requests.retries import Ahead, making_room
from logboom.errors import NotLeader, QuotaExceeded
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId
from partitions.apply.dedupe import Dedupe, Producer
from partitions.apply.ordered import Ordered, OrderedParts
from raftlog.entries.parent_state import Tail
from tests.unit.dispatcher.pending_desk import PARTITIONS, Desk
from tests.unit.partitions.batches import PRODUCER as WRITER
from tests.unit.partitions.batches import P
from tests.unit.partitions.worker_world import HeldOffload, World, world

PRODUCER = ProducerId(b"m" * 16)


def header(sequence: int, floor: int = 0) -> Any:
    first = sequence + 1
    return SimpleNamespace(
        producer=PRODUCER, epoch=0, sequence=sequence, record_count=1, floor=floor, dense=False, first_index=first
    )


@pytest.mark.parametrize("floor", [0, 1, 3, 4, 5, 6, 7, 8, 99])
@pytest.mark.parametrize("first", [8, 9, 100])
def test_what_is_sent_again_has_no_effect_and_what_follows_has(floor: int, first: int) -> None:
    dedupe = Dedupe(ApplySettings(producer_ranges_max=3))
    for index, sequence in enumerate((1, 3, 7), 1):
        batch = header(sequence=sequence)
        dedupe.record(batch, dedupe.decide(batch), GlobalLogIndex(index))
    dedupe.commit()
    batch = header(sequence=first, floor=floor)
    refused = dedupe.decide(batch).refused is not None
    if refused and floor < 2:
        with pytest.raises(QuotaExceeded):
            dedupe.makes_room(PRODUCER, 0, (first, first + 1), floor)
        return
    again = dedupe.makes_room(PRODUCER, 0, (first, first + 1), floor)
    assert refused is (again is not None)
    if again is None:
        return
    for each in (dedupe, Dedupe(ApplySettings())):  # also where the producer has been forgotten since
        decision = each.decide(header(sequence=again, floor=floor))
        assert (decision.refused, decision.skip) == (None, ((0, 1),))
    copy = header(sequence=again, floor=floor)
    dedupe.record(copy, dedupe.decide(copy), GlobalLogIndex(9))
    dedupe.commit()
    assert dedupe.decide(batch).refused is None


def test_nothing_is_sent_again_where_the_floor_has_not_settled_enough() -> None:
    """More ranges are known than are remembered now: the setting was less strict before."""
    dedupe = Dedupe(ApplySettings(producer_ranges_max=10))
    for index, sequence in enumerate((1, 3, 5, 7, 9), 1):
        batch = header(sequence=sequence)
        dedupe.record(batch, dedupe.decide(batch), GlobalLogIndex(index))
    dedupe.commit()
    dedupe._settings = ApplySettings(producer_ranges_max=3)
    with pytest.raises(QuotaExceeded):
        dedupe.makes_room(PRODUCER, 0, (12, 13), 4)  # leaves three, and this one
    assert dedupe.makes_room(PRODUCER, 0, (12, 13), 6) == 5


def applied(*sequences: int, most: int) -> Dedupe:
    dedupe = Dedupe(ApplySettings(producer_ranges_max=most))
    for index, sequence in enumerate(sequences, 1):
        batch = header(sequence=sequence)
        dedupe.record(batch, dedupe.decide(batch), GlobalLogIndex(index))
    dedupe.commit()
    return dedupe


def asking(partition: PartitionId, sequence: int, floor: int = 0, producer: ProducerId = PRODUCER) -> SubmitRequest:
    part = SubmitPart(partition, sequence, floor, RecordBlock.from_columns(payloads=[b"x"]))
    return SubmitRequest(producer, 0, False, Level.COMMITTED, 9.0, (part,), 1)


def parts(*ordered: Ordered) -> OrderedParts:
    found = OrderedParts()
    for index, part in enumerate(ordered):
        found.add(PartitionLogIndex(index), part)
    return found


class TestAhead:
    """What is ordered, and applied before the one that is asked about."""

    def room(self, dedupe: Dedupe, *ahead: Ordered, floor: int = 0, epoch: int = 0) -> int | None:
        return dedupe.makes_room(PRODUCER, epoch, (9, 10), floor, parts(*ahead))

    def test_it_may_be_what_makes_too_many(self) -> None:
        dedupe = applied(1, 3, most=3)
        assert self.room(dedupe) is None
        with pytest.raises(QuotaExceeded) as refused:
            self.room(dedupe, Ordered(0, 7, 8, 0))
        assert (refused.value.limit, refused.value.used, refused.value.outcome) == (3, 3, "not_applied")
        assert self.room(dedupe, Ordered(0, 7, 8, 0), floor=8) == 7

    def test_it_may_fill_what_lies_between(self) -> None:
        assert self.room(applied(1, 3, most=2), Ordered(0, 2, 3, 0)) is None
        with pytest.raises(QuotaExceeded):
            self.room(applied(1, 3, most=2))

    def test_it_may_say_that_more_is_settled(self) -> None:
        assert self.room(applied(1, 3, most=2), Ordered(0, 3, 4, 4)) is None

    def test_what_of_it_is_refused_does_not_count(self) -> None:
        """The second finds no place, and raises no floor either: else there would be one for the next."""
        ahead = Ordered(0, 5, 6, 0), Ordered(0, 7, 8, 4)
        with pytest.raises(QuotaExceeded):
            self.room(applied(1, 3, most=3), *ahead)

    def test_what_of_it_has_been_applied_meanwhile_changes_nothing(self) -> None:
        assert self.room(applied(1, 3, most=3), Ordered(0, 1, 2, 0), Ordered(0, 3, 4, 0)) is None

    def test_what_belongs_to_another_epoch_does_not_count(self) -> None:
        dedupe = applied(1, 3, most=3)
        assert self.room(dedupe, Ordered(1, 5, 6, 0)) is None
        assert self.room(dedupe, Ordered(0, 5, 6, 0), epoch=1) is None

    @pytest.mark.parametrize(("most", "is_refused"), [(2, True), (3, True), (4, True), (5, False)])
    def test_who_has_half_of_what_is_remembered_waits_for_what_others_have_ordered(
        self, most: int, is_refused: bool
    ) -> None:
        """Nobody here knows whether that makes too many. A write was acknowledged, and refused when it was applied."""
        dedupe = applied(1, 3, most=most)
        if is_refused:
            with pytest.raises(QuotaExceeded, match="before this node led"):
                dedupe.makes_room(PRODUCER, 0, (9, 10), 0, more=True)
        else:
            assert dedupe.makes_room(PRODUCER, 0, (9, 10), 0, more=True) is None
        assert dedupe.makes_room(PRODUCER, 0, (3, 4), 0, more=True) is None  # which has been applied

    def test_what_others_have_ordered_is_known_when_it_is_applied(self) -> None:
        desk = Desk()
        desk.pending.ahead.inherit({PARTITIONS[0]: PartitionLogIndex(7)})
        assert desk.pending.ahead.has_inherited(PARTITIONS[0], PartitionLogIndex(6))
        assert not desk.pending.ahead.has_inherited(PARTITIONS[0], PartitionLogIndex(7))
        assert not desk.pending.ahead.has_inherited(PARTITIONS[1], PartitionLogIndex(0))

    def test_a_new_leader_asks_for_it_until_what_it_found_in_the_log_is_applied(self) -> None:
        part, ahead = PARTITIONS[0], Ahead()
        pipeline: Any = SimpleNamespace(
            parent=SimpleNamespace(global_index=5, tails_after=lambda _: {part: Tail(PartitionLogIndex(7), bytes(16))}),
            raft=SimpleNamespace(uncommitted_routes=list),
            pending=SimpleNamespace(ahead=ahead),
        )
        dedupe = applied(1, 3, most=4)
        worker = SimpleNamespace(remembered=(dedupe, 6))
        request, workers = asking(part, 9), cast("Any", {part: worker})
        assert making_room(request, workers, ahead) is None
        Pipeline.leads(pipeline, 3)
        with pytest.raises(QuotaExceeded, match="before this node led"):
            making_room(request, workers, ahead)
        worker.remembered = dedupe, 7
        assert making_room(request, workers, ahead) is None

    def test_what_was_counted_too_high_is_counted_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else all that is under way would be looked at with each request from then on."""
        ahead = parts(*(Ordered(0, first, first + 2, 0) for first in (20, 30, 40, 42)))
        for index in (0, 1):
            ahead.drop(PartitionLogIndex(index))
        assert ahead.runs == 3
        monkeypatch.setattr(Producer, "copy", lambda _: pytest.fail("looked at"))
        assert applied(1, 3, most=4).makes_room(PRODUCER, 0, (44, 45), 0, ahead) is None
        assert ahead.runs == 1

    def test_thousands_that_follow_each_other_are_not_looked_at_one_by_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With each request, it would have been all that are under way."""
        monkeypatch.setattr(Producer, "copy", lambda _: pytest.fail("looked at"))
        ahead = parts(*(Ordered(0, 10 + k, 11 + k, 0) for k in range(5_000)))
        for index in range(4_000):
            ahead.drop(PartitionLogIndex(index))
        dedupe = applied(1, 3, most=4)
        monkeypatch.setattr(OrderedParts, "recount", lambda _: pytest.fail("looked at"))
        assert dedupe.makes_room(PRODUCER, 0, (5010, 5011), 0, ahead) is None

    def test_runs_are_counted_and_never_too_few(self) -> None:
        ahead = parts(*(Ordered(0, first, first + 2, 0) for first in (0, 2, 6, 8, 20)))
        assert ahead.runs == 3
        for index in (0, 1):
            ahead.drop(PartitionLogIndex(index))
        assert ahead.runs == 3
        ahead.recount()
        assert ahead.runs == 2
        ahead.drop(PartitionLogIndex(4))  # the newest is lost, and what follows it stands alone
        ahead.add(PartitionLogIndex(5), Ordered(0, 22, 24, 0))
        ahead.recount()
        assert ahead.runs == 2
        for index in (2, 3, 5):
            ahead.drop(PartitionLogIndex(index))
        assert (len(ahead), ahead.runs) == (0, 0)

    def test_what_follows_something_that_was_lost_is_a_run_of_its_own(self) -> None:
        ahead = parts(Ordered(0, 0, 2, 0), Ordered(0, 2, 4, 0))
        ahead.drop(PartitionLogIndex(1))
        ahead.add(PartitionLogIndex(2), Ordered(0, 4, 6, 0))
        assert ahead.runs == 2

    @pytest.mark.parametrize("end", ["applied", "lost", "ended"])
    def test_nothing_is_kept_of_what_is_not_ahead_any_more(self, end: str) -> None:
        desk = Desk()
        (at, _), _ = desk.submit(Level.COMMITTED, PARTITIONS)
        assert len(desk.pending.ahead.of(PARTITIONS[0], ProducerId(bytes(range(16))))) == 1
        if end == "lost":
            desk.pending.lost()
        else:
            for partition in PARTITIONS:
                desk.commit(partition, at[1], 1)
                if end == "applied":
                    desk.apply(partition, at[1])
                else:
                    desk.pending.ended(partition, lambda: NotLeader("gone"))
        assert len(desk.pending.ahead) == 0


class TestMadeAnew:
    """A state that is damaged, and made anew from an older one while writes go on."""

    @staticmethod
    def apply(w: World, *sequences: int) -> None:
        for sequence in sequences:
            w.commit(records=1, sequence=sequence)
        w.notify()
        while w.under_way:
            w.finish()
        assert w.worker.applied_index == w.ends[-1]

    @staticmethod
    async def make_anew(w: World, upto: int = 0) -> None:
        """From the beginning, and so far."""
        closing = asyncio.ensure_future(w.worker.close())
        await asyncio.sleep(0)
        while w.under_way:
            w.finish()
        await closing
        fresh = w.another()
        w.worker.hand_over(fresh)
        w.worker = fresh
        fresh.hurry()
        for _ in range(upto):
            w.finish()
        assert fresh.applied_index == upto

    @staticmethod
    def room(w: World, sequence: int, floor: int = 0, inherited: int = 0) -> SubmitRequest | None:
        ahead = Ahead()
        ahead.inherit({P: PartitionLogIndex(inherited)})
        return making_room(asking(P, sequence, floor, WRITER), {P: w.worker}, ahead)

    @staticmethod
    def world() -> AbstractContextManager[World]:
        return world(HeldOffload, producer_ranges_max=3, batches_max=1)

    def test_nobody_is_let_in_who_was_not_before(self) -> None:
        """The older one knew of fewer ranges: a write was acknowledged, and refused when it was applied."""
        with self.world() as w:

            async def story() -> None:
                self.apply(w, 1, 3, 5)
                for upto in (0, 1, 2):  # each but the last is damaged on its way
                    await self.make_anew(w, upto)
                    with pytest.raises(QuotaExceeded):
                        self.room(w, 7)
                    first = self.room(w, 7, floor=4)
                    assert first is not None
                    assert first.parts[0].first_sequence == 3
                    assert self.room(w, 6) is None

            w.run(story)

    def test_what_the_damaged_one_knew_is_not_waited_for_as_others(self) -> None:
        with self.world() as w:

            async def story() -> None:
                self.apply(w, 1, 3)
                await self.make_anew(w)
                assert self.room(w, 7, inherited=w.ends[-1]) is None
                with pytest.raises(QuotaExceeded, match="before this node led"):
                    self.room(w, 7, inherited=w.ends[-1] + 1)

            w.run(story)

    def test_what_the_damaged_one_knew_is_kept_until_it_is_known_anew(self) -> None:
        with self.world() as w:

            async def story() -> None:
                self.apply(w, 1, 3, 5)
                old = w.worker.dedupe
                await self.make_anew(w, 2)
                assert w.worker.remembered == (old, w.ends[-1])
                self.apply(w, 6)
                assert w.worker.remembered == (w.worker.dedupe, w.ends[-1])
                with pytest.raises(QuotaExceeded):
                    self.room(w, 9)

            w.run(story)

    def test_nothing_is_kept_where_the_partition_ends(self) -> None:
        with self.world() as w:

            async def story() -> None:
                self.apply(w, 1, 3, 5)
                old = w.worker.dedupe
                await self.make_anew(w)
                w.worker.forget()
                assert len(old) == 0

            w.run(story)
