"""Batches that are missing here, and those of them that nobody will give."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from logboom.types import NodeId
from raftlog.entries.entry import Route, unpack_routes
from raftlog.journal.journal import Journal
from raftlog.links.lacks import Lack
from raftlog.links.payloads import Payloads


class Wanted(NamedTuple):
    """A batch that is missing, and the journal entry that names it; None: a committed one, which stays."""

    route: Route
    raft_index: int | None

    def open_above(self, base: int) -> int | None:
        """The entry's index, if it may be replaced; what is at or before the journal's base is committed, as with None.

        Whoever was to say so need not have: it was here when its entry was handed up, or a snapshot came.
        """
        return None if self.raft_index is None or self.raft_index <= base else self.raft_index

    def is_cut_off(self, journal: Journal) -> bool:
        """A new leader has replaced the entry: perhaps nobody ever had the batch, and nobody needs it."""
        index = self.open_above(journal.base_index)
        if index is None:
            return False
        if index > journal.last_index:
            return True
        return all(each.digest != self.route.digest for each in unpack_routes(journal.entry(index)[0]))


class Settled:
    """What some have removed, as a snapshot stands for it, and nobody has: nobody is asked for it again.

    That stays so, whatever becomes of links and terms, as long as one of those who have removed it is a member, or this
    node's state has what it did.
    """

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._rows: dict[bytes, tuple[Wanted, frozenset[NodeId]]] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._rows

    def add(self, wanted: Wanted, said: Mapping[NodeId, Lack]) -> None:
        """Nobody is asked for it from now on. ``said``: by whom that is so."""
        removed_by = frozenset(peer for peer, lack in said.items() if lack is Lack.COMPACTED)
        self._rows.setdefault(wanted.route.digest, (wanted, removed_by))
        self._payloads.begin_behind(wanted.route)

    def forget(self, digest: bytes) -> None:
        """It is here, or nobody needs it."""
        self._rows.pop(digest, None)

    def begin_behind(self) -> None:
        """Logs begin behind them, where this node needs them no more by now: behind the last first, which is enough."""
        for wanted, _ in sorted(self._rows.values(), key=lambda row: -row[0].route.last_index):
            self._payloads.begin_behind(wanted.route)

    def lapsed(self, members: Collection[NodeId]) -> Iterator[Wanted]:
        """Those that none of these has removed, and that are needed here: who has a set? Settled no more."""
        for digest, (wanted, removed_by) in list(self._rows.items()):
            if removed_by.isdisjoint(members) and self._payloads.lack(wanted.route) is not Lack.APPLIED:
                del self._rows[digest]
                yield wanted
