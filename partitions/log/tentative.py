"""Batches of a partition's log that the parent log has not committed: by where they end, and by digest.

An index may have several, of different terms; the parent log says which one it means, the others are dead.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from partitions.log.segment import BatchRef

PRUNE: Final = 8192


class Tentative:
    """See the module. On the loop."""

    def __init__(self) -> None:
        self._held: dict[int, list[BatchRef]] = {}
        self._prune_above = PRUNE

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[BatchRef]:
        """Every one."""
        return [ref for refs in self._held.values() for ref in refs]

    def hold(self, ref: BatchRef) -> None:
        """One more, in front of others that end there: it was appended because an older copy is damaged."""
        self._held.setdefault(ref.last_index, []).insert(0, ref)

    def find(self, last_index: int, digest: bytes) -> BatchRef | None:
        """None: not held."""
        for ref in self._held.get(last_index, ()):
            if ref.digest == digest:
                return ref
        return None

    def lose(self, last_index: int, digest: bytes) -> bool:
        """It is damaged. False: it is not among these; others that end there may be, when it is committed too."""
        if self.find(last_index, digest) is None:
            return False
        self._held[last_index] = [each for each in self._held[last_index] if each.digest != digest]
        return True

    def commit(self, last_index: int) -> None:
        """What ends there is tentative no more; now and then, what lost a conflict before it is forgotten."""
        self._held.pop(last_index, None)  # of a hole there is nothing
        if len(self._held) > self._prune_above:
            # Seldom: after a start everything is held and nothing can go.
            self._held = {last: refs for last, refs in self._held.items() if last > last_index}
            self._prune_above = max(PRUNE, 2 * len(self._held))

    def segments_behind(self, index: int) -> set[int]:
        """Segments with batches that end behind ``index``: they may yet be committed."""
        return {ref.segment for last, refs in self._held.items() if last > index for ref in refs}

    def keep(self, segments: Collection[int]) -> None:
        """Others have been removed, with all that was in them."""
        kept = ((last, [ref for ref in refs if ref.segment in segments]) for last, refs in self._held.items())
        self._held = {last: refs for last, refs in kept if refs}
