"""A node's threads share heaps: what one has freed the next one uses."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from logboom import Put
from logboom.testing import LocalCluster
from logboom.types import MIB
from server.world.arenas import ARENAS

HEAP_BYTES = 64 * MIB
"""What glibc reserves for each heap but the first, at a multiple of it."""


def heaps(pid: int) -> int:
    """Those of threads: the part that is in use, and behind it the rest, which nobody may touch."""
    rows = [line.split()[:2] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    areas = [(*(int(end, 16) for end in span.split("-")), rights) for span, rights in rows]
    return sum(
        rights == "rw-p" and begin % HEAP_BYTES == 0 and (end, begin + HEAP_BYTES, "---p") == following
        for (begin, end, rights), following in pairwise(areas)
    )


@pytest.mark.skipif(sys.platform != "linux", reason="goes by /proc")
def test_threads_share_heaps(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, partitions=4, directory=tmp_path) as cluster, cluster.client() as boom:
        for number in range(40):
            boom.submit(number % 4, [Put(b"%d" % row, bytes(100_000)) for row in range(4)])
        assert heaps(cluster.pid("n1")) < ARENAS
