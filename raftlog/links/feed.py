"""Feeds: how payload reaches each follower.

*Live*: every new batch goes on the link in the turn in which it is appended. A follower that
cannot keep up, was away, or says what it lacks is *catching up*: batches are read back from
the partition logs in parent-log order, as fast as the link drains, and Raft entries are sent
only up to the cursor, so that payload always comes first; in the place of a batch that is lost
everywhere comes the word that it is. A slow follower costs the memory of one chunk.

What is with a follower and not synced there is in its memory. Once that is much, as where its disk is slower than
its link, it gets no more until it has acknowledged some; meanwhile it counts as catching up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from logboom.errors import CorruptData
from logboom.types import MIB, NodeId
from logboom.wire import Buffer, Kind, encode
from ports.offload import Offload
from raftlog.entries.entry import Route, unpack_routes
from raftlog.journal.journal import Journal
from raftlog.links.lacks import LACKS_MAX, Lack, pack
from raftlog.links.links import Links
from raftlog.links.payloads import REMOVED, DamagedPayload, Payloads

log = structlog.get_logger(__name__)

LIVE: Final = 1 << 62
UNBOUNDED: Final = 1 << 62
CHUNK_BYTES: Final = 2 * MIB
CHUNK_ROUTES: Final = 256


STEPS: Final = 64
"""In so many payload under way is counted, up to what it may be at most."""


_Out = tuple[Kind, dict[str, Any], list[Buffer]]
"""A frame."""
_Read = tuple[list[tuple[int, bytes]], int, Exception | None]
"""Payload with the entry it is of, the last entry that is whole, and what kept the next one from being read."""


@dataclass(slots=True)
class _Feed:
    cursor: int = LIVE
    """Payload of all entries up to here is on the link; LIVE: of all entries there are."""
    reading: bool = False
    epoch: int = 0
    """Changes whenever what is being read becomes pointless."""
    rest: deque[_Out] = field(default_factory=deque)
    """Read, and not on the link yet, which was full: with all of it there the cursor is at ``upto``."""
    upto: int = 0
    sent: int = 0
    """Bytes of payload, on the link or about to be."""
    synced: int = 0
    """Of them, with all that it has acknowledged: as far as anybody has looked."""
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """Above that: what belongs to entries up to here, and ``sent`` with that."""

    def move(self, cursor: int) -> None:
        """To somewhere else: what is under way is pointless, and what is sent behind it will be sent again."""
        self.cursor, self.reading, self.epoch = cursor, False, self.epoch + 1
        self.rest.clear()
        marks = self.marks
        while marks and marks[-1][0] > cursor:
            marks.pop()
        self.sent = marks[-1][1] if marks else self.synced

    def count(self, index: int, size: int, *, step: int) -> None:
        """So much is sent for entries up to there."""
        self.sent += size
        marks = self.marks
        if marks and marks[-1][0] == index:
            marks.pop()
        elif len(marks) > 1 and marks[-1][1] - (marks[-3][1] if len(marks) > 2 else self.synced) <= step:
            del marks[-2]  # of what is in front: what is newest may have to be sent again, and nothing but that
        marks.append((index, self.sent))

    def under_way(self, acknowledged: int) -> int:
        """What it may have in its memory: it has acknowledged entries up to there."""
        marks = self.marks
        while marks and marks[0][0] <= acknowledged:
            self.synced = marks.popleft()[1]
        return self.sent - self.synced


class Feeds:
    """The feeds of a leader; forgotten when it stops leading."""

    def __init__(
        self,
        *,
        peers: list[NodeId],
        journal: Journal,
        payloads: Payloads,
        links: Links,
        offload: Offload,
        advanced: Callable[[NodeId], None],
        damaged: Callable[[DamagedPayload], None],
        bytes_max: int = UNBOUNDED,
        acknowledged: Callable[[NodeId], int] = lambda _: 0,
        mends: Callable[[NodeId], bool] = lambda _: False,
    ) -> None:
        """``advanced`` is called when more entries of a peer may be sent, ``damaged`` for what cannot be read.

        ``bytes_max``: payload that a peer may have beyond what it has ``acknowledged``; one batch, or chunk, more. Not
        while it ``mends`` something: then it says of entries behind that nothing, synced or not.
        """
        self._feeds = {peer: _Feed() for peer in peers}
        self._journal = journal
        self._payloads = payloads
        self._links = links
        self._offload = offload
        self._advanced = advanced
        self._damaged = damaged
        self._bytes_max, self._step = bytes_max, bytes_max // STEPS
        self._acknowledged, self._mends = acknowledged, mends
        self._all_live = True
        """As nearly always: then there is nobody to look for with each turn and each answer."""

    def set_peers(self, peers: Iterable[NodeId]) -> None:
        """Those to feed from now on; new ones are believed to hold everything until told otherwise."""
        gone = dict(self._feeds)
        self._feeds = {peer: gone.pop(peer) if peer in gone else _Feed() for peer in peers}
        for feed in gone.values():
            feed.epoch += 1
        self._look()

    def _look(self) -> None:
        self._all_live = all(feed.cursor == LIVE for feed in self._feeds.values())

    def sendable(self, peer: NodeId) -> int:
        """Highest Raft index that may be sent to ``peer``."""
        return self._feeds[peer].cursor

    @property
    def behind(self) -> bool:
        """Somebody catches up."""
        return not self._all_live and any(
            self._journal.base_index <= feed.cursor != LIVE for feed in self._feeds.values()
        )

    def halted(self, peer: NodeId) -> bool:
        """It is fed nothing: it may lack what the journal no longer has. Whoever knows better rewinds."""
        return not self._all_live and self._feeds[peer].cursor < self._journal.base_index

    def state(self, peer: NodeId) -> str:
        """``live``, ``catching_up`` or ``halted``, for people."""
        feed = self._feeds.get(peer)
        if feed is None or feed.cursor == LIVE:
            return "live"
        return "halted" if self.halted(peer) else "catching_up"

    def reset(self) -> None:
        """A new leadership: believe that everybody holds everything until told otherwise."""
        for feed in self._feeds.values():
            feed.move(0)
            feed.move(LIVE)
        self._all_live = True

    def rewind(self, peer: NodeId, *, held: int) -> None:
        """``peer`` holds the payload of entries up to ``held``, perhaps not beyond. Below the base: see ``halted``."""
        self._feeds[peer].move(held)
        self._look()

    def begin(self, peer: NodeId, *, held: int) -> None:
        """Over a new link, what was under way is gone. ``held`` 1: nothing is known, so believe that it holds all."""
        self._feeds[peer].move(0)
        self.rewind(peer, held=held if held > 1 else LIVE)

    def broadcast(self, term: int, buffers: list[Buffer], *, traceparent: str | None = None) -> None:
        """Put a new batch on every live link."""
        header = {"term": term} if traceparent is None else {"term": term, "traceparent": traceparent}
        frame, size = encode(Kind.PAYLOAD, header, buffers), sum(map(len, buffers))
        for peer, feed in self._feeds.items():
            if feed.cursor != LIVE:
                continue
            if not self._is_full(peer, feed) and self._links.send_frame(peer, Kind.PAYLOAD, frame):
                feed.count(self._journal.last_index + 1, size, step=self._step)
            else:
                # Everything proposed so far went out before; this batch is not proposed yet.
                self.rewind(peer, held=self._journal.last_index)

    def _is_full(self, peer: NodeId, feed: _Feed) -> bool:
        if feed.sent - feed.synced < self._bytes_max:  # as nearly always: nothing has to be looked at
            return False
        return feed.under_way(self._acknowledged(peer)) >= self._bytes_max and not self._mends(peer)

    def interrupt(self) -> None:
        """A new batch goes to nobody now: whoever had everything gets it later, as all that lag."""
        for peer, feed in self._feeds.items():
            if feed.cursor == LIVE:
                self.rewind(peer, held=self._journal.last_index)

    def pump(self, *, term: int, settled: bool) -> None:
        """Move every feed that can move. ``settled``: no batch is appended and not yet proposed."""
        if self._all_live:
            return
        for peer, feed in self._feeds.items():
            if feed.cursor == LIVE or feed.reading or self.halted(peer):
                continue
            if feed.rest:
                self._send_on(peer, feed)
            elif self._links.has_room(peer) and not self._is_full(peer, feed):
                self._pump(peer, feed, term=term, settled=settled)

    def _pump(self, peer: NodeId, feed: _Feed, *, term: int, settled: bool) -> None:
        routes: list[tuple[int, Route]] = []
        room, index = CHUNK_BYTES, feed.cursor
        while index < self._journal.last_index and room > 0 and len(routes) < CHUNK_ROUTES:
            index += 1
            for route in unpack_routes(self._journal.entry(index)[0]):
                routes.append((index, route))
                room -= self._payloads.size(route)
        if index == feed.cursor:
            if settled:
                feed.cursor = LIVE
                self._look()
            return
        epoch, feed.reading = feed.epoch, True
        lost = [(at, route) for at, route in routes if self._payloads.is_hole(route)]

        def done(found: _Read | None, error: BaseException | None) -> None:
            if feed.epoch != epoch:
                return
            feed.reading = False
            if found is None:
                raise error or RuntimeError("reading payload failed")
            raws, upto, failure = found
            if failure is not None:
                # Tried again with the next turn. What was removed meanwhile lies below the journal's new base: the feed
                # halts. A copy that is damaged goes to the follower when we have it back.
                self._links.seldom.say(log.error, "catch_up_read_failed", peer=peer, error=str(failure))
                if isinstance(failure, DamagedPayload):
                    self._damaged(failure)
            if upto == feed.cursor:
                return
            rows = [(route, Lack.LOST) for at, route in lost if at <= upto]
            for at in range(0, len(rows), LACKS_MAX):
                feed.rest.append((Kind.FETCHED, pack(rows[at : at + LACKS_MAX], term=term), []))
            feed.rest.extend((Kind.PAYLOAD, {"term": term}, [raw]) for at, raw in raws if at <= upto)
            feed.upto = upto
            feed.count(upto, sum(len(raw) for at, raw in raws if at <= upto), step=self._step)
            self._send_on(peer, feed)

        self._offload.submit(lambda: self._read([each for each in routes if each not in lost], index), done)

    def _read(self, routes: list[tuple[int, Route]], upto: int) -> _Read:
        """Of entries up to ``upto``, in their order; ends in front of an entry that cannot be read now."""
        raws = list[tuple[int, bytes]]()
        for at, route in routes:
            try:
                raws.append((at, self._payloads.read(route)))
            except (CorruptData, OSError, *REMOVED) as error:
                return raws, at - 1, error
        return raws, upto, None

    def _send_on(self, peer: NodeId, feed: _Feed) -> None:
        """As much as the link takes. The rest, of a chunk, waits: read and sent anew it would only fill it again."""
        while feed.rest:
            if not self._links.has_room(peer) or not self._links.send(peer, *feed.rest[0]):
                return
            feed.rest.popleft()
        feed.cursor = feed.upto
        self._advanced(peer)
