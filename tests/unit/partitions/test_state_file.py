"""What ``ports.state_file`` promises, of LMDB on real files and of the simulator's model alike."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.sim.state_file import Closed, StateFiles
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines.kv_file import KvFile
from ports.state_file import StateFile

Open = Callable[[Path], StateFile]
BAD_KEY = b""
"""No implementation can write it."""


def position(index: int) -> Position:
    return Position(PartitionLogIndex(index), GlobalLogIndex(10 * index))


def opener(kind: str) -> Open:
    if kind == "lmdb":
        return lambda directory: KvFile(directory, ApplySettings())
    files = StateFiles(random.Random(0))
    return lambda directory: files.open(directory, ApplySettings())


def content(file: StateFile, start: bytes = b"") -> list[tuple[bytes, bytes]]:
    with file.view() as view:
        return list(view.entries(start))


@pytest.fixture(params=["lmdb", "model"])
def open_file(request: pytest.FixtureRequest) -> Open:
    return opener(request.param)


class TestContract:
    def test_a_new_one_is_empty_and_nowhere(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        assert (file.position(), list(file.meta()), content(file)) == (NOWHERE, [], [])
        file.close()

    def test_what_was_written_is_there_after_opening_again(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        file.write({b"b": b"2", b"a": b"", b"x" * 511: b"3" * 9000}, {b"m": b"1", b"n": b"2"}, position(1))
        file.write({b"b": None, b"c": b"4", b"none": None}, {b"m": None}, position(2))
        for _ in range(2):
            assert file.position() == position(2)
            assert list(file.meta()) == [(b"n", b"2")]
            assert content(file) == [(b"a", b""), (b"c", b"4"), (b"x" * 511, b"3" * 9000)]
            file.close()
            file = open_file(tmp_path)
        file.close()

    def test_directories_are_files_of_their_own(self, open_file: Open, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        one, two = open_file(tmp_path / "one"), open_file(tmp_path / "two")
        one.write({b"k": b"v"}, {}, position(1))
        assert (content(two), two.position()) == ([], NOWHERE)
        one.close()
        two.close()

    def test_entries_begin_where_they_are_asked_to(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        file.write({b"a": b"1", b"b": b"2", b"b\0": b"3", b"\xff": b"4"}, {}, position(1))
        assert [key for key, _ in content(file, b"b")] == [b"b", b"b\0", b"\xff"]
        assert [key for key, _ in content(file, b"b\0\0")] == [b"\xff"]
        assert content(file, b"\xff\0") == []
        file.close()

    def test_keys_that_are_not_there_or_cannot_be(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        file.write({b"k": b"v"}, {}, position(1))
        with file.view() as view:
            assert [view.get(key) for key in (b"k", b"j", b"", b"x" * 600)] == [b"v", None, None, None]
            assert [view.has(key) for key in (b"k", b"j", b"", b"x" * 600)] == [True, False, False, False]
        file.close()

    def test_a_view_shows_one_moment(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        file.write({b"a": b"old", b"b": b"old"}, {}, position(1))
        with file.view() as view:
            entries = view.entries(b"")
            assert next(entries) == (b"a", b"old")
            file.write({b"a": None, b"b": b"new", b"c": b"new"}, {}, position(2))
            assert list(entries) == [(b"b", b"old")]
            assert (view.get(b"a"), view.get(b"c")) == (b"old", None)
            assert (view.has(b"a"), view.has(b"c")) == (True, False)
        assert content(file) == [(b"b", b"new"), (b"c", b"new")]
        file.close()

    def test_a_view_shows_meta_entries_of_its_moment_in_order(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        file.write({b"k": b"v"}, {b"c": b"1", b"a": b"2", b"a\0": b"", b"gone": b"3"}, position(1))
        with file.view() as view:
            file.write({}, {b"a": b"new", b"b": b"new", b"gone": None}, position(2))
            assert list(view.meta()) == [(b"a", b"2"), (b"a\0", b""), (b"c", b"1"), (b"gone", b"3")]
        with file.view() as view:
            assert list(view.meta()) == [(b"a", b"new"), (b"a\0", b""), (b"b", b"new"), (b"c", b"1")]
        file.close()

    def test_cleared_is_as_new_and_can_be_written(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        file.clear()
        file.write({b"a": b"1", b"b": b"2" * 9000}, {b"m": b"1"}, position(1))
        with file.view() as before:
            file.clear()
            assert [key for key, _ in before.entries(b"")] == [b"a", b"b"]
        for _ in range(2):
            assert (file.position(), list(file.meta()), content(file)) == (NOWHERE, [], [])
            file.close()
            file = open_file(tmp_path)
        file.write({b"c": b"3"}, {}, position(2))
        assert (file.position(), content(file)) == (position(2), [(b"c", b"3")])
        file.close()

    def test_a_write_that_fails_has_not_happened(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        file.write({b"a": b"1"}, {b"m": b"1"}, position(1))
        for state, meta in (({b"a": None, b"z": b"2", BAD_KEY: b""}, {}), ({b"a": b"2"}, {b"m": b"2", BAD_KEY: b""})):
            with pytest.raises((lmdb.Error, ValueError)):
                file.write(state, meta, position(2))
        for _ in range(2):
            assert (file.position(), list(file.meta()), content(file)) == (position(1), [(b"m", b"1")], [(b"a", b"1")])
            file.close()
            file = open_file(tmp_path)
        file.close()

    def test_closed_is_closed(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        file.write({b"a": b"1"}, {}, position(1))
        view = file.view()
        entries = view.entries(b"")
        file.close()
        file.close()
        acts: list[Callable[[], Any]] = [
            file.position,
            file.view,
            lambda: list(file.meta()),
            lambda: file.write({b"a": b"2"}, {}, position(2)),
            lambda: view.get(b"a"),
            lambda: list(view.meta()),
            file.clear,
            lambda: next(entries),
        ]
        for act in acts:
            with pytest.raises((lmdb.Error, Closed)):
                act()
        file = open_file(tmp_path)
        assert content(file) == [(b"a", b"1")]
        file.close()

    def test_a_view_that_was_left_shows_nothing(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        with file.view() as view:
            pass
        with pytest.raises((lmdb.Error, Closed)):
            view.get(b"a")
        file.close()

    def test_it_is_open_once(self, open_file: Open, tmp_path: Path) -> None:
        file = open_file(tmp_path)
        with pytest.raises(Exception, match=r"already open|LMDB cannot open"):
            open_file(tmp_path)
        file.close()


# -- both at once

keys = st.sampled_from([b"a", b"aa", b"b", b"k\0", b"\0", b"\xff" * 511, b"m" * 100])
changes = st.dictionaries(keys, st.none() | st.binary(max_size=40) | st.just(b"v" * 5000), max_size=4)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), changes, changes),
        st.tuples(st.just("write_badly"), changes, changes),
        st.tuples(st.just("view")),
        st.tuples(st.just("clear")),
        st.tuples(st.just("reopen")),
    ),
    max_size=12,
)


class Pair:
    """LMDB and the model, given the same."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opens = [opener("lmdb"), opener("model")]
        self.files = [each(directory) for each in self.opens]
        self.views: list[list[Any]] = []
        self.index = 0

    def act(self, what: str, *given: Any) -> None:
        self.index += 1
        if what == "view":
            self.views.append([file.view() for file in self.files])
        elif what == "reopen":
            self.views = []
            for file in self.files:
                file.close()
            self.files = [each(self.directory) for each in self.opens]
        elif what == "clear":
            for file in self.files:
                file.clear()
        elif what == "write":
            for file in self.files:
                file.write(*given, position(self.index))
        else:
            for file in self.files:
                with pytest.raises((lmdb.Error, ValueError)):
                    file.write({**given[0], BAD_KEY: b""}, given[1], position(self.index))

    def check(self, start: bytes) -> None:
        real, model = self.files
        assert real.position() == model.position()
        assert sorted(real.meta()) == sorted(model.meta())
        assert content(real, start) == content(model, start)
        for one, other in self.views:
            assert list(one.entries(start)) == list(other.entries(start))
            assert list(one.meta()) == list(other.meta())
            assert one.get(start) == other.get(start)


