"""Giving a snapshot to a node that needs one, or to a backup: the side of whoever has it.

The leader offers its newest set whose logs it has to a follower that lacks what the journal no longer has. The follower
asks for the pieces, of whichever node has them: this node answers from its files and keeps nothing in mind but until
when it holds the set back from removal. For a member the leader does so until its log has come as far as those of the
others begin: with all pieces it has states to load, which may take long, and then asks for what came after the set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from dispatcher.upkeep.compaction import COMPACTED_TO
from dispatcher.upkeep.sources import number
from logboom.errors import (
    CorruptData,
    IncompatibleVersion,
    IndexCompacted,
    InvalidRequest,
    LogboomError,
    ProtocolError,
    Unavailable,
    Voided,
)
from logboom.types import MIB, GlobalLogIndex, NodeId, PartitionId, PartitionLogIndex
from logboom.wire import Buffer, Frame, Kind
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from ports.clock import Clock
from ports.offload import Offload
from raftlog.links.links import Links
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)

CHUNK_BYTES: Final = 1 * MIB
"""Of a file, and of a log's batches (one batch may be larger), in one frame."""
OF_FILES: Final = frozenset((Kind.SNAPSHOT_FETCH, Kind.SNAPSHOT_READ))
OFFER_AGAIN_S: Final = 1.0
LEASE_S: Final = 30.0
"""A set that a piece was asked of is kept for so long, and what its holder will need next."""


class Piece(NamedTuple):
    """An answer: a frame's header and body."""

    header: dict[str, Any]
    body: list[Buffer]


