"""Small states, and sets of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from logboom.state_machine import Entry, Position, Space
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, RaftIndex, Term
from snapshots.meta import SetMeta
from snapshots.states import Written


class Dump:
    """A logboom.state_machine.StateDump of what it is given."""

    def __init__(self, entries: Sequence[Entry], index: int = 1) -> None:
        self.given = entries
        self.position = Position(PartitionLogIndex(index), GlobalLogIndex(index))

    def entries(self) -> Iterator[Entry]:
        return iter(self.given)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def entries(count: int, *, value: bytes = b"value") -> list[Entry]:
    state = [(Space.STATE, b"k%06d" % k, value) for k in range(count)]
    return [*state, (Space.META, b"p", b"%d" % count)]


def dumps(global_index: int) -> dict[PartitionId, Dump]:
    """Of three partitions, one of them empty; other ones for every index."""
    each = (entries(5), [], entries(global_index % 7, value=b"%d" % global_index))
    return {PartitionId(2 * k): Dump(rows, k) for k, rows in enumerate(each)}


def set_meta(written: Written) -> SetMeta:
    return SetMeta(
        cluster="c",
        global_index=written.global_index,
        raft_index=RaftIndex(7),
        raft_term=Term(2),
        parent=b"parent %d" % written.global_index,
        partitions=written.partitions,
        states_bytes=written.states_bytes,
        states_digest=written.states_digest,
        created_ms=1_700_000_000_000,
    )
