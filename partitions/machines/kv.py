"""``kv``: put, delete, compare-and-set, add to vectors of numbers; reads by key and range.

Applied means in memory: changes collect above a file (ports.state_file) and are saved in one transaction,
sorted, with position and producers (``checkpoint``). After a crash the log is replayed from
there. So what is written often is saved seldom, and applying waits for no disk
(docs/decisions/0007). What is put in bulk collects in arrays (``kv_rows``), everything else in a
dictionary above them; whatever needs more than single keys of them makes a dictionary of all.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import ClassVar, Final

from blake3 import blake3

from logboom.commands import Value, unpack_numbers
from logboom.errors import CorruptData, InvalidRequest, RecordTooLarge
from logboom.state_machine import NOWHERE, ApplyBatch, Entry, Position, Results, Sealed, Space, in_order
from partitions.machines.kv_apply import LOADED_BYTES_MAX, OK, apply_blocks
from partitions.machines.kv_dump import KvDump
from partitions.machines.kv_layers import ENTRY_BYTES, Emptied, Layer, Range, in_range, merged
from partitions.machines.kv_rows import ROWS_MIN, Puts, puts_of
from partitions.machines.kv_unsaved import HALF, Missing, Unsaved
from ports.invariant import invariant
from ports.scrub import PIECE_BYTES, Piece, Pieces, twice, unreadable_is_damage
from ports.state_file import KEY_BYTES_MAX, RereadableFile, StateFile, StateFull, StateView

CHUNK_BYTES: Final = 256 << 10
"""Of one chunk of a scan; a value may go over. Each scan may have one waiting for a client that does not read."""
GET_BYTES_MAX: Final = 64 << 20
"""The values of one ``get`` together."""
LOAD_BYTES: Final = 4 << 20
"""What ``load`` writes in one transaction."""
LOADS_MAX: Final = 256
"""Keys that a group looks up in rows one by one, each ten times as slow as in a dictionary; then it makes one."""


class KvMachine:
    """See the module. ``apply`` in one thread at a time, ``checkpoint`` in one, reads in any, all at once."""

    needs_records: ClassVar[bool] = True
    applies_in_memory: ClassVar[bool] = True

    def __init__(self, file: StateFile, *, rows_min: int = ROWS_MIN, loaded_bytes: int = LOADED_BYTES_MAX) -> None:
        """``rows_min``: see ApplySettings. ``loaded_bytes``: that a group keeps of what it has looked at."""
        self._file = file
        self._rows_min = rows_min
        self._loaded_bytes = loaded_bytes
        self._position = self._file.position()
        self._lock = threading.Lock()
        """For moving from one consistent view to the next; never held during I/O."""
        self._changes = Unsaved()
        self._saving = Unsaved()
        """Older changes, on their way into the file: where a checkpoint has failed, until one has not."""
        self._saving_at: Position | None = None
        """What they are of; None: there are none."""
        self._emptied = Emptied()
        """Of what is applied; for `apply` alone."""
        self._closed = False

    def position(self) -> Position:
        """See Machine."""
        return self._position

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """See Machine; before the first ``apply``."""
        return self._file.meta()

    @property
    def unsaved_bytes(self) -> int:
        """See Machine."""
        return self._changes.nbytes + self._saving.nbytes

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        """See Machine."""
        with self._lock:  # a checkpoint moves what it is to save
            layers = (self._changes, self._saving)
            emptied = self._emptied
        # What is emptied has to be told of every key that is put.
        puts = puts_of(batches, self._rows_min) if layers[0].takes_rows and not emptied else None
        if puts is not None:
            return self._apply_puts(puts, [OK] * len(batches), seal)
        loads = count(1)
        with self._file.view() as file:

            def above(key: bytes) -> bytes | Missing | None:
                if next(loads) == LOADS_MAX:
                    with self._lock:
                        for layer in layers:
                            layer.settle()
                for layer in layers:
                    found = layer.get(key)
                    if found is not Missing.MISSING:
                        return found
                return Missing.MISSING

            def load(key: bytes) -> bytes | None:
                found = above(key)
                return file.get(key) if found is Missing.MISSING else found

            def has(key: bytes) -> bool:
                found = above(key)
                return file.has(key) if found is Missing.MISSING else found is not None

            def within(start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
                with self._lock:
                    for layer in layers:
                        layer.settle()
                        layer.keys.renew()
                for low, high in emptied.rest(start, end):
                    below: Iterator[tuple[bytes, bytes]] = file.entries(low)
                    for layer in reversed(layers):
                        keys = layer.keys.within(low, high)
                        below = merged(below, layer.state, start=low, end=high, keys=keys)
                    yield from below

            results, changed, ranges = apply_blocks(batches, load, within, has, loaded_bytes=self._loaded_bytes)
        position, meta = seal(results)
        with self._lock:
            try:
                self._changes.merge(changed, meta)
            except BaseException as error:
                self._see(error)
                raise
            self._position = position
        try:
            _remember(emptied, ranges, changed)
        except MemoryError:  # it only spares going through what is empty: the group has been applied
            with self._lock:
                self._emptied = Emptied()
        return results

    def _apply_puts(self, puts: Puts, results: Results, seal: Callable[[Results], Sealed]) -> Results:
        position, meta = seal(results)
        with self._lock:
            try:
                if not self._changes.put(puts, meta):
                    self._changes.merge(puts.layer(), meta)
            except BaseException as error:
                self._see(error)
                raise
            self._position = position
        return results

    def _see(self, error: BaseException) -> None:
        """Nothing of a group is there, and it may be tried again: else raises CorruptData. Under the lock."""
        if self._changes.torn:
            self._changes = HALF  # tried again a part would count twice: nobody sees or saves it
            raise CorruptData(f"a group of batches was applied in part: {error!r}") from error

    def checkpoint(self) -> None:
        """See Machine."""
        if self._saving_at is not None:  # the last one has failed: nothing newer may be saved in front of that
            try:
                self._save(self._saving_at)
            except StateFull:
                if self._position == self._saving_at:
                    raise
                self._save(self._together())  # what is newer may have removed what there is no room for
                return
        with self._lock:
            at, newer = self._position, Unsaved(self._changes.room)
            self._saving, self._saving_at, self._changes = self._changes, at, newer
        self._save(at)

    def _together(self) -> Position:
        """All that is not saved is on its way. Returns what it is of."""
        with self._lock:
            self._settle()
            both, newer = Unsaved(), Unsaved()
            for each in (self._saving, self._changes):
                both.merge(each.state, each.meta)
            self._saving, self._saving_at, self._changes = both, self._position, newer
            return self._position

    def _save(self, at: Position) -> None:
        """What is on its way. If it fails it stays there, read and counted as before: to put it back takes memory."""
        self._file.write(self._saving.state, self._saving.meta, at)
        with self._lock:
            self._saving, self._saving_at = Unsaved(), None
            self._emptied = Emptied()  # there is nothing to go through any more, and what is written need not be noted

    def get(self, keys: Sequence[bytes]) -> tuple[list[Value | None], Position]:
        """See Machine."""
        with self._lock:
            view = self._view_of(keys)
        return _values(keys, *view)

    def get_at_once(self, keys: Sequence[bytes]) -> tuple[list[Value | None], Position] | None:
        """See the module of Machine: None while somebody moves on to another view."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            view = self._view_of(keys)
        finally:
            self._lock.release()
        return _values(keys, *view)

    def _view_of(self, keys: Sequence[bytes]) -> tuple[StateView, Layer, Position]:
        """The file, what is not in it yet of these keys, and what both are of. Under the lock."""
        return self._file.view(), {**self._saving.find(keys), **self._changes.find(keys)}, self._position

    def scan(
        self, *, start: bytes, end: bytes | None, limit: int, chunk: int
    ) -> Iterator[tuple[list[tuple[bytes, Value]], Position]]:
        """See Machine."""
        with self._lock:
            self._settle()
            layers = (self._saving.keys, self._changes.keys)
            keys, changes = in_range(*layers, start=start, end=end, limit=limit)
            file, position = self._file.view(), self._position
        rows: list[tuple[bytes, Value]] = []
        count = nbytes = 0
        with file:
            for key, raw in merged(file.entries(start), changes, start=start, end=end, keys=keys):
                if limit and count >= limit:
                    break
                rows.append((key, _value(raw)))
                count += 1
                nbytes += len(key) + len(raw)
                if len(rows) >= chunk or nbytes >= CHUNK_BYTES:
                    yield rows, position
                    rows, nbytes = [], 0
        yield rows, position

    def digest(self) -> tuple[bytes, Position]:
        """See Machine."""
        file, changes, position = self._snapshot()
        hasher = blake3()
        with file:
            for key, value in merged(file.entries(b""), changes):
                hasher.update(struct.pack("<II", len(key), len(value)) + key + value)
        return hasher.digest(16), position

    def scrub(self) -> Pieces:
        """See Machine. Raises CorruptData; the file is not held on to between two pieces."""
        if isinstance(self._file, RereadableFile):
            with unreadable_is_damage():
                yield from twice(self._file.reread)
        start, behind = b"", False
        while True:
            nbytes, last = 0, None
            with self._file.view() as file:
                for key, raw in file.entries(start):
                    if behind and key == start:
                        continue
                    nbytes, last = nbytes + len(key) + len(raw), key
                    if nbytes >= PIECE_BYTES:
                        break
                else:
                    last = None
                    nbytes += sum(len(key) + len(raw) for key, raw in file.meta())
            yield Piece(nbytes)
            if last is None:
                return
            start, behind = last, True

    def _snapshot(self) -> tuple[StateView, Layer, Position]:
        with self._lock:
            self._settle()
            return self._file.view(), {**self._saving.state, **self._changes.state}, self._position

    def dump(self) -> KvDump:
        """See Machine. The file does not use again, until the dump is closed, what it frees meanwhile."""
        with self._lock:
            meta = {**self._saving.meta, **self._changes.meta}
            if self._saving.has_rows or self._changes.has_rows:
                return KvDump(self._file.view(), [self._saving.hold(), self._changes.hold()], meta, self._position)
            state = {**self._saving.state, **self._changes.state}
            return KvDump(self._file.view(), [state], meta, self._position)

    def _settle(self) -> None:
        """For whoever goes through all that is not saved, or through ranges of it. Under the lock."""
        self._saving.settle()
        self._changes.settle()

    def load(self, entries: Iterator[Entry], position: Position) -> None:
        """See Machine."""
        invariant(not self.unsaved_bytes, "a state is loaded over one that is not saved")
        self._file.clear()
        state, meta, nbytes = Layer(), Layer(), 0
        for space, key, value in in_order(entries):
            _check_entry(space, key, value)
            (state if space is Space.STATE else meta)[key] = value
            nbytes += ENTRY_BYTES + len(key) + len(value)
            if nbytes >= LOAD_BYTES:
                self._file.write(state, meta, NOWHERE)
                state, meta, nbytes = Layer(), Layer(), 0
        self._file.write(state, meta, position)
        # A power loss may undo the last transaction: let that be one that changes nothing.
        self._file.write({}, {}, position)
        self._position, self._saving_at, self._emptied = position, None, Emptied()

    def close(self) -> None:
        """See Machine."""
        if not self._closed:
            self._closed = True
            try:
                if self.unsaved_bytes:
                    self.checkpoint()
            finally:
                self._file.close()
                self._drop()

    def discard(self) -> None:
        """Close it, and save nothing: nobody needs what it holds."""
        if not self._closed:
            self._closed = True
            self._file.close()
            self._drop()

    def _drop(self) -> None:
        """Who has closed it may be known to it, and both be garbage that is looked for much later."""
        self._changes, self._saving = Unsaved(), Unsaved()


