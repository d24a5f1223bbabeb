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

from logboom.errors import IndexCompacted, ProtocolError
from logboom.types import NodeId, PartitionId, PartitionLogIndex, Term
from logboom.wire import Frame, Kind
from ports.clock import Clock
from ports.offload import Offload
from raftlog.entry import ROUTE, ROUTE_BYTES, Route, unpack_routes
from raftlog.journal import Journal
from raftlog.lacks import Answers, Lack, pack, unpack
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
        self.set_peers(peers)
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
        self._answers = Answers()
        self.hopeless: dict[bytes, Wanted] = {}
        """Committed ones that no other node gives, by digest."""

    def set_peers(self, peers: Collection[NodeId]) -> None:
        """Whom to ask from now on."""
        self._everybody, self._peers, self._peer_count = tuple(peers), itertools.cycle(peers), len(peers)

    def verdict(self, digest: bytes) -> Lack | None:
        """What all other nodes have said of a batch that is missing here; None: not all of them have."""
        return self._answers.verdict(digest, self._everybody)

    def lost(self) -> list[tuple[Route, Lack | None]]:
        """Of the hopeless those that are still missing, and what the others say."""
        self.hopeless = {d: w for d, w in self.hopeless.items() if not self._is_removed(w)}
        return [(wanted.route, self.verdict(digest)) for digest, wanted in self.hopeless.items()]

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
        """Drop what has arrived; ask the next peer when the last one has not answered in time. True: all is here.

        Or what is not here is given by nobody, and need not be: a snapshot stands for it.
        """
        while done := [each for each in self._missing[:ROUTES_PER_FETCH] if self._is_over(each)]:
            window = self._missing[:ROUTES_PER_FETCH]
            self._missing[:ROUTES_PER_FETCH] = [each for each in window if each not in done]
            if any(each.route == self._awaited for each in done):
                self._asked = None
        if not self._missing:
            log.info("payload_repaired")
            return True
        now = self._clock.monotonic()
        if self._asked is not None and now - self._asked[1] < ASK_AGAIN_S:
            return False
        window, rest = self._missing[:ROUTES_PER_FETCH], self._missing[ROUTES_PER_FETCH:]
        if rest and all(self.verdict(wanted.route.digest) is not None for wanted in window):
            self._missing = rest + window  # nobody has any of these: let others have their turn
        rows = [wanted.route for wanted in self._missing[:ROUTES_PER_FETCH]]
        wanted = b"".join(ROUTE.pack(*route) for route in rows)
        for _ in range(self._peer_count):
            peer = next(self._peers)
            if self._links.send(peer, Kind.FETCH, {}, [wanted]):
                self._asked, self._awaited = (peer, now), rows[-1]
                break
        return False

    def _is_over(self, wanted: Wanted) -> bool:
        digest = wanted.route.digest
        if self._payloads.holds(wanted.route) or self._given_up(wanted) or self._is_removed(wanted):
            self._answers.forget(digest)
            self.hopeless.pop(digest, None)
            return True
        if wanted.raft_index is not None or self.verdict(digest) is None:
            return False
        if digest not in self.hopeless:
            log.error(
                "payload_lost",
                partition=wanted.route.partition_id,
                last_index=wanted.route.last_index,
                others=self.verdict(digest),
            )
            self.hopeless[digest] = wanted
        return self.verdict(digest) is Lack.COMPACTED

    def _is_removed(self, wanted: Wanted) -> bool:
        """Compaction has taken it away here, too."""
        return wanted.raft_index is None and self._payloads.lack(wanted.route) is Lack.COMPACTED

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
        """FETCH: answer with what we hold, and say why not for the rest. FETCHED: one batch, or why not."""
        if frame.kind is Kind.FETCH:
            self._answer(peer, frame)
        elif "lacks" in frame.header:
            self._told(peer, unpack(frame.header))
        else:
            self._payloads.receive(frame.body)

    def _told(self, peer: NodeId, lacking: list[tuple[Route, Lack]]) -> None:
        digests = {wanted.route.digest for wanted in self._missing}
        about = [(route, lack) for route, lack in lacking if route.digest in digests]
        news = [route for route, lack in about if self._answers.say(peer, route, lack)]
        if news and self._asked is not None and self._asked[0] == peer:
            self._asked = None  # somebody else may have it: ask at once

    def _answer(self, peer: NodeId, frame: Frame) -> None:
        if len(frame.body) % ROUTE_BYTES or len(frame.body) > ROUTES_PER_FETCH * ROUTE_BYTES:
            raise ProtocolError("FETCH: not a list of routing entries")
        rows = [Route(PartitionId(p), Term(t), PartitionLogIndex(i), d) for p, t, i, d in ROUTE.iter_unpack(frame.body)]
        held = [route for route in rows if self._payloads.holds(route)]
        lacking = [(route, self._lack(route)) for route in rows if route not in held]

        def done(found: tuple[list[bytes], list[tuple[Route, Lack]]] | None, error: BaseException | None) -> None:
            if found is None:
                log.error("fetch_failed", peer=peer, error=str(error))
                return
            raws, unreadable = found
            for raw in raws:
                self._links.send(peer, Kind.FETCHED, {}, [raw])
            for route, lack in unreadable:
                if lack is Lack.DAMAGED:
                    self._damaged(route)
            if lacking or unreadable:
                self._links.send(peer, Kind.FETCHED, pack([*lacking, *unreadable]), [])

        self._offload.submit(lambda: self._read(held), done)

    def _read(self, routes: list[Route]) -> tuple[list[bytes], list[tuple[Route, Lack]]]:
        raws, unreadable = list[bytes](), list[tuple[Route, Lack]]()
        for route in routes:
            try:
                raws.append(self._payloads.read(route))
            except DamagedPayload as error:
                unreadable.append((error.route, Lack.DAMAGED))
            except IndexCompacted:
                unreadable.append((route, Lack.COMPACTED))
        return raws, unreadable

    def _lack(self, route: Route) -> Lack:
        if any(wanted.route.digest == route.digest for wanted in self._missing) or route.digest in self.hopeless:
            return Lack.DAMAGED
        return self._payloads.lack(route)
