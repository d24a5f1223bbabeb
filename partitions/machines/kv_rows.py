"""Puts in bulk, not saved yet: rows of a key and its encoded value side by side, found by a hash table, all in arrays.

A dictionary costs two objects and some cache misses a record, one after the other. Here whole groups are looked up,
put and sorted by vector operations. All keys of a ``Rows`` are equally long, and so are all values; what is not, or
does something else than put, goes into a dictionary above it. No row ever leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logboom.commands import OP_PUT
from logboom.records import RecordBlock, lengths_of
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch
from partitions.machines.kv_layers import Layer

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

ROWS_MIN: Final = ApplySettings().rows_min
"""Records of a group that are worth vector operations: these take as long for a few."""
BLOCK_MIN: Final = 64
"""Records of a batch, on average: to look at one as columns takes as long as to apply some thirty."""
ROW_BYTES_MAX: Final = 2048
"""Larger rows go into a dictionary: copying is what they cost, and arrays that double would be large."""
KEY_BYTES_MAX: Final = 64
ROW_BYTES: Final = 64
"""Roughly what a row in memory costs beside key and value."""
CAPACITY_MIN: Final = 1024
SPARSE: Final = 4
"""Places in the table for each row that there is room for: so few are taken that a place is found in some steps."""
STEPS_MAX: Final = 64
"""Keys may be chosen to collide: then they go elsewhere."""
FIND_MIN: Final = 8
"""Keys that are worth vector operations."""
CHUNK_ROWS: Final = 256
"""Read at a time: what stays in a core's cache meanwhile."""
FORGET_PLACES: Final = 1 << 16
"""At a time."""
FACTORS: Final = tuple(pow(0x9E3779B97F4A7C15, n + 1, 1 << 64) for n in range(KEY_BYTES_MAX // 8))
"""Odd; of a key's numbers."""
MIXER: Final = 0xD6E8FEB86659FD93
WORD: Final = (1 << 64) - 1
VALUE_KIND: Final = ord("b")


class Puts:
    """What a group of batches puts, in their order: rows as `Rows` keeps them."""

    def __init__(self, blocks: Sequence[tuple[Bytes, Bytes]]) -> None:
        """Keys and payloads of each block, the payloads with the operation in front."""
        self.key_bytes: int = blocks[0][0].shape[1]
        key_bytes = self.key_bytes
        self.count = sum(len(keys) for keys, _ in blocks)
        self.width: int = key_bytes + blocks[0][1].shape[1]
        self.rows = np.empty((self.count, self.width), np.uint8)
        start = 0
        for keys, payloads in blocks:
            part = self.rows[start : start + len(keys)]
            part[:, :key_bytes] = keys
            part[:, key_bytes:] = payloads
            start += len(keys)
        self.rows[:, key_bytes] = VALUE_KIND

    def keys(self) -> list[bytes]:
        """In their order."""
        return column(self.rows[:, : self.key_bytes])

    def layer(self) -> Layer:
        """As a dictionary."""
        return _layer(self.rows, self.key_bytes)


def puts_of(batches: Sequence[ApplyBatch], rows_min: int = ROWS_MIN) -> Puts | None:
    """What a group puts, if it does nothing else and rows are worth it: for ``rows_min`` records; 0: never."""
    least = max(rows_min, min(rows_min, BLOCK_MIN) * len(batches))
    if not rows_min or sum(batch.count for batch in batches) < least:
        return None
    blocks = list[tuple[Bytes, Bytes]]()
    for batch in batches:
        found = None if batch.records is None or batch.skip else _columns(batch.records)
        if found is None or [each.shape[1] for each in found] != [each.shape[1] for each in (blocks or [found])[0]]:
            return None
        blocks.append(found)
    return Puts(blocks)


def _columns(block: RecordBlock) -> tuple[Bytes, Bytes] | None:
    """Keys and payloads, each equally long, if all of them are put."""
    if not block.has_keys:
        return None
    found = list[Bytes]()
    for raw, ends in ((block.key_bytes, block.key_ends), (block.data, block.payload_ends)):
        width = int(ends[0])
        if not width or width * block.count != int(ends[-1]) or bool((lengths_of(ends) != width).any()):
            return None
        found.append(np.frombuffer(raw, np.uint8).reshape(block.count, width))
    keys, payloads = found
    too_long = keys.shape[1] > KEY_BYTES_MAX or keys.shape[1] + payloads.shape[1] > ROW_BYTES_MAX
    return None if too_long or bool((payloads[:, 0] != OP_PUT).any()) else (keys, payloads)


class Rows:
    """See the module. One thread puts, under the lock of whoever reads meanwhile."""

    def __init__(self, like: Puts, room: int = 0) -> None:
        """For rows as these, none of which it has yet; ``room``: for so many at once. What is not used is no memory."""
        self.key_bytes, self.width = like.key_bytes, like.width
        self._count = 0
        self._rows = np.empty((0, self.width), np.uint8)
        self._words = np.empty((-(-self.key_bytes // 8), 0), np.uint64)
        self._newest = np.empty(0, np.int64)
        """By row, what of a group is its last put: nothing that lasts."""
        self._table = np.empty(0, np.int32)
        """Row by place, -1: none."""
        self._reserve(max(room, CAPACITY_MIN))

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Roughly the memory that they take."""
        return self._count * (self.width + self.key_bytes + ROW_BYTES)

    def takes(self, puts: Puts) -> bool:
        """They are like those that are here."""
        return (puts.key_bytes, puts.width) == (self.key_bytes, self.width)

    def put(self, puts: Puts) -> bool:
        """Each key's last value counts. False: their keys collide, and nothing has changed."""
        words = _words(puts.rows[:, : puts.key_bytes])
        self._reserve(self._count + puts.count)
        try:
            rows, fresh = self._places(words)
            if rows is not None:
                self._write(rows, puts)
        except BaseException:
            self._forget()
            raise
        self._count += fresh
        return rows is not None

    def _forget(self) -> None:
        """What has places, and is no row yet."""
        for start in range(0, len(self._table), FORGET_PLACES):  # there may be no memory for more
            part = self._table[start : start + FORGET_PLACES]
            part[part >= self._count] = -1

    def _write(self, rows: Ints, puts: Puts) -> None:
        numbers = np.arange(puts.count)
        self._newest[rows] = numbers  # of several for one row it is any of them
        others = np.flatnonzero(self._newest[rows] != numbers)
        every: Any = puts.rows.view(f"V{self.width}").ravel()
        if len(others):
            np.maximum.at(self._newest, rows[others], others)
            last = self._newest[rows] == numbers
            rows, every = rows[last], every[last]
        self._rows.view(f"V{self.width}").ravel()[rows] = every

    def _places(self, words: Words) -> tuple[Ints | None, int]:
        """The row of each key, and how many of them are new; these follow the others. None: too many collide."""
        count, mask = words.shape[1], len(self._table) - 1
        base, table = self._count, self._table
        self._words[:, base : base + count] = words  # each might be new
        rows, places = np.empty(count, np.int64), np.empty(count, np.int64)
        left, at = np.arange(count), _first_place(words, len(self._table))
        for step in range(1, STEPS_MAX):
            found = table[at]
            free = np.flatnonzero(found < 0)
            if len(free):
                table[at[free]] = base + left[free]
                found = table[at]  # one of those that wanted the same place has it
            same = self._same(found, words, left)
            if bool(same.all()):
                rows[left], places[left] = found, at
                break
            done = left[same]
            rows[done], places[done] = found[same], at[same]
            left, at = left[~same], (at[~same] + step) & mask
        else:
            self._forget()
            return None, 0
        return self._close_ranks(words, rows, places)

    def _same(self, rows: npt.NDArray[np.int32], words: Words, which: Ints) -> npt.NDArray[np.bool_]:
        """Whether these rows have the keys that which of the words are."""
        same: npt.NDArray[np.bool_] = self._words[0][rows] == words[0][which]
        for line in range(1, len(words)):
            same &= self._words[line][rows] == words[line][which]
        return same

    def _close_ranks(self, words: Words, rows: Ints, places: Ints) -> tuple[Ints, int]:
        """New ones have the number of their first place in the group so far: without gaps."""
        base, numbers = self._count, np.arange(len(rows))
        new = np.flatnonzero(rows == base + numbers)
        if len(new) < len(rows):
            renamed = np.empty(len(rows), np.int64)
            renamed[new] = np.arange(base, base + len(new))
            later = np.flatnonzero(rows >= base)
            rows[later] = renamed[rows[later] - base]
            self._table[places[new]] = rows[new]
            self._words[:, base : base + len(new)] = words[:, new]
        return rows, len(new)

    def _reserve(self, count: int) -> None:
        """Room for so many rows."""
        capacity = len(self._rows)
        if count <= capacity:
            return
        while capacity < count:
            capacity = max(CAPACITY_MIN, 2 * capacity)
        known, rows = self._count, np.empty((capacity, self.width), np.uint8)
        rows[:known] = self._rows[:known]
        words = np.empty((len(self._words), capacity), np.uint64)
        words[:, :known] = self._words[:, :known]
        newest, table = np.empty(capacity, np.int64), np.full(SPARSE * capacity, -1, np.int32)
        left, at, step = np.arange(known), _first_place(words[:, :known], len(table)), 0
        while len(left):
            free = np.flatnonzero(table[at] < 0)
            table[at[free]] = left[free]
            lost, step = table[at] != left, step + 1
            left, at = left[lost], (at[lost] + step) & (len(table) - 1)
        # Each of these steps may want memory that there is none of: all of it, or nothing has happened.
        self._rows, self._words, self._newest, self._table = rows, words, newest, table

    def get(self, key: bytes) -> bytes | None:
        """The encoded value; None: no such key. One number after the other what `_first_place` does with arrays."""
        if len(key) != self.key_bytes:
            return None
        table, mask = self._table, len(self._table) - 1
        mixed = 0
        for line, factor in zip(range(0, len(key), 8), FACTORS, strict=False):
            mixed += int.from_bytes(key[line : line + 8].ljust(8, b"\0"), "big") * factor
        mixed &= WORD
        mixed = ((mixed ^ mixed >> 32) * MIXER) & WORD
        at = mixed >> (65 - len(table).bit_length())
        step = 1
        while (row := table.item(at)) >= 0:
            raw: bytes = self._rows[row].tobytes()
            if raw.startswith(key):
                return raw[self.key_bytes :]
            at, step = (at + step) & mask, step + 1
        return None

    def find(self, keys: Sequence[bytes]) -> Layer:
        """Those of them that are here."""
        mine = [key for key in keys if len(key) == self.key_bytes]
        if len(mine) < FIND_MIN:
            return {key: raw for key in mine if (raw := self.get(key)) is not None}
        words = _words(np.frombuffer(b"".join(mine), np.uint8).reshape(len(mine), self.key_bytes))
        rows = np.full(len(mine), -1, np.int64)
        left, at, step = np.arange(len(mine)), _first_place(words, len(self._table)), 0
        while len(left):
            found = self._table[at]
            taken, same = found >= 0, self._same(found, words, left)
            here, on = taken & same, taken & ~same
            rows[left[here]], step = found[here], step + 1
            left, at = left[on], (at[on] + step) & (len(self._table) - 1)
        known = np.flatnonzero(rows >= 0)
        values = column(self._rows[rows[known], self.key_bytes :])
        return dict(zip(map(mine.__getitem__, known.tolist()), values, strict=True))

    def layer(self) -> Layer:
        """As a dictionary."""
        return _layer(self._rows[: self._count], self.key_bytes)

    def chunks(self) -> Iterator[Bytes]:
        """All rows, ascending by key, some at a time."""
        words = self._words[:, : self._count]
        lines = [line for line in words if bool((line != line[:1]).any())]
        # Of one line no two are equal; to sort by one alone takes a third.
        order = np.argsort(lines[0]) if len(lines) == 1 else np.lexsort(lines[::-1] or [words[0]])
        every: Any = self._rows.view(f"V{self.width}").ravel()
        for start in range(0, self._count, CHUNK_ROWS):
            part = every[order[start : start + CHUNK_ROWS]]
            yield part.view(np.uint8).reshape(len(part), self.width)


class Stacked(Mapping[bytes, bytes | None]):
    """Rows, and a dictionary of what is newer, as one, for whoever writes it into a file. Neither changes any more."""

    def __init__(self, rows: Rows, newer: Layer) -> None:
        self.rows, self.newer = rows, newer

    def __getitem__(self, key: bytes) -> bytes | None:
        if key in self.newer:
            return self.newer[key]
        found = self.rows.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.layer())

    def __len__(self) -> int:
        return len(self.layer())

    def layer(self) -> Layer:
        """As a dictionary of its own."""
        return {**self.rows.layer(), **self.newer}


def _layer(rows: Bytes, key_bytes: int) -> Layer:
    return dict(zip(column(rows[:, :key_bytes]), column(rows[:, key_bytes:]), strict=True))


def _first_place(words: Words, places: int) -> Ints:
    """In a table of so many."""
    mixed = words[0] * np.uint64(FACTORS[0])
    for line in range(1, len(words)):
        mixed += words[line] * np.uint64(FACTORS[line])
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(MIXER)
    found: Ints = (mixed >> np.uint64(65 - places.bit_length())).astype(np.int64)
    return found


def _words(keys: Bytes) -> Words:
    """Keys as numbers that sort as they do, a line for each eight bytes."""
    count, width = keys.shape
    padded = np.zeros((count, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = keys
    return np.ascontiguousarray(padded.view(">u8").T, np.uint64)


def column(items: Bytes) -> list[bytes]:
    """Equally long ones, as objects."""
    found: list[bytes] = np.ascontiguousarray(items).view(f"V{items.shape[1]}").ravel().tolist()
    return found
