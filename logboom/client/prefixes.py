"""Keys with a prefix, removed however many there are. See ``Client.delete_prefix``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from logboom.commands import DELETE_KEYS_MAX, DeleteRange, Value, end_of
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError
from logboom.types import Receipt, Status

LOOK_KEYS: Final = 64 * DELETE_KEYS_MAX
"""Keys that are looked at before they are removed. Not all of them: then none might be in time, however often it is
called; nor is one view held open while they are, for which a node would keep everything."""
REMOVES: Final = frozenset((Status.OK, Status.MORE, Status.UNKNOWN_RESULT))
AGAIN: Final = frozenset((Status.MORE, Status.UNKNOWN_RESULT))

Scan = Callable[[bytes, bytes | None, int, float], AsyncGenerator[tuple[bytes, Value], None]]
"""From where, up to where, how many keys, and within how many seconds."""
Remove = Callable[[DeleteRange, float], Awaitable[Receipt]]
"""Within so many seconds."""


class Removal:
    """Of one prefix, in one partition."""

    def __init__(self, *, now: Callable[[], float], deadline: float, scan: Scan, remove: Remove) -> None:
        self._now, self._deadline = now, deadline
        self._scan, self._remove = scan, remove

    async def run(self, prefix: bytes) -> None:
        """Raises what a scan and a submit raise; with the outcome ``unknown`` if some are removed."""
        start, end, more, some = prefix, end_of(prefix) or None, True, False
        try:
            while more:
                bounds, more = await self._bounds(start, end)
                # From bound to bound: whoever always begins with the prefix goes through all that is removed already.
                for bound in bounds if more else [*bounds, end]:
                    status = Status.MORE
                    while status in AGAIN:
                        status = await self._delete(DeleteRange(start, bound))
                        some |= status in REMOVES
                    start = bound or start
        except LogboomError as error:
            if some and error.outcome == "not_applied":
                said = f"{error.message}; some keys are removed"
                raise type(error)(said, outcome="unknown", **error.fields) from error
            raise

    async def _bounds(self, start: bytes, end: bytes | None) -> tuple[list[bytes], bool]:
        """Where to stop, each time, among the next keys; and whether there may be others behind the last one."""
        bounds, count = list[bytes](), 0
        try:
            async with (
                asyncio.timeout_at(self._deadline),
                aclosing(self._scan(start, end, LOOK_KEYS, self._left())) as entries,
            ):
                async for key, _ in entries:
                    count += 1
                    if count % DELETE_KEYS_MAX == 0:
                        bounds.append(key)
        except TimeoutError:
            raise _late() from None
        return bounds, count >= LOOK_KEYS

    async def _delete(self, command: DeleteRange) -> Status:
        receipt = await self._remove(command, self._left())
        status = (receipt.results or (Status.UNKNOWN_RESULT,))[0]
        if status not in REMOVES and status is not Status.NOT_FOUND:
            raise InvalidRequest(f"partition {receipt.partition_id} does not remove ranges of keys: {status.name}")
        return status

    def _left(self) -> float:
        """Seconds. Raises DeadlineExceeded: nothing more is begun."""
        left = self._deadline - self._now()
        if left <= 0:
            raise _late()
        return left


def _late() -> DeadlineExceeded:
    return DeadlineExceeded("the deadline passed before all keys were removed", outcome="not_applied")
