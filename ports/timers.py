"""Waiting on the loop, by its own timers: virtual in the simulator."""

from __future__ import annotations

import asyncio


async def wait(seconds: float) -> None:
    """Not before ``seconds`` have passed. Cancelling it takes the timer back."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    handle = loop.call_later(seconds, _finish, done)
    try:
        await done
    finally:
        handle.cancel()


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
