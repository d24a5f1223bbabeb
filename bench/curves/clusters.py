"""Fresh clusters, and what can be seen of their processes from outside."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from logboom.testing import LocalCluster

START_S: Final = 180.0


@contextmanager
def cluster(
    directory: Path, *, nodes: int = 3, partitions: int = 8, machine: str = "log", **settings: Any
) -> Iterator[tuple[LocalCluster, float]]:
    """A running cluster and how many seconds its first start took; its data is removed afterwards.

    ``settings``: ``section__key``, as in the environment. Raises Unavailable if it does not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="curves-", dir=directory))
    flags = {"node.log_level": "warning"} | {key.replace("__", "."): value for key, value in settings.items()}
    local = LocalCluster(nodes=nodes, partitions=partitions, state_machine=machine, directory=place, settings=flags)
    try:
        yield local, start(local)
    finally:
        local.stop()
        shutil.rmtree(place, ignore_errors=True)


def start(local: LocalCluster) -> float:
    """Start all nodes; the seconds until all have recovered and one of them admits."""
    began = time.perf_counter()
    for node in local.nodes:
        local.start_node(node)
    local.wait_serving(START_S)
    return time.perf_counter() - began


def restart(local: LocalCluster) -> float:
    """End all nodes politely and start them again; the seconds of the start."""
    local.stop()
    return start(local)


def memory_bytes(local: LocalCluster) -> float:
    """Proportional set size of a node: the mean over all of them. Memory that processes share is divided."""
    return statistics.mean(_pss(local.pid(node)) for node in local.nodes)


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss in /proc/{pid}/smaps_rollup")
