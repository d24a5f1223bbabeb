"""A pass over what is at rest: how it waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from dispatcher.scrubbing import AGAIN_S, FIRST_MS_MAX, Scrubbing
from logboom.settings import ScrubSettings
from ports.scrub import AGAIN, Piece, Pieces
from tests.unit.raftlog.world import VirtualClock, VirtualLoop, VirtualOffload


def over(pieces: Callable[[], Pieces], loop: VirtualLoop, *, bytes_per_s: int) -> Scrubbing:
    nothing: Any = None
    return Scrubbing(
        settings=ScrubSettings(pause_ms=FIRST_MS_MAX, bytes_per_s=bytes_per_s),
        logs={},
        machines={},
        using=nothing,
        store=SimpleNamespace(sets=tuple),  # type: ignore[arg-type]
        journal=SimpleNamespace(scrub=pieces, sealed_bytes=6, outlives=nothing),  # type: ignore[arg-type]
        clock=VirtualClock(loop),
        offload=VirtualOffload(loop, random.Random(0)),
        damaged_batch=nothing,
        damaged_state=nothing,
        fatal=nothing,
    )


def test_it_waits_before_something_is_read_a_second_time() -> None:
    loop, at = VirtualLoop(), []

    def pieces() -> Pieces:
        for piece in (Piece(1), AGAIN, Piece(2), Piece(3)):
            at.append(loop.now)
            yield piece

    scrubbing = over(pieces, loop, bytes_per_s=1 << 30)
    loop.run_until_complete(scrubbing._pass())
    loop.close()
    gaps = [after - before for before, after in pairwise(at)]
    assert gaps[1] >= AGAIN_S
    assert max(gaps[0], gaps[2]) < 1
    assert scrubbing.status()["bytes"] == 6


def test_what_held_it_up_is_not_made_up_for() -> None:
    """Found by review: behind a snapshot that took minutes it read as fast as the disk could, for minutes."""
    loop, at = VirtualLoop(), []

    def pieces() -> Pieces:
        for number in range(6):
            if number == 1:
                loop.now += 300  # its thread has something else to do
            at.append(loop.now)
            yield Piece(10)

    scrubbing = over(pieces, loop, bytes_per_s=1)
    loop.run_until_complete(scrubbing._pass())
    loop.close()
    assert at[0] + 300 < at[1]
    assert at[-1] - at[2] > 28
