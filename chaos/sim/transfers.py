"""Commands over several keys: whoever moves something from one account to another neither makes nor loses any.

Each transfer adds to a counter of its own, too, which the history knows of: so it takes effect once, or not at all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from chaos.history import Operation
from logboom import Add, Cas, Client, Compare, DeletePrefix, Put, Status, Txn
from logboom.errors import LogboomError

if TYPE_CHECKING:
    from chaos.sim.seen import Seen

ACCOUNT: Final = b"account/"
ACCOUNTS: Final = tuple(ACCOUNT + b"%d" % number for number in range(5))
MOST: Final = 3
READS: Final = 0.3
REMOVES: Final = 0.2
SPOILT: Final = 0.2
"""Of the transfers: their last command cannot be done, hence none of them is."""
NOBODY: Final = b"nobody"
"""A key that there never is."""
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
        except LogboomError as error:
            self._seen.refused("who moves something", error)
            await asyncio.sleep(ERROR_PAUSE_S)

    async def _move(self) -> None:
        self._count += 1
        counter = f"{self._name}-moved-{self._count}"
        giver, taker = self.rng.sample(ACCOUNTS, 2)
        amount = self.rng.randint(1, MOST)
        once = Add(counter.encode(), 1)
        spoilt = self.rng.random() < SPOILT
        last = [Cas(NOBODY, b"somebody", b"nobody")] if spoilt else []
        txn = Txn(
            [Compare(giver, ">=", amount)],
            [Add(giver, -amount), once, Add(taker, amount), *last],
            [Add(taker, -amount), Add(giver, amount), once, *last],
        )
        operation = self._invoke("add", counter, 1, self._partition)
        if not spoilt:
            await self._call([operation], lambda: self._client.submit(self._partition, txn))
            return
        try:
            await self._client.submit(self._partition, txn)
        finally:
            self._seen.history.end(operation, "fail")  # whatever becomes of the request: it does nothing

    async def _read(self) -> None:
        how: dict[str, Any] = {"stale": True} if self.rng.random() < 0.5 else {"at_least": "session"}
        node = self.rng.choice(list(self._seen.addresses))
        values = await self._client.get_many(self._partition, list(ACCOUNTS), node=node, timeout=READ_S, **how)
        self._tell(unbalanced(dict(zip(ACCOUNTS, values, strict=True))), f"at {node}")

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


def unbalanced(values: Mapping[bytes, Any]) -> list[str]:
    """Nobody began with anything: all accounts together have nothing."""
    rows = {key: value[0] for key, value in values.items() if isinstance(value, tuple)}
    return [f"the accounts have {sum(rows.values())} together: {rows}"] if sum(rows.values()) else []


def is_account(key: bytes) -> bool:
    """Its number is no counter."""
    return key.startswith(ACCOUNT)


def accounts_of(entries: Iterable[tuple[bytes, Any]]) -> dict[bytes, Any]:
    """Of a state."""
    return {key: value for key, value in entries if is_account(key)}
