"""How late the event loop is: a timer that looks at when it fires."""

from __future__ import annotations

import asyncio
from typing import Final

from ports.counts import SECONDS, Buckets

EVERY_S: Final = 0.25


class LoopLag:
    """How late timers of the running loop are, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self.seconds = Buckets(SECONDS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(EVERY_S, self._look, loop, loop.time() + EVERY_S)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.seconds.observe(max(0.0, loop.time() - due))
        self.start()

    def stop(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()
