"""Keys with a prefix, removed however many there are. See ``Client.delete_prefix``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from logboom.commands import DELETE_BYTES_MAX, DELETE_KEYS_MAX, KEY_BYTES_MAX, DeleteRange, Value, end_of
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError
from logboom.types import Receipt, Status

LOOK_KEYS: Final = 64 * DELETE_KEYS_MAX
"""Keys that are looked at before they are removed. Not all of them: then none might be in time, however often it is
called; nor is one view held open while they are, for which a node would keep everything."""
LOOK_BYTES: Final = 16 * DELETE_BYTES_MAX
"""Or keys and values of so many bytes: a look is sent the values, too."""
GRACE_S: Final = 0.25
"""A scan that nobody answers ends at the same deadline and knows better why."""
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
                raise error.again(f"{error.message}; some keys are removed", outcome="unknown") from error
            raise

    async def _bounds(self, start: bytes, end: bytes | None) -> tuple[list[bytes], bool]:
        """Where to stop, each time, among the next keys; and whether there may be others behind the last one.

        Half of the time that is left is for looking, the rest for what has been seen then: whatever the timeout is, it
        buys something.
        """
        bounds, last, count, size, left = list[bytes](), b"", 0, 0, self._left()
        until = self._now() + left / 2
        try:
            async with (
                asyncio.timeout_at(self._deadline + GRACE_S) as limit,
                aclosing(self._scan(start, end, LOOK_KEYS, left)) as entries,
            ):
                async for last, value in entries:
                    if not count:
                        limit.reschedule(until)
                    count, size = count + 1, size + len(last) + _nbytes(value)
                    if count % DELETE_KEYS_MAX == 0:
                        bounds.append(last)
                    if size >= LOOK_BYTES or self._now() >= until:
                        break
                else:
                    return bounds, count >= LOOK_KEYS
        except TimeoutError:
            if not count:
                raise _late() from None
        behind = _behind(last)
        if behind is None or behind == end:
            return bounds, False
        return [*bounds, behind], True

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


def _nbytes(value: Value) -> int:
    return len(value) if isinstance(value, bytes) else 8 * len(value)


def _behind(key: bytes) -> bytes | None:
    """The least key that is greater. None: none is."""
    return key + b"\0" if len(key) < KEY_BYTES_MAX else end_of(key) or None


def _late() -> DeadlineExceeded:
    return DeadlineExceeded("the deadline passed before all keys were removed", outcome="not_applied")