@settings(max_examples=60, deadline=None)
@given(operations, keys | st.just(b""))
def test_the_model_does_what_lmdb_does(given: list[tuple[Any, ...]], start: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(Path(directory))
        for what, *rest in given:
            pair.act(what, *rest)
            pair.check(start)
        for file in pair.files:
            file.close()


# -- what only the model can show

D = Path("/state")


def two_transactions(seed: int) -> tuple[StateFiles, StateFile]:
    files = StateFiles(random.Random(seed))
    file = files.open(D, ApplySettings())
    for index in (1, 2):
        file.write({b"k": b"%d" % index, b"k%d" % index: b""}, {b"m": b"%d" % index}, position(index))
    return files, file


def survivor(files: StateFiles) -> int:
    """The transaction that is there: all of it."""
    file = files.open(D, ApplySettings())
    index = int(file.position().applied_index)
    written = {b"k": b"%d" % index, **{b"k%d" % k: b"" for k in range(1, index + 1)}} if index else {}
    assert dict(content(file)) == written
    assert list(file.meta()) == ([(b"m", b"%d" % index)] if index else [])
    file.close()
    return index


class TestCrash:
    def test_a_dead_process_loses_nothing(self) -> None:
        for seed in range(20):
            files, _ = two_transactions(seed)
            files.crash(power=False)
            assert survivor(files) == 2

    def test_a_power_loss_undoes_the_last_transaction_or_nothing(self) -> None:
        found = set()
        for seed in range(20):
            files, _ = two_transactions(seed)
            files.crash(power=True)
            found.add(survivor(files))
        assert found == {1, 2}

    def test_a_power_loss_may_undo_a_clear(self) -> None:
        found = set()
        for seed in range(20):
            files, file = two_transactions(seed)
            file.clear()
            files.crash(power=True)
            found.add(survivor(files))
        assert found == {0, 2}

    def test_the_same_seed_loses_the_same(self) -> None:
        def run() -> list[int]:
            found = []
            files, file = two_transactions(7)
            for index in range(3, 30):
                files.crash(power=True)
                file = files.open(D, ApplySettings())
                found.append(int(file.position().applied_index))
                file.write({}, {}, position(index))
            return found

        assert run() == run()

    def test_a_process_that_died_may_still_lose_it_to_the_power_loss_after_it(self) -> None:
        found = set()
        for seed in range(20):
            files, _ = two_transactions(seed)
            files.crash(power=False)
            files.crash(power=True)
            found.add(survivor(files))
        assert found == {1, 2}

    def test_what_survived_one_power_loss_survives_the_next(self) -> None:
        for seed in range(20):
            files, _ = two_transactions(seed)
            files.crash(power=True)
            left = survivor(files)
            files.crash(power=True)
            assert survivor(files) == left

    def test_each_file_has_a_fate_of_its_own(self) -> None:
        files = StateFiles(random.Random(0))
        for number in range(20):
            files.open(D / str(number), ApplySettings()).write({}, {}, position(1))
        files.crash(power=True)
        assert {files.open(D / str(n), ApplySettings()).position() for n in range(20)} == {NOWHERE, position(1)}

    @pytest.mark.parametrize("power", [False, True])
    def test_handles_of_before_are_dead(self, power: bool) -> None:
        files, file = two_transactions(0)
        view = file.view()
        files.crash(power=power)
        again = files.open(D, ApplySettings())
        acts: list[Callable[[], Any]] = [
            file.position,
            lambda: file.write({}, {}, position(3)),
            lambda: view.get(b"k"),
            lambda: list(view.entries(b"")),
        ]
        for act in acts:
            with pytest.raises(Closed):
                act()
        file.close()  # closes nothing that is not its own
        assert again.position() in (position(1), position(2))


class TestFault:
    def test_it_comes_before_the_write_and_nothing_happens(self) -> None:
        files, file = two_transactions(0)
        asked = []

        def full(what: str, directory: Path) -> None:
            asked.append((what, directory, file.position()))
            raise OSError(28, "No space left on device")

        files.fault = full
        with pytest.raises(OSError, match="No space"):
            file.write({b"k": b"3"}, {b"m": b"3"}, position(3))
        with pytest.raises(OSError, match="No space"):
            file.clear()
        assert asked == [("write", D, position(2))] * 2
        files.fault = None
        file.close()
        assert survivor(files) == 2

    def test_a_crash_in_the_middle_of_a_write_leaves_what_was_there(self) -> None:
        files, file = two_transactions(0)
        files.fault = lambda *_: files.crash(power=False)
        with pytest.raises(Closed):
            file.write({b"k": b"3"}, {b"m": b"3"}, position(3))
        files.fault = None
        assert survivor(files) == 2


class _BadDisk:
    """An LMDB environment whose transactions cannot be committed."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def begin(self, **_: Any) -> Any:
        txn = self._env.begin(write=True)

        def commit() -> None:
            txn.abort()
            raise lmdb.DiskError("mdb_txn_commit: Input/output error")

        return SimpleNamespace(commit=commit, abort=txn.abort, cursor=txn.cursor, delete=txn.delete, put=txn.put)


@pytest.mark.parametrize(("free", "number"), [(0, errno.ENOSPC), (1 << 30, errno.EIO)])
def test_lmdb_says_eio_of_a_full_disk_and_we_do_not(
    free: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by ``make diskfull``: the operator was sent to look for a broken disk."""
    file: Any = KvFile(tmp_path, ApplySettings())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(file, "_env", _BadDisk(file._env))
    with pytest.raises(OSError, match="LMDB") as caught:
        file.write({b"k": b"3"}, {}, position(3))
    assert caught.value.errno == number


def test_a_map_that_no_process_can_have_is_not_called_corrupt(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="kv_map_bytes") as caught:
        KvFile(tmp_path, ApplySettings(kv_map_bytes=1 << 47))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOMEM, str(tmp_path))


def test_too_many_open_files_are_not_called_corrupt(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    KvFile(tmp_path / "first", ApplySettings()).close()  # the library reads a part of itself with the first
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match="ulimit") as caught:
            KvFile(tmp_path, ApplySettings())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, str(tmp_path))


def test_nobody_else_can_read_it_nor_what_an_earlier_release_has_left(tmp_path: Path) -> None:
    """Found by review: journal and logs had mode 0600, as documented; all states could be read by anybody."""
    before = os.umask(0o022)
    try:
        for _ in range(2):
            KvFile(tmp_path, ApplySettings()).close()
            files = {name: (tmp_path / name).stat().st_mode & 0o777 for name in os.listdir(tmp_path)}  # noqa: PTH208
            assert files == {"data.mdb": 0o600, "lock.mdb": 0o600}
            for name in files:
                (tmp_path / name).chmod(0o644)
    finally:
        os.umask(before)
