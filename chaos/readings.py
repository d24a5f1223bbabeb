"""Reads of every kind while all that happens: tallies that one process counts and all look at; views of partitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.checkers.freshness import AT_LEAST, BOUNDED, KINDS, LINEARIZABLE, SESSION, STALE
from chaos.checkers.together import View
from chaos.history import History
from logboom import Add, Client
from logboom.errors import LogboomError

TIMEOUT_S: Final = 6.0
COUNT_S: Final = 15.0
PAUSE_S: Final = 0.02
SCANNED: Final = 1 / 3
"""Of the looks at tallies."""
VIEW_PAUSE_S: Final = 0.5
BOUNDS_S: Final = (0.0, 0.1, 1.0)
GROUPS: Final = "g"
"""What the keys of requests of several commands begin with."""
PREFIX: Final = GROUPS.encode()


class Told:
    """Receipts of all tallies, for whoever wants to read what is at least as new."""

    def __init__(self) -> None:
        self.indices: dict[str, list[int]] = {}

    def some(self, key: str, rng: random.Random) -> int:
        """One of the last global indices."""
        return rng.choice(self.indices[key][-3:]) if self.indices.get(key) else 0


class Readings:
    """One client's part."""

    def __init__(
        self,
        client: Client,
        history: History,
        process: int,
        rng: random.Random,
        *,
        told: Told,
        processes: int,
        partitions: int,
        addresses: Callable[[], Sequence[str]],
    ) -> None:
        """``processes``: as many count; ``addresses``: of nodes to be asked by name."""
        self._client = client
        self._history = history
        self._process = process
        self._rng = rng
        self._told = told
        self._processes = processes
        self._partitions = partitions
        self._addresses = addresses
        self.stopped = False

    async def run(self) -> None:
        """Until ``stopped``."""
        await asyncio.gather(self._count(), self._looks(), self._looks())

    def _place(self, process: int) -> tuple[str, int]:
        return f"t{process}", process % self._partitions

    async def _count(self) -> None:
        key, partition = self._place(self._process)
        while not self.stopped:
            op = self._history.invoke(self._process, "tally", key, 1, partition)
            wait = self._rng.choice(["committed", "durable", "applied"])
            try:
                receipt = await self._client.submit(partition, Add(key.encode(), 1), wait=wait, timeout=COUNT_S)
            except LogboomError as error:
                self._history.end(op, "fail" if error.outcome == "not_applied" else "info", error=error.code)
                continue
            self._told.indices.setdefault(key, []).append(receipt.global_index)
            self._history.end(op, "ok", index=receipt.first_index, global_index=receipt.global_index)
            await asyncio.sleep(PAUSE_S)

    async def _looks(self) -> None:
        while not self.stopped:
            key, partition = self._place(self._rng.randrange(self._processes))
            kind = self._rng.choice(KINDS)
            bound, how = self._how(kind, key)
            if kind != LINEARIZABLE and self._rng.random() < 0.5:
                how["node"] = self._rng.choice(self._addresses())
            op = self._history.invoke(self._process, "look", key, [kind, bound], partition)
            try:
                found = await self._found(partition, key.encode(), how)
            except LogboomError as error:
                self._history.end(op, "fail", error=error.code)
            else:
                self._history.end(op, "ok", result=found[0] if found else 0)
            await asyncio.sleep(PAUSE_S)

    async def _found(self, partition: int, key: bytes, how: dict[str, Any]) -> Any:
        """A scan of one key alone promises as much as a get."""
        if self._rng.random() >= SCANNED:
            return await self._client.get(partition, key, timeout=TIMEOUT_S, **how)
        rows = self._client.scan(partition, start=key, end=key + b"\0", timeout=TIMEOUT_S, **how)
        values = [value async for _, value in rows]
        return values[0] if values else None

    def _how(self, kind: str, key: str) -> tuple[int, dict[str, Any]]:
        """The bound of a read, and how it is asked for."""
        if kind == AT_LEAST:
            index = self._told.some(key, self._rng)
            return index, {"at_least": index}
        if kind == BOUNDED:
            bound = self._rng.choice(BOUNDS_S)
            return int(bound * 1e9), {"max_staleness": bound}
        plain: dict[str, dict[str, Any]] = {SESSION: {"at_least": "session"}, STALE: {"stale": True}}
        return 0, plain.get(kind, {})


async def watch_views(client: Client, history: History, views: list[View], partitions: int, rng: random.Random) -> None:
    """Until cancelled: what requests of several commands have done, in several partitions at one moment."""
    while True:
        chosen = frozenset(rng.sample(range(partitions), rng.randint(2, partitions)))
        start, keys, moment = history.now_ns(), set[tuple[int, str]](), 0
        try:
            async for entry in client.scan_view(sorted(chosen), prefix=PREFIX, timeout=TIMEOUT_S):
                keys.add((entry.partition_id, entry.key.decode()))
                moment = entry.global_index
        except LogboomError:
            pass  # what has come of it is no view
        else:
            views.append(View(start, moment, chosen, frozenset(keys)))
        await asyncio.sleep(VIEW_PAUSE_S)
