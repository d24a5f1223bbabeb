"""``kv``: put, delete, compare-and-set, add to vectors of numbers; reads by key and range. On LMDB.

LMDB does not notice damage, so every value carries a CRC-32C over key and value, and the
file's size is checked before it is mapped. State, position and producers change in one
transaction with one sync (the last transaction may be undone by a power loss: then the log
is replayed from the position before it).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import google_crc32c
import lmdb
from blake3 import blake3

from logboom.commands import Value, unpack_numbers
from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, ApplyBatch, Position, Results, Sealed
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.machines.kv_apply import apply_blocks

POSITION: Final = struct.Struct("<QQI")
POSITION_KEY: Final = b"position"
FORMAT_KEY: Final = b"format"
FORMAT: Final = b"logboom kv 1"
PAGE: Final = 4096


class KvMachine:
    """See the module."""

    needs_records: ClassVar[bool] = True

    def __init__(self, directory: Path, settings: ApplySettings) -> None:
        self._directory = directory
        _check_size(directory / "data.mdb")
        self._env = lmdb.open(
            str(directory),
            map_size=settings.kv_map_bytes,
            max_dbs=3,
            max_readers=256,
            metasync=False,
            sync=True,
            readahead=False,
            lock=True,
        )
        self._state = self._env.open_db(b"state")
        self._meta = self._env.open_db(b"meta")
        self._system = self._env.open_db(b"system")
        self._write_lock = threading.Lock()
        self._check_format()

    @classmethod
    def open(cls, directory: Path, partition_id: PartitionId, settings: ApplySettings) -> KvMachine:
        """See StateMachine."""
        try:
            return cls(directory, settings)
        except lmdb.Error as error:
            raise CorruptData(f"{directory}: LMDB cannot open it: {error}", path=str(directory)) from error

    def _check_format(self) -> None:
        with self._env.begin(write=True) as txn:
            found = txn.get(FORMAT_KEY, db=self._system)
            if found is None:
                txn.put(FORMAT_KEY, FORMAT, db=self._system)
            elif bytes(found) != FORMAT:
                raise CorruptData(f"{self._directory}: state of format {bytes(found)!r}", path=str(self._directory))

    def position(self) -> Position:
        """See StateMachine."""
        with self._env.begin() as txn:
            return self._position(txn)

    def _position(self, txn: lmdb.Transaction) -> Position:
        raw = txn.get(POSITION_KEY, db=self._system)
        if raw is None:
            return NOWHERE
        index, global_index, crc = POSITION.unpack(raw)
        if google_crc32c.value(bytes(raw[:16])) != crc:
            raise CorruptData(f"{self._directory}: damaged position", path=str(self._directory))
        return Position(PartitionLogIndex(index), GlobalLogIndex(global_index))

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """See StateMachine."""
        with self._env.begin() as txn, txn.cursor(db=self._meta) as cursor:
            for key, raw in cursor:
                yield bytes(key), _unseal(key, raw, self._directory)

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        """See StateMachine."""
        with self._write_lock, self._env.begin(write=True, db=self._state) as txn:

            def load(key: bytes) -> bytes | None:
                raw = txn.get(key)
                return None if raw is None else _unseal(key, raw, self._directory)

            results, dirty = apply_blocks(batches, load)
            for key in sorted(dirty):
                value = dirty[key]
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, _seal(key, value))
            position, meta = seal(results)
            self._write_meta(txn, position, meta)
        return results

    def _write_meta(self, txn: lmdb.Transaction, position: Position, meta: Mapping[bytes, bytes | None]) -> None:
        for key in sorted(meta):
            value = meta[key]
            if value is None:
                txn.delete(key, db=self._meta)
            else:
                txn.put(key, _seal(key, value), db=self._meta)
        body = struct.pack("<QQ", *position)
        txn.put(POSITION_KEY, body + struct.pack("<I", google_crc32c.value(body)), db=self._system)

    def get(self, keys: Sequence[bytes]) -> tuple[list[Value | None], Position]:
        """See StateMachine."""
        with self._env.begin(db=self._state) as txn:
            found: list[Value | None] = []
            for key in keys:
                raw = txn.get(key)
                found.append(None if raw is None else _value(_unseal(key, raw, self._directory)))
            return found, self._position(txn)

    def scan(
        self, *, start: bytes, end: bytes | None, limit: int, chunk: int
    ) -> Iterator[tuple[list[tuple[bytes, Value]], Position]]:
        """See StateMachine."""
        with self._env.begin(db=self._state) as txn, txn.cursor() as cursor:
            position = self._position(txn)
            rows: list[tuple[bytes, Value]] = []
            count = 0
            if cursor.set_range(start):
                for key, raw in cursor:
                    if (end is not None and key >= end) or (limit and count >= limit):
                        break
                    rows.append((bytes(key), _value(_unseal(key, raw, self._directory))))
                    count += 1
                    if len(rows) >= chunk:
                        yield rows, position
                        rows = []
            yield rows, position

    def digest(self) -> tuple[bytes, Position]:
        """See StateMachine."""
        hasher = blake3()
        with self._env.begin(db=self._state) as txn, txn.cursor() as cursor:
            for key, raw in cursor:
                value = _unseal(key, raw, self._directory)
                hasher.update(struct.pack("<II", len(key), len(value)) + key + value)
            return hasher.digest(16), self._position(txn)

    def close(self) -> None:
        """See StateMachine."""
        self._env.sync(True)  # noqa: FBT003 - py-lmdb's signature
        self._env.close()


def _check_size(path: Path) -> None:
    """A truncated LMDB file kills the process when it is touched (SIGBUS): find out before."""
    if not path.exists():
        return
    size = path.stat().st_size
    if size == 0:
        return
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
            f"{path}: {size} bytes, {(last_page + 1) * PAGE} expected: truncated. "
            "Remove the state directory to rebuild it from the log",
            path=str(path),
        )


def _seal(key: bytes, value: bytes) -> bytes:
    crc: int = google_crc32c.extend(google_crc32c.value(key), value)
    return value + crc.to_bytes(4, "little")


def _unseal(key: Any, raw: Any, directory: Path) -> bytes:
    value = bytes(raw[:-4])
    if google_crc32c.extend(google_crc32c.value(bytes(key)), value).to_bytes(4, "little") != bytes(raw[-4:]):
        raise CorruptData(f"{directory}: the value of {bytes(key)!r} is damaged", path=str(directory))
    return value


def _value(raw: bytes) -> Value:
    return raw[1:] if raw[:1] == b"b" else unpack_numbers(raw)
