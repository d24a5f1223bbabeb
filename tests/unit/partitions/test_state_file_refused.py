"""A state file that the disk or the system refuses to open, or to make: no damage, and nothing of it stays open."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines import kv_file
from partitions.machines.kv_file import KvFile
from ports.state_file import StateFull

REFUSED = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS]


def refusal(number: int) -> lmdb.Error:
    """As LMDB words it: its classes tell little of it."""
    return (lmdb.DiskError if number == errno.ENOSPC else lmdb.Error)(f"mdb_txn_commit: {os.strerror(number)}")


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))


@pytest.mark.parametrize("number", REFUSED)
def test_what_lmdb_cannot_open_for_the_system_is_not_damaged(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: bytes, **_: Any) -> None:
        (Path(os.fsdecode(path)) / "data.mdb").write_bytes(bytes(4096))  # as far as there was room
        raise refusal(number)

    with monkeypatch.context() as patch:
        patch.setattr(lmdb, "open", refuse)
        with pytest.raises(OSError, match="LMDB") as caught:
            KvFile(tmp_path, ApplySettings())
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path))
    KvFile(tmp_path, ApplySettings()).close()  # nor does it look so afterwards


def test_of_a_state_that_was_there_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KvFile(tmp_path, ApplySettings()).close()
    before = (tmp_path / "data.mdb").read_bytes()

    def refuse(*_: Any, **__: Any) -> None:
        raise refusal(errno.EIO)

    monkeypatch.setattr(lmdb, "open", refuse)
    with pytest.raises(OSError, match="LMDB"):
        KvFile(tmp_path, ApplySettings())
    assert (tmp_path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_one_that_cannot_be_looked_at_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Found by reading: with Python 3.14 it was taken for one that was just being made, and removed."""
    KvFile(tmp_path, ApplySettings()).close()
    before, looked = (tmp_path / "data.mdb").read_bytes(), os.stat

    def fails(path: Any, **kwargs: Any) -> os.stat_result:
        if Path(path).name == "data.mdb":
            raise OSError(code, os.strerror(code))
        return looked(path, **kwargs)

    def refuse(*_: Any, **__: Any) -> None:
        raise refusal(errno.EIO)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: os.path.exists(path))  # noqa: PTH110, PLW0108 - as from 3.14 on
        patch.setattr(os, "stat", fails)
        patch.setattr(lmdb, "open", refuse)
        with pytest.raises(OSError, match=os.strerror(code)):
            KvFile(tmp_path, ApplySettings())
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_page_of_the_lock_file_that_lacks_room_is_noticed_before_it_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB leaves it sparse; the first to touch such a page of it was killed by SIGBUS."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=r"lock\.mdb") as caught:
            KvFile(tmp_path, ApplySettings())
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path))
    KvFile(tmp_path, ApplySettings()).close()
    lock = (tmp_path / "lock.mdb").stat()
    assert lock.st_blocks * 512 >= lock.st_size
    monkeypatch.setattr(os, "posix_fallocate", full)
    KvFile(tmp_path, ApplySettings()).close()  # it is there


class Env:
    """An environment that ``meet``s its first transactions; what is left open of it is noted."""

    def __init__(self, env: Any, meet: Callable[[], None], which: str) -> None:
        self._env, self._meet, self._which = env, meet, which
        self.closed = False

    def open_db(self, name: bytes, **how: Any) -> Any:
        if self._which == "open_db":
            self._meet()
        return self._env.open_db(name, **how)

    def begin(self, **how: Any) -> Any:
        if self._which == "begin":
            self._meet()
        return self._env.begin(**how)

    def close(self) -> None:
        self.closed = True
        self._env.close()


