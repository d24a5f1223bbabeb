"""Whom a moving frontier has reached, until they are told: few at once, many in slices. Sans-io.

Ten thousand may wait for one index. The node has other things to do than to tell all of them before it looks up again,
heartbeats above all; so the first slice is told at once, and each other one in a later turn of the loop. Meanwhile
nothing can happen to them but that they are cancelled: where they were to be, they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from dispatcher.barriers.goals import Reached, Together, Waiter

SLICE: Final = 1_000
"""Waiters, a millisecond or two of the loop."""
ROWS_OF_ONE: Final = 32
"""An answer that tells of so many partitions counts twice, of twice as many three times."""


class Answers:
    """Those at one node who have been reached and have yet to be told."""

    def __init__(self) -> None:
        self.soon: Callable[[Callable[[], None]], None] = lambda call: call()
        """Have this called in a later turn of the loop; without one, now."""
        self._met: deque[tuple[list[Waiter], Reached]] = deque()
        self._going = False

    def __len__(self) -> int:
        return sum(len(waiters) for waiters, _ in self._met)

    def add(self, waiters: list[Waiter], where: Reached) -> None:
        """These are to be told. Call ``go`` when nothing moves any more: they may ask for something else."""
        if self._met and self._met[-1][1] is where:
            self._met[-1][0].extend(waiters)
        else:
            self._met.append((waiters, where))

    def go(self) -> None:
        """Tell them, unless that goes on already. The first slice now: who is alone waits for no turn of the loop."""
        if self._met and not self._going:
            self._going = True
            self._slice()

    def _slice(self) -> None:
        met, room = self._met, SLICE
        try:
            while met and room > 0:
                waiters, where = met.popleft()
                weight = 1 + len(where.marks) // ROWS_OF_ONE
                most = max(1, room // weight)
                if len(waiters) > most:
                    met.appendleft((waiters[most:], where))
                    waiters = waiters[:most]
                room -= len(waiters) * weight
                _tell(waiters, where)
        finally:  # whatever one of them does with its answer: the others get theirs
            if met:
                self.soon(self._slice)
            else:
                self._going = False


def _tell(waiters: list[Waiter], where: Reached) -> None:
    groups: dict[Together, list[int]] = {}
    for waiter in waiters:
        done, waiter.done = waiter.done, None
        if done is None:
            continue  # it was cancelled since
        if waiter.together is None:
            done(where)
        else:
            groups.setdefault(waiter.together, []).append(waiter.number)
    for together, numbers in groups.items():
        together(numbers, where)
