"""Real node processes on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logboom.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes, eight kv partitions, shared by a module's tests."""
    with LocalCluster() as running:
        yield running
