"""States that come from elsewhere, before they are a set."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos.sim.disk import SimDisk, SimFile
from logboom.errors import CorruptData
from logboom.types import GlobalLogIndex
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore
from tests.unit.snapshots.states_world import dumps, set_meta

HERE, INDEX = Path("/n1/snapshots"), GlobalLogIndex(10)


def make(store: SnapshotStore) -> SetMeta:
    writer = store.begin(INDEX)
    for partition_id, dump in dumps(INDEX).items():
        writer.add(partition_id, "kv", dump)
    meta = set_meta(writer.finish())
    store.complete(writer, meta)
    return meta


def test_what_was_received_is_read_of_the_disk_before_it_is_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a sync that failed, and a start of the process alone, memory shows what the disk does not have."""
    source, store = (SnapshotStore(SimDisk(random.Random(seed)), HERE) for seed in (1, 2))
    meta = make(source)
    states, copy = source.open_states(INDEX), store.receive(INDEX)
    copy.write([states.read(offset=0, length=states.size())], offset=0)
    copy.close()
    read = SimFile.read

    def of_the_disk(file: SimFile, *, offset: int, length: int) -> bytes:
        return bytes(len(read(file, offset=offset, length=length)))

    monkeypatch.setattr(SimFile, "read_anew", of_the_disk)
    with pytest.raises(CorruptData):
        store.adopt(source.raw_meta(INDEX), store.partial_path(INDEX))
    monkeypatch.undo()
    assert store.adopt(source.raw_meta(INDEX), store.partial_path(INDEX)) == meta


@pytest.mark.parametrize("taken", [False, True], ids=["", "taken here meanwhile"])
def test_another_nodes_takes_the_place_of_the_very_one_that_is_damaged(taken: bool) -> None:
    """What had been fetched was removed together with it: the node ended, and began to fetch anew."""
    disk, source = SimDisk(random.Random(1)), SnapshotStore(SimDisk(random.Random(2)), HERE)
    make(SnapshotStore(disk, HERE))
    disk.flip(HERE / f"{INDEX:020d}.set", 40, 1)
    make(source)
    store = SnapshotStore(disk, HERE)
    states, (copy, _) = source.open_states(INDEX), store.fetch(INDEX)
    copy.write([states.read(offset=0, length=states.size())], offset=0)
    copy.close()
    if taken:
        store.abandon(store.begin(INDEX))
    assert store.adopt_fetched(source.raw_meta(INDEX), INDEX).global_index == INDEX
    again = SnapshotStore(disk, HERE)
    assert ([meta.global_index for meta in again.sets()], again.damaged) == ([INDEX], ())
