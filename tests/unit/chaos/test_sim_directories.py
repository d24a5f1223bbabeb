"""Directories of the simulated disk: their names are names, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.sim.crash_states import crash_states
from chaos.sim.disk import SimDisk

HERE = Path("/data")


def made(seed: int = 0) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.make_directory(HERE)
    return disk


def durable(disk: SimDisk, path: Path, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.write([content], offset=0)
    file.sync()
    file.close()
    disk.sync_directory(path.parent)


def test_a_directory_may_be_lost_with_all_that_is_in_it_until_its_parent_is_synced() -> None:
    """Whoever makes it does that, unless he is killed in between; whoever finds it does it for him."""
    path, file = HERE / "d" / "e", HERE / "d" / "e" / "f"

    def killed(disk: SimDisk) -> None:
        def hook(operation: str, at: Path, size: int) -> None:
            if operation == "sync_directory":
                raise KeyboardInterrupt

        disk.make_directory(path.parent)
        disk.hook = hook
        with pytest.raises(KeyboardInterrupt):
            disk.make_directory(path)
        disk.hook = None
        disk.kill()
        durable(disk, file, b"x")  # what is in it is synced, and it is not
        assert disk.exists(path)

    def left(prepare: Callable[[SimDisk], object]) -> set[tuple[bool, ...]]:
        found = set()
        for seed in range(100):
            disk = made(seed)
            killed(disk)
            prepare(disk)
            there = disk.twin().exists(file)
            assert disk.keeps(path, "f", b"x") is there
            disk.power_loss()
            found.add((there, *map(disk.exists, (path.parent, path, file))))
            assert disk.list(path.parent) == ["e"] * disk.exists(path)
        return found

    assert left(lambda disk: None) == {(False, True, True, True), (False, True, False, False)}
    assert left(lambda disk: disk.make_directory(path)) == {(True,) * 4}
    assert left(lambda disk: disk.make_directories([path])) == {(True,) * 4}
    assert left(lambda disk: disk.sync_directory(path.parent)) == {(True,) * 4}
    assert left(lambda disk: disk.sync_directory(path)) == {(False, True, True, True), (False, True, False, False)}


def test_so_may_one_be_whose_operations_are_listed() -> None:
    disk = made()
    base, disk.trace = disk.image(), []
    disk.make_directory(HERE / "d")
    durable(disk, HERE / "d" / "f", b"x")
    *made_alone, synced = [op.kind for op in disk.trace[:2]]
    assert (made_alone, synced) == (["make_directory"], "sync_directory")
    without = [disk.trace[0], *disk.trace[2:]]
    found = [
        (str(HERE / "d") in state.image.directories, str(HERE / "d" / "f") in state.image.files)
        for state in crash_states(without, base=base, rng=random.Random(0))
    ]
    assert set(found) == {(False, False), (True, True)}, "as a whole, or not at all"
    for state in crash_states(disk.trace, base=base, rng=random.Random(0)):
        assert str(HERE / "d" / "f") in state.image.files
