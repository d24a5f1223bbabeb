"""Fetching batches by digest from any peer that holds them.

Needed only after damage or, in write-behind mode, a power loss: entries of the journal that
were acknowledged and whose batch is gone, or turned out to be damaged when it was read. Until all
are back the node does not lead and applies nothing (docs/decisions/0009). In normal operation the
gate makes this unnecessary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import structlog

from logboom.errors import ProtocolError
from logboom.types import NodeId, PartitionId, PartitionLogIndex, Term
from logboom.wire import Frame, Kind
from ports.clock import Clock
from ports.offload import Offload
from raftlog.entry import ROUTE, ROUTE_BYTES, Route, unpack_routes
from raftlog.journal import Journal
from raftlog.links import Links
from raftlog.payloads import DamagedPayload, Payloads

log = structlog.get_logger(__name__)

ROUTES_PER_FETCH: Final = 16
ASK_AGAIN_S: Final = 0.5


class Wanted(NamedTuple):
    """A batch that is missing, and the journal entry that names it; None: a committed one, which stays."""

    route: Route
    raft_index: int | None


class Repair:
    """Both sides: asks for what is missing here, answers what peers ask."""

    def __init__(
        self,
        *,
        peers: list[NodeId],
        links: Links,
        payloads: Payloads,
        journal: Journal,
        offload: Offload,
        clock: Clock,
        damaged: Callable[[Route], None],
    ) -> None:
        """``damaged`` is called for what a peer asked for and cannot be read here."""
        self._peers = itertools.cycle(peers)
        self._peer_count = len(peers)
        self._links = links
        self._payloads = payloads
        self._journal = journal
        self._offload = offload
        self._clock = clock
        self._damaged = damaged
        self._missing: list[Wanted] = []
        self._asked: tuple[NodeId, float] | None = None
        self._awaited: Route | None = None
        """Last route of the request under way."""

    def set_peers(self, peers: Collection[NodeId]) -> None:
        """Whom to ask from now on."""
        self._peers, self._peer_count = itertools.cycle(peers), len(peers)

    @property
    def active(self) -> bool:
        """Something is missing."""
        return bool(self._missing)

    @property
    def first_index(self) -> int:
        """First journal entry whose payload is known to be missing; of committed ones nobody needs to be told."""
        return min((w.raft_index for w in self._missing if w.raft_index is not None), default=1 << 62)

    def missing(self, routes: list[Wanted]) -> None:
        """These must be fetched, in this order (a batch is appended only after its predecessor)."""
        self._missing = list(routes)
        if routes:
            log.warning("payload_missing", batches=len(routes), first=routes[0].route.last_index)

    def damaged(self, wanted: Wanted) -> None:
        """One that was held cannot be read."""
        log.warning("payload_damaged", partition=wanted.route.partition_id, last_index=wanted.route.last_index)
        self._missing.append(wanted)

    def work(self) -> bool:
        """Drop what has arrived; ask the next peer when the last one has not answered in time. True: all is here."""
        while self._missing and (self._payloads.holds(self._missing[0].route) or self._given_up(self._missing[0])):
            if self._missing.pop(0).route == self._awaited:
                self._asked = None
        if not self._missing:
            log.info("payload_repaired")
            return True
        now = self._clock.monotonic()
        if self._asked is not None and now - self._asked[1] < ASK_AGAIN_S:
            return False
        rows = [wanted.route for wanted in self._missing[:ROUTES_PER_FETCH]]
        wanted = b"".join(ROUTE.pack(*route) for route in rows)
        for _ in range(self._peer_count):
            peer = next(self._peers)
            if self._links.send(peer, Kind.FETCH, {}, [wanted]):
                self._asked, self._awaited = (peer, now), rows[-1]
                break
        return False

    def _given_up(self, wanted: Wanted) -> bool:
        """A new leader has replaced the entry: perhaps nobody ever had the batch, and nobody needs it."""
        if wanted.raft_index is None or wanted.raft_index <= self._journal.base_index:
            return False
        if wanted.raft_index > self._journal.last_index:
            return True
        return not any(
            each.digest == wanted.route.digest for each in unpack_routes(self._journal.entry(wanted.raft_index)[0])
        )

    def peer_down(self, peer: NodeId) -> None:
        """Do not wait for its answer."""
        if self._asked is not None and self._asked[0] == peer:
            self._asked = None

    def on_frame(self, peer: NodeId, frame: Frame) -> None:
        """FETCH: answer with what we hold. FETCHED: one batch."""
        if frame.kind is Kind.FETCHED:
            self._payloads.receive(frame.body)
            return
        if len(frame.body) % ROUTE_BYTES or len(frame.body) > ROUTES_PER_FETCH * ROUTE_BYTES:
            raise ProtocolError("FETCH: not a list of routing entries")
        rows = [Route(PartitionId(p), Term(t), PartitionLogIndex(i), d) for p, t, i, d in ROUTE.iter_unpack(frame.body)]
        held = [route for route in rows if self._payloads.holds(route)]

        def done(raws: list[bytes] | None, error: BaseException | None) -> None:
            if raws is None:
                log.error("fetch_failed", peer=peer, error=str(error))
                if isinstance(error, DamagedPayload):
                    self._damaged(error.route)
                return
            for raw in raws:
                self._links.send(peer, Kind.FETCHED, {}, [raw])

        self._offload.submit(lambda: [self._payloads.read(route) for route in held], done)
