"""The power fails, or the process is killed, at every operation; every state worth looking at is recovered from.

``python -m tests.storage`` looks at many more.
"""

from __future__ import annotations

import pytest

from tests.storage.plan import PLANS, Plan
from tests.storage.world import Explored

LEAST = 5_000


def test_the_plan_is_large_enough() -> None:
    """Each test below has to see its share."""
    assert sum(plan.least for plan in PLANS.values()) >= LEAST


@pytest.mark.parametrize("name", sorted(PLANS))
def test_power_loss_at_every_operation(name: str) -> None:
    plan, found = PLANS[name], Explored()
    for seed in range(plan.seeds):
        found.add(plan.power_losses(seed))
    print(f"{name}: {len(found.states)} states of {found.operations} operations, {found.inside_recovery} in recovery")
    assert len(found.states) >= plan.least


@pytest.mark.parametrize("name", sorted(PLANS))
def test_kill_at_every_operation_and_power_loss_later(name: str) -> None:
    """What the next process finds in the page cache need not be on the disk."""
    plan: Plan = PLANS[name]
    found = plan.kills(0, every=plan.kill_every)
    print(f"{name}: {len(found.states)} states after {found.operations} kills")
    assert found.operations >= 5
