"""An operator who stops nodes as SIGTERM does, one after the other, and starts them again, while all else goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from chaos.sim.host import Host

PAUSE_S: Final = 5.0
"""Between two restarts, about."""
AWAY_S: Final = (0.0, 1.5)
SWITCHED_OFF: Final = 0.3
"""Share of those that are stopped whose machine is then switched off at once."""
LOOK_S: Final = 0.05


class Orderly:
    """Of one run. ``power_may_fail``: what this host has written and not synced is nowhere promised."""

    def __init__(
        self,
        hosts: Sequence[Host],
        *,
        rng: random.Random,
        power_may_fail: Callable[[Host], bool],
        note: Callable[[str], None],
    ) -> None:
        self._hosts = hosts
        self._rng = rng
        self._power_may_fail = power_may_fail
        self._note = note
        self.stops = 0
        """That came to their end."""

    async def play(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            serving = [host for host in self._hosts if host.serving and not host.retired]
            if serving:
                await self._restart(self._rng.choice(serving))

    async def _restart(self, host: Host) -> None:
        before, process = host.stops, host.process
        self._note(f"{host.name} is stopped in order")
        host.stop()
        while process is not None and process.alive:  # noqa: ASYNC110 - the dead wake nobody
            await asyncio.sleep(LOOK_S)
        if host.stops > before and not host.up:
            self.stops += 1
            self._note(f"{host.name} has stopped")
            if self._rng.random() < SWITCHED_OFF and self._power_may_fail(host):
                host.switch_off()
        await asyncio.sleep(self._rng.uniform(*AWAY_S))
        host.start()

    def leave(self) -> None:
        """Whoever is being stopped is gone at once."""
        for host in self._hosts:
            if host.closing:
                host.kill(power=False)
