"""What a peer asks for and this node holds, read from the disk, and why it does not give the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import structlog

from logboom.errors import CorruptData, ProtocolError
from logboom.types import NodeId, PartitionId, PartitionLogIndex, Term
from logboom.wire import Frame, Kind
from ports.offload import Offload
from raftlog.entries.entry import ROUTE, ROUTE_BYTES, Route
from raftlog.links.lacks import LACKS_MAX, NOBODY_HAS, Lack, free_header, number, pack
from raftlog.links.links import Links
from raftlog.links.payloads import REMOVED, DamagedPayload, Payloads
from raftlog.repair.seals import Seals

if TYPE_CHECKING:
    from raftlog.repair.repair import Standing

log = structlog.get_logger(__name__)

Held = tuple[list[tuple[Route, bytes]], list[tuple[Route, Lack]], list[DamagedPayload]]
"""Batches, why others are not here, and those that are damaged."""


class Own(Protocol):
    """Why this node does not have a batch; see ``Repair.own``."""

    def __call__(self, route: Route, *, sets: bool = False) -> Lack: ...


class Giving:
    """Answers what peers ask of one node."""

    def __init__(
        self,
        *,
        links: Links,
        payloads: Payloads,
        offload: Offload,
        seals: Seals,
        damaged: Callable[[DamagedPayload], None],
        standing: Callable[[], Standing],
        own: Own,
    ) -> None:
        """``damaged`` is called for what cannot be read."""
        self._links = links
        self._payloads = payloads
        self._offload = offload
        self._seals = seals
        self._damaged = damaged
        self._standing = standing
        self._own = own

    def answer(self, peer: NodeId, frame: Frame) -> None:
        """FETCH: give what is held, and say why not for the rest. Raises ProtocolError."""
        if len(frame.body) % ROUTE_BYTES or len(frame.body) > LACKS_MAX * ROUTE_BYTES:
            raise ProtocolError("FETCH: not a list of routing entries")
        rows = [Route(PartitionId(p), Term(t), PartitionLogIndex(i), d) for p, t, i, d in ROUTE.iter_unpack(frame.body)]
        term, asked = number(frame.header, "term"), number(frame.header, "asked")
        standing = self._standing()
        held = [route for route in rows if self._payloads.holds(route)]
        void, sets = frame.header.get("void") is True, number(frame.header, "sets")
        lacking = [
            (route, self._lack(route, leads=standing.leads, sets=void or bool(sets >> at & 1)))
            for at, route in enumerate(rows)
            if route not in held
        ]
        if (standing.term, standing.leader) == (term, peer):
            for route, lack in lacking:
                self._seals.put(route.digest, on=void and lack in NOBODY_HAS)

        def done(found: Held | None, error: BaseException | None) -> None:
            if found is None:
                log.error("fetch_failed", peer=peer, error=str(error))
                return
            given, unreadable, damaged = found
            now = self._standing()
            for route, raw in given:
                # A leader that has it still is not about to declare it void: if ever, that question comes later.
                free = now.leads and route.digest not in self._seals and self._payloads.holds(route)
                self._links.send(peer, Kind.FETCHED, free_header(route, term=now.term) if free else {}, [raw])
            for each in damaged:
                self._damaged(each)
            # What was damaged only now is asked for again: whether the state has it applied is not known here.
            told = [*lacking, *unreadable, *((each.route, Lack.UNKNOWN) for each in damaged)]
            if told:
                self._links.send(peer, Kind.FETCHED, pack(told, term=standing.term, asked=asked), [])

        self._offload.submit(lambda: read_held(self._payloads, held), done)

    def _lack(self, route: Route, *, leads: bool, sets: bool) -> Lack:
        found = self._own(route, sets=sets)
        return Lack.LOST if leads and found is not Lack.COMPACTED and self._payloads.is_hole(route) else found


def read_held(payloads: Payloads, routes: list[Route]) -> Held:
    """As many as can be read, and why not of the others: one of them keeps nobody from the rest. Blocking."""
    given, unreadable, damaged = list[tuple[Route, bytes]](), list[tuple[Route, Lack]](), list[DamagedPayload]()
    for route in routes:
        try:
            given.append((route, payloads.read(route)))
        except DamagedPayload as error:
            damaged.append(error)
        except REMOVED:
            unreadable.append((route, Lack.COMPACTED))
        except (CorruptData, OSError) as error:  # the disk cannot read it now
            log.error("fetch_failed", partition=route.partition_id, last_index=route.last_index, error=str(error))
            unreadable.append((route, Lack.UNKNOWN))
    return given, unreadable, damaged
