"""What a leader is about to declare void: whoever has said that it lacks such a batch takes it no more. Sans-io."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SEALED_MAX: Final = 1 << 16


class Seals:
    """Of one node, in the term of now."""

    def __init__(self, carry_out: Callable[[bytes, bool], None]) -> None:
        """``carry_out``: such a batch is taken no more from now on, or is taken again."""
        self._carry_out = carry_out
        self._on: set[bytes] = set()
        self._asked: Counter[bytes] = Counter()
        """Of which all are being asked, on the leader, and how many want to know."""

    def __contains__(self, digest: object) -> bool:
        """It is sealed, or others may have sealed it: a leader's ordinary question would take that off again."""
        return digest in self._on or digest in self._asked

    def put(self, digest: bytes, *, on: bool) -> None:
        """The leader of this term is about to declare it void, or is not. Whatever is on its way comes too late."""
        if on and len(self._on) < SEALED_MAX:
            self._on.add(digest)
        elif not on:
            self._on.discard(digest)
        self._carry_out(digest, on)

    @contextmanager
    def asking(self, digest: bytes) -> Iterator[None]:
        """Leader only: until all have answered whether they have it, nobody asks them anything else about it."""
        self._asked[digest] += 1
        try:
            yield
        finally:
            self._asked[digest] -= 1
            if not self._asked[digest]:
                del self._asked[digest]

    def clear(self) -> None:
        """The term has ended."""
        for digest in list(self._on):
            self.put(digest, on=False)