@pytest.mark.parametrize("which", ["open_db", "begin"])
@pytest.mark.parametrize(
    ("raised", "expected", "number"),
    [
        *((refusal(number), OSError, number) for number in REFUSED),
        (lmdb.CorruptedError("mdb_get: MDB_CORRUPTED"), CorruptData, None),
        (lmdb.NotFoundError("mdb_dbi_open: MDB_NOTFOUND"), CorruptData, None),
        (lmdb.MapFullError("mdb_put: MDB_MAP_FULL"), lmdb.MapFullError, None),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_first_transaction_that_fails_says_why_and_leaves_nothing_open(
    which: str,
    raised: BaseException,
    expected: type[BaseException],
    number: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Env] = []
    real = lmdb.open

    def meet() -> None:
        raise raised

    def opened(*where: Any, **how: Any) -> Env:
        made.append(Env(real(*where, **how), meet, which))
        return made[-1]

    monkeypatch.setattr(kv_file.lmdb, "open", opened)
    with pytest.raises(expected) as caught:
        KvFile(tmp_path, ApplySettings())
    assert getattr(caught.value, "errno", None) == number
    assert [env.closed for env in made] == [True]


def test_a_map_that_is_full_names_the_setting(tmp_path: Path) -> None:
    """LMDB names a parameter of its own, which nobody can set."""
    file = KvFile(tmp_path, ApplySettings(kv_map_bytes=1 << 20))
    with pytest.raises(StateFull, match=r"raise apply\.kv_map_bytes"):
        file.write(
            {b"%d" % key: bytes(4_000) for key in range(500)}, {}, Position(PartitionLogIndex(1), GlobalLogIndex(1))
        )
    file.write({b"k": b"v"}, {}, Position(PartitionLogIndex(1), GlobalLogIndex(1)))
    file.close()


class Refusing:
    """An environment whose transactions refuse what is put, or their end."""

    def __init__(self, env: Any, error: lmdb.Error, *, early: bool) -> None:
        self._env, self._error, self._early = env, error, early
        self.info = env.info

    def begin(self, **_: Any) -> Any:
        txn = self._env.begin(write=True)

        def refuse(*_: Any) -> None:
            if not self._early:
                txn.abort()
            raise self._error

        @contextmanager
        def cursor(**_: Any) -> Iterator[Any]:
            yield SimpleNamespace(putmulti=refuse)

        put = cursor if self._early else txn.cursor
        return SimpleNamespace(commit=refuse, abort=txn.abort, cursor=put, delete=txn.delete, put=txn.put)


def refused(file: KvFile, error: lmdb.Error, monkeypatch: pytest.MonkeyPatch, *, early: bool) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(file, "_env", Refusing(file._env, error, early=early))
        file.write({b"k": b"v"}, {}, Position(PartitionLogIndex(1), GlobalLogIndex(1)))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("number", REFUSED)
def test_what_the_disk_refuses_in_the_midst_of_a_transaction_is_said_as_at_its_end(
    number: int, early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of more than half a gigabyte is written in between: it was tried again and again, and nobody was told why."""
    file, error = KvFile(tmp_path, ApplySettings()), lmdb.Error(f"mdb_cursor_put() element #3: {os.strerror(number)}")
    with pytest.raises(OSError, match="LMDB") as caught:
        refused(file, error, monkeypatch, early=early)
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path))
    file.write({b"k": b"v"}, {}, Position(PartitionLogIndex(1), GlobalLogIndex(1)))  # nothing of it holds that up
    file.close()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (lmdb.BadValsizeError("mdb_put: MDB_BAD_VALSIZE"), lmdb.BadValsizeError),
        (lmdb.MapFullError("full"), StateFull),
    ],
)
def test_what_is_none_of_the_disks_is_not_called_so(
    error: lmdb.Error, told: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = KvFile(tmp_path, ApplySettings())
    with pytest.raises(told):
        refused(file, error, monkeypatch, early=True)
    file.close()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    ("asked", "number"), [(errno.EDQUOT, errno.EDQUOT), (errno.ENOSPC, errno.ENOSPC), (errno.EOPNOTSUPP, errno.EIO)]
)
def test_lmdb_says_eio_of_a_quota_that_is_used_up_and_we_do_not(
    early: bool, asked: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is left of the disk as a whole."""

    def says(*_: Any) -> None:
        raise OSError(asked, os.strerror(asked))

    file = KvFile(tmp_path, ApplySettings())
    monkeypatch.setattr(os, "posix_fallocate", says)
    with pytest.raises(OSError, match="LMDB") as caught:
        refused(file, refusal(errno.EIO), monkeypatch, early=early)
    assert caught.value.errno == number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.mdb", "lock.mdb"]
    file.close()
