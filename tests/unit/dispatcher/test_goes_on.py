"""What goes wrong once, in a way that nobody has thought of, does not stop the clock of those who wait."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.admission.admission import Admission
from dispatcher.admission.signals import Signals
from dispatcher.pipeline.pipeline import Pipeline
from dispatcher.sessions.service import ClientService
from logboom.settings import AdmissionSettings

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
    await goes_on(ClientService._tick, "_timer", backend=backend, _tick=lambda: None)


async def test_requests_expire_after_one_that_could_not() -> None:
    """From then on no deadline was kept, no snapshot was due, and no progress was told."""
    pending = SimpleNamespace(expire=fails)
    await goes_on(Pipeline._tick, "_ticking", pending=pending, clock=CLOCK, _tick=lambda: None)


async def test_signals_are_asked_after_they_could_not_be() -> None:
    """From then on what they had said last stood: a full disk was never seen, or never seen to have room again."""
    asked: list[object] = []
    signals = Signals(
        {"disk": SimpleNamespace()},  # type: ignore[dict-item]
        AdmissionSettings(signal_ms=1),
        admission=Admission(AdmissionSettings(), []),
        view=lambda _: asked.append(None) or fails(),  # type: ignore[func-returns-value,return-value]
        partitions=list,
        offload=SimpleNamespace(),  # type: ignore[arg-type]
        eased=lambda: None,
    )
    with pytest.raises(Unheard):
        signals.start()
    assert signals._timer is not None
    signals.close()
