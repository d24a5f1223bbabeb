"""A crowd: clients of their own, each with a command or a few, all at once: they share batches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from chaos.history import Operation
from chaos.sim.parameters import Parameters
from logboom import Add, Client, Record

if TYPE_CHECKING:
    from chaos.sim.seen import Seen

MOST: Final = 6
REST_S: Final = 0.5
COMMANDS_MAX: Final = 3
WAITS: Final = ("committed", "durable", "applied")

Invoke = Callable[[str, str, Any, int], Operation]
Call = Callable[[list[Operation], Callable[[], Any]], Awaitable[None]]
Name = Callable[[], str]


class Crowd:
    """One, with dice of its own."""

    def __init__(
        self, parameters: Parameters, seen: Seen, number: int, *, timeout: float, invoke: Invoke, call: Call, name: Name
    ) -> None:
        """That of client ``number``; ``invoke`` and ``call`` record an operation, ``name`` makes names."""
        self.rng = rng = random.Random(parameters.seed << 24 ^ number)
        self._clients = [
            Client(list(seen.addresses), rng=random.Random(rng.getrandbits(64)), timeout=timeout)
            for _ in range(rng.randint(3, MOST))
        ]
        self._keyed, self._logs, self._gone = parameters.kv_partitions, parameters.log_partitions, seen.doomed
        self._invoke, self._call, self._name = invoke, call, name

    async def step(self) -> None:
        """All of them write to one partition."""
        partitions = [p for p in (*self._keyed, *self._logs) if p not in self._gone]
        if partitions:
            partition = self.rng.choice(partitions)
            write = self._append if partition in self._logs else self._add
            await asyncio.gather(*[write(client, partition) for client in self._clients])
        await asyncio.sleep(REST_S)

    async def _add(self, client: Client, partition: int) -> None:
        names = [f"crowd-{self._name()}" for _ in range(self.rng.randint(1, COMMANDS_MAX))]
        operations = [self._invoke("add", name, 1, partition) for name in names]
        rows, wait = [Add(name.encode(), 1) for name in names], self.rng.choice(WAITS)
        await self._call(operations, lambda: client.submit(partition, rows, wait=wait))

    async def _append(self, client: Client, partition: int) -> None:
        name, wait = self._name(), self.rng.choice(WAITS)
        operation = self._invoke("append", f"log{partition}", name, partition)
        await self._call([operation], lambda: client.submit(partition, Record(name.encode()), wait=wait))

    async def close(self) -> None:
        """All go home."""
        for client in self._clients:
            await client.close()
