"""A pass over what is at rest: how it waits."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from dispatcher.scrubbing import AGAIN_S, FIRST_MS_MAX, Scrubbing
from logboom.settings import ScrubSettings
from ports.scrub import AGAIN, Piece, Pieces
from tests.unit.raftlog.world import VirtualClock, VirtualLoop, VirtualOffload


def test_it_waits_before_something_is_read_a_second_time() -> None:
    loop, at = VirtualLoop(), []

    def pieces() -> Pieces:
        for piece in (Piece(1), AGAIN, Piece(2), Piece(3)):
            at.append(loop.now)
            yield piece

    nothing: Any = None
    scrubbing = Scrubbing(
        settings=ScrubSettings(pause_ms=FIRST_MS_MAX, bytes_per_s=1 << 30),
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
    loop.run_until_complete(scrubbing._pass())
    loop.close()
    gaps = [after - before for before, after in pairwise(at)]
    assert gaps[1] >= AGAIN_S
    assert max(gaps[0], gaps[2]) < 1
    assert scrubbing.status()["bytes"] == 6
