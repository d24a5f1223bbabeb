"""The file behind a ``kv`` partition (ports.state_file) on LMDB.

LMDB does not notice damage, so every value carries a CRC-32C over key and value, and the
file's size is checked before it is mapped. One write is one transaction with one sync, of
the data but not of the page that names it (``metasync``): a power loss may undo the last.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import concat
from pathlib import Path
from typing import Any, Final, Self

import google_crc32c
import lmdb
import numpy as np

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines.kv_rows import CHUNK_ROWS, Rows, Stacked, column
from ports.scrub import PIECE_BYTES, Piece, Pieces
from ports.state_file import Changes, StateFull

POSITION: Final = struct.Struct("<QQI")
pack_crc: Final = struct.Struct("<I").pack
crc32c: Final = google_crc32c.value
extend: Final = google_crc32c.extend
CRC_BYTES: Final = 4
POSITION_KEY: Final = b"position"
FORMAT_KEY: Final = b"format"
FORMAT: Final = b"logboom kv 1"
PAGE: Final = 4096
MODE: Final = 0o600
"""What is in there is nobody else's."""
NO_ROOM: Final = {
    errno.ENOMEM: "no address space for another map, see apply.kv_map_bytes",
    errno.EMFILE: "each partition needs four, see ulimit -n",
    errno.ENFILE: "each partition needs four",
}
REFUSALS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS)
"""What a disk may say to whoever opens a state, and LMDB passes on as text only."""
DAMAGE: Final = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
)
"""What LMDB says of pages that it cannot make sense of."""
READERS_MAX: Final = 512
"""Views at the same time: scans and views (`reads.*`: half as many at most), a read for each thread, and what applies,
checks and saves, one each. Without room even applying would fail."""
LOCK_BYTES: Final = PAGE + 64 * READERS_MAX
"""Of a lock file with room for all of them."""
FULL_BYTES: Final = 1 << 20
"""A disk with less left than this is full."""


class KvFile:
    """See StateFile."""

    def __init__(self, directory: Path, settings: ApplySettings, *, readonly: bool = False) -> None:
        """``readonly``: of a node that does not run; nothing is written, and nothing may be."""
        self._directory = directory
        begun = _check_size(directory / "data.mdb")
        if not readonly:
            _keep_to_ourselves(directory)
            _reserve(directory)
        try:
            self._env = lmdb.open(
                os.fsencode(directory),  # it would have UTF-8
                map_size=settings.kv_map_bytes,
                max_dbs=3,
                max_readers=READERS_MAX,
                mode=MODE,
                metasync=False,
                sync=True,
                readahead=False,
                lock=not readonly,
                readonly=readonly,
                create=not readonly,
            )
        except lmdb.Error as error:
            found = _system_error(error, directory)
            if found is not None and not begun and not readonly:
                (directory / "data.mdb").unlink(missing_ok=True)  # half of its first pages would pass for damage
            raise found or CorruptData(f"{directory}: LMDB cannot open it: {error}", path=str(directory)) from error
        try:
            self._state, self._meta, self._system = (
                self._env.open_db(name, create=not readonly) for name in (b"state", b"meta", b"system")
            )
            self._check_format(readonly=readonly)
        except BaseException as error:
            self._env.close()
            if isinstance(error, DAMAGE):
                raise CorruptData(f"{directory}: LMDB: {error}", path=str(directory)) from error
            if isinstance(error, lmdb.NotFoundError):
                raise CorruptData(f"{directory}: no state: {error}", path=str(directory)) from error
            if isinstance(error, lmdb.Error) and (found := _system_error(error, directory)) is not None:
                raise found from error
            raise

    def _check_format(self, *, readonly: bool) -> None:
        with self._env.begin(write=not readonly) as txn:
            found = txn.get(FORMAT_KEY, db=self._system)
            if found is None and not readonly:
                _sync_names(self._directory)  # before the first transaction, so that it cannot lose its file
                txn.put(FORMAT_KEY, FORMAT, db=self._system)
            elif found is None or bytes(found) != FORMAT:
                raise CorruptData(
                    f"{self._directory}: state of format {bytes(found or b'')!r}", path=str(self._directory)
                )

    def position(self) -> Position:
        """See StateFile."""
        with _no_nonsense(self._directory), self._env.begin() as txn:
            raw = txn.get(POSITION_KEY, db=self._system)
        if raw is None:
            return NOWHERE
        index, global_index, crc = POSITION.unpack(raw)
        if crc32c(bytes(raw[:16])) != crc:
            raise CorruptData(f"{self._directory}: damaged position", path=str(self._directory))
        return Position(PartitionLogIndex(index), GlobalLogIndex(global_index))

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """See StateFile."""
        with self.view() as view:
            yield from view.meta()

    def view(self) -> KvView:
        """See StateFile."""
        try:
            return KvView(self._env.begin(db=self._state), self._meta, self._directory)
        except lmdb.MemoryError as error:
            raise MemoryError(f"{self._directory}: LMDB: {error}") from error

    def write(self, state: Changes, meta: Changes, position: Position) -> None:
        """See StateFile."""
        self._transact(lambda txn: self._fill(txn, state, meta, position))

    def clear(self) -> None:
        """See StateFile."""
        self._transact(self._empty)

    def _transact(self, act: Callable[[lmdb.Transaction], None]) -> None:
        try:
            self._commit(act)
        except lmdb.MapFullError as error:
            size = self._env.info()["map_size"]
            raise StateFull(
                f"{self._directory}: no room beyond {size} bytes: raise apply.kv_map_bytes, and start the node again"
            ) from error

    def _commit(self, act: Callable[[lmdb.Transaction], None]) -> None:
        txn = self._env.begin(write=True)
        try:
            with _no_nonsense(self._directory):
                act(txn)
        except BaseException as error:
            txn.abort()
            # A transaction of many pages is written to the disk before its end.
            if isinstance(error, lmdb.Error) and _number(error, REFUSALS) is not None:
                raise _disk_error(error, self._directory) from error
            raise
        try:
            txn.commit()
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            # Even if a later transaction succeeds, this one's pages may never have reached the disk.
            raise _disk_error(error, self._directory) from error

    def _fill(self, txn: lmdb.Transaction, state: Changes, meta: Changes, position: Position) -> None:
        if isinstance(state, Stacked):
            with txn.cursor(db=self._state) as cursor:
                cursor.putmulti(_sealed_rows(state.rows))
            state = state.newer
        for changes, db in ((state, self._state), (meta, self._meta)):
            with txn.cursor(db=db) as cursor:
                # Sorted, so that neighbours share pages.
                cursor.putmulti(_sealed(changes))
            for key, value in changes.items():
                if value is None:
                    txn.delete(key, db=db)
        body = struct.pack("<QQ", *position)
        txn.put(POSITION_KEY, body + pack_crc(crc32c(body)), db=self._system)

    def _empty(self, txn: lmdb.Transaction) -> None:
        for db in (self._state, self._meta):
            txn.drop(db, delete=False)
        txn.delete(POSITION_KEY, db=self._system)

    def reread(self) -> Pieces:
        """See RereadableFile. The lock file is another one: to open this one once more costs no lock."""
        path = self._directory / "data.mdb"
        fd, offset = os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0
        try:
            while True:
                os.posix_fadvise(fd, offset, PIECE_BYTES, os.POSIX_FADV_DONTNEED)
                try:
                    nbytes = len(os.pread(fd, PIECE_BYTES, offset))
                except OSError as error:  # which knows a descriptor only
                    raise OSError(error.errno, f"{error.strerror}, at {offset}", str(path)) from error
                if not nbytes:
                    return
                offset += nbytes
                yield Piece(nbytes)
        finally:
            os.close(fd)

    def close(self) -> None:
        """See StateFile."""
        self._env.close()


