"""``log``: records are kept in the partition's log and nowhere else.

Its state is a few counters and a digest over the applied batches' digests, so applying costs
next to nothing and never reads payload. A checkpoint is written now and then; after a crash
the batch headers since then are replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import google_crc32c
import msgpack
from blake3 import blake3

from logboom.commands import Value
from logboom.errors import CorruptData, InvalidRequest
from logboom.state_machine import NOWHERE, ApplyBatch, Entry, Position, Results, Sealed, Space, in_order
from logboom.types import DIGEST_BYTES, GlobalLogIndex, PartitionLogIndex
from ports.disk import Disk
from ports.invariant import invariant

CHECKPOINT_BATCHES = 4096
OK = b"\x00"
DUMPED: Final = {b"bytes": 8, b"digest": DIGEST_BYTES, b"records": 8}
"""The keys of a dump's state, and how long their values are."""


class LogMachine:
    """See the module. ``apply`` in one thread at a time; ``checkpoint`` and reads in any, all at once."""

    needs_records: ClassVar[bool] = False

    def __init__(self, disk: Disk, path: Path) -> None:
        """``path``: the checkpoint. Raises CorruptData."""
        self._disk = disk
        self._path = path
        self._position = NOWHERE
        self._meta: dict[bytes, bytes] = {}
        self._records = 0
        self._bytes = 0
        self._digest = bytes(16)
        self._since = 0
        """Batches that the checkpoint lacks, or producers of those that several share, which take as long to replay; a
        group without any, which moves the position, counts for one."""
        self._lock = threading.Lock()
        """For moving from one consistent state to the next; never held during I/O."""
        self._file_lock = threading.Lock()
        """For the file, from capturing what becomes of it: an older state must not replace a newer one."""
        if disk.exists(path):
            self._load(disk.read_file(path))

    def _load(self, raw: bytes) -> None:
        body, crc = raw[:-4], raw[-4:]
        if google_crc32c.value(body).to_bytes(4, "little") != crc:
            raise CorruptData(f"{self._path}: damaged checkpoint; remove it to replay the log", path=str(self._path))
        try:
            row: Any = msgpack.unpackb(body)
            version, index, global_index, records, nbytes, digest, meta = row
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"{self._path}: not a checkpoint: {error}", path=str(self._path)) from error
        if version != 1:
            raise CorruptData(f"{self._path}: checkpoint of another format", path=str(self._path))
        numbers = (index, global_index, records, nbytes)
        if (
            any(type(n) is not int or not 0 <= n < 1 << 63 for n in numbers)
            or not (isinstance(digest, bytes) and len(digest) == DIGEST_BYTES)
            or not (isinstance(meta, dict) and all(isinstance(b, bytes) for entry in meta.items() for b in entry))
        ):
            raise CorruptData(f"{self._path}: not a checkpoint", path=str(self._path))
        self._position = Position(PartitionLogIndex(index), GlobalLogIndex(global_index))
        self._records, self._bytes, self._digest, self._meta = records, nbytes, digest, meta

    def position(self) -> Position:
        """See Machine."""
        return self._position

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """See Machine."""
        return iter(list(self._meta.items()))

    @property
    def applies_in_memory(self) -> bool:
        """``apply`` waits for no disk: no checkpoint is due."""
        return self._since < CHECKPOINT_BATCHES

    @property
    def unsaved_bytes(self) -> int:
        """Nothing that grows."""
        return 0

    def checkpoint(self) -> None:
        """See Machine; ``apply`` does it by itself, before the next group, every so many batches."""
        if self._since:
            self._checkpoint()

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        """See Machine."""
        if self._since >= CHECKPOINT_BATCHES:
            self._checkpoint()  # in front of the group: what it raises must not have changed anything
        results = [OK] * len(batches)
        position, meta = seal(results)
        records, nbytes, digest = self._records, self._bytes, self._digest
        for batch in batches:
            records += batch.count - sum(stop - start for start, stop in batch.skip)
            nbytes += batch.nbytes
            digest = blake3(digest + batch.digest).digest(16)
        with self._lock:
            self._records, self._bytes, self._digest, self._position = records, nbytes, digest, position
            for key, value in meta.items():
                if value is None:
                    self._meta.pop(key, None)
                else:
                    self._meta[key] = value
            self._since += max(1, len(batches), len(meta))
        return results

    def _checkpoint(self) -> None:
        with self._file_lock:
            with self._lock:
                since, meta = self._since, self._meta.copy()
                row = [1, *self._position, self._records, self._bytes, self._digest, meta]
            body = msgpack.packb(row)
            # A crash before it is replaced leaves the old checkpoint, and the log to replay from it.
            self._disk.replace_file(self._path, body + google_crc32c.value(body).to_bytes(4, "little"))
            with self._lock:
                self._since -= since

    def get(self, keys: Sequence[bytes]) -> tuple[list[Value | None], Position]:
        """A log has no keys."""
        raise InvalidRequest("this partition is a log: it has no keys to get; tail it instead")

    def scan(
        self, *, start: bytes, end: bytes | None, limit: int, chunk: int
    ) -> Iterator[tuple[list[tuple[bytes, Value]], Position]]:
        """A log has no keys."""
        raise InvalidRequest("this partition is a log: it has no keys to scan; tail it instead")

    def digest(self) -> tuple[bytes, Position]:
        """See Machine."""
        with self._lock:
            records, nbytes, digest, position = self._records, self._bytes, self._digest, self._position
        return blake3(digest + records.to_bytes(8, "little") + nbytes.to_bytes(8, "little")).digest(16), position

    def dump(self) -> LogDump:
        """See Machine."""
        state = (self._bytes.to_bytes(8, "little"), self._digest, self._records.to_bytes(8, "little"))
        return LogDump(dict(zip(DUMPED, state, strict=True)), self._meta.copy(), self._position)

    def load(self, entries: Iterator[Entry], position: Position) -> None:
        """See Machine. Meta entries are held in memory, as they are afterwards."""
        invariant(not self._since, "a state is loaded over one that is not saved")
        state: dict[bytes, bytes] = {}
        meta: dict[bytes, bytes] = {}
        for space, key, value in in_order(entries):
            if space is Space.STATE and DUMPED.get(key) != len(value):
                raise CorruptData(f"{key!r} of {len(value)} bytes in a dump of a log")
            (state if space is Space.STATE else meta)[key] = value
        if len(state) != len(DUMPED):
            raise CorruptData(f"a dump of a log without {', '.join(k.decode() for k in DUMPED if k not in state)}")
        nbytes, records = (int.from_bytes(state[key], "little") for key in (b"bytes", b"records"))
        if max(nbytes, records) >= 1 << 63:
            raise CorruptData("a dump of a log with counters that no log reaches")
        self._bytes, self._digest, self._records, self._meta = nbytes, state[b"digest"], records, meta
        self._position = position
        self._checkpoint()

    def close(self) -> None:
        """See Machine."""
        self.checkpoint()

    def discard(self) -> None:
        """Nothing is open, and nobody needs what it holds."""


class LogDump:
    """See StateDump; in memory."""

    def __init__(self, state: dict[bytes, bytes], meta: dict[bytes, bytes], position: Position) -> None:
        self.position = position
        self._state, self._meta = state, meta

    def entries(self) -> Iterator[Entry]:
        """See StateDump."""
        for space, entries in ((Space.STATE, self._state), (Space.META, self._meta)):
            for key in sorted(entries):
                yield space, key, entries[key]

    def close(self) -> None:
        """See StateDump."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
