"""A client that outlives many nodes: what it remembers of those that it could not reach is bounded."""

from __future__ import annotations

import random

import pytest

from logboom.client import pool
from logboom.client.cluster import Cluster
from logboom.client.pool import DOWN_KEPT, DOWN_MAX_S
from logboom.errors import Unavailable


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(Cluster, "now", property(lambda _: now[0]))

    async def nobody(cluster: Cluster, address: str) -> None:
        raise Unavailable(f"{address} cannot be reached")

    monkeypatch.setattr(Cluster, "dedicated", nobody)
    return now


async def attempt(cluster: Cluster, address: str) -> None:
    with pytest.raises(Unavailable):
        await cluster.connection(address)


async def test_addresses_that_could_not_be_reached_are_forgotten(times: list[float]) -> None:
    """Nodes that are replaced under other addresses, as in containers, were all remembered, until it was closed."""
    cluster = Cluster("here:1", tls=None, token=None, rng=random.Random(1))
    for number in range(5 * DOWN_KEPT):
        await attempt(cluster, f"pod-{number}:1")
        times[0] += 1.0
    assert len(cluster._down) <= DOWN_KEPT
    await cluster.close()


async def test_but_not_before_they_may_be_tried_again(times: list[float]) -> None:
    cluster = Cluster("here:1", tls=None, token=None, rng=random.Random(1))
    for _ in range(8):
        await attempt(cluster, "here:1")
    for number in range(2 * DOWN_KEPT):
        await attempt(cluster, f"pod-{number}:1")
    assert cluster._is_down("here:1")
    assert cluster._down["here:1"][1] == DOWN_MAX_S == pool.DOWN_MAX_S
    await cluster.close()
