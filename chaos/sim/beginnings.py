"""How far the beginnings of logs have come: nobody is told that more is gone than is, on any node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chaos.sim.host import Host
from logboom.types import PartitionId


class Beginning(NamedTuple):
    """Of a log, on whichever node has least of it."""

    first: int = 1
    first_global: int = 1


class Beginnings:
    """Of a history. What a node had is remembered: it may have said so, and be gone."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._furthest: dict[int, Beginning] = {}

    def of(self, partition: int) -> Beginning:
        """At this moment, or at any before."""
        for host in self._hosts:
            log: Any = None if host.node is None else host.node.pipeline.logs.get(PartitionId(partition))
            if log is not None:
                self.at(partition, log)
        return self._furthest.get(partition, Beginning())

    def at(self, partition: int, log: Any) -> None:
        """One node's begins there now."""
        known = self._furthest.get(partition, Beginning())
        index, global_index = int(log.first_available_index), int(log.first_global_index)
        if index > known.first or global_index > known.first_global:
            self._furthest[partition] = Beginning(max(index, known.first), max(global_index, known.first_global))

    def started(self, host: Host) -> None:
        """With what it had, or what it was made anew from."""
        logs: Any = {} if host.node is None else host.node.pipeline.logs
        for partition, log in logs.items():
            self.at(int(partition), log)
