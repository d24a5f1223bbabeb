"""Commands over several keys: something is moved between accounts, and nobody gives what he does not have.

Each account begins with the same; from then on all together have as much at any time, and none has less than nothing.
A transfer adds to a counter of its own whether it was made or refused, and to a second one where it was refused: the
history says of both what they have to be in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from chaos.history import History, Operation
from logboom import Add, Cas, Compare, Status, Txn

ACCOUNT: Final = b"account/"
ACCOUNTS: Final = tuple(ACCOUNT + b"%d" % number for number in range(5))
BEGINS_WITH: Final = 4
TOGETHER: Final = BEGINS_WITH * len(ACCOUNTS)
MOST: Final = 3
"""That is moved at once: so that many have less."""
NOBODY: Final = b"nobody"
"""A key that there never is."""


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
