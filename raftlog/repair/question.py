"""What one peer was asked for last."""

from __future__ import annotations

from dataclasses import dataclass

from logboom.types import NodeId


@dataclass(slots=True)
class Question:
    """Under way."""

    peer: NodeId
    at: float
    number: int
    digests: list[bytes]
    in_turn: bool
    """It is for all that is missing, in turn."""
    awaited: bytes
    """The last batch that comes, if all do."""

    def is_it(self, peer: NodeId, number: int) -> bool:
        """An answer of ``peer`` to its question of that number belongs to this one."""
        return (self.peer, self.number) == (peer, number)
