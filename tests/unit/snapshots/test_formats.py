"""Sets of another release, and sets that only look so, since the number of their format has rotted."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import google_crc32c
import msgspec
import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import GlobalLogIndex
from snapshots.meta import STATES_HEADER_BYTES
from snapshots.store import SnapshotStore
from tests.unit.snapshots.states_world import dumps, set_meta

HERE = Path("/n/snapshots")
AT = 6
"""Where the number is in either file."""


@pytest.fixture
def disk() -> SimDisk:
    """With a set, and what a crash left of another one."""
    disk = SimDisk(random.Random(0))
    store = SnapshotStore(disk, HERE)
    for number, lineage in ((10, ""), (20, "ab" * 16)):
        writer = store.begin(GlobalLogIndex(number))
        for partition_id, dump in dumps(number).items():
            writer.add(partition_id, "kv", dump)
        store.complete(writer, msgspec.structs.replace(set_meta(writer.finish()), lineage=lineage))
    disk.open(HERE / f"{30:020d}.states.partial", create=True).close()
    return disk


def renumbered(disk: SimDisk, name: str, number: int, *, end: int | None = None) -> None:
    """By another release, with a checksum of its own up to ``end``."""
    raw = bytearray(disk.read_file(HERE / name))
    end = len(raw) if end is None else end
    raw[AT] = number
    raw[end - 4 : end] = struct.pack("<I", google_crc32c.value(bytes(raw[: end - 4])))
    disk.replace_file(HERE / name, bytes(raw))


def test_a_newer_set_is_refused_and_nothing_changed(disk: SimDisk) -> None:
    renumbered(disk, f"{10:020d}.set", 3)
    names = disk.list(HERE)
    with pytest.raises(IncompatibleVersion) as caught:
        SnapshotStore(disk, HERE)
    assert caught.value.fields == {"found": 3, "supported": 2, "path": str(HERE / f"{10:020d}.set")}
    assert disk.list(HERE) == names


@pytest.mark.parametrize("bit", range(16))
@pytest.mark.parametrize("number", [10, 20], ids=["the first format", "with a lineage"])
def test_a_number_that_has_rotted_is_damage(disk: SimDisk, number: int, bit: int) -> None:
    """Found by review: the node did not start, nor was any set of a backup restored."""
    disk.flip(HERE / f"{number:020d}.set", AT + bit // 8, 1 << bit % 8)
    store = SnapshotStore(disk, HERE)
    assert [each.global_index for each in store.damaged] == [number]
    assert [meta.global_index for meta in store.sets()] == [30 - number]


def test_so_it_is_with_states(disk: SimDisk) -> None:
    name = f"{10:020d}.states"
    disk.flip(HERE / name, AT, 2)
    store = SnapshotStore(disk, HERE)
    with pytest.raises(CorruptData, match="states of format 3, it was 1"):
        store.open_states(GlobalLogIndex(10))
    renumbered(disk, name, 3, end=STATES_HEADER_BYTES)
    with pytest.raises(IncompatibleVersion):
        store.open_states(GlobalLogIndex(10))
