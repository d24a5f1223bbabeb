"""What is told, once for many events, to those who follow a partition's log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from dispatcher.barriers.stability import Stability
from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline.backend import Backend
from dispatcher.pipeline.pipeline import Pipeline
from dispatcher.pipeline.presence import Presence
from dispatcher.pipeline.subscriptions import Subscriptions
from logboom.errors import PartitionDestroyed
from logboom.types import DurabilityMode, Level, NodeId, PartitionId

ONE = PartitionId(1)


class Waited:
    """Barriers."""

    waiters = 0

    def __len__(self) -> int:
        return self.waiters

    def awaits_applied(self, _: object) -> bool:
        return False

    def durable(self, *_: object, **__: object) -> None:
        pass

    def committed(self, _: object) -> None:
        pass


def settling() -> Any:
    """A pipeline with one partition, of which nothing but ``_settle`` is left."""
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    store = SimpleNamespace(durable_index=1, committed_index=1, durable_global_index=1)
    return SimpleNamespace(
        _settle_due=False,
        _settle_later=None,
        _touched={ONE},
        _unsynced=set(),
        _unshown=set(),
        subscriptions=Subscriptions(Watermarks([ONE])),
        _publish=nothing,
        _tell_progress=nothing,
        node_id="n1",
        workers={ONE: SimpleNamespace(notify=nothing, is_about_to=False)},
        logs={ONE: store},
        pending=SimpleNamespace(durable=nothing, awaits_applied=lambda _: False),
        stability=SimpleNamespace(update=nothing, stable=lambda _: None),
        barriers=Waited(),
        watermarks=SimpleNamespace(committed=nothing),
        recovery=SimpleNamespace(notice=nothing),
        raft=SimpleNamespace(engine=None),
        parent=SimpleNamespace(global_index=1),
    )


def test_what_is_destroyed_before_it_was_looked_at_is_forgotten() -> None:
    """Each sync of the node looked at everything for the sake of it, until the node ended."""
    pipeline = settling()
    pipeline.logs[ONE].request_sync = lambda: False
    ends = MagicMock(
        workers=pipeline.workers, logs=pipeline.logs, _touched=pipeline._touched, _unsynced=pipeline._unsynced
    )
    ends.forgotten = partial(Presence.forgotten, ends)
    Presence.ended(ends, ONE)
    Pipeline._settle(pipeline)
    assert pipeline._unsynced == set()


@pytest.mark.parametrize("is_gone", [False, True])
def test_all_who_follow_a_log_are_told_though_some_stop_meanwhile(*, is_gone: bool) -> None:
    """Every other one was passed over: tails that a lost batch should have ended waited for ever."""
    followed, told = Subscriptions(Watermarks([ONE])), list[tuple[int, list[object]]]()
    leave: dict[int, Callable[[], None]] = {}

    def ends(number: int) -> Callable[..., None]:
        def moved(*error: object) -> None:
            told.append((number, list(map(type, error))))
            leave[number]()

        return moved

    for number in range(4):
        leave[number] = followed.to_commits(ONE, ends(number))
    if is_gone:
        followed.ended(ONE, lambda: PartitionDestroyed("gone"))
    else:
        followed.tell_committed(ONE)
    assert told == [(number, [PartitionDestroyed] if is_gone else []) for number in range(4)]
    assert not any(followed.committed.values())


@pytest.mark.parametrize("touched", [{ONE}, set()])
def test_who_waits_for_the_commit_index_is_told_whichever_partitions_moved_it(touched: set[PartitionId]) -> None:
    """Whoever follows a partition, if it is that one."""
    pipeline, told = settling(), list[str]()
    pipeline._touched = touched
    leave = [
        pipeline.subscriptions.to_commits(ONE, lambda: told.append("more of it")),
        pipeline.subscriptions.to_ordered(lambda: told.append("ordered")),
    ]
    Pipeline._settle(pipeline)
    for each in (*leave, *leave):
        each()
    pipeline._touched = {ONE}
    Pipeline._settle(pipeline)
    assert told == (["more of it", "ordered"] if touched else ["ordered"])


def test_who_leaves_is_not_looked_for_among_all_others() -> None:
    """Found by review: tens of thousands of tails of one partition that ended kept their node from everything else."""

    class Moved:
        def __call__(self, *_: object) -> None:
            pass

        def __eq__(self, other: object) -> bool:
            raise AssertionError("looked for")

        __hash__ = object.__hash__

    followed = Subscriptions(Watermarks([ONE]))
    leave = [followed.to_commits(ONE, Moved()) for _ in range(3)]
    for each in reversed(leave):
        each()
        each()
    assert not any(followed.committed.values())


def tells(pipeline: Any) -> list[tuple[str, PartitionId]]:
    """What becomes of watermarks, in order."""
    said = list[tuple[str, PartitionId]]()
    pipeline._publish = lambda partition: said.append(("publish", partition)) or pipeline._unshown.discard(partition)
    pipeline.watermarks.busy = lambda partition: said.append(("busy", partition))
    pipeline.watermarks.committed = lambda _: said.append(("committed", ONE))
    return said


@pytest.mark.parametrize(
    ("about_to", "waiters", "first"), [(False, 0, "publish"), (True, 0, "busy"), (True, 1, "publish")]
)
def test_what_is_applied_within_this_turn_is_published_with_that(about_to: int, waiters: int, first: str) -> None:
    """Unless somebody waits, and is told at once where everything stands. No watermark follows the commit index on."""
    pipeline = settling()
    said = tells(pipeline)
    pipeline.workers[ONE].is_about_to = about_to
    pipeline.barriers.waiters = waiters
    Pipeline._settle(pipeline)
    assert said == [(first, ONE), ("committed", ONE)]


def test_who_looks_before_it_is_applied_is_shown_it_all_the_same() -> None:
    """After an acknowledged write its node said a log index without it, for a turn."""
    pipeline = settling()
    said = tells(pipeline)
    pipeline.workers[ONE].is_about_to = True
    Pipeline._settle(pipeline)
    said.clear()
    Pipeline.look(pipeline)
    Pipeline.look(pipeline)
    assert said == [("publish", ONE)]


def test_who_looks_has_what_is_to_be_settled_later_settled_now() -> None:
    pipeline = settling()
    said = tells(pipeline)
    pipeline._settle_later = SimpleNamespace(cancel=lambda: None)
    pipeline._settle = partial(Pipeline._settle, pipeline)
    Pipeline.look(pipeline)
    assert said == [("publish", ONE), ("committed", ONE)]


async def test_what_was_written_behind_is_synced_and_nothing_else_is_looked_at() -> None:
    """Fifty times a second all write-behind logs were asked, ten thousand of them, for one that was written to."""
    looked, dirty = list[int](), list[Any]()

    def store(number: int) -> Any:
        def request_sync() -> bool:
            looked.append(number)
            return True

        return SimpleNamespace(partition_id=number, mode=DurabilityMode.WRITE_BEHIND, request_sync=request_sync)

    asked = asyncio.Event()
    stores = {number: store(number) for number in range(100)}
    pipeline: Any = SimpleNamespace(
        logs=stores,
        workers={},
        stability=SimpleNamespace(partitions=list(stores)),
        raft=SimpleNamespace(group=SimpleNamespace(dirty=dirty.append), poke=asked.set),
        settings=SimpleNamespace(log=SimpleNamespace(linger_ms=0)),
        _behind={},
    )
    pipeline._sync_behind = lambda: Pipeline._sync_behind(pipeline)
    for number in (7, 3, 7, 5):
        Pipeline.appended(pipeline, stores[number])
    del stores[5]  # let go of meanwhile
    dirty.clear()
    async with asyncio.timeout(10):
        await asked.wait()
    asked.clear()
    assert looked == [7, 3]
    assert dirty == [stores[7], stores[3]]
    Pipeline.appended(pipeline, stores[9])
    async with asyncio.timeout(10):
        await asked.wait()
    assert looked == [7, 3, 9]


def test_what_is_synced_of_a_log_that_nobody_applies_here_yet_is_told() -> None:
    """Where it hung on the majority, a write-behind partition was applied nowhere, though its log was synced on all."""
    pipeline, peer = settling(), NodeId("n2")
    pipeline.workers = {}
    pipeline.logs[ONE].undurable_from = None
    pipeline.stability = Stability(node_id=NodeId("n1"), members=[NodeId("n1"), peer], partitions=[ONE])
    Pipeline._settle(pipeline)
    assert pipeline.stability.rows(peer) == [(ONE, 1)]


def test_a_log_that_nobody_applies_here_yet_is_not_taken_for_durable() -> None:
    """Whoever reads many logs in order goes as far as all of them are durable: of this one nobody had asked."""
    pipeline = settling()
    pipeline.workers = {}
    pipeline.logs[ONE].undurable_from = 1
    Pipeline._settle(pipeline)
    assert Backend.safe_horizon(cast("Backend", pipeline), [ONE], Level.DURABLE) == (0, ONE)
    pipeline.logs[ONE].undurable_from = None
    pipeline._touched.add(ONE)
    Pipeline._settle(pipeline)
    assert pipeline._unsynced == set(), "each sync looked at everything until its machine was open"
