"""Commands over several keys: clients move something from one account to another, look at all, and remove keys."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from chaos.history import Operation
from chaos.transfers import ACCOUNTS, MOST, conclude, opening, transfer, unbalanced
from logboom import Client, DeletePrefix, Put, Status
from logboom.errors import LogboomError
from logboom.types import Receipt

if TYPE_CHECKING:
    from chaos.sim.clients import Seen

READS: Final = 0.3
REMOVES: Final = 0.2
SPOILT: Final = 0.2
"""Of the transfers: their last command cannot be done, hence none of them is."""
SCRAPS_MAX: Final = 6
AT_ONCE: Final = 0.5
"""Of the keys that are made and removed: both in one request, where nothing of them is in the state before."""
ERROR_PAUSE_S: Final = 0.2
READ_S: Final = 2.0

Invoke = Callable[[str, str, Any, int], Operation]
Call = Callable[[list[Operation], Callable[[], Any]], Awaitable[None]]


class Transfers:
    """One client's, with dice of its own."""

    def __init__(
        self, client: Client, *, seen: Seen, rng: random.Random, partition: int, invoke: Invoke, call: Call, name: str
    ) -> None:
        """``invoke`` and ``call`` record an operation; ``name``: which client this is."""
        self._client = client
        self._seen = seen
        self.rng = rng
        self._partition = partition
        self._invoke = invoke
        self._call = call
        self._name = name
        self._count = 0
        self._opened = False

    async def step(self) -> None:
        """Move something, look at all accounts at once, or make and remove some keys."""
        if self._partition in self._seen.gone:
            return
        dice = self.rng.random()
        try:
            if dice < READS:
                await self._read()
            elif dice < READS + REMOVES:
                await self._remove()
            else:
                await self._move()
        except LogboomError:
            await asyncio.sleep(ERROR_PAUSE_S)

    async def _move(self) -> None:
        if not self._opened:
            receipt = await self._client.submit(self._partition, opening(), wait="applied")
            status = (receipt.results or (Status.UNKNOWN_RESULT,))[0]
            self._opened = status in (Status.OK, Status.OTHERWISE, Status.UNKNOWN_RESULT)
            self._tell(
                [] if self._opened else [f"the answer to an opening is {status!r}"], f"at {receipt.global_index}"
            )
        self._count += 1
        moved, refused = (
            self._invoke("add", f"{self._name}-{what}-{self._count}", 1, self._partition)
            for what in ("moved", "refused")
        )
        giver, taker = self.rng.sample(ACCOUNTS, 2)
        amount = self.rng.randint(1, MOST)
        spoilt = self.rng.random() < SPOILT
        keys = {"moved": moved.key.encode(), "refused": refused.key.encode()}
        txn = transfer(giver, taker, amount, **keys, spoilt=spoilt)
        if spoilt:
            try:
                await self._client.submit(self._partition, txn)
            finally:
                for operation in (moved, refused):  # whatever becomes of the request: it does nothing
                    self._seen.history.end(operation, "fail")
            return
        answers = list[Receipt]()

        async def submit() -> Receipt:
            answers.append(await self._client.submit(self._partition, txn, wait="applied"))
            return answers[0]

        await self._call([moved], submit)
        results = answers[0].results if answers else None
        self._tell(conclude(self._seen.history, moved, refused, results), f"at {moved.global_index}")

    async def _read(self) -> None:
        stale = self.rng.random() < 0.5
        how: dict[str, Any] = {"stale": True} if stale else {"at_least": "session"}
        opened = self._opened and not stale
        node = self.rng.choice(list(self._seen.addresses))
        values = await self._client.get_many(self._partition, list(ACCOUNTS), node=node, timeout=READ_S, **how)
        self._tell(unbalanced(dict(zip(ACCOUNTS, values, strict=True)), opened=opened), f"at {node}")

    async def _remove(self) -> None:
        prefix = f"{self._name}/".encode()
        rows = [Put(prefix + b"%d" % number, b"scrap") for number in range(self.rng.randint(1, SCRAPS_MAX))]
        at_once = self.rng.random() < AT_ONCE
        if not at_once:
            await self._client.submit(self._partition, rows, wait="applied")
        commands = [*(rows if at_once else ()), DeletePrefix(prefix)]
        receipt = await self._client.submit(self._partition, commands, wait="applied")
        at = receipt.global_index
        found = await self._client.get_many(self._partition, [row.key for row in rows], at_least=at, timeout=READ_S)
        status = (receipt.results or (Status.UNKNOWN_RESULT,))[-1]
        if any(value is not None for value in found) and status in (Status.OK, Status.NOT_FOUND):
            self._tell([f"{prefix!r} was removed, and {found} are there"], f"at {at}")

    def _tell(self, problems: Sequence[str], where: str) -> None:
        if self._partition not in self._seen.doomed:
            self._seen.problems += [("TransfersWhole", f"{problem} {where}") for problem in problems]
