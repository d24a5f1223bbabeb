"""A partition that is destroyed: whoever waits for it is told so, once, and nothing of it is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.barriers.stability import EARLY_MAX, Stability
from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline import opening
from dispatcher.pipeline.partitioning import destroyed
from dispatcher.pipeline.pipeline import Pipeline
from dispatcher.pipeline.recovered import Recovered
from logboom.errors import (
    InvalidRequest,
    LogboomError,
    NoSuchPartition,
    NotLeader,
    PartitionDestroyed,
    PartitionFrozen,
    Unavailable,
)
from logboom.types import GlobalLogIndex, Level, NodeId, PartitionId, PartitionLogIndex
from logboom.wire import Frame
from logboom.wire import Kind as FrameKind
from raftlog.engine import Engine
from raftlog.entries.lifecycle import Change, Lifecycle
from raftlog.entries.parent_state import ParentState
from tests.unit.dispatcher import barrier_desk, pending_desk
from tests.unit.dispatcher.frontier_world import move
from tests.unit.dispatcher.stage import KV, Stage

A, B = PartitionId(0), PartitionId(1)
NODES = [NodeId(f"n{k}") for k in (1, 2, 3)]


def gone() -> LogboomError:
    return destroyed(A)


class TestWaiting:
    def test_requests_are_answered_and_give_their_budget_back(self) -> None:
        desk = pending_desk.Desk()
        asked = {wait: desk.submit(wait, [A, B]) for wait in pending_desk.WAITS}
        for ends, _ in asked.values():
            for partition, last in ends:
                desk.pending.committed(partition, PartitionLogIndex(last), GlobalLogIndex(last))
        desk.pending.ended(A, lambda: destroyed(A, outcome="applied"))
        assert desk.admission.used(A) == (0, 0)
        desk.admission.remove(A)
        assert [type(answers[0]) for _, answers in asked.values()][1:] == [PartitionDestroyed] * 2
        assert [answers[0].outcome for _, answers in asked.values() if isinstance(answers[0], LogboomError)] == [
            "applied"
        ] * 2
        for ends, _ in asked.values():
            desk.pending.applied(pending_desk.batch(ends[1][1]), B)
        assert desk.admission.used() == (0, 0)
        assert all(len(answers) == 1 for _, answers in asked.values())
        assert len(desk.pending) == 0

    def test_barriers_over_it_and_others_end_and_the_rest_goes_on(self) -> None:
        desk = barrier_desk.Desk()
        told = [desk.wait(5, [A, B], level)[1] for level in (Level.APPLIED, Level.DURABLE, Level.ORDERED)]
        _, others = desk.wait(5, [B])
        desk.barriers.ended(A, gone)
        desk.watermarks.remove(A)
        assert [[type(answer) for answer in answers] for answers in told] == [[PartitionDestroyed]] * 3
        desk.commit(9)
        desk.apply(B, 5)
        assert len(others) == 1
        assert len(desk.barriers) == 0
        with pytest.raises(NoSuchPartition):
            desk.wait(1, [A])


class TestComingAndGoing:
    def test_what_others_said_before_it_was_known_counts(self) -> None:
        rule = Stability(node_id=NODES[0], members=NODES, partitions=[])
        for node in NODES[1:]:
            assert not rule.update(node, A, 7)
            rule.early(node, A, 7)
        rule.add(A)
        assert rule.stable(A) == 7
        rule.update(NODES[0], A, 9)
        rule.remove(A)
        assert rule.stable(A) is None
        assert not rule.untold()
        for number in range(2 * EARLY_MAX):
            rule.early(NODES[1], PartitionId(number), 1)
        rule.add(A)
        assert rule.stable(A) == 0  # so much is not kept

    def test_what_others_said_while_only_its_log_was_open_counts(self) -> None:
        """A node that had opened it for a snapshot, of which nothing came, did not apply it before they said more."""
        nothing = SimpleNamespace(heard=lambda *_: None)
        stability = Stability(node_id=NODES[0], members=NODES, partitions=[])
        node = SimpleNamespace(
            lagging=nothing,
            partitioning=SimpleNamespace(capacity=nothing),
            stability=stability,
            logs={A: None},
            workers={},
            parent=ParentState(),
            _touched=set(),
        )
        for peer in NODES[1:]:
            Pipeline.peer_frame(cast(Pipeline, node), peer, Frame(FrameKind.PROGRESS, 0, {"durable": [[int(A), 7]]}))
        stability.add(A)  # it was created, and opened
        assert stability.stable(A) == 7

    def test_a_snapshot_that_is_known_before_the_partition_shows_once_it_is_applied(self) -> None:
        marks = Watermarks([B])
        marks.snapshotted(A, PartitionLogIndex(4))
        marks.add(A)
        move(marks, A, 3)
        assert marks.of(A).snapshot_index == 3
        move(marks, A, 8)
        assert marks.of(A).snapshot_index == 4
        marks.remove(A)
        assert [mark.partition_id for mark in marks.all()] == [B]

    def test_one_that_is_created_again_by_replay_is_hidden_like_the_others(self) -> None:
        engine = SimpleNamespace(covering_commit=lambda: None, applied_index=0)
        replaying = Recovered([B])
        replaying.add(A)
        assert not replaying.of([A])
        marks = Watermarks([A, B])
        replaying.notice(cast(Engine, engine), GlobalLogIndex(0), marks)
        engine.covering_commit = lambda: 1
        engine.applied_index = 1
        replaying.notice(cast(Engine, engine), GlobalLogIndex(0), marks)
        assert replaying.over
        replaying.add(PartitionId(9))
        assert replaying.of([9])


async def turns() -> None:
    """What is due at once happens, and what that leads to."""
    for _ in range(50):
        await asyncio.sleep(0)


def outcome(job: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return job(), None
    except (LogboomError, RuntimeError) as error:
        return None, error


class TestAsking:
    def test_ids_are_given_in_order_before_anything_is_committed(self) -> None:
        stage = Stage()
        stage.create(1)
        stage.create(2)
        assert [fields["partition"] for fields in stage.proposed] == [2, 3]
        stage.commit(count=2)
        assert not stage.told  # nobody can write there yet
        assert isinstance(stage.partitioning.missing(2), LogboomError)
        assert stage.partitioning.missing(2).retryable
        assert stage.work() == [2, 3]

    def test_one_that_a_replay_creates_is_hidden_while_it_is_opened(self) -> None:
        stage = Stage()
        stage.create(1)
        assert stage.recovery.of([PartitionId(2)])
        stage.commit()
        assert stage.jobs
        assert not stage.recovery.of([PartitionId(2)])

    def test_none_is_created_that_another_node_could_not_open(self) -> None:
        stage = Stage()
        stage.partitioning.capacity.heard(NodeId("n2"), {"holds": 3})
        stage.create(1)
        with pytest.raises(InvalidRequest, match="on n2"):
            stage.create(2)
        stage.commit()
        with pytest.raises(InvalidRequest, match="on n2"):
            stage.create(2)
        assert stage.work() == [2]

    async def test_without_files_for_it_a_node_waits_until_there_are_some(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(opening, "OPEN_AGAIN_S", 0.0)
        stage, asked = Stage(), list[int]()

        def files(more: int) -> str | None:
            asked.append(more)
            return "250 of 256 are taken" if len(asked) < 5 else None

        stage.files = files
        stage.create(1)
        stage.commit()
        stage.create(2)
        stage.commit()
        assert not stage.jobs
        assert "not open here yet: 250 of 256 are taken" in str(stage.partitioning.missing(3))
        await turns()
        assert stage.work() == [2, 3]
        assert asked[:5] == [1] * 5, "what waits takes none"
        assert not stage.partitioning.opening._waits

    async def test_one_that_is_destroyed_before_there_are_is_not_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(opening, "OPEN_AGAIN_S", 0.0)
        stage = Stage()
        stage.files = lambda _: "none"
        stage.create(1)
        stage.commit()
        stage.partitioning.handed_up(Change(PartitionId(2), 2).fields())
        await turns()
        assert (stage.jobs, len(stage.partitioning.opening), stage.partitioning.opening._waits) == ([], 0, {})
        assert not stage.recovery.of([PartitionId(0)])
        assert stage.recovery.of([PartitionId(2)]), "the node was not ready until its next start"

    def test_asking_again_with_the_same_token_creates_nothing(self) -> None:
        stage = Stage()
        stage.create(1)
        stage.create(1)
        stage.commit()
        stage.create(1)
        assert stage.work() == [2, 2, 2]
        stage.create(1)
        assert stage.told == [2] * 4
        assert not stage.proposed

    def test_an_entry_that_an_older_leader_left_makes_no_second_one(self) -> None:
        stage = Stage()
        stage.create(1)
        fields = stage.proposed[0]
        stage.commit()
        stage.partitioning.handed_up({**fields, "partition": 3})
        assert stage.parent.lifecycle.ids(2) == [0, 1, 2]

    def test_what_is_about_to_be_destroyed_takes_no_writes_until_that_is_lost(self) -> None:
        stage = Stage()
        stage.partitioning.check_writable(A)
        stage.partitioning.destroy(A, stage.told.append)
        with pytest.raises(PartitionFrozen):
            stage.partitioning.check_writable(A)
        stage.partitioning.lost_leadership()
        assert [error.outcome for error in stage.told] == ["unknown"]
        stage.partitioning.check_writable(A)

    def test_many_at_once_cost_each_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thousand that were asked for at once kept the leader from sending anything for seconds."""
        stage, steps, after = Stage(), list[Change](), Lifecycle.after

        def counted(lifecycle: Lifecycle, change: Change) -> Lifecycle:
            steps.append(change)
            return after(lifecycle, change)

        monkeypatch.setattr(Lifecycle, "after", counted)
        for number in range(100):
            stage.create(number)
            if number % 10 == 9:
                stage.commit(count=5)
        assert len(steps) <= 2 * 100
        stage.commit(count=50)
        assert stage.work() == list(range(2, 102))

    @pytest.mark.parametrize("error", [InvalidRequest("no"), RuntimeError("no")])
    def test_what_cannot_be_opened_is_not_proposed(self, error: Exception) -> None:
        stage, tried = Stage(), list[PartitionId]()

        def trial(partition_id: PartitionId) -> None:
            tried.append(partition_id)
            raise error

        stage.offload.submit = lambda job, done: stage.jobs.append(lambda: done(*outcome(job)))
        stage.trial = trial
        stage.create(1)
        stage.work()
        assert (tried, stage.proposed) == ([2], [])
        assert [type(each) for each in stage.told] == [InvalidRequest]
        stage.trial = tried.append
        stage.create(1)
        stage.create(1)
        stage.trial = None
        stage.work()
        assert [fields["partition"] for fields in stage.proposed] == [2]
        stage.commit()
        assert stage.work()[1:] == [2, 2]

    def test_what_comes_next_is_judged_by_what_has_become_of_those_before(self) -> None:
        stage = Stage()
        stage.create(1)
        stage.partitioning.lost_leadership()
        stage.proposed.clear()
        stage.create(2)  # the first one never was
        assert [fields["partition"] for fields in stage.proposed] == [2]
        stage.partitioning.destroy(A, stage.told.append)
        with pytest.raises(InvalidRequest, match="last"):
            stage.partitioning.destroy(B, stage.told.append)
        stage.commit(count=2)
        stage.work()
        stage.partitioning.destroy(B, stage.told.append)
        stage.commit()
        assert stage.parent.lifecycle.ids(2) == [2]

    def test_one_that_is_only_proposed_cannot_be_destroyed_yet(self) -> None:
        """Whoever asked was told that it is gone as soon as it was there."""
        stage = Stage()
        stage.recovery.remove(A)
        stage.create(1)
        with pytest.raises(NoSuchPartition):
            stage.partitioning.destroy(PartitionId(2), stage.told.append)
        stage.commit()
        assert stage.work() == [2]
        stage.partitioning.destroy(PartitionId(2), stage.told.append)
        assert [fields["do"] for fields in stage.proposed] == ["destroy"]

    def test_the_last_one_stays_whatever_is_under_way(self) -> None:
        stage = Stage()
        stage.partitioning.destroy(A, stage.told.append)
        with pytest.raises(InvalidRequest, match="last"):
            stage.partitioning.destroy(B, stage.told.append)

    async def test_the_log_that_a_snapshot_needs_is_opened_off_the_loop_and_once(self) -> None:
        """What a process of before has left there may be a segment to be read and written again."""
        stage, opened = Stage(), list[PartitionId]()
        stage.rooms.open_log = lambda partition_id, _: opened.append(partition_id) or "log"
        asked = [asyncio.create_task(stage.partitioning.opening.log_of(PartitionId(2), KV)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not opened
        stage.create(1)
        stage.commit()  # handed up meanwhile
        assert stage.work() == [2]
        assert await asyncio.gather(*asked) == ["log", "log"]
        assert opened == [2]
        stage.rooms.open_log = lambda *_: 1 // 0
        stage.offload.submit = lambda job, done: done(None, OSError("no"))
        with pytest.raises(OSError, match="no"):
            await stage.partitioning.opening.log_of(PartitionId(3), KV)

    def test_only_a_leader_is_asked(self) -> None:
        stage = Stage()
        stage.raft.admits = False
        with pytest.raises(NotLeader):
            stage.create(1)
        with pytest.raises(NotLeader):
            stage.partitioning.destroy(A, stage.told.append)

    def test_what_has_not_come_yet_may_be_of_one_that_is_not_here(self) -> None:
        """A node that has just started, with an empty disk perhaps, does not say that there is none."""
        stage = Stage()
        assert isinstance(stage.partitioning.missing(7), Unavailable)
        assert stage.partitioning.missing(7).retryable
        stage.recovery.remove(A)
        assert type(stage.partitioning.missing(7)) is NoSuchPartition

    def test_one_that_never_was_is_told_from_one_that_is_gone(self) -> None:
        stage = Stage()
        stage.recovery.remove(A)
        stage.workers.pop(A)  # its files are not this test's concern
        stage.parent.change(Change(A, 2))
        assert isinstance(stage.partitioning.missing(0), PartitionDestroyed)
        assert type(stage.partitioning.missing(7)) is NoSuchPartition
        stage.partitioning.destroy(A, stage.told.append)
        assert stage.told == [A]
        assert not stage.proposed


@pytest.mark.parametrize("at", ["written", "closed"])
async def test_who_is_stopped_while_a_log_is_let_go_of_leaves_it_to_whoever_closes_the_files(at: str) -> None:
    """Found by the simulator: its file stayed open in a node that began anew in the same process."""
    stage, held, closed, removed = Stage(), list[Callable[[], None]](), list[bool](), list[PartitionId]()
    never = asyncio.get_running_loop().create_future()

    async def run(job: Callable[[], object]) -> None:
        if at == "closed" and not closed:
            await never
        job()

    stage.raft.group = SimpleNamespace(forget=lambda _: None, hold=held.append)
    stage.raft.poke = lambda: None
    stage.rebuilding = SimpleNamespace(works_on=lambda _: False)
    stage.offload.run = run
    stage.rooms.remove = removed.append
    store = SimpleNamespace(close=lambda: closed.append(True))
    stage.rooms.logs[B] = store
    base = cast(Any, SimpleNamespace(is_gone=lambda partition: partition == B))
    stopped = asyncio.ensure_future(stage.partitioning.forget(base))
    await asyncio.sleep(0)
    if at == "closed":
        held.pop()()
        await asyncio.sleep(0)
    assert stage.rooms.logs == {}
    stopped.cancel()
    await asyncio.gather(stopped, return_exceptions=True)
    assert (stage.rooms.logs, removed) == ({B: store}, [])
    closed.append(True)
    goes_on = asyncio.ensure_future(stage.partitioning.forget(base))
    await asyncio.sleep(0)
    held.pop()()
    await goes_on
    assert (stage.rooms.logs, removed) == ({}, [B])


async def test_what_is_being_made_anew_keeps_its_files_until_that_is_over() -> None:
    """Else the state that is made ends its node: its directory has gone beneath it."""
    stage, removed = Stage(), list[PartitionId]()

    async def run(job: Callable[[], object]) -> None:
        job()

    working = {B}
    stage.raft.group = SimpleNamespace(forget=lambda _: None, hold=lambda call: call())
    stage.raft.poke = lambda: None
    stage.rebuilding = SimpleNamespace(works_on=working.__contains__)
    stage.offload.run = run
    stage.rooms.remove = removed.append
    stage.rooms.logs[B] = SimpleNamespace(close=lambda: None)
    base = cast(Any, SimpleNamespace(is_gone=lambda partition: partition == B))
    await stage.partitioning.forget(base)
    assert (list(stage.rooms.logs), removed) == ([B], [])
    working.clear()
    await stage.partitioning.forget(base)
    assert (list(stage.rooms.logs), removed) == ([], [B])
