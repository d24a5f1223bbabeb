"""The clock of the operating system that nodes go by."""

from __future__ import annotations

import time

import pytest

from server.world.clock_os import OsClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="there is no such clock")
def test_it_goes_on_while_the_machine_is_suspended() -> None:
    """Found by review: what a node had heard before was as young as ever to reads with `max_staleness`."""
    assert (OsClock.monotonic.func, OsClock.monotonic.args) == (time.clock_gettime, (time.CLOCK_BOOTTIME,))
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= OsClock().monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)