class SnapshotServing:
    """Gives the sets and the logs of one node away, and holds back those that somebody needs."""

    def __init__(
        self,
        *,
        store: SnapshotStore,
        logs: Mapping[PartitionId, PartitionLog],
        links: Links,
        clock: Clock,
        offload: Offload,
        damaged: Callable[[PartitionId, DamagedBatch], None],
        handed_up: Callable[[], int],
        hold_s: float = 0.0,
        acknowledged: Callable[[NodeId], int | None] = lambda _: None,
        short_of_room: Callable[[], bool] = lambda: False,
        doubted: Callable[[GlobalLogIndex], None] = lambda _: None,
    ) -> None:
        """``damaged`` is told of a batch that cannot be read. ``handed_up``: up to which Raft index all is, here.

        ``doubted`` is told of a set that may be damaged here: it is to be read again.

        ``hold_s``: a set is held back from removal for so long, 0: as long as anybody needs it. ``acknowledged``: how
        far a member's log is; None: it is none, or this node does not lead. With ``short_of_room`` nothing is held
        back for a member that asks no more: it may be gone for good, and nobody could write.
        """
        self._store = store
        self._logs = logs
        self._links = links
        self._clock = clock
        self._offload = offload
        self._damaged = damaged
        self._handed_up = handed_up
        self._offered: dict[NodeId, float] = {}
        self._has_none = False
        """No set was here when somebody needed one last."""
        self._leases: dict[GlobalLogIndex, float] = {}
        self._given: dict[NodeId, GlobalLogIndex] = {}
        """Which set other nodes have asked for last."""
        self._given_whole: set[tuple[NodeId, GlobalLogIndex]] = set()
        """Who has asked for the last piece of which."""
        self._doubted = doubted
        self._acknowledged = acknowledged
        self._short_of_room = short_of_room
        self._hold_s = hold_s
        self._held_since: dict[GlobalLogIndex, float] = {}
        """Sets that would have been removed by now, but for those who fetch them."""

    def offer(self, peer: NodeId) -> None:
        """Tell a node that needs a snapshot of our newest one that we have the logs to; at most once a second."""
        now, sets, reached = self._clock.monotonic(), self._store.sets(), self._handed_up()
        if not sets and not self._has_none:
            log.warning("no_snapshot_to_offer", peer=peer)
        self._has_none = not sets
        if not sets or now - self._offered.get(peer, -1e9) < OFFER_AGAIN_S:
            return
        self._offered[peer] = now
        # After a start a leader may need that very node's acknowledgement to hand up what a newer one is of.
        best = next((meta for meta in reversed(sets) if meta.raft_index <= reached), sets[-1])
        header = {"global_index": best.global_index, "raft_index": best.raft_index}
        self._links.send(peer, Kind.SNAPSHOT_OFFER, header)

    def held_back(self) -> set[GlobalLogIndex]:
        """The sets that somebody needs. Asked when older ones than the last but one are about to be removed."""
        now, sets = self._clock.monotonic(), self._store.sets()
        there = [meta.global_index for meta in sets]
        self._held_since = {g: since for g, since in self._held_since.items() if g in there}
        self._leases = {g: until for g, until in self._leases.items() if until > now}
        needed = {*self._leases, *self._needed_by_members(sets)}
        for global_index in [g for g in needed if g in there[:-COMPACTED_TO]]:
            self._held_since.setdefault(global_index, now)
            if self._is_overdue(global_index):
                needed.discard(global_index)
                self._leases.pop(global_index, None)
                self._given = {peer: g for peer, g in self._given.items() if g != global_index}
                log.warning("snapshot_held_too_long", global_index=global_index, setting="snapshot.hold_ms")
        return needed

    def _needed_by_members(self, sets: Sequence[SetMeta]) -> list[GlobalLogIndex]:
        """By those whose logs have not come as far as this one is about to begin."""
        there = {meta.global_index for meta in sets}
        self._given = {peer: g for peer, g in self._given.items() if g in there}
        if not self._given or len(sets) <= COMPACTED_TO or self._short_of_room():
            return []
        reached = {peer: self._acknowledged(peer) for peer in self._given}
        for peer, index in reached.items():
            if index is not None and index >= sets[-COMPACTED_TO].raft_index:
                del self._given[peer]
        return [g for peer, g in self._given.items() if reached[peer] is not None]

    def _is_overdue(self, global_index: GlobalLogIndex) -> bool:
        """Else whoever asks for it again and again would keep it, and all logs behind it, for ever."""
        now = self._clock.monotonic()
        return 0 < self._hold_s <= now - self._held_since.get(global_index, now)

    def on_frame(self, peer: NodeId, frame: Frame) -> None:
        """SNAPSHOT_WANTED, SNAPSHOT_FETCH, LOG_FETCH. Raises ProtocolError."""
        if frame.kind is Kind.SNAPSHOT_WANTED:
            self.offer(peer)
            return
        job = self._job(frame, peer)
        self._look_whether_it_was_good(peer, frame)
        kind, link = Kind.SNAPSHOT_CHUNK if frame.kind is Kind.SNAPSHOT_FETCH else Kind.LOG_CHUNK, self._links.ups[peer]

        def done(piece: Piece | None, error: BaseException | None) -> None:
            if piece is None:
                self._tell(frame, error)
            if self._links.ups[peer] != link:  # whoever is there now may ask under the same number
                return
            if piece is None:
                known = error if isinstance(error, LogboomError) else Unavailable(f"cannot be read here: {error!r}")
                piece = Piece({"error": known.to_wire()}, [])
            elif frame.kind in OF_FILES and frame.header["file"] == "states":
                self._note_whole(peer, frame, piece)
            self._links.send(peer, kind, piece.header, piece.body, request_id=frame.request_id)

        self._offload.submit(job, done)

    async def read(self, frame: Frame) -> Piece:
        """SNAPSHOT_READ, LOG_READ of a client. Raises InvalidRequest, IndexCompacted, CorruptData."""
        try:
            job = self._job(frame)
        except ProtocolError as error:
            raise InvalidRequest(error.message) from None
        if frame.kind is Kind.LOG_READ and frame.header["partition"] not in self._logs:
            raise InvalidRequest(f"there is no partition {frame.header['partition']} here")
        try:
            return await self._offload.run(job)
        except (CorruptData, IncompatibleVersion, OSError) as error:
            self._tell(frame, error)
            raise

    def _tell(self, frame: Frame, error: BaseException | None) -> None:
        if isinstance(error, DamagedBatch):
            self._damaged(PartitionId(number(frame.header, "partition")), error)
        elif frame.kind in OF_FILES and not isinstance(error, IndexCompacted):
            self._doubted(GlobalLogIndex(number(frame.header, "global_index")))

    def _note_whole(self, peer: NodeId, frame: Frame, piece: Piece) -> None:
        """With the last piece its states are there, and are compared."""
        if number(frame.header, "offset") + sum(map(len, piece.body)) >= piece.header["total"]:
            there = {meta.global_index for meta in self._store.sets()}
            whole = peer, GlobalLogIndex(number(frame.header, "global_index"))
            self._given_whole = {each for each in (*self._given_whole, whole) if each[1] in there}

    def _look_whether_it_was_good(self, peer: NodeId, frame: Frame) -> None:
        """Who has had all of it and begins anew has found that it was not: nobody else sees that before a scrub.

        Who goes on with another node asks for that, too, if this one gave a part of it (``Sources.spoilt``).
        """
        begins = frame.kind in OF_FILES and frame.header["file"] == "meta" and not frame.header["offset"]
        whole = peer, GlobalLogIndex(number(frame.header, "global_index"))
        if begins and whole in self._given_whole:
            self._given_whole.discard(whole)
            self._doubted(whole[1])

    def _job(self, frame: Frame, peer: NodeId | None = None) -> Callable[[], Piece]:
        """The set, if it is here, is held back from now on for a while. Raises ProtocolError. ``peer``: if one asks."""
        job = self._file_piece(frame) if frame.kind in OF_FILES else self._log_piece(frame)
        global_index = GlobalLogIndex(number(frame.header, "global_index"))
        if any(meta.global_index == global_index for meta in self._store.sets()) and not self._is_overdue(global_index):
            self._leases[global_index] = self._clock.monotonic() + LEASE_S
            if peer is not None:
                self._given[peer] = global_index
        return job

    def _file_piece(self, frame: Frame) -> Callable[[], Piece]:
        global_index, offset = GlobalLogIndex(number(frame.header, "global_index")), number(frame.header, "offset")
        name = frame.header.get("file")
        if name not in ("meta", "states"):
            raise ProtocolError(f"{frame.kind.name} of neither meta nor states")

        def read() -> Piece:
            if name == "meta":
                raw = self._store.raw_meta(global_index)
                return Piece({"total": len(raw)}, [raw[offset : offset + CHUNK_BYTES]])
            file = self._store.open_states(global_index)
            try:
                return Piece({"total": file.size()}, [file.read(offset=offset, length=CHUNK_BYTES)])
            finally:
                file.close()

        return read

    def _log_piece(self, frame: Frame) -> Callable[[], Piece]:
        partition = number(frame.header, "partition")
        after, through = number(frame.header, "after"), number(frame.header, "through")
        store, fetched = self._logs.get(PartitionId(partition)), frame.kind is Kind.LOG_FETCH

        def read() -> Piece:
            if store is None:
                raise IndexCompacted(f"partition {partition} is not here", first=0)
            durable = store.durable_index  # what is committed behind it may be on its way to the disk
            last, damaged = min(through, durable), False
            try:
                rows = store.read_raw(after_index=after, through_index=last, max_bytes=CHUNK_BYTES)
            except (IndexCompacted, Voided):
                rows = []
            except DamagedBatch:
                if store.lost_behind(after) is None:
                    raise  # others may have it
                rows, damaged = [], True
            first, before, before_global = store.beginning
            void = store.void_behind(after) if not rows else None
            lost = store.lost_behind(after) if not rows and void is None else None
            if void is not None:
                first, before, rows = PartitionLogIndex(void.last_index + 1), void.digest, []
                before_global = void.global_index
            elif damaged and lost is None:
                raise Unavailable(f"partition {partition}: what follows {after} turns up here; ask again")
            elif lost is None and fetched and durable <= after < through:
                raise Unavailable(f"partition {partition} is durable up to {durable} here")  # not: it is gone
            header = {
                "partition": partition,
                "rows": [[row.global_index, len(row.raw)] for row in rows],
                "first": first,
                "before": before,
                "before_global": before_global,
            }
            if void is not None:
                header["void"] = list(void)
            elif lost is not None:
                header["lost"] = list(lost)
            return Piece(header, [row.raw for row in rows])

        return read
