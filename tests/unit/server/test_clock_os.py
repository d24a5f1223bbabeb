"""The clock of the operating system that nodes go by."""

from __future__ import annotations

import time

import pytest

from server.world.clock_os import OsClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="there is no such clock")
def test_it_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: what a node had heard before was as young as ever to reads with `max_staleness`."""
    now = {time.CLOCK_MONOTONIC: 5.0, time.CLOCK_BOOTTIME: 3_605.0}
    monkeypatch.setattr(time, "clock_gettime", now.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: now[time.CLOCK_MONOTONIC])
    assert OsClock.monotonic() == 3_605.0
