from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from chaos.sim.loop import SimLoop
from tests.unit.chaos.sim_world import Errors


@pytest.fixture
def errors() -> Errors:
    return []


@pytest.fixture
def loop(errors: Errors) -> Iterator[SimLoop]:
    made = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
    made.on_error = lambda process, context: errors.append((process, context))
    yield made
    # Tests that expect none would miss those that come when a task is collected.
    before = len(errors)
    gc.collect()
    assert errors[before:] == []
