"""Each call to the disk fails once: it is reported, nothing is acknowledged after it, nothing acknowledged is lost."""

from __future__ import annotations

import random

import pytest

from chaos.sim.crash_states import CrashModel
from chaos.sim.disk import SimDisk
from tests.storage.plan import PLANS
from tests.storage.world import FAULTS, Failed, fail_everywhere

STATES = 4
"""Looked at after each failure: everything kept, nothing kept, and some between."""
SEED = 11
STEPS = {"node": 50, "journal": 25, "partition log": 40, "partition log, write-behind": 40}


def check_survivors(failed: Failed, when: str) -> None:
    """The process ends, by itself or with the power: all that was promised is there."""
    world, rng = failed.world, random.Random(failed.number)
    model = CrashModel(failed.base)
    for op in world.disk.trace or ():
        model.feed(op)
    states = list(model.states(rng, by_chance=4))
    # Without pages that the kernel dropped, the first one is all that the next process finds.
    for state in [*states[:2], *rng.sample(states[2:], min(STATES - 2, len(states) - 2))]:
        try:
            world.verify(SimDisk.of(state.image, random.Random(0)), world.marks[-1][1])
        except Exception as error:
            raise AssertionError(f"{failed}, {when}, {state.story}: {type(error).__name__}: {error}") from error


def live_on(failed: Failed) -> None:
    """The next process works on what the page cache shows, be it on the disk or not."""
    world = failed.world
    world.disk.kill()
    world.open()
    for _ in range(3):
        world.step()


@pytest.mark.parametrize("name", sorted(PLANS))
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_failing_call_is_reported_and_costs_nothing_that_was_promised(name: str, fault: str) -> None:
    plan = PLANS[name]
    calls = 0
    for failed in fail_everywhere(plan.make, SEED, fault, steps=STEPS.get(name, plan.steps)):
        calls += 1
        assert failed.reported or failed.world.failures or failed.spared, f"{failed}: nobody was told"
        assert not failed.afterwards, f"{failed}: the file was used again (SyncFailStop)"
        check_survivors(failed, "then the power")
        live_on(failed)
        check_survivors(failed, "then a process that went on, then the power")
    print(f"{name}, {fault}: {calls} calls failed")
    assert calls
