"""States that come from elsewhere, before they are a set."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.disk import SimDisk, SimFile
from logboom.errors import CorruptData
from logboom.types import GlobalLogIndex
from snapshots.meta import STATES_HEADER_BYTES, SetMeta
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


@pytest.mark.parametrize("whose", ["its own", "another node's"])
def test_one_that_could_not_be_removed_is_in_nobodys_way(whose: str) -> None:
    """No set of that index was made here, or taken from elsewhere, until the node was started again."""
    disk, source = SimDisk(random.Random(1)), SnapshotStore(SimDisk(random.Random(2)), HERE)
    make(source)
    store = SnapshotStore(disk, HERE)
    states, (copy, _) = source.open_states(INDEX), store.fetch(INDEX)
    copy.write([states.read(offset=0, length=states.size())], offset=0)
    copy.close()
    writer = store.begin(INDEX)

    def fail(operation: str, path: Path, _: int) -> None:
        if operation == "remove":
            disk.hook = None
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))

    disk.hook = fail
    with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
        store.abandon(writer)
    meta = make(store) if whose == "its own" else store.adopt_fetched(source.raw_meta(INDEX), INDEX)
    assert SnapshotStore(disk, HERE).sets() == store.sets() == [meta]


def _bad_from(bad: int) -> Any:
    read = SimFile.read

    def reading(file: SimFile, *, offset: int, length: int) -> bytes:
        if offset <= bad < offset + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file.path))
        return read(file, offset=offset, length=length)

    return reading


def test_what_was_fetched_and_cannot_be_read_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sector in it ended the node, and again as soon as it was to go on with it."""
    source, store = (SnapshotStore(SimDisk(random.Random(seed)), HERE) for seed in (1, 2))
    meta = make(source)
    states, (copy, begin) = source.open_states(INDEX), store.fetch(INDEX)
    assert begin == 0
    copy.write([states.read(offset=0, length=states.size())], offset=0)
    copy.close()
    last = meta.partitions[-1].offset
    monkeypatch.setattr(SimFile, "read", _bad_from(last + 10))
    again, go_on = store.fetch(INDEX)
    assert STATES_HEADER_BYTES < go_on <= last
    assert again.size() == go_on
    monkeypatch.undo()
    again.write([states.read(offset=go_on, length=states.size())], offset=go_on)
    again.close()
    monkeypatch.setattr(SimFile, "read_anew", _bad_from(last + 10))
    with pytest.raises(CorruptData, match="Input/output error"):
        store.adopt_fetched(source.raw_meta(INDEX), INDEX)
    monkeypatch.undo()
    assert store.fetch(INDEX)[1] == 0


class Killed(BaseException):
    """Nothing is done any more."""


def test_who_is_killed_while_it_is_compared_goes_on_with_what_was_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: it had another name by then, which the next start removes; all of it was fetched again."""
    disk, source = SimDisk(random.Random(1)), SnapshotStore(SimDisk(random.Random(2)), HERE)
    meta, store = make(source), SnapshotStore(disk, HERE)
    states, (copy, _) = source.open_states(INDEX), store.fetch(INDEX)
    copy.write([states.read(offset=0, length=states.size())], offset=0)
    copy.close()

    def killed(*_: Any, **__: Any) -> bytes:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "read_anew", killed)
        with pytest.raises(Killed):
            store.adopt_fetched(source.raw_meta(INDEX), INDEX)
    store = SnapshotStore(disk, HERE)
    file, go_on = store.fetch(INDEX)
    file.close()
    assert go_on == meta.states_bytes
    assert store.adopt_fetched(source.raw_meta(INDEX), INDEX) == meta
    disk.power_loss()
    assert SnapshotStore(disk, HERE).sets() == [meta]
    assert sorted(disk.list(HERE)) == [f"{INDEX:020d}.set", f"{INDEX:020d}.states"]
