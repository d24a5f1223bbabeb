"""How writes to partitions are answered is set now and then, while they are written to; and whoever sets it is told.

What it does to answers ``receipts`` looks at, and that all nodes know the same of it ``oracle``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from logboom import Client
from logboom.errors import LogboomError

if TYPE_CHECKING:
    from chaos.sim.seen import Seen

PAUSE_S: Final = 2.0
PAUSE_MAX_S: Final = 10.0
AFTER_ERROR_S: Final = 0.2


class Setting:
    """One client's."""

    def __init__(
        self, client: Client, *, seen: Seen, rng: random.Random, partitions: Callable[[], Sequence[int]]
    ) -> None:
        self._client = client
        self._seen = seen
        self.rng = rng
        self._partitions = partitions

    async def step(self) -> None:
        """Set one, or both, of one partition."""
        await asyncio.sleep(min(self.rng.expovariate(1 / PAUSE_S), PAUSE_MAX_S))
        partitions = self._partitions()
        if not partitions:
            return
        partition = self.rng.choice(partitions)
        ack = self.rng.choice([None, "committed", "durable", "applied"])
        linearizable = self.rng.choice([True, False] if ack is None else [None, True, False])
        try:
            told = await self._client.set_partition(partition, ack=ack, linearizable=linearizable)
        except LogboomError as error:
            self._seen.refused("who sets a partition", error)
            await asyncio.sleep(AFTER_ERROR_S)
            return
        asked = {"partition": partition, "ack": ack, "linearizable": linearizable}
        if any(value is not None and told[name] != value for name, value in asked.items()):
            self._seen.problems.append(("SetTold", f"{asked} is answered with {told}"))
        self._seen.sets += 1
