"""The systems that are compared, by name. What each has to offer is ``System``; see ../DESIGN.md."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.systems import disk, etcd, logboom, nats, postgres, redis
from bench.systems.api import Cluster, Missing, System

__all__ = ["SYSTEMS", "Cluster", "Missing", "System", "started"]

SYSTEMS: Final[Mapping[str, System]] = {
    each.name: each for each in (disk.SYSTEM, etcd.SYSTEM, postgres.SYSTEM, redis.SYSTEM, nats.SYSTEM, logboom.SYSTEM)
}


@contextmanager
def started(
    system: str, directory: Path, binary: Path | str | None = None, *, alone: bool = False
) -> Iterator[Cluster]:
    """A fresh cluster of a system, or one server ``alone``, ended and removed with its data afterwards.

    ``binary``: its program, if not the one that is found. Raises Missing, TimeoutError.
    """
    make = SYSTEMS[system].alone if alone else SYSTEMS[system].cluster
    if make is None:
        raise Missing(f"{system}: is not started with one server")
    program = Path(binary) if binary else SYSTEMS[system].find()
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f"{system}-", dir=directory)).resolve()
    try:
        with make(program, place) as cluster:
            yield cluster
    finally:
        shutil.rmtree(place, ignore_errors=True)
