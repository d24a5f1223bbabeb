"""Which partitions a request names, and whether they may be shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dispatcher.pipeline.backend import Backend
from logboom.errors import InvalidRequest, Unavailable
from logboom.types import PartitionId


class Named:
    """What the headers of requests say of the partitions of this node."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def partitions(self, header: Mapping[str, Any]) -> list[PartitionId]:
        """Those that a request names, or all. Raises InvalidRequest, NoSuchPartition."""
        wanted = header.get("partitions")
        if wanted is None:
            return list(self._backend.partition_ids())
        if not isinstance(wanted, list) or not wanted or any(type(p) is not int for p in wanted):
            raise InvalidRequest("partitions must be a list of partition ids, or nil for all")
        self.check_known(wanted)
        return [PartitionId(p) for p in wanted]

    def all_or_named(self, header: Mapping[str, Any]) -> list[PartitionId]:
        """The same, where all means all: of one that is not open here yet something may be committed already."""
        if header.get("partitions") is None:
            self._backend.partitioning.check_all()
        return self.partitions(header)

    def shown(self, header: Mapping[str, Any]) -> list[PartitionId]:
        """The same, all of which may be shown. Raises Unavailable, too."""
        partitions = self.all_or_named(header)
        self.check_shown(partitions)
        return partitions

    def check_known(self, wanted: Iterable[int]) -> None:
        """There are such partitions here. Raises NoSuchPartition."""
        known = self._backend.workers
        for partition in wanted:
            if partition not in known:
                raise self._backend.missing(partition)

    def check_shown(self, partitions: Sequence[PartitionId]) -> None:
        """They may be shown, as they are now. Raises Unavailable."""
        self._backend.look()
        if self._backend.recovered(partitions):
            return
        still = [mark for mark in self._backend.watermarks.all(partitions) if mark.state != "running"]
        why = f": partition {still[0].partition_id} is {still[0].state}" if still else ""
        raise Unavailable(f"this node is still recovering{why}; ask another or try again", retry_after=0.1)
