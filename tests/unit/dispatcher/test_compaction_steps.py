"""The steps of a compaction: nothing goes before what it would be needed for is on the disk, to stay."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chaos.sim.disk import SimDisk
from dispatcher.upkeep import compaction
from dispatcher.upkeep.compaction import Compaction
from logboom.errors import CorruptData
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from raftlog.entries.parent_state import ParentState, Tail
from snapshots.store import SnapshotStore
from tests.unit.dispatcher.installing_world import Inline
from tests.unit.snapshots.states_world import Dump, entries, set_meta

A, B = PartitionId(0), PartitionId(1)
THROUGH = 7


class Worker:
    """Of which everything may be saved, or not."""

    def __init__(self, steps: list[Any], partition: PartitionId) -> None:
        self.steps, self.partition = steps, partition
        self.saved_index, self.saves_to = 0, THROUGH
        self.is_closing = False
        self.error: BaseException | None = None

    def save(self, saved: Callable[[BaseException | None], None]) -> None:
        self.steps.append(("state", self.partition))
        if self.error is None:
            self.saved_index = self.saves_to
        saved(self.error)


class Log:
    def __init__(self, steps: list[Any], partition: PartitionId) -> None:
        self.steps, self.partition, self.moved = steps, partition, 0
        self.durable_index = THROUGH

    def save_places(self, through: int) -> Callable[[], None]:
        assert through == THROUGH
        return lambda: self.steps.append(("places", self.partition))

    def compaction_point(self, through: int, *_: object, **__: object) -> int:
        return through

    def shortening(self, _: int) -> None:
        return None

    def compact(self, keep_from: int, *, ends: bool) -> Callable[[], None]:
        return lambda: self.steps.append(("segments", self.partition))


class Node(Compaction):
    """Two partitions, of which the second was destroyed since; two sets."""

    def __init__(self) -> None:
        self._store = store = SnapshotStore(SimDisk(random.Random(0)), Path("/n/snapshots"))
        for number in (10, 20):
            self.take(number)
        self.steps: list[Any] = []
        self.worker = Worker(self.steps, A)
        self.logs = {p: Log(self.steps, p) for p in (A, B)}
        self.deaths: list[BaseException] = []
        self.come = 0
        """Sets that are complete while it is at it."""
        raft: Any = SimpleNamespace(
            journal=SimpleNamespace(base=SimpleNamespace(index=0)),
            engine=SimpleNamespace(applied_index=1 << 62),
            compact=self._base,
        )
        super().__init__(
            settings=SnapshotSettings(),
            cluster=ClusterSettings(partitions=2),
            store=store,
            logs=self.logs,  # type: ignore[arg-type]
            workers={A: self.worker},  # type: ignore[dict-item]
            raft=raft,
            clock=SimpleNamespace(monotonic=lambda: 0.0),
            offloads=(Inline(), Inline()),  # type: ignore[arg-type]
            held_back=tuple,
            forget=self._forgotten,
            fatal=self.deaths.append,
        )

    def take(self, number: int) -> None:
        """One set more."""
        tails = {p: Tail(PartitionLogIndex(THROUGH), bytes(16), GlobalLogIndex(9)) for p in (A, B)}
        writer = self._store.begin(GlobalLogIndex(number))
        writer.add(A, "kv", Dump(entries(1)))
        parent = ParentState(GlobalLogIndex(number), 77, tails).encode()
        self._store.complete(writer, msgspec.structs.replace(set_meta(writer.finish()), parent=parent))

    def _base(self, base: Any, done: Callable[[], None]) -> None:
        self.steps.append(("base", base.index))
        done()

    async def _forgotten(self, lifecycle: Any) -> None:
        self.steps.append("directories")
        for _ in range(self.come):
            self.start()
        self.come = 0

    async def ended(self) -> list[Any]:
        """What was done."""
        async with asyncio.timeout(20):
            while self._task is not None:
                await asyncio.wait({self._task})
        steps = self.steps.copy()
        self.steps.clear()
        return steps


async def test_the_journal_begins_anew_behind_what_is_saved_and_before_anything_goes() -> None:
    node = Node()
    node.start()
    steps = await node.ended()
    secured = [("state", A), ("places", A), ("places", B)]
    index = node._store.sets()[0].raft_index
    assert steps == [*secured, ("base", index), ("segments", A), "directories"]  # B is gone, or about to go, wholly
    assert (node.runs, node.failed, node.deaths) == (1, 0, [])


@pytest.mark.parametrize("partition", [A, B])
async def test_nothing_goes_while_something_up_to_there_is_not_synced(partition: PartitionId) -> None:
    """A state that came with a set may be ahead of its log, which is being mended: the node ended by an invariant."""
    node = Node()
    node.logs[partition].durable_index = THROUGH - 1
    node.start()
    steps = await node.ended()
    assert (("places", partition) in steps, [step for step in steps if step[0] == "base"]) == (False, [])
    assert (node.failed, node.deaths) == (1, [])
    node.logs[partition].durable_index = THROUGH
    node.start()
    assert ("places", partition) in await node.ended()


async def test_what_is_secured_is_not_secured_again_unless_batches_have_moved() -> None:
    node = Node()
    again = []
    for moved in (0, 0, 1, 1):
        node.logs[A].moved = moved
        node.start()
        again.append([step[1] for step in await node.ended() if step[0] == "places"])
    assert again == [[A, B], [], [A], []]


@pytest.mark.parametrize("error", [CorruptData("bits"), None])
async def test_a_state_that_cannot_be_saved_keeps_everything(error: CorruptData | None) -> None:
    node = Node()
    node.worker.error, node.worker.saves_to = error, THROUGH - 1
    node.start()
    assert await node.ended() == [("state", A)]
    assert (node.runs, node.failed, node.deaths) == (0, 1, [])
    node.worker.error, node.worker.saves_to = None, THROUGH
    node.start()
    assert "directories" in await node.ended()


async def test_sets_that_are_too_many_go_also_where_a_state_cannot_be_saved() -> None:
    """One more for each that was taken, or fetched, as long as that lasted."""
    node = Node()
    node.worker.error = CorruptData("bits")
    node.take(30)
    node.start()
    assert await node.ended() == [("state", A)]
    assert [meta.global_index for meta in node._store.sets()] == [20, 30]
    assert (node.runs, node.failed, node.sets_removed) == (0, 1, 1)


async def test_a_disk_that_fails_ends_the_node() -> None:
    node = Node()
    node.worker.error = OSError("bits")
    node.start()
    assert await node.ended() == [("state", A)]
    assert node.deaths == [node.worker.error]


async def test_a_set_that_is_complete_meanwhile_is_compacted_to_in_turn_and_once() -> None:
    node = Node()
    node.come = 3
    node.start()
    await node.ended()
    assert node.runs == 2


async def test_what_was_saved_of_partitions_that_are_gone_is_forgotten() -> None:
    node = Node()
    node._placed[PartitionId(9)] = (THROUGH, 0)
    node.start()
    await node.ended()
    assert set(node._placed) == {A, B}


async def test_who_stops_it_waits_until_the_journal_begins_where_it_is_going_to() -> None:
    """Found by review: what was looked at then was about to change."""
    node = Node()
    group = node._raft.group = SimpleNamespace(doing_chores=True)  # type: ignore[misc]
    node._raft.compact = lambda base, done: node.steps.append(("base", base.index))  # type: ignore[method-assign]
    node.start()
    while not any(step[0] == "base" for step in node.steps):  # noqa: ASYNC110 - it is on its way
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(node.close())
    await asyncio.sleep(0.03)
    assert not closing.done()
    group.doing_chores = False
    await asyncio.wait_for(closing, 10)


async def test_a_checkpoint_that_does_not_return_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was removed from any log of that node any more, and nobody was told."""
    node, told, save = Node(), asyncio.Event(), Worker.save
    seen: list[tuple[str, PartitionId]] = []
    held: list[Callable[[], None]] = []

    def warning(event: str, *, partition: PartitionId, **_: Any) -> None:
        seen.append((event, partition))
        if len(seen) == 2:
            told.set()

    monkeypatch.setattr(compaction, "TOLD_S", 0.001)
    monkeypatch.setattr(compaction, "log", SimpleNamespace(warning=warning, info=lambda *_, **__: None))
    monkeypatch.setattr(Worker, "save", lambda worker, saved: held.append(lambda: save(worker, saved)))
    node.start()
    async with asyncio.timeout(20):
        await told.wait()
    assert seen[:2] == [("compaction_waits", A)] * 2
    assert node.steps == []
    held[0]()
    assert (await node.ended())[-1] == "directories"
    assert (node.runs, node.failed) == (1, 0)
    node.worker.saved_index = 0
    node.start()
    await asyncio.sleep(0)
    await node.close()
    assert not node.deaths


async def test_what_was_saved_of_a_state_that_is_made_anew_counts_for_nothing() -> None:
    """The state that comes in its place may be older: what it lacks is in the log alone."""
    node = Node()
    node.worker.saved_index, node.worker.is_closing = THROUGH, True
    node.start()
    assert await node.ended() == []
    node.worker.is_closing = False
    node.start()
    assert (await node.ended())[-1] == "directories"
