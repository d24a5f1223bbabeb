"""What a run leaves behind: coroutines of killed processes, of those that were halted, and some that never began.

They end here. Left to whoever collects them they end in the middle of something else, of another test or at the end of
the process: they run their ``finally``, log what becomes of it, and Python says of each that nobody awaited it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import structlog

from chaos.sim.loop import ProcessDied, SimLoop

AGAIN: Final = 16
"""One that awaits while it is closed ("ignored GeneratorExit") is closed there, too; so often, whatever it does."""


@contextmanager
def leftovers_unseen() -> Iterator[None]:
    """Nobody hears what Python says of coroutines that are collected meanwhile, nor what they log at the end."""
    with _unseen():
        yield
        with _silence():
            gc.collect()


def throw_away(loop: SimLoop) -> None:
    """After a run, whose loop runs nothing any more: whoever holds it, or what ran on it, holds none of them."""
    with _unseen(), _silence(), loop.entered():
        closed = set[asyncio.Task[Any]]()
        while left := asyncio.all_tasks(loop) - closed:  # what is closed may begin others: a file is closed on a thread
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - not a mistake here
                _close(task.get_coro())
            closed |= left
        loop.forget()


def _close(coroutine: Any) -> None:
    for _ in range(AGAIN):
        with suppress(Exception, ProcessDied):
            coroutine.close()
            return


@contextmanager
def _unseen() -> Iterator[None]:
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = hook


@contextmanager
def _silence() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent
