"""What is damaged on a disk comes back: whoever reads all of it, again and again, has all of it in the end.

A read finds the damage, and asks for repair: of records others have copies, and states are made anew.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from logboom import Client
from logboom.errors import CorruptData
from logboom.types import KIB, PartitionId

MENDER: Final = "mender"
DICE: Final = 0x3E4D
READ_S: Final = 5.0
LOOK_S: Final = 0.1
CREDIT: Final = 8 * KIB


class Mending:
    """Of one run. ``living``: partitions with a state machine that are there to stay. ``patience_s``: for what comes
    next of a state.
    """

    def __init__(
        self, seed: int, *, loop: SimLoop, living: Callable[[str], list[int]], patience_s: float = READ_S
    ) -> None:
        self._patience_s = patience_s
        self._rng = random.Random(seed ^ DICE)
        self._loop = loop
        self._living = living
        self.lacks = ""
        """What could not be read yet."""

    async def play(self, hosts: Collection[Host]) -> None:
        """Of these nodes, each partition in turn, until all has been read."""
        done: asyncio.Future[None] = self._loop.create_future()

        async def read() -> None:
            for host in hosts:
                async with Client([host.member.client_address], rng=self._rng, timeout=self._patience_s) as client:
                    for partition in self._living("kv"):
                        await self._until_read(client, host, partition, self._state)
                    for partition in self._living("kv") + self._living("log"):
                        await self._until_read(client, host, partition, self._log)
            self._loop.run_as(None, done.set_result, None)  # what follows is not the reader's

        if hosts:
            self._loop.spawn(self._loop.process(MENDER), read())
            await done

    async def _until_read(self, client: Client, host: Host, partition: int, read: Any) -> None:
        whole = False
        while not whole:
            with suppress(CorruptData):
                whole = await read(client, host, partition)
            if not whole:
                self.lacks = f"{host.name}: {read.__name__} of partition {partition}"
                await asyncio.sleep(LOOK_S)

    async def _state(self, client: Client, host: Host, partition: int) -> bool:
        async for _ in client.scan(partition, at_least=1, node=host.member.client_address):
            pass
        return host.node is not None and not host.node.pipeline.rebuilding.fenced(PartitionId(partition))

    async def _log(self, client: Client, host: Host, partition: int) -> bool:
        """What is gone everywhere is stepped over."""
        where = host.member.client_address
        # Little at a time: in some seeds no frame may be large.
        rows = client.tail(partition, node=where, credit=CREDIT, on_compacted="first", on_void=lambda _: None)
        async for _ in rows:
            pass
        return host.node is not None and not host.node.pipeline.raft.repair.blocked