class KvView:
    """See StateView: a read transaction."""

    def __init__(self, txn: lmdb.Transaction, meta: Any, directory: Path) -> None:
        self._txn = txn
        self._meta = meta
        self._directory = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._txn.abort()

    def get(self, key: bytes) -> bytes | None:
        """See StateView."""
        with _no_nonsense(self._directory):
            raw = self._txn.get(key) if key else None  # LMDB refuses to look for an empty one
        return None if raw is None else _unseal(key, raw, self._directory)

    def has(self, key: bytes) -> bool:
        """See StateView. ``get`` of a transaction would copy the value."""
        with _no_nonsense(self._directory), self._txn.cursor() as cursor:
            return bool(key) and cursor.set_key(key)

    def entries(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See StateView."""
        with _no_nonsense(self._directory), self._txn.cursor() as cursor:
            if cursor.set_range(start):
                for key, raw in cursor:
                    yield bytes(key), _unseal(key, raw, self._directory)

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """See StateView."""
        with _no_nonsense(self._directory), self._txn.cursor(db=self._meta) as cursor:
            for key, raw in cursor:
                yield bytes(key), _unseal(key, raw, self._directory)


@contextmanager
def _no_nonsense(directory: Path) -> Iterator[None]:
    """Raises CorruptData where LMDB meets pages that it cannot make sense of, MemoryError where it lacks memory."""
    try:
        yield
    except DAMAGE as error:
        raise CorruptData(f"{directory}: LMDB: {error}", path=str(directory)) from error
    except lmdb.MemoryError as error:
        raise MemoryError(f"{directory}: LMDB: {error}") from error


def _sync_names(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_size(path: Path) -> bool:
    """A truncated LMDB file kills the process when it is touched (SIGBUS): find out before. False: nothing is there."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:  # nothing else: what cannot be looked at may be whole
        return False
    if size == 0:
        return False
    with path.open("rb") as file:
        raw = file.read(2 * PAGE)
    if len(raw) < 2 * PAGE:
        raise CorruptData(f"{path}: {size} bytes is too short for LMDB", path=str(path))
    # Meta page: 16-byte page header, magic u32, version u32, address u64, map size u64, two 48-byte
    # database records, last page u64, transaction u64. The newer of the two metas counts.
    metas = [struct.unpack_from("<IIQQ96xQQ", raw, page * PAGE + 16) for page in (0, 1)]
    _, _, _, _, last_page, _ = max(metas, key=lambda meta: meta[5])
    if size < (last_page + 1) * PAGE:
        raise CorruptData(
            f"{path}: {size} bytes, {(last_page + 1) * PAGE} expected: truncated",
            path=str(path),
        )
    return True


def _keep_to_ourselves(directory: Path) -> None:
    """Files of an earlier release could be read by whoever has an account on the machine."""
    for name in ("data.mdb", "lock.mdb"):
        with suppress(OSError):  # none yet, or not ours to say
            (directory / name).chmod(MODE)


def _reserve(directory: Path) -> None:
    """LMDB writes to its lock file through a map: a page that has no room on the disk kills the process (SIGBUS)."""
    path = directory / "lock.mdb"
    with suppress(FileNotFoundError):
        if path.stat().st_blocks * 512 >= LOCK_BYTES:
            return  # and perhaps open: to close it once more would give up its locks
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            os.posix_fallocate(fd, 0, LOCK_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        raise _refused(error.errno or errno.EIO, "lock.mdb", directory) from error


def _sealed_rows(rows: Rows) -> Iterator[tuple[bytes, bytes]]:
    """What is written for them, ascending by key."""
    for chunk in rows.chunks():
        sealed = np.empty((len(chunk), chunk.shape[1] - rows.key_bytes + CRC_BYTES), np.uint8)
        sealed[:, :-CRC_BYTES] = chunk[:, rows.key_bytes :]
        crcs = np.fromiter(map(crc32c, column(chunk)), "<u4", len(chunk))
        sealed[:, -CRC_BYTES:] = crcs.view(np.uint8).reshape(len(chunk), CRC_BYTES)
        yield from zip(column(chunk[:, : rows.key_bytes]), column(sealed), strict=True)


def _sealed(changes: Changes) -> Iterator[tuple[bytes, bytes]]:
    """What is written for those that are not gone, ascending by key.

    Some at a time, by functions that take whole columns: the interpreter would take longer than what they do.
    """
    keys = sorted(changes)
    for start in range(0, len(keys), CHUNK_ROWS):
        some: Sequence[bytes] = keys[start : start + CHUNK_ROWS]
        values: Sequence[bytes | None] = list(map(changes.__getitem__, some))
        if None in values:
            some = [key for key, value in zip(some, values, strict=True) if value is not None]
        present = [value for value in values if value is not None]
        crcs = np.fromiter(map(extend, map(crc32c, some), present), "<u4", len(some))
        yield from zip(some, map(concat, present, crcs.view(f"V{CRC_BYTES}").tolist()), strict=True)


def _unseal(key: Any, raw: Any, directory: Path) -> bytes:
    value = bytes(raw[:-4])
    if pack_crc(crc32c(bytes(key) + value)) != bytes(raw[-4:]):
        raise CorruptData(f"{directory}: the value of {bytes(key)!r} is damaged", path=str(directory))
    return value


def _system_error(error: lmdb.Error, directory: Path) -> OSError | None:
    """What the system or the disk refuses while a state is opened, or first made: no damage. None: something else."""
    number = _number(error, (*NO_ROOM, *REFUSALS))
    if number is None:
        return None
    if number in REFUSALS:
        return _disk_error(error, directory)
    return _refused(number, f"LMDB: {error}", directory)


def _number(error: lmdb.Error, of: Iterable[int]) -> int | None:
    """What the system said, of these, as far as LMDB passes it on."""
    return next((number for number in of if os.strerror(number) in str(error)), None)


def _refused(number: int, what: str, directory: Path) -> OSError:
    return OSError(number, f"{os.strerror(number)}: {NO_ROOM.get(number, what)}", str(directory))


def _disk_error(error: lmdb.Error, directory: Path) -> OSError:
    """What has befallen the disk. LMDB says EIO for a short write, which is how a full disk, or quota, shows."""
    number = _number(error, REFUSALS) or errno.EIO
    if number == errno.EIO:
        number = _no_room(directory) or number
    return OSError(number, f"{os.strerror(number)} (LMDB: {error})", str(directory))


def _no_room(directory: Path) -> int | None:
    """What the system says to whoever wants a little more room there; None: it has that, or says nothing of room."""
    if shutil.disk_usage(directory).free < FULL_BYTES:
        return errno.ENOSPC
    try:  # a quota leaves the disk with as much as it has
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, FULL_BYTES)
    except OSError as error:
        return error.errno if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return None
