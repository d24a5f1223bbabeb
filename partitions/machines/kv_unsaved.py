"""What has changed in a ``kv`` since a checkpoint: rows that were put in bulk, and a dictionary above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, NoReturn

from logboom.errors import CorruptData
from partitions.machines.kv_layers import ENTRY_BYTES, Layer, Ordered
from partitions.machines.kv_rows import Puts, Rows, Stacked

ABOVE_ROWS_MAX: Final = 1024
"""Keys written one by one: to go through them with each group costs less than to do without rows until a checkpoint."""


class Missing(Enum):
    """Nothing is known of a key; None says that it is gone."""

    MISSING = auto()


class Unsaved:
    """The newest state of what has changed since a checkpoint, and the memory that it takes."""

    def __init__(self, room: int = 0) -> None:
        """``room``: rows that there may be."""
        self._room = room
        self._held = False
        """Rows stay as they are."""
        self._parts: tuple[Rows | None, Layer] = (None, {})
        """What was put in bulk first, and a dictionary above it. To other threads both change at once."""
        self.keys = Ordered(self._parts[1])
        """Of the dictionary: those of all after ``settle``."""
        self.meta: Layer = {}
        self.nbytes = 0
        self.torn = False
        """A change has failed, and taking it back as well: a part of it is there."""

    @property
    def room(self) -> int:
        """That its rows take: the next ones may be as many."""
        rows, _ = self._parts
        return 0 if rows is None else len(rows)

    @property
    def has_rows(self) -> bool:
        """Not all of it is in the dictionary."""
        return self._parts[0] is not None

    def hold(self) -> Mapping[bytes, bytes | None]:
        """All of it, as it is now, for whoever goes through it later. No copy of rows: they do not change any more."""
        self._held = True
        rows, newer = self._parts
        return dict(newer) if rows is None else Stacked(rows, dict(newer))

    @property
    def state(self) -> Mapping[bytes, bytes | None]:
        """All of it."""
        rows, newer = self._parts
        return newer if rows is None else Stacked(rows, newer)

    def get(self, key: bytes) -> bytes | Missing | None:
        """The value; None: the key is gone."""
        rows, newer = self._parts
        if key in newer:
            return newer[key]
        found = None if rows is None else rows.get(key)
        return Missing.MISSING if found is None else found

    def find(self, keys: Sequence[bytes]) -> Layer:
        """Those of them of which something is known."""
        rows, newer = self._parts
        found = {} if rows is None else rows.find(keys)
        found.update({key: newer[key] for key in keys if key in newer})
        return found

    def settle(self) -> None:
        """Have all of it in the dictionary. Not while somebody changes it."""
        rows, newer = self._parts
        if rows is not None:
            state = Stacked(rows, newer).layer()
            self.nbytes += _size(state) - _size(newer) - rows.nbytes
            self._parts, self.keys = (None, state), Ordered(state)

    def merge(self, state: Mapping[bytes, bytes | None], meta: Mapping[bytes, bytes | None]) -> None:
        """Later changes: all of them, or nothing has happened, unless it is ``torn``."""
        newer, noted = self._parts[1], self.meta
        old = len(newer), list(map(newer.get, state)) if newer else []
        old_meta = len(noted), list(map(noted.get, meta)) if noted else []
        try:
            self.nbytes += _merge(newer, state, old[1]) + _merge(noted, meta, old_meta[1])
        except BaseException:
            self.torn = True
            _take_back(newer, state, *old)
            _take_back(noted, meta, *old_meta)
            self.torn = False
            raise

    @property
    def takes_rows(self) -> bool:
        """What is put may become a row: little is above them, and nobody holds them."""
        return not self._held and len(self._parts[1]) <= ABOVE_ROWS_MAX

    def put(self, puts: Puts, meta: Mapping[bytes, bytes | None]) -> bool:
        """As ``merge``, in bulk. False: nothing has happened, they are to be merged as a dictionary."""
        rows, newer = self._parts
        if not self.takes_rows or (rows is not None and not rows.takes(puts)):
            return False
        rows = Rows(puts, self._room) if rows is None else rows
        left = _left(newer, puts)  # first what may want memory
        parts, keys = (rows, left), self.keys if left is newer else Ordered(left)
        grown = _size(left) - _size(newer) - rows.nbytes
        noted = self.meta
        old_meta = len(noted), list(map(noted.get, meta)) if noted else []
        fits = False
        try:
            grown += _merge(noted, meta, old_meta[1])
            fits = rows.put(puts)
        finally:
            if not fits:
                self.torn = True
                _take_back(noted, meta, *old_meta)
                self.torn = False
        if fits:
            self._parts, self.keys = parts, keys
            self.nbytes += grown + rows.nbytes
        return fits


class Half(Unsaved):
    """In the place of changes of which a part was merged: whatever is asked of them raises CorruptData.

    There is one for all: to make one might want memory, and it follows a want of it.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        """Nothing of it is to be saved."""

    def __getattr__(self, name: str) -> NoReturn:
        raise CorruptData("a group of batches was applied in part, for want of memory: the state is of no index")


HALF: Final = Half()


def _merge(layer: Layer, changed: Mapping[bytes, bytes | None], known: list[bytes | None]) -> int:
    """Put ``changed`` over ``layer``, in part if it fails; returns by how many bytes of memory it has grown.

    ``known``: what it had of each; nothing, if it was empty.
    """
    before, replaced = len(layer), sum(map(len, filter(None, known)))
    layer.update(changed)
    fresh = len(layer) - before
    # Keys are short: which of them are new would cost more to find out than it is worth.
    keys = sum(map(len, changed)) * fresh // max(1, len(changed))
    return fresh * ENTRY_BYTES + keys + sum(map(len, filter(None, changed.values()))) - replaced


def _take_back(layer: Layer, changed: Mapping[bytes, bytes | None], count: int, known: list[bytes | None]) -> None:
    """``layer`` as it was with ``count`` keys, however much of ``changed`` is in it. Takes next to no memory."""
    while len(layer) > count:
        layer.popitem()  # what is new comes last
    for key, raw in zip(changed, known, strict=False):
        if key in layer:
            layer[key] = raw


def _left(newer: Layer, puts: Puts) -> Layer:
    """Of a dictionary what these do not put again: rows are below it."""
    if not newer:
        return newer
    again = set(puts.keys())
    return {key: value for key, value in newer.items() if key not in again}


def _size(layer: Layer) -> int:
    """The memory that it takes, as ``_merge`` has it."""
    return len(layer) * ENTRY_BYTES + sum(map(len, layer)) + sum(map(len, filter(None, layer.values())))
