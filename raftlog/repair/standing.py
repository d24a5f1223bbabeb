"""Where a node stands in its term, for whoever mends, and what the leader of a term has called lost."""

from __future__ import annotations

from typing import Final, NamedTuple

from logboom.types import NodeId


class Standing(NamedTuple):
    """What the engine knows of itself."""

    term: int = 0
    leader: NodeId | None = None
    leads: bool = False


TOLD_MAX: Final = 1 << 16
"""Words of the leader that are remembered: who is told more asks again."""


class Told:
    """What the leader of a term has called lost: his word counts in that term alone."""

    def __init__(self) -> None:
        self._terms: dict[bytes, int] = {}
        """By digest."""

    def add(self, digest: bytes, term: int) -> None:
        """He has."""
        if len(self._terms) < TOLD_MAX:
            self._terms[digest] = term

    def counts(self, digest: bytes, term: int) -> bool:
        """The leader of this term has called it lost."""
        return bool(self._terms) and self._terms.get(digest, -1) == term

    def forget(self, digest: bytes) -> None:
        """It is here, or nobody needs it."""
        self._terms.pop(digest, None)

    def clear(self) -> None:
        """The term has ended."""
        self._terms.clear()
