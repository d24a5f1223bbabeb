"""What a peer asks for and this node holds, read from the disk, and why it does not give the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from logboom.errors import CorruptData, ProtocolError
from logboom.types import MIB, NodeId, PartitionId, PartitionLogIndex, Term
from logboom.wire import Frame, Kind
from ports.clock import Clock
from ports.offload import Offload
from raftlog.entries.entry import ROUTE, ROUTE_BYTES, Route
from raftlog.links.lacks import LACKS_MAX, NOBODY_HAS, Lack, free_header, more_header, number, pack
from raftlog.links.links import Links
from raftlog.links.payloads import REMOVED, DamagedPayload, Payloads
from raftlog.repair.seals import Seals

if TYPE_CHECKING:
    from raftlog.repair.standing import Standing

log = structlog.get_logger(__name__)

ANSWER_BYTES: Final = MIB
"""An answer gives as much, and one batch at least: what is sent next, as heartbeats are, lies behind it."""
AHEAD_BYTES: Final = MIB
"""While more waits on the link nothing is given, for the same reason."""
GIVES_S: Final = 2.0
"""But once in so long, where that is something else: whoever is fed may always have as much under way, and needs what
it has asked for."""


@dataclass(slots=True)
class _Gave:
    """To one peer."""

    at: float
    """When, last."""
    waits: int = 0
    """Bytes of that, and of what was given before, that may wait on the link still: not more."""
    link: int = 0
    """Which one of that peer, see Links.ups."""
    through: int = 0
    """Once so many bytes have been sent over that link nothing of it waits any more."""

    def left(self, nbytes: int, *, link: int) -> None:
        """So many bytes have been sent over this link."""
        self.waits = min(self.waits, max(0, self.through - nbytes)) if link == self.link else 0
        self.link = link


@dataclass(slots=True)
class _Held:
    """What is read for one answer."""

    room: int
    given: list[tuple[Route, bytes]] = field(default_factory=list)
    unreadable: list[tuple[Route, Lack]] = field(default_factory=list)
    """And why."""
    damaged: list[DamagedPayload] = field(default_factory=list)
    cut: bool = False
    """There was no room for some."""

    def read(self, payloads: Payloads, route: Route, size: int) -> bool:
        """False: it is not given."""
        self.cut = self.cut or (bool(self.given) and size > self.room)
        if self.cut:
            return False
        try:
            self.given.append((route, payloads.read(route)))
        except DamagedPayload as error:
            self.damaged.append(error)
        except REMOVED:
            self.unreadable.append((route, Lack.COMPACTED))
        except (CorruptData, OSError) as error:  # the disk cannot read it now
            log.error("fetch_failed", partition=route.partition_id, last_index=route.last_index, error=str(error))
            self.unreadable.append((route, Lack.UNKNOWN))
        else:
            self.room -= size
            return True
        return False


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
        clock: Clock,
        seals: Seals,
        damaged: Callable[[DamagedPayload], None],
        standing: Callable[[], Standing],
        own: Own,
    ) -> None:
        """``damaged`` is called for what cannot be read."""
        self._links = links
        self._payloads = payloads
        self._offload = offload
        self._clock = clock
        self._seals = seals
        self._damaged = damaged
        self._standing = standing
        self._own = own
        self._gave: dict[NodeId, _Gave] = {}

    def answer(self, peer: NodeId, frame: Frame) -> None:
        """FETCH: give of what is held, and say why the rest is not. Raises ProtocolError."""
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

        stuck = {route.partition_id for route, _ in lacking}
        busy = bool(held) and not self._may_give(peer)
        sized = [] if busy else [(route, self._payloads.size(route)) for route in held]

        def done(found: _Held | None, error: BaseException | None) -> None:
            if found is None:
                log.error("fetch_failed", peer=peer, error=str(error))
                return
            now = self._standing()
            for at, (route, raw) in enumerate(found.given, 1):
                # A leader that has it still is not about to declare it void: if ever, that question comes later.
                free = now.leads and route.digest not in self._seals and self._payloads.holds(route)
                header: dict[str, Any] = free_header(route, term=now.term) if free else {}
                if found.cut and at == len(found.given):
                    header |= more_header(route, asked=asked)
                if self._links.send(peer, Kind.FETCHED, header, [raw]):
                    self._note(peer, len(raw))
            for each in found.damaged:
                self._damaged(each)
            # What was damaged only now is asked for again: whether the state has it applied is not known here.
            told = [*lacking, *found.unreadable, *((each.route, Lack.UNKNOWN) for each in found.damaged)]
            if told or busy:
                header = pack(told, term=standing.term, asked=asked) | ({"busy": True} if busy else {})
                self._links.send(peer, Kind.FETCHED, header, [])

        self._offload.submit(lambda: _read(self._payloads, sized, stuck), done)

    def _note(self, peer: NodeId, nbytes: int) -> None:
        gave, left = self._gave[peer], self._links.left_bytes(peer)
        gave.left(left, link=self._links.ups[peer])
        gave.waits += nbytes
        gave.through = left + self._links.queued(peer)

    def _may_give(self, peer: NodeId) -> bool:
        now, queued = self._clock.monotonic(), self._links.queued(peer)
        gave = self._gave.setdefault(peer, _Gave(now - GIVES_S))
        gave.left(self._links.left_bytes(peer), link=self._links.ups[peer])
        if queued > AHEAD_BYTES:
            # A link that is full of what it is given here is given no more of that, be it ever so slow. Whoever is fed
            # has its half of the buffer full, always; what is above that, and more, is left to what cannot wait.
            given = 2 * gave.waits >= queued and self._links.has_room(peer)
            if given or now - gave.at < GIVES_S or not self._links.has_room(peer, beyond=AHEAD_BYTES):
                return False
        gave.at = now
        return True

    def _lack(self, route: Route, *, leads: bool, sets: bool) -> Lack:
        found = self._own(route, sets=sets)
        return Lack.LOST if leads and found is not Lack.COMPACTED and self._payloads.is_hole(route) else found


def _read(payloads: Payloads, held: list[tuple[Route, int]], stuck: set[PartitionId]) -> _Held:
    """As many as can be read and there is room for: one that cannot keeps nobody from the rest. Blocking.

    Last those that follow one that is not given (``stuck``: partitions of such): whoever asks may not be able to take
    them, and they are not to leave others without room, each time.
    """
    found, behind = _Held(ANSWER_BYTES), list[tuple[Route, int]]()
    for route, size in held:
        if route.partition_id in stuck:
            behind.append((route, size))
        elif not found.read(payloads, route, size):
            stuck.add(route.partition_id)
    for route, size in behind:
        found.read(payloads, route, size)
    return found
