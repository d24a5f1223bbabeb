"""Somebody who asks every node for all that operators ask for, whatever state it is in: each answers, or says why not.

What goes wrong in an answer ends one connection, and is logged: the timeline hears of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from chaos.sim.host import WALL_EPOCH_MS
from chaos.sim.loop import EPOCH_S, Process, SimLoop
from chaos.sim.network import SimNetwork
from chaos.sim.parameters import Parameters
from chaos.sim.seen import Seen
from logboom import Client
from logboom.errors import LogboomError

ASKER: Final = "asker"
AT_ONCE: Final = 3
"""Ask: of a snapshot, too, while another one is under way, and a partition that somebody has paused holds that up."""
PAUSE_S: Final = 0.8
"""Between two questions of each, about."""
ASKED_S: Final = 3.0
PAUSED_S: Final = 1.5


class Asking:
    """Of one run. ``fail(invariant, story)`` ends it."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        loop: SimLoop,
        network: SimNetwork,
        rng: random.Random,
        seen: Seen,
        fail: Callable[[str, str], None],
    ) -> None:
        self._loop = loop
        self._network = network
        self._rng = rng
        self._seen = seen
        self._fail = fail
        self._partitions = parameters.kv_partitions + parameters.log_partitions
        self._clocks_agree = "clock_jump" not in parameters.kinds
        self._process: Process | None = None
        self.answered = 0

    def start(self) -> None:
        """From now on."""
        self._process = self._loop.process(ASKER)
        for _ in range(AT_ONCE):
            self._loop.spawn(self._process, self._ask())

    def leave(self) -> None:
        """Nothing is asked any more."""
        if self._process is not None:
            self._loop.kill(self._process)
            self._network.process_ended(self._process, silently=False)

    async def _ask(self) -> None:
        client = Client(list(self._seen.addresses), rng=random.Random(self._rng.getrandbits(64)), timeout=ASKED_S)
        kinds = [self._status, self._status, self._snapshots, self._snapshot, self._time, self._pause, self._cursors]
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            address, partition = self._rng.choice(list(self._seen.addresses)), self._rng.choice(self._partitions)
            try:
                await self._rng.choice(kinds)(client, address, partition)
                self.answered += 1
            except LogboomError as error:
                self._seen.refused("an operator", error)

    def _newest(self) -> int:
        """The highest index that anybody was told of."""
        return max((add[3] for add in self._seen.told.adds), default=0)

    async def _status(self, client: Client, address: str, _partition: int) -> None:
        await client.status(node=address, digests=self._rng.random() < 0.5)

    async def _snapshots(self, client: Client, address: str, _partition: int) -> None:
        await client.snapshots(node=address)

    async def _snapshot(self, client: Client, _address: str, _partition: int) -> None:
        """It has all that was committed before."""
        due = self._newest()
        made = await client.create_snapshot()
        if made["global_index"] < due:
            self._fail("SnapshotFresh", f"{made} was asked for after {due} had been acknowledged")

    async def _time(self, client: Client, _address: str, _partition: int) -> None:
        """What is said to be of now has all that was committed before."""
        due, now = self._newest(), WALL_EPOCH_MS / 1000 + self._loop.now - EPOCH_S
        index = await client.index_at(datetime.fromtimestamp(now, UTC))
        if self._clocks_agree and index < due:
            self._fail("TimeCovers", f"{index} is said to be of now, and {due} had been acknowledged")

    async def _pause(self, client: Client, address: str, partition: int) -> None:
        """Whoever is not told to go on again is, when the run heals."""
        await client.admin("pause", partition, node=address)
        await asyncio.sleep(self._rng.random() * PAUSED_S)
        await client.admin("resume", partition, node=address)

    async def _cursors(self, client: Client, _address: str, _partition: int) -> None:
        await client.cursors()
