"""Snapshot sets: written, received, abandoned and removed. Whatever ends it, each is whole or is none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.sim.disk import SimDisk
from logboom.types import GlobalLogIndex
from snapshots.meta import SetMeta, encode
from snapshots.states import StatesWriter, read_section, verify_states
from snapshots.store import SnapshotStore
from tests.storage.world import World
from tests.unit.snapshots.states_world import dumps, set_meta

KEEP = 2


class SnapshotWorld(World):
    """A promise: the indices that are there, and the highest that was ever begun."""

    directory = Path("/n/snapshots")

    def __init__(self, disk: SimDisk, seed: int) -> None:
        super().__init__(disk, seed)
        self.there: frozenset[int] = frozenset()
        """Completed, and nobody has begun to remove them."""
        self.begun = 10
        self._told: tuple[BaseException, ...] = ()
        """That were told, and ended nothing."""

    @property
    def failures(self) -> Sequence[BaseException]:
        """See World."""
        return self._told

    def open(self) -> None:
        self.store = SnapshotStore(self.disk, self.directory)
        found = {int(meta.global_index) for meta in self.store.sets()}
        unread = {int(each.global_index) for each in self.store.damaged}  # for now: a disk that failed once
        self._told += tuple(each.error for each in self.store.damaged)
        assert found | unread >= self.there, "a set that was complete is gone"
        self.there = frozenset(found)
        self.mark()

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.15:
            self.disk.kill()
            self.open()
            return
        self.begun += self.rng.randint(1, 5)
        index = GlobalLogIndex(self.begun)
        if what < 0.3:
            self._receive(index)
        else:
            writer = self.store.begin(index)
            meta = fill(writer)
            if what < 0.45:
                self.store.abandon(writer)
                return
            self.store.complete(writer, meta)
        self._now(self.there | {self.begun})
        self._now({int(meta.global_index) for meta in self.store.sets()[-KEEP:]})
        self.store.prune(KEEP)

    def _receive(self, index: GlobalLogIndex) -> None:
        """Another node's; nobody syncs it before it is adopted."""
        elsewhere = SimDisk(random.Random(0)).open(Path("/states"), create=True)
        meta = fill(StatesWriter(elsewhere, index))
        file = self.store.receive(index)
        file.write([elsewhere.read(offset=0, length=meta.states_bytes)], offset=0)
        file.close()
        self.store.adopt(encode(meta), self.store.partial_path(index))

    def _now(self, there: set[int] | frozenset[int]) -> None:
        self.there = frozenset(there)
        self.mark()

    def promise(self) -> frozenset[int]:
        return self.there

    def verify(self, disk: SimDisk, promise: Any, *, again: bool = False) -> Any:
        store = SnapshotStore(disk, self.directory)
        assert store.damaged == (), "a set that is half there"
        found = {int(meta.global_index): whole(store, meta) for meta in store.sets()}
        assert set(found) >= promise, f"{sorted(promise)} were complete, {sorted(found)} are there"
        assert len(disk.list(self.directory)) == 2 * len(found), "what belongs to no set is still there"
        return found


def fill(writer: StatesWriter) -> SetMeta:
    for partition_id, dump in dumps(writer.global_index).items():
        writer.add(partition_id, "kv", dump)
    return set_meta(writer.finish())


def whole(store: SnapshotStore, meta: SetMeta) -> bytes:
    """Its content is what was written under that index."""
    file = store.open_states(meta.global_index)
    verify_states(file, meta)
    for each, (partition_id, dump) in zip(meta.partitions, dumps(meta.global_index).items(), strict=True):
        assert each.partition_id == partition_id
        assert list(read_section(file, each)) == dump.given
    file.close()
    return encode(meta)
