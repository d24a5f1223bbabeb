"""In the place of a user's state machine that this node does not have, or cannot open. It applies nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NoReturn

from logboom.commands import Value
from logboom.errors import CorruptData
from logboom.state_machine import NOWHERE, ApplyBatch, Entry, Position, Results, Sealed, StateDump


class AbsentMachine:
    """See the module. What is on the disk of the state stays as it is."""

    needs_records: ClassVar[bool] = False
    unsaved_bytes = 0

    def __init__(self, story: str) -> None:
        """``story``: why there is no other."""
        self._story = story

    def position(self) -> Position:
        """Nobody can say."""
        return NOWHERE

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        """See position."""
        return iter(())

    def checkpoint(self) -> None:
        """There is nothing to be saved."""

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        """See Machine."""
        self._refuse()

    def get(self, keys: Sequence[bytes]) -> tuple[list[Value | None], Position]:
        """See Machine."""
        self._refuse()

    def scan(
        self, *, start: bytes, end: bytes | None, limit: int, chunk: int
    ) -> Iterator[tuple[list[tuple[bytes, Value]], Position]]:
        """See Machine."""
        self._refuse()

    def digest(self) -> tuple[bytes, Position]:
        """See Machine."""
        self._refuse()

    def dump(self) -> StateDump:
        """See Machine."""
        self._refuse()

    def load(self, entries: Iterator[Entry], position: Position) -> None:
        """See Machine."""
        self._refuse()

    def close(self) -> None:
        """See Machine."""

    def _refuse(self) -> NoReturn:
        raise CorruptData(self._story)
