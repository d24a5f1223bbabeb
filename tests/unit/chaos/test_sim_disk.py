"""The simulated disk: what it keeps, what it forgets, and that it does so alike for the same seed."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.sim.disk import KEPT, LOST, DeadHandle, DroppedPages, ShortWrite, SimDisk, misdirect
from ports.disk import Disk

HERE = Path("/data")
A, B = HERE / "a", HERE / "b"


def made(seed: int = 0, **more: int) -> SimDisk:
    disk = SimDisk(random.Random(seed), **more)
    disk.make_directory(HERE)
    return disk


def durable(disk: SimDisk, path: Path, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.write([content], offset=0)
    file.sync()
    file.close()
    disk.sync_directory(path.parent)


def after_power_loss(prepare: Callable[[SimDisk], None], path: Path = A, seeds: int = 300) -> set[bytes | None]:
    """All that ``path`` is found to be; None: not there."""
    found: set[bytes | None] = set()
    for seed in range(seeds):
        disk = made(seed)
        prepare(disk)
        disk.power_loss()
        found.add(disk.read_file(path) if disk.exists(path) else None)
    return found


def test_is_a_disk() -> None:
    disk: Disk = made()
    assert disk.list(HERE) == []


class TestFiles:
    def test_reads_what_was_written_before_any_sync(self) -> None:
        file = made().open(A, create=True)
        assert file.write([b"ab", memoryview(b"cd")], offset=2) == 4
        assert file.read(offset=0, length=100) == b"\0\0abcd"
        assert file.read(offset=3, length=2) == b"bc"
        assert file.read(offset=9, length=2) == b""

    def test_preallocated_space_reads_as_zeros(self) -> None:
        disk = made()
        file = disk.open(A, create=True)
        file.allocate(1 << 30)
        file.write([b"x"], offset=5)
        assert file.size() == 1 << 30
        assert file.read(offset=4, length=4) == b"\0x\0\0"
        assert file.read(offset=(1 << 30) - 2, length=9) == b"\0\0"
        file.allocate(10)
        assert file.size() == 1 << 30

    def test_what_was_cut_does_not_come_back(self) -> None:
        file = made().open(A, create=True)
        file.write([b"secret"], offset=0)
        file.truncate(2)
        file.truncate(6)
        assert file.read(offset=0, length=9) == b"se\0\0\0\0"

    def test_errors_are_the_systems(self) -> None:
        disk = made()
        with pytest.raises(FileNotFoundError):
            disk.open(A)
        with pytest.raises(FileNotFoundError):
            disk.open(Path("/nowhere/a"), create=True)
        with pytest.raises(IsADirectoryError):
            disk.open(HERE, create=True)
        durable(disk, A, b"x")
        with pytest.raises(OSError, match="Bad file"):
            disk.open(A, readonly=True).write([b"y"], offset=0)

    def test_names(self) -> None:
        disk = made()
        durable(disk, A, b"x")
        disk.make_directory(HERE / "c" / "d")
        assert disk.list(HERE) == ["a", "c"]
        disk.rename(A, B)
        assert (disk.exists(A), disk.read_file(B)) == (False, b"x")
        disk.remove(B)
        assert disk.list(HERE) == ["c"]
        disk.replace_file(A, b"whole")
        disk.replace_file(A, b"new")
        assert (disk.list(HERE), disk.read_file(A)) == (["a", "c"], b"new")


class TestPowerLoss:
    def test_what_was_synced_stays(self) -> None:
        assert after_power_loss(lambda disk: durable(disk, A, b"x" * 2000)) == {b"x" * 2000}

    def test_a_synced_file_without_a_synced_name_may_be_gone(self) -> None:
        def prepare(disk: SimDisk) -> None:
            file = disk.open(A, create=True)
            file.write([b"x"], offset=0)
            file.sync()

        assert after_power_loss(prepare) == {None, b"x"}

    def test_an_overwrite_is_kept_lost_or_torn_at_sectors(self) -> None:
        def prepare(disk: SimDisk) -> None:
            durable(disk, A, b"a" * 1536)
            disk.open(A).write([b"b" * 1536], offset=0)

        wanted = {b"".join(bytes([c]) * 512 for c in letters) for letters in _words(b"ab", 3)}
        assert after_power_loss(prepare, seeds=600) == wanted

    def test_an_append_may_leave_its_size_alone(self) -> None:
        def prepare(disk: SimDisk) -> None:
            durable(disk, A, b"a")
            disk.open(A).write([b"b"], offset=1)

        assert after_power_loss(prepare) == {b"a", b"ab", b"a\0"}

    def test_writes_survive_in_any_combination(self) -> None:
        def prepare(disk: SimDisk) -> None:
            durable(disk, A, b"---")
            file = disk.open(A)
            for k in range(3):
                file.write([b"%d" % k], offset=k)

        wanted = {bytes(f"{a}{b}{c}", "ascii") for a in "-0" for b in "-1" for c in "-2"}
        assert after_power_loss(prepare, seeds=600) == wanted

    def test_a_prefix_of_the_names_survives(self) -> None:
        def prepare(disk: SimDisk) -> None:
            durable(disk, A, b"old")
            durable(disk, B, b"new")
            disk.rename(B, A)
            disk.remove(A)

        found = set()
        for seed in range(300):
            disk = made(seed)
            prepare(disk)
            disk.power_loss()
            found.add(tuple((p.name, disk.read_file(p)) for p in disk.paths()))
        assert found == {(("a", b"old"), ("b", b"new")), (("a", b"new"),), ()}

    def test_a_removed_directory_may_come_back_with_any_of_its_files_until_its_parent_is_synced(self) -> None:
        below = HERE / "d" / "e"

        def prepare(disk: SimDisk) -> None:
            disk.make_directory(below)
            for path in (below / "f", HERE / "d" / "g"):
                durable(disk, path, b"x")
            disk.remove_directory(HERE / "d")
            assert not disk.exists(HERE / "d")

        found = set()
        for seed in range(300):
            disk = made(seed)
            prepare(disk)
            disk.power_loss()
            found.add(tuple(map(disk.exists, (HERE / "d", HERE / "d" / "g", below, below / "f"))))
        assert {(False,) * 4, (True,) * 4, (True, False, False, False)} <= found
        assert all(row[0] or not any(row) for row in found)

        def synced(disk: SimDisk) -> None:
            prepare(disk)
            disk.sync_directory(HERE)

        assert after_power_loss(synced, HERE / "d" / "g", seeds=50) == {None}

    def test_what_would_be_kept_is_told_before_it_happens(self) -> None:
        disk, part = made(), b"looked for"
        assert not disk.keeps(HERE / "nowhere", ".log", part)
        for name, synced, named, kept in (
            ("1.log", False, True, False),
            ("2.log", True, False, False),
            ("3.log", True, True, True),
            ("4.other", True, True, True),  # of another kind: the one before is still the last
            ("5.log", False, True, False),  # what is newest counts, whatever older files have
        ):
            file = disk.open(HERE / name, create=True)
            if named:
                disk.sync_directory(HERE)
            file.write([b"before " + part + b" behind"], offset=0)
            if synced:
                file.sync()
            assert disk.keeps(HERE, ".log", part) is kept, name

    def test_replacing_leaves_the_old_or_the_new(self) -> None:
        """Cut short at each of its operations."""
        for stop in range(1, 8):
            for seed in range(40):
                disk = made(seed)
                durable(disk, A, b"old" * 700)
                calls = iter(range(100))

                def hook(operation: str, path: Path, size: int, calls: object = calls, stop: int = stop) -> None:
                    if next(calls) == stop:  # type: ignore[call-overload]
                        raise OSError(errno.EIO, "crash")

                disk.hook = hook
                try:
                    disk.replace_file(A, b"new" * 700)
                    allowed = [b"new" * 700]
                except OSError:
                    allowed = [b"old" * 700, b"new" * 700]
                disk.hook = None
                disk.power_loss()
                assert disk.read_file(A) in allowed, f"stop {stop}, seed {seed}"

    def test_same_seed_same_loss(self) -> None:
        def image(seed: int) -> object:
            disk = made(seed)
            for k in range(20):
                disk.open(HERE / f"f{k}", create=True).write([bytes([k]) * 3000], offset=0)
            disk.power_loss()
            return disk.image()

        assert [image(s) for s in range(20)] == [image(s) for s in range(20)]
        assert len({str(image(s)) for s in range(20)}) > 5


class TestProcesses:
    def test_a_kill_keeps_the_page_cache_and_no_handle(self) -> None:
        disk = made()
        file = disk.open(A, create=True)
        file.write([b"x"], offset=0)
        disk.kill()
        for use in (lambda: file.read(offset=0, length=1), lambda: file.write([b"y"], offset=0), file.sync, file.size):
            with pytest.raises(DeadHandle):
                use()
        file.close()
        assert disk.read_file(A) == b"x"
        assert disk.stable(A) == b""

    def test_a_lock_is_held_once_and_not_beyond_death(self) -> None:
        disk = made()
        lock = disk.lock(A)
        with pytest.raises(BlockingIOError):
            disk.lock(A)
        lock.release()
        lock.release()
        shared = [disk.lock(A, shared=True) for _ in range(2)]
        for each in shared:
            with pytest.raises(BlockingIOError):
                disk.lock(A)
            each.release()
        dead = disk.lock(A)
        with pytest.raises(BlockingIOError):
            disk.lock(A, shared=True)
        disk.kill()
        disk.lock(A)
        dead.release()
        with pytest.raises(BlockingIOError):
            disk.lock(A)


class TestFaults:
    def test_a_hook_stops_any_operation_before_it_happens(self) -> None:
        disk = made()
        durable(disk, A, b"x")
        seen: list[str] = []

        def hook(operation: str, path: Path, size: int) -> None:
            seen.append(operation)
            raise OSError(errno.EIO, "injected")

        file = disk.open(A)
        disk.hook = hook
        before = disk.image()
        for operation in (
            lambda: disk.open(B, create=True),
            lambda: file.write([b"y"], offset=0),
            file.sync,
            lambda: file.truncate(0),
            lambda: file.allocate(9),
            lambda: disk.rename(A, B),
            lambda: disk.remove(A),
            lambda: disk.sync_directory(HERE),
            lambda: disk.make_directory(HERE / "d"),
            lambda: disk.read_file(A),
        ):
            with pytest.raises(OSError, match="injected"):
                operation()
        assert disk.image() == before
        assert seen == [
            "create", "write", "sync", "truncate", "allocate", "rename", "remove", "sync_directory", "make_directory",
            "read",
        ]  # fmt: skip

    def test_a_short_write_leaves_its_first_bytes(self) -> None:
        disk = made()
        file = disk.open(A, create=True)

        def hook(operation: str, path: Path, size: int) -> None:
            raise ShortWrite(2)

        disk.hook = hook
        with pytest.raises(OSError, match="Input/output"):
            file.write([b"abc"], offset=0)
        disk.hook = None
        assert disk.read_file(A) == b"ab"

    def test_pages_dropped_by_a_failed_sync_are_not_saved_by_the_next(self) -> None:
        disk = made()
        durable(disk, A, b"old")
        file = disk.open(A)
        file.write([b"new"], offset=0)

        def hook(operation: str, path: Path, size: int) -> None:
            raise DroppedPages

        disk.hook = hook
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        disk.hook = None
        file.write([b"+"], offset=3)
        file.sync()
        disk.kill()
        assert disk.read_file(A) == b"new+"
        assert disk.stable(A) == b"old+"
        disk.power_loss()
        assert disk.read_file(A) == b"old+"

    def test_dropped_pages_that_are_written_again_are_saved(self) -> None:
        disk = made()
        file = disk.open(A, create=True)
        disk.sync_directory(HERE)
        file.write([b"new"], offset=0)

        def hook(operation: str, path: Path, size: int) -> None:
            raise DroppedPages

        disk.hook = hook
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        disk.hook = None
        file.write([file.read(offset=0, length=3)], offset=0)
        file.sync()
        disk.power_loss()
        assert disk.read_file(A) == b"new"

    def test_no_more_than_there_is(self) -> None:
        disk = made(capacity=1000)
        file = disk.open(A, create=True)
        file.allocate(900)
        file.write([b"x" * 100], offset=850)
        assert disk.free_bytes(HERE) == 50
        with pytest.raises(OSError, match="No space"):
            file.write([b"x" * 51], offset=950)
        with pytest.raises(OSError, match="No space"):
            disk.open(B, create=True).allocate(51)
        file.truncate(10)
        disk.open(B).allocate(990)
        disk.remove(A)
        disk.power_loss()
        assert disk.free_bytes(HERE) == 1000 - sum(disk.open(p).size() for p in disk.paths())

    def test_damage(self) -> None:
        disk = made()
        durable(disk, A, b"abc")
        disk.flip(A, 1, 0x20)
        assert disk.read_file(A) == b"aBc"
        disk.cut(A, 1)
        assert disk.read_file(A) == b"a"

    def test_a_sync_may_lie(self) -> None:
        disk = made()
        durable(disk, A, b"------")
        fates = iter([KEPT, LOST, misdirect(4)])
        disk.write_fault = lambda path, offset, length: next(fates)
        file = disk.open(A)
        for k in range(3):
            file.write([b"%d" % k], offset=k)
        assert file.read(offset=0, length=6) == b"012---"
        file.sync()
        assert disk.stable(A) == b"0---2-"


def _words(letters: bytes, length: int) -> list[bytes]:
    return [b""] if not length else [w + bytes([c]) for w in _words(letters, length - 1) for c in letters]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["write", "truncate", "allocate", "sync"]), st.integers(0, 40), st.binary(max_size=9)),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_behaves_like_plain_bytes(operations: list[tuple[str, int, bytes]]) -> None:
    """Page cache and stable content against two byte strings."""
    disk = made()
    file = disk.open(A, create=True)
    cache, stable = b"", b""
    for kind, number, data in operations:
        if kind == "write":
            file.write([data], offset=number)
            if data:
                cache = cache.ljust(number, b"\0")[:number] + data + cache[number + len(data) :]
        elif kind == "truncate":
            file.truncate(number)
            cache = cache[:number].ljust(number, b"\0")
        elif kind == "allocate":
            file.allocate(number)
            cache = cache.ljust(number, b"\0")
        else:
            file.sync()
            stable = cache
        assert file.read(offset=0, length=100) == cache
        assert disk.stable(A) == stable
