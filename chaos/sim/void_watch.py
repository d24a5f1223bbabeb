"""What counts as void was declared void; and what nobody is about to declare so any more is taken again.

Neither is missed at once: the one takes a reader who comes by, the other a batch that turns up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.sim.host import Host
from dispatcher.pipeline.backend import Backend
from logboom.types import PartitionId
from partitions.log.columns import NOWHERE_SEGMENT
from raftlog.entries.voids import Void

LOOKS_MAX: Final = 3
"""Looks, one after the other, that find a batch sealed, and nobody who asks: lines that carry little delay a word."""

Fail = Callable[[str, str], None]


class VoidWatch:
    """Of a history. ``voids``: partition and last index of all that any node was handed as void."""

    def __init__(self, hosts: Sequence[Host], voids: set[tuple[int, int]], fail: Fail) -> None:
        self._hosts = hosts
        self._voids = voids
        self._fail = fail
        self._digests: set[bytes] = set()
        """Of all of these."""
        self._sealed: dict[tuple[str, int], dict[bytes, int]] = {}
        """By host, and which life of its node: what is sealed, and how many looks have found it so."""

    def declared(self, void: Void) -> None:
        """Some node is about to carry it out."""
        self._voids.add((void.partition_id, void.last_index))
        self._digests.add(void.digest)

    def check_logs(self, host: Host, backend: Backend) -> None:
        """Of no log, also of one that has just been opened, is anything stepped over that was not declared void."""
        for partition, log in backend.logs.items():
            self._check_log(host, partition, log)

    def _check_log(self, host: Host, partition: PartitionId, log: Any) -> None:
        columns = log._committed.columns  # noqa: SLF001 - an observer
        moved = {row for row, place in columns.moved.items() if place[0] == NOWHERE_SEGMENT}
        lying = enumerate(columns.segment) if NOWHERE_SEGMENT in columns.segment else ()
        rows = moved | {row for row, segment in lying if segment == NOWHERE_SEGMENT and row not in columns.moved}
        for row in sorted(rows):
            last, digest = columns.last[row], columns.digest(columns.start + row)
            if not log.is_lost(last, digest) and (partition, last) not in self._voids:
                self._fail("VoidTrue", f"{host.name} steps over {partition}/{last}: nobody has declared that void")

    def check_seals(self, host: Host, backend: Backend, *, idle: bool = False) -> None:
        """A node that is told that a batch may be void takes it no more, until it is, or until nobody says so.

        ``idle``: by now it is, or nobody does.
        """
        asked = {digest for each in self._hosts for digest in _asked(each)}
        left = backend.payloads._sealed - self._digests - asked  # noqa: SLF001 - an observer
        life = host.name, host.starts
        before = self._sealed.get(life, {})
        self._sealed[life] = {digest: before.get(digest, 0) + 1 for digest in left}
        for digest, looks in self._sealed[life].items():
            if idle or looks >= LOOKS_MAX:
                story = f"{host.name} takes batch {digest.hex()} no more, seen so {looks} times; nobody asks whether"
                self._fail("SealEnds", f"{story} it is void")


def _asked(host: Host) -> list[bytes]:
    """By the operator, at this node."""
    return [] if host.node is None else list(host.node.pipeline.raft.repair.seals._asked)  # noqa: SLF001
