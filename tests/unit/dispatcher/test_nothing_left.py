"""What a node remembers of partitions, gates and states that were, once they are no more: nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline.partitioning import WAITERS_MAX
from dispatcher.pipeline.presence import Presence
from dispatcher.pipeline.subscriptions import Subscriptions
from dispatcher.pipeline.trials import TRIALS_MAX
from dispatcher.sessions import admin
from dispatcher.sessions.session_counts import GATES_MAX, OTHERS, SessionCounts
from logboom.errors import DeadlineExceeded, Overloaded, PartitionDestroyed
from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex, Scope
from partitions.apply.dedupe import Dedupe, Producer
from raftlog.entries.lifecycle import TOKEN_BYTES
from tests.unit.dispatcher.barrier_desk import A, B, Desk
from tests.unit.dispatcher.frontier_world import N1, N2, World
from tests.unit.dispatcher.stage import KV, Stage


def test_a_set_that_is_complete_when_one_of_its_partitions_is_gone_says_nothing_of_that_one() -> None:
    desk = Desk()
    desk.barriers.ended(A, lambda: PartitionDestroyed("gone"))
    desk.watermarks.remove(A)
    here: Any = SimpleNamespace(
        watermarks=desk.watermarks,
        barriers=desk.barriers,
        partitioning=SimpleNamespace(is_gone=lambda partition: partition == A),
    )
    sections = [SimpleNamespace(partition_id=p, applied_index=7) for p in (A, B)]
    Presence.snapshot_shown(here, cast("Any", SimpleNamespace(partitions=sections, global_index=GlobalLogIndex(9))))
    assert set(desk.watermarks._snapshot) == set(desk.barriers._snapshotted) == {B}


def test_who_has_followed_what_is_applied_leaves_nothing_behind() -> None:
    desk = Desk()
    followed, heard = Subscriptions(desk.watermarks), list[str]()
    for number in range(3):
        leave = followed.to_applied(A, lambda *_: heard.append("a"))
        other = followed.to_applied(A, lambda *_: heard.append("b"))
        desk.apply(A, 2 * number + 1)
        leave()
        desk.apply(A, 2 * number + 2)
        other()
        other()  # a partition that is destroyed tells its followers, who leave, and are told to
    assert heard == ["a", "b", "b"] * 3  # each once, however often somebody began to listen
    assert followed._applied == {}
    desk.apply(A, 100)
    assert len(heard) == 9


def test_who_destroyed_a_partition_before_it_was_asked_for_it_forgets_that_it_was() -> None:
    """It kept the row until the link broke, and looked at it twenty times a second."""
    world = World()
    world[N2].barriers.ended(A, lambda: PartitionDestroyed("gone"))
    world[N2].watermarks.remove(A)
    world[N1].wait(5, [A, B], reach=Scope.ALL)
    world.talk()
    assert len(world[N2].telling) == 2
    world[N1].barriers.ended(A, lambda: PartitionDestroyed("gone"))
    world[N1].watermarks.remove(A)
    world.talk()
    assert [len(node.telling) for node in world.nodes.values()] == [0, 0, 0]
    assert all(not node.telling._held for node in world.nodes.values())


def test_gates_that_users_signals_name_are_told_apart_as_far_as_there_is_room() -> None:
    counts = SessionCounts()
    for number in range(10 * GATES_MAX):
        counts.failed(Overloaded("no", limit=f"quota of customer {number}"))
    counts.failed(Overloaded("no", limit="quota of customer 1"))
    assert len(counts.refused) == GATES_MAX + 1
    assert counts.refused[OTHERS] == 9 * GATES_MAX
    assert counts.refused["quota of customer 1"] == 2


async def test_who_waits_to_close_a_machine_waits_for_those_who_read_from_that_one() -> None:
    """Not for those who read from the one that has taken its place: at a busy partition there is always somebody."""
    stage = Stage()
    holds, old, new = [A], object(), object()
    stage.snapshots = SimpleNamespace(taking=SimpleNamespace(holds=lambda partition: partition in holds))  # type: ignore[attr-defined]
    partitioning, machines = stage.partitioning, stage.rooms.machines
    machines[A] = old
    with partitioning.using(A) as read:
        assert read is old
        machines[A] = new
        ended = asyncio.create_task(partitioning.unused(A, cast("Any", old)))
        await asyncio.sleep(0)
    with partitioning.using(A) as read:
        assert read is new
        await asyncio.sleep(0)
        assert not ended.done()
        holds.clear()  # what was captured for a snapshot is written
        async with asyncio.timeout(10):
            await ended
    assert set(partitioning._uses) == {id(new)}


async def test_the_producers_of_what_is_destroyed_are_forgotten() -> None:
    """A hundred thousand of them take a hundred megabytes, and garbage that is old is hardly ever looked for."""
    stage, closed = Stage(), list[object]()

    async def close() -> None:
        assert len(dedupe) == 9, "it may still apply"

    async def run(job: Any) -> None:
        closed.append(job)

    dedupe = Dedupe(ApplySettings(), [(bytes([number]) * 16, Producer().encode()) for number in range(9)])
    worker = SimpleNamespace(close=close, forget=dedupe.drop, offload=SimpleNamespace(run=run))
    stage.snapshots = SimpleNamespace(taking=SimpleNamespace(holds=lambda _: False))  # type: ignore[attr-defined]
    stage.ended = stage.workers.pop  # type: ignore[attr-defined]
    stage.workers[A] = worker
    stage.rooms.machines[A] = object()
    stage.partitioning.destroy(A, stage.told.append)
    stage.commit()
    await stage.partitioning._closing[A]
    assert (stage.told, len(closed), len(dedupe)) == ([A], 1, 0)


async def test_who_waited_too_long_for_a_partition_keeps_nobody_else_from_asking() -> None:
    """On a leader without files for one: who asked for it again and again was counted each time, until nobody could ask
    for anything any more, nor destroy something so that there are files."""
    stage = Stage()
    stage.files = lambda _: "none are left"
    backend: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0), cluster=stage.cluster, partitioning=stage.partitioning
    )
    asked = {"action": "create_partition", "token": bytes(TOKEN_BYTES)}
    for _ in range(WAITERS_MAX + 1):
        with pytest.raises(DeadlineExceeded):
            await admin.act(backend, asked, 0.0)
        stage.commit(count=len(stage.proposed))
    with pytest.raises(DeadlineExceeded):
        await admin.act(backend, {"action": "destroy_partition", "partition": int(A)}, 0.0)
    assert stage.partitioning._waiting == {}
    stage.commit()
    assert stage.partitioning.is_gone(A), "it was proposed all the same"
    await stage.partitioning.close()


def test_a_machine_that_does_not_return_when_it_is_tried_keeps_a_few_threads_and_nobody_in_mind() -> None:
    stage, told = Stage(), list[object]()
    stage.trial = lambda _: None
    for number in range(100):
        leave = stage.partitioning.create(KV, number.to_bytes(TOKEN_BYTES, "big"), told.append)
        leave()
    assert (len(stage.jobs), len(stage.partitioning._trials)) == (TRIALS_MAX, 0)
    stage.create(1)
    stage.trial = None
    stage.work()  # one of them returns after all
    assert [fields["partition"] for fields in stage.proposed] == [2]
    assert told == []


async def test_a_machine_of_a_destroyed_partition_that_cannot_be_closed_ends_no_node() -> None:
    """All nodes close it, at the same place of the log; and a connection that is lost is an OSError, too."""
    stage, fatal = Stage(), list[BaseException]()

    async def close() -> None: ...

    async def run(_: Any) -> None:
        raise ConnectionResetError("of a user's machine")

    worker = SimpleNamespace(close=close, forget=Dedupe(ApplySettings()).drop, offload=SimpleNamespace(run=run))
    stage.snapshots = SimpleNamespace(taking=SimpleNamespace(holds=lambda _: False))  # type: ignore[attr-defined]
    stage.ended = stage.workers.pop  # type: ignore[attr-defined]
    stage.raft.fatal = fatal.append
    stage.workers[A] = worker
    stage.rooms.machines[A] = object()
    stage.partitioning.destroy(A, stage.told.append)
    stage.commit()
    await stage.partitioning._closing[A]
    assert (fatal, stage.rooms.ending) == ([], {})
