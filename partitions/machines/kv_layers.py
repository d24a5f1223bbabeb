"""The state of ``kv`` as layers: changes in memory above entries that are sorted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from logboom.commands import end_of
from ports.state_file import KEY_BYTES_MAX

Layer = dict[bytes, bytes | None]
"""Newer values by key; None: the key is gone."""
Range = tuple[bytes, bytes | None]
"""Keys from the first on, up to the other, exclusive; None: to the last one."""
ENTRY_BYTES: Final = 200
"""Roughly what a key in memory costs beside its bytes."""
BEHIND_ALL: Final = b"\xff" * (KEY_BYTES_MAX + 1)
EMPTIED_MAX: Final = 64
AHEAD: Final = 64
"""So many keys more than are asked for are looked at first, as some of them may be gone."""


def merged(
    below: Iterable[tuple[bytes, bytes]],
    changes: Mapping[bytes, bytes | None],
    *,
    start: bytes = b"",
    end: bytes | None = None,
    keys: Iterable[bytes] | None = None,
) -> Generator[tuple[bytes, bytes], None, None]:
    """Entries from ``below``, which begin at ``start``, with ``changes``, ascending, up to ``end``, exclusive.

    ``keys``: those of ``changes`` in that range, ascending, for whoever has them.
    """
    if keys is None:
        keys = sorted(key for key in changes if key >= start and (end is None or key < end))
    coming = iter(keys)
    changed = next(coming, None)
    for key, raw in below:
        if end is not None and key >= end:
            break
        while changed is not None and changed < key:
            yield from _present(changed, changes)
            changed = next(coming, None)
        if changed == key:
            yield from _present(key, changes)
            changed = next(coming, None)
        else:
            yield key, raw
    while changed is not None:
        yield from _present(changed, changes)
        changed = next(coming, None)


def _present(key: bytes, changes: Mapping[bytes, bytes | None]) -> Iterable[tuple[bytes, bytes]]:
    raw = changes[key]
    return () if raw is None else ((key, raw),)


class Ordered:
    """A layer's keys in order, for whoever asks for ranges of them again and again. No key ever leaves a layer."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._keys: list[bytes] = []

    def renew(self) -> None:
        """Sort in what has come since. Not while somebody changes the layer."""
        if len(self._keys) < len(self._layer):
            keys = [*self._keys, *islice(self._layer, len(self._keys), None)]
            keys.sort()
            self._keys = keys  # another list: one that is being sorted looks empty to whoever reads it meanwhile

    def within(self, start: bytes, end: bytes | None, most: int = 0) -> list[bytes]:
        """Those of a range, as of the last ``renew``; ``most``: the first so many of them, 0: all."""
        keys = self._keys
        first, behind = bisect_left(keys, start), len(keys) if end is None else bisect_left(keys, end)
        return keys[first : min(behind, first + most) if most else behind]

    def of(self, keys: list[bytes]) -> Layer:
        """What the layer has of them."""
        return dict(zip(keys, map(self._layer.__getitem__, keys), strict=True))


def in_range(
    older: Ordered, newer: Ordered, *, start: bytes, end: bytes | None, limit: int
) -> tuple[list[bytes], Layer]:
    """Of a range what two layers have together, ascending: all of it, or as much as gives ``limit`` entries (0: all).

    Not while somebody changes them.
    """
    older.renew()
    newer.renew()
    most = 2 * limit + AHEAD if limit else 0
    while True:
        parts = [layer.within(start, end, most) for layer in (older, newer)]
        changes = {**older.of(parts[0]), **newer.of(parts[1])}
        keys = sorted(changes)
        known = min((part[-1] for part in parts if most and len(part) == most), default=None)
        if known is None:
            return keys, changes
        keys = keys[: bisect_right(keys, known)]  # behind it one of them may have more
        if sum(changes[key] is not None for key in keys) >= limit:
            return keys, changes
        most *= 8


class Emptied:
    """Ranges in which nothing is, as far as it is remembered: what was removed there nobody goes through again.

    Of more than ``EMPTIED_MAX`` the first is forgotten, which costs time, and nothing else.
    """

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []
        """Exclusive. Both ascend, and no range touches another."""

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, emptied: Range) -> None:
        """One in which nothing is left."""
        start, end = emptied[0], _bound(emptied[1])
        if start >= end:
            return
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._put(low, high, [(start, end)])

    def filled(self, key: bytes) -> None:
        """There is something now."""
        at = bisect_right(self._starts, key) - 1
        if at >= 0 and key < self._ends[at]:
            rows = (self._starts[at], key), (_behind(key), self._ends[at])
            self._put(at, at + 1, [row for row in rows if row[0] < row[1]])

    def _put(self, low: int, high: int, rows: list[tuple[bytes, bytes]]) -> None:
        self._starts[low:high], self._ends[low:high] = [row[0] for row in rows], [row[1] for row in rows]
        for bounds in (self._starts, self._ends):
            del bounds[: max(0, len(bounds) - EMPTIED_MAX)]

    def rest(self, start: bytes, end: bytes | None) -> Iterator[Range]:
        """Where there may be something in a range, ascending."""
        stop = _bound(end)
        at = bisect_right(self._starts, start)
        if at and start < self._ends[at - 1]:
            start = self._ends[at - 1]
        for low, high in zip(self._starts[at:], self._ends[at:], strict=True):
            if low >= stop:
                break
            if start < low:
                yield start, low
            start = high
        if start < stop:
            yield start, end


def _bound(end: bytes | None) -> bytes:
    """The same end as a key that there can be, since a file is asked for what follows it; or behind all of them."""
    if end is None:
        return BEHIND_ALL
    return end if len(end) <= KEY_BYTES_MAX else _behind(end[:KEY_BYTES_MAX])


def _behind(key: bytes) -> bytes:
    """The next key that there can be."""
    return key + b"\0" if len(key) < KEY_BYTES_MAX else end_of(key) or BEHIND_ALL
