"""Batches that are missing here, and those of them that nobody will give."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from logboom.types import NodeId
from raftlog.entries.entry import Route
from raftlog.links.payloads import Payloads


class Wanted(NamedTuple):
    """A batch that is missing, and the journal entry that names it; None: a committed one, which stays."""

    route: Route
    raft_index: int | None


class Settled:
    """What some have removed, as a snapshot stands for it, and nobody has: nobody is asked for it again.

    That stays so, whatever becomes of links and terms, as long as one of those who have removed it is a member.
    """

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._rows: dict[bytes, tuple[Wanted, frozenset[NodeId]]] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._rows

    def add(self, wanted: Wanted, removed_by: Collection[NodeId]) -> None:
        """Nobody is asked for it from now on."""
        self._rows.setdefault(wanted.route.digest, (wanted, frozenset(removed_by)))
        self._payloads.begin_behind(wanted.route)

    def forget(self, digest: bytes) -> None:
        """It is here, or nobody needs it."""
        self._rows.pop(digest, None)

    def begin_behind(self) -> None:
        """Logs begin behind them, where this node needs them no more by now: behind the last first, which is enough."""
        for wanted, _ in sorted(self._rows.values(), key=lambda row: -row[0].route.last_index):
            self._payloads.begin_behind(wanted.route)

    def lapsed(self, members: Collection[NodeId]) -> Iterator[Wanted]:
        """Those that nobody of these has removed, who may have a set: settled no more."""
        for digest, (wanted, removed_by) in list(self._rows.items()):
            if removed_by.isdisjoint(members):
                del self._rows[digest]
                yield wanted
