"""Clients that are there in both histories of a cluster: one writes all along, one has to be refused by the second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from chaos.history import Operation
from chaos.sim.loop import SimLoop
from chaos.sim.programs import ASKED_S, Programs
from chaos.sim.seen import Seen
from logboom import Add, Client
from logboom.errors import LineageMismatch, LogboomError
from logboom.types import Token

PRODUCER: Final = b"from before, too"
PRODUCER_S: Final = 1.0
PARTITION: Final = 0
"""Which is always there, with keys."""
AGAIN_S: Final = 0.2


class Lasting:
    """Of one run. ``fail(invariant, story)`` ends it."""

    def __init__(
        self,
        programs: Programs,
        *,
        loop: SimLoop,
        rng: random.Random,
        note: Callable[[str], None],
        fail: Callable[[str, str], None],
    ) -> None:
        self._programs = programs
        self._loop = loop
        self._rng = rng
        self._note = note
        self._fail = fail
        self.over = False
        self._produced: list[Operation] = []
        """By sequence number, whatever history it was in."""
        self._token: Token | None = None
        self._client: Client | None = None
        """Of before."""

    def start(self, seen: Seen, *, first: bool) -> None:
        """A history begins: one who writes goes through all that it has ever written; one will be of before."""
        self._programs.spawn(
            "producer", lambda: self._loop.create_task(self._produce(seen, self._programs.new_client()))
        )
        if first:
            self._programs.spawn("before", lambda: self._loop.create_task(self._meet()))

    def stop(self) -> None:
        """It ends: who wrote is gone, who was there before stays."""
        self._programs.end("producer")

    async def _produce(self, seen: Seen, client: Client) -> None:
        """Under numbers of its own: what the history has takes no effect again, what it lacks does."""
        sequence, rng = 0, random.Random(self._rng.getrandbits(64))
        while True:
            await asyncio.sleep(rng.expovariate(1 / PRODUCER_S) if sequence == len(self._produced) else 0.01)
            name = f"p{sequence}"
            if sequence == len(self._produced):
                self._produced.append(seen.history.invoke(0, "add", name, 1, PARTITION))
            op, command = self._produced[sequence], Add(name.encode(), 1)
            try:
                receipt = await client.submit(PARTITION, command, producer_id=PRODUCER, sequence=sequence)
            except LogboomError as error:
                self._note(f"producer: {error!r}")
                await asyncio.sleep(AGAIN_S)
                continue
            seen.history.end(op, "ok", index=receipt.first_index, global_index=receipt.global_index)
            sequence += 1

    async def _meet(self) -> None:
        client = self._client = self._programs.new_client()
        while self._token is None:
            try:
                await client.get(PARTITION, b"p0")
                self._token = await client.token()
            except LogboomError:
                await asyncio.sleep(AGAIN_S)

    async def are_told(self) -> None:
        """A client of before, and one that has a token of before: they are told, and nothing else. In a process."""
        telling: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def tell() -> None:
            await self._tell()
            self._loop.run_as(None, lambda: None if telling.done() else telling.set_result(None))

        self._programs.spawn("told", lambda: self._loop.create_task(tell()))
        await asyncio.wait([telling])

    async def _tell(self) -> None:
        client, token, stranger = self._client, self._token, self._programs.new_client()
        if client is None or token is None:
            return
        asked: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            ("a client of before writes", lambda: client.submit(PARTITION, Add(b"ghost", 1), timeout=ASKED_S)),
            ("a token of before is waited for", lambda: stranger.barrier(token, partitions=[PARTITION])),
            ("a token of before is read at", lambda: stranger.get(PARTITION, b"p0", at_least=token)),
        ]
        for what, ask in asked:
            while not self.over:
                try:
                    answer = await ask()
                except LineageMismatch:
                    break
                except LogboomError as error:
                    self._note(f"{what}: {error!r}")
                    await asyncio.sleep(AGAIN_S)
                else:
                    self._fail("OtherHistory", f"{what}: {answer}")
                    return
