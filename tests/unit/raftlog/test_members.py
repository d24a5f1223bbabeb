"""Members that change at runtime: rules, and whole parent logs under faults (docs/decisions/0016)."""

from __future__ import annotations

import pytest

from tests.unit.raftlog.moving import MovingCluster


@pytest.mark.parametrize("seed", range(16))
def test_members_change_under_crashes_cuts_and_power_losses(seed: int) -> None:
    cluster = MovingCluster(seed)
    cluster.tell(cluster.story(5))
    assert len(cluster.log) > 50
    assert cluster.changes > 1
