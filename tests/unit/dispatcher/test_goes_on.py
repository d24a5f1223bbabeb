"""What goes wrong once, in a way that nobody has thought of, does not stop the clock of those who wait."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.pipeline import Pipeline
from dispatcher.sessions.service import ClientService

CLOCK = SimpleNamespace(monotonic=lambda: 0.0)


class Unheard(Exception):
    """Of no kind that anybody catches."""


def fails(*_: object) -> None:
    raise Unheard


async def goes_on(work: Callable[[Any], None], timer: str, **parts: Any) -> None:
    here = SimpleNamespace(**parts, **{timer: None})
    with pytest.raises(Unheard):
        work(here)
    due = getattr(here, timer)
    assert due is not None
    due.cancel()


async def test_barriers_expire_after_one_that_could_not() -> None:
    """From then on none did: whoever waited did so for ever, and in the end nobody else might."""
    barriers = SimpleNamespace(expire=fails)
    backend = SimpleNamespace(barriers=barriers, clock=CLOCK)
    await goes_on(ClientService.start, "_timer", backend=backend, start=lambda: None)


async def test_requests_expire_after_one_that_could_not() -> None:
    """From then on no deadline was kept, no snapshot was due, and no progress was told."""
    pending = SimpleNamespace(expire=fails)
    await goes_on(Pipeline._expire, "_expiry", pending=pending, clock=CLOCK, _expire=lambda: None)
