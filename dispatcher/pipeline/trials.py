"""State machines of users, tried before a partition with one is proposed: where it is handed up nobody can refuse it.

Whoever asks while one of the same name is being tried waits for that. One that does not return keeps nobody else, nor
itself, from being tried again, a few times: it keeps a thread each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ports.offload import Offload

TRIALS_MAX: Final = 3
"""Of one name at a time: its threads are four."""

Tried = Callable[[BaseException | None], None]


class Trials:
    """The trials that are under way on one node."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[Any, Tried]]] = {}
        """Who asked, and is to be told, by state machine."""
        self._under_way: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def attend(self, name: str, trial: Callable[[], None], threads: Offload, *, who: Any, tried: Tried) -> None:
        """``tried`` is called, with what went wrong, once such a machine has been, unless ``who`` leaves before."""
        waiting = self._waiting.setdefault(name, [])
        waiting.append((who, tried))
        if len(waiting) == 1 and self._under_way[name] < TRIALS_MAX:
            self._under_way[name] += 1
            threads.submit(trial, partial(self._ended, name))

    def leave(self, who: Any) -> None:
        """Idempotent."""
        for waiting in self._waiting.values():
            waiting[:] = [each for each in waiting if each[0] is not who]

    def _ended(self, name: str, _: None, error: BaseException | None) -> None:
        self._under_way[name] -= 1
        for _who, tried in self._waiting.pop(name, []):
            tried(error)
