"""Commands over several keys: something is moved between accounts, and nobody gives what he does not have.

Each account begins with the same; from then on all together have as much at any time, and none has less than nothing.
A transfer adds to a counter of its own whether it was made or refused, and to a second one where it was refused: the
history says of both what they have to be in the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from chaos.history import History, Operation
from logboom import Add, Cas, Client, Compare, DeletePrefix, Put, Status, Txn
from logboom.errors import LogboomError
from logboom.types import Receipt

ACCOUNT: Final = b"account/"
ACCOUNTS: Final = tuple(ACCOUNT + b"%d" % number for number in range(5))
BEGINS_WITH: Final = 4
TOGETHER: Final = BEGINS_WITH * len(ACCOUNTS)
MOST: Final = 3
"""That is moved at once: so that many have less."""
NOBODY: Final = b"nobody"
"""A key that there never is."""
MOVED: Final = "-moved-"
"""In the key of a transfer's counter."""
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
Call = Callable[[list[Operation], Callable[[], Coroutine[Any, Any, Receipt]]], Awaitable[None]]


class Moving:
    """One client's part, with dice of its own."""

    def __init__(
        self,
        client: Client,
        *,
        history: History,
        rng: random.Random,
        partition: int,
        invoke: Invoke,
        call: Call,
        name: str,
        nodes: Callable[[], Sequence[str]],
        problem: Callable[[str], None],
        refused: Callable[[LogboomError], None] = lambda _: None,
    ) -> None:
        """``invoke`` and ``call`` record an operation; ``name``: which client this is; ``nodes``: addresses to ask.

        ``refused`` is told why something was not done.
        """
        self._client = client
        self._history = history
        self.rng = rng
        self._partition = partition
        self._invoke = invoke
        self._call = call
        self._name = name
        self._nodes = nodes
        self._problem = problem
        self._refused = refused
        self._count = 0
        self._opened = False

    async def step(self) -> None:
        """Move something, look at all accounts at once, or make and remove some keys."""
        dice = self.rng.random()
        try:
            if dice < READS:
                await self._read()
            elif dice < READS + REMOVES:
                await self._remove()
            else:
                await self._move()
        except LogboomError as error:
            self._refused(error)
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
            self._invoke("add", f"{self._name}{what}{self._count}", 1, self._partition) for what in (MOVED, "-refused-")
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
                    self._history.end(operation, "fail")
            return
        answers = list[Receipt]()

        async def submit() -> Receipt:
            answers.append(await self._client.submit(self._partition, txn, wait="applied"))
            return answers[0]

        await self._call([moved], submit)
        results = answers[0].results if answers else None
        self._tell(conclude(self._history, moved, refused, results), f"at {moved.global_index}")

    async def _read(self) -> None:
        stale = self.rng.random() < 0.5
        how: dict[str, Any] = {"stale": True} if stale else {"at_least": "session"}
        opened = self._opened and not stale
        node = self.rng.choice(self._nodes())
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
        for each in problems:
            self._problem(f"{each} {where}")


def opening() -> Txn:
    """All accounts, where there are none yet: whoever wants to move something says it first."""
    return Txn([Compare(ACCOUNTS[0], "==", None)], [Add(account, BEGINS_WITH) for account in ACCOUNTS])


def transfer(giver: bytes, taker: bytes, amount: int, *, moved: bytes, refused: bytes, spoilt: bool = False) -> Txn:
    """``moved`` and ``refused``: its counters. ``spoilt``: the last command cannot be done, hence none is."""
    last = [Cas(NOBODY, b"somebody", b"nobody")] if spoilt else []
    return Txn(
        [Compare(giver, ">=", amount)],
        [Add(giver, -amount), Add(moved, 1), Add(taker, amount), *last],
        [Add(refused, 1), Add(moved, 1), *last],
    )


def conclude(history: History, moved: Operation, refused: Operation, results: Sequence[Status] | None) -> list[str]:
    """What came of ``moved`` is known; ``refused`` ends as the answer's ``results`` say. What is wrong with them."""
    where = {"index": moved.index, "global_index": moved.global_index}
    if moved.outcome != "ok":
        history.end(refused, moved.outcome, **where)
        return []
    status = results[0] if results else Status.UNKNOWN_RESULT
    outcome = {Status.OK: "fail", Status.OTHERWISE: "ok", Status.UNKNOWN_RESULT: "info"}.get(status)
    history.end(refused, outcome or "info", **where)
    return [] if outcome else [f"the answer to a transfer, {moved.key}, is {status!r}"]


def unbalanced(values: Mapping[bytes, Any], *, opened: bool = False) -> list[str]:
    """What is wrong with all accounts at one moment. ``opened``: there must be some."""
    rows = {key: value[0] for key, value in values.items() if isinstance(value, tuple)}
    if not rows:
        return ["the accounts were opened, and there are none"] if opened else []
    problems = [f"{key.decode()} has {number}: {rows}" for key, number in rows.items() if number < 0]
    if sum(rows.values()) != TOGETHER:
        problems.append(f"the accounts have {sum(rows.values())} together, not {TOGETHER}: {rows}")
    return problems


def is_account(key: bytes) -> bool:
    """Its number is no counter."""
    return key.startswith(ACCOUNT)


def accounts_of(entries: Iterable[tuple[bytes, Any]]) -> dict[bytes, Any]:
    """Of a state."""
    return {key: value for key, value in entries if is_account(key)}