def _check_entry(space: Space, key: bytes, value: bytes) -> None:
    """Raises CorruptData for what no ``kv`` machine holds."""
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise CorruptData(f"a key of {len(key)} bytes in a dump of kv")
    if space is Space.STATE:
        try:
            _value(value)
        except InvalidRequest as error:
            raise CorruptData(f"the value of {key!r} in a dump of kv: {error}") from error


def _remember(emptied: Emptied, ranges: Sequence[Range], changed: Layer) -> None:
    """Nothing was left in these, at one time or other; what has been written is in ``changed``."""
    for each in ranges:
        emptied.add(each)
    if emptied:
        for key, raw in changed.items():
            if raw is not None:
                emptied.filled(key)


def _values(
    keys: Sequence[bytes], file: StateView, changes: Layer, position: Position
) -> tuple[list[Value | None], Position]:
    raws, size = list[bytes | None](), 0
    with file:
        for key in keys:
            raw = changes[key] if key in changes else file.get(key)
            raws.append(raw)
            size += len(raw or b"")
            if size > GET_BYTES_MAX:
                raise RecordTooLarge(
                    f"values of more than {GET_BYTES_MAX} bytes at once; ask for fewer keys",
                    size=size,
                    limit=GET_BYTES_MAX,
                )
    return [None if raw is None else _value(raw) for raw in raws], position


def _value(raw: bytes) -> Value:
    return raw[1:] if raw[:1] == b"b" else unpack_numbers(raw)
