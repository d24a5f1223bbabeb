"""Production code that blocks, in the simulated world: while it waits, the world goes on around it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from chaos.sim.disk import SimDisk
from chaos.sim.loop import SimLoop
from logboom import Client
from server.offline.world import OfflineWorld

READ_ONLY: Final = ("read", "open")
"""Nothing of it is on the disk afterwards."""


class BlockingClient:
    """What ``SyncClient`` is elsewhere."""

    def __init__(self, client: Client, loop: SimLoop) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args, **more: _wait(self._loop, method(*args, **more))


def _wait(loop: SimLoop, work: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_within(loop.create_task(work))


def offline_world(disk: SimDisk, loop: SimLoop, rng: random.Random) -> OfflineWorld:
    """For commands that need no node. Whoever does not sleep may be called by anybody."""
    return OfflineWorld(
        disk=disk,
        monotonic=lambda: loop.now,
        sleep=lambda seconds: _wait(loop, asyncio.sleep(seconds)),
        random_bytes=rng.randbytes,
    )


class PlugPulled(BaseException):
    """In the middle of a command."""


def dies_at(call: int) -> Callable[[str, Any, int], None]:
    """A disk's hook: the command that uses it is killed at this call that changes something."""
    left = call

    def hook(operation: str, _path: Any, _size: int) -> None:
        nonlocal left
        left -= operation not in READ_ONLY
        if left <= 0:
            raise PlugPulled

    return hook
