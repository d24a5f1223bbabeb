"""Load for fault runs: four clients, every operation recorded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from chaos.history import History, Operation
from logboom import Add, Cas, Client, Put, Record, Status
from logboom.errors import LogboomError

KV_PARTITIONS = 6
LOG_PARTITIONS = (6, 7)
REGISTERS = 12
CREATED_SHARE = 0.25
TIMEOUT_S = 15.0


class Workload:
    """One client's part. Registers live on partitions 0 to 5 by number; appends go to the ``log`` partitions."""

    def __init__(
        self,
        client: Client,
        history: History,
        process: int,
        rng: random.Random,
        *,
        created: Callable[[], Sequence[tuple[int, str]]] = lambda: (),
    ) -> None:
        """``created``: further partitions to write to, as of now, and their state machines."""
        self._client = client
        self._history = history
        self._process = process
        self._rng = rng
        self._created = created
        self._count = 0
        self._seen_last: dict[str, Any] = {}
        """What each register had when this client last read or wrote it."""
        self.stopped = False

    async def run(self, concurrency: int) -> None:
        """Until ``stopped``: a few operations under way at any time (registers one at a time)."""
        await asyncio.gather(self._registers(), *[self._writes() for _ in range(concurrency)])

    async def _writes(self) -> None:
        while not self.stopped:
            self._count += 1
            name = f"c{self._process}-{self._count}"
            partition, machine = self._somewhere()
            if machine == "kv":
                op = self._history.invoke(self._process, "add", name, 1, partition)
                await self._call(op, Add(name.encode(), 1))
            else:
                op = self._history.invoke(self._process, "append", f"log{partition}", name, partition)
                await self._call(op, Record(name.encode()))

    def _somewhere(self) -> tuple[int, str]:
        created = self._created()
        if created and self._rng.random() < CREATED_SHARE:
            return self._rng.choice(created)
        if self._rng.random() < 0.7:
            return self._rng.randrange(KV_PARTITIONS), "kv"
        return self._rng.choice(LOG_PARTITIONS), "log"

    async def _registers(self) -> None:
        while not self.stopped:
            number = self._rng.randrange(REGISTERS)
            key, partition = f"r{number}", number % KV_PARTITIONS
            self._count += 1
            value = f"v{self._process}-{self._count}"
            choice = self._rng.random()
            if choice < 0.5:
                op = self._history.invoke(self._process, "get", key, None, partition)
                await self._get(op)
            elif choice < 0.8:
                op = self._history.invoke(self._process, "put", key, value, partition)
                await self._call(op, Put(key.encode(), value.encode()))
            else:
                seen = self._seen_last.get(key)
                expected = self._rng.choice([None, seen, seen, seen])  # by a guess alone hardly any would succeed
                op = self._history.invoke(self._process, "cas", key, [expected, value], partition)
                await self._call(op, Cas(key.encode(), expected.encode() if expected else None, value.encode()))

    async def _get(self, op: Operation) -> None:
        try:
            found = await self._client.get(op.partition, op.key.encode(), timeout=TIMEOUT_S)
        except LogboomError as error:
            self._history.end(op, "fail", error=error.code)
        else:
            value = found.decode() if isinstance(found, bytes) else found
            self._history.end(op, "ok", result=value)
            self._seen_last[op.key] = value

    async def _call(self, op: Operation, command: Any) -> None:
        try:
            receipt = await self._client.submit(op.partition, command, wait="applied", timeout=TIMEOUT_S)
        except LogboomError as error:
            self._history.end(op, "fail" if error.outcome == "not_applied" else "info", error=error.code)
            return
        status = receipt.results[0] if receipt.results else Status.UNKNOWN_RESULT
        where = {"index": receipt.first_index, "global_index": receipt.global_index}
        if op.f == "cas" and status is Status.UNKNOWN_RESULT:
            self._history.end(op, "info", **where)
        else:
            self._history.end(op, "ok", result=status is Status.OK, **where)
            if status is Status.OK and op.f in ("put", "cas"):
                self._seen_last[op.key] = op.value[1] if op.f == "cas" else op.value
