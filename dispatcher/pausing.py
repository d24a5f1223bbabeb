"""Waiting, in tasks: a timer of the loop."""

from __future__ import annotations

import asyncio


async def pause(seconds: float) -> None:
    """Come back after so long."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, lambda: None if over.done() else over.set_result(None))
    try:
        await over
    finally:
        timer.cancel()
