"""Members that change at runtime: rules, and whole parent logs under faults (docs/decisions/0016)."""

from __future__ import annotations

import pytest

from tests.unit.raftlog.moving import MovingCluster


@pytest.mark.parametrize("seed", range(8))
def test_members_change_under_crashes_cuts_and_power_losses(seed: int) -> None:
    cluster = MovingCluster(seed)
    cluster.tell(cluster.story(5))
    assert len(cluster.log) > 50
    assert cluster.changes > 1


@pytest.mark.parametrize("seed", range(200, 204))
def test_and_while_journals_begin_later(seed: int) -> None:
    """Whoever joins, or comes back, may need a snapshot first."""
    cluster = MovingCluster(seed, compacts=True)
    cluster.tell(cluster.story(5))
    assert len(cluster.log) > 50


def test_five_nodes_that_change() -> None:
    cluster = MovingCluster(300, nodes=5)
    cluster.tell(cluster.story(5))
    assert cluster.changes > 1


def test_leadership_is_handed_over_often_enough_to_mean_something() -> None:
    transfers = 0
    for seed in (1, 2, 3):
        cluster = MovingCluster(seed)
        cluster.tell(cluster.story(5, faults=False))
        transfers += cluster.transfers
    assert transfers > 3


def test_one_node_grows_to_three_without_faults() -> None:
    cluster = MovingCluster(7, nodes=1)
    cluster.tell(cluster.story(5, faults=False))
    assert cluster.changes > 1
