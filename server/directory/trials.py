"""What a machine of a user's is tried with before it is used: an index, and an entry to keep, there and back."""

from __future__ import annotations

from typing import Final

from logboom.state_machine import NOWHERE, Machine, Position, in_order
from logboom.types import PRODUCER_ID_BYTES, GlobalLogIndex, PartitionLogIndex

THERE: Final = Position(PartitionLogIndex(1), GlobalLogIndex(1))
SEALED: Final = {bytes(range(1, PRODUCER_ID_BYTES + 1)): b"of a trial"}
"""Meta entries that a trial has its machine keep for its node."""


def carry_over(one: Machine, other: Machine) -> None:
    """From a machine that has applied nothing but indices, as of a batch that is void, to an empty one."""
    one.apply([], lambda _: (THERE, SEALED))
    with one.dump() as dump:
        if dump.position != THERE:
            raise ValueError(f"it has applied up to {THERE}, and its dump says {dump.position}")
        other.load(in_order(dump.entries()), THERE)
    if other.position() != THERE:
        raise ValueError(f"it loads {THERE} and says {other.position()}")
    if dict(other.meta()) != SEALED:
        raise ValueError("what seal gave it to keep (Space.META) is not in its dump, or not loaded")


def kept(again: Machine) -> None:
    """After a checkpoint and a restart: position and meta, or neither. One alone would apply twice, or not at all."""
    if (again.position(), dict(again.meta())) not in ((THERE, SEALED), (NOWHERE, {})):
        raise ValueError(f"it has saved {THERE} and {len(SEALED)} entry of meta, and comes back otherwise")
