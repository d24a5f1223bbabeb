"""The state of ``kv`` at one moment, for a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from logboom.state_machine import Entry, Position, Space
from partitions.machines.kv_layers import Layer, merged
from partitions.machines.kv_rows import Stacked
from ports.state_file import StateView


class KvDump:
    """See StateDump: a view of the file, and what had changed since."""

    def __init__(
        self, file: StateView, states: Sequence[Mapping[bytes, bytes | None]], meta: Layer, position: Position
    ) -> None:
        """``states``: the older first. They are put together later: until this returns nothing is applied."""
        self.position = position
        self._file = file
        self._states, self._meta = states, meta
        self._closed = False

    def entries(self) -> Iterator[Entry]:
        """See StateDump."""
        state: Layer = {}
        for each in self._states:
            state.update(each.layer() if isinstance(each, Stacked) else each)
        for key, value in merged(self._file.entries(b""), state):
            yield Space.STATE, key, value
        for key, value in merged(self._file.meta(), self._meta):
            yield Space.META, key, value

    def close(self) -> None:
        """See StateDump."""
        if not self._closed:
            self._closed = True
            self._file.__exit__(None, None, None)
            self._states, self._meta = (), {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
