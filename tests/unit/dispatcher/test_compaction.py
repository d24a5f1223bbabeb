"""To which set a node compacts, and which it keeps."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos.sim.disk import SimDisk
from dispatcher.compaction import Compaction
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import GlobalLogIndex
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore
from tests.unit.dispatcher.test_installing import Inline
from tests.unit.snapshots.states_world import Dump, entries, set_meta


class Compacting(Compaction):
    """That notes what it is to compact to."""

    def __init__(self, *, sets: int, held: int | None, keep: int = 2, applied: int = 1 << 62) -> None:
        self.store = SnapshotStore(SimDisk(random.Random(0)), Path("/n/snapshots"))
        for number in range(1, sets + 1):
            writer = self.store.begin(GlobalLogIndex(10 * number))
            writer.add(0, "kv", Dump(entries(1)))  # type: ignore[arg-type]
            self.store.complete(writer, set_meta(writer.finish()))
        self.targets: list[int] = []
        journal, engine = SimpleNamespace(base=SimpleNamespace(index=1)), SimpleNamespace(applied_index=applied)
        nobody: Any = SimpleNamespace(journal=journal, engine=engine)
        super().__init__(
            settings=SnapshotSettings(keep=keep),
            cluster=ClusterSettings(),
            store=self.store,
            logs={},
            workers={},
            raft=nobody,
            clock=nobody,
            offload=Inline(),  # type: ignore[arg-type]
            held_back=lambda: None if held is None else GlobalLogIndex(held),
            forget=nobody,
            fatal=nobody,
        )

    async def _compact_to(self, target: SetMeta) -> None:
        self.targets.append(target.global_index)

    def left(self) -> list[int]:
        return [meta.global_index for meta in self.store.sets()]


async def test_it_goes_to_the_set_before_the_newest() -> None:
    one = Compacting(sets=3, held=None)
    await one._compact()
    assert (one.targets, one.left()) == ([20], [20, 30])


async def test_one_set_alone_is_nothing_to_compact_to() -> None:
    one = Compacting(sets=1, held=None)
    await one._compact()
    assert (one.targets, one.left()) == ([], [10])


async def test_a_set_that_is_fetched_is_kept_and_all_that_follows_it() -> None:
    one = Compacting(sets=4, held=10)
    await one._compact()
    assert (one.targets, one.left()) == ([10], [10, 20, 30, 40])


async def test_more_may_be_kept() -> None:
    one = Compacting(sets=4, held=None, keep=3)
    await one._compact()
    assert (one.targets, one.left()) == ([30], [20, 30, 40])


async def test_nothing_goes_that_its_own_log_has_not_come_to_again() -> None:
    """A node that has lost its journal has sets that lie before it."""
    one = Compacting(sets=3, held=None, applied=2)
    await one._compact()
    assert (one.targets, one.left()) == ([], [10, 20, 30])


async def test_closed_it_begins_nothing_until_it_goes_on() -> None:
    one = Compacting(sets=2, held=None)
    await one.close()
    one.start()
    assert one._task is None
    one.go_on()
    assert one._task is not None
    await one._task
    assert one.targets == [10]
