"""One partition's log on its way from other nodes: what this node's copy lacks up to a snapshot's cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from dispatcher.upkeep.sources import number
from logboom.errors import CorruptData, ProtocolError
from logboom.types import DIGEST_BYTES, NUMBER_MAX, GlobalLogIndex, PartitionId, PartitionLogIndex
from logboom.wire import Frame
from partitions.log.batch import parse_header
from partitions.log.log import PartitionLog
from partitions.log.places import Rows
from partitions.log.segment import BatchRef
from raftlog.entries.parent_state import Tail
from raftlog.entries.voids import Void

log = structlog.get_logger(__name__)


class LogFetch:
    """Whoever drives it asks for what follows ``after``, and hands over what comes."""

    def __init__(self, store: PartitionLog, tail: Tail, voids: Iterable[Void]) -> None:
        """``tail``: where the log ends at the cut; ``voids``: what counts as nothing in front of that."""
        self.after: int = store.committed_index
        """What is behind this is still lacking."""
        self._store = store
        self._tail = tail
        self._voids = {each.first_index: each for each in voids}
        self._rows = Rows()
        """Places of what came, by last index."""
        self._lost: dict[int, bytes] = {}
        """What nobody had of it: digests by last index."""
        self._newest: BatchRef | None = None
        """Of what was taken, what is synced last: not the end of it, where what was lost before has turned up."""

    @property
    def is_whole(self) -> bool:
        """Nothing is lacking."""
        return self.after >= self._tail.last_index

    def step_over(self) -> bool:
        """What comes next is void: nobody is asked for it."""
        void = self._voids.get(PartitionLogIndex(self.after + 1))
        if void is None:
            return False
        self._store.concede(void.last_index, void.digest)
        self._rows.append(void.last_index, void.global_index, void.digest)
        self.after = void.last_index
        return True

    def take(self, pieces: Sequence[tuple[memoryview, int]], receive: Callable[..., object]) -> None:
        """Batches, with their global indices, that follow. ``receive``: see Payloads. Raises ProtocolError."""
        partition_id = self._store.partition_id
        for raw, global_index in pieces:
            header = parse_header(raw)
            if header.partition_id != partition_id or header.first_index != self.after + 1:
                raise ProtocolError(f"LOG_CHUNK of partition {partition_id}: not what was asked for")
            receive(raw, behind=self._lost.get(self.after, b""))
            ref = self._store.find(header.last_index, header.digest)
            if ref is not None and (self._newest is None or ref.order > self._newest.order):
                self._newest = ref
            self._rows.append(header.last_index, global_index, header.digest)
            self.after = header.last_index

    def is_durable(self) -> bool:
        """All that was taken is. Raises CorruptData for what cannot be appended."""
        digest, newest = self._rows.last_digest, self._newest
        if self._store.is_durable(self.after, digest):
            return newest is None or self._is_synced(newest)
        if not self._store.holds(self.after, digest):
            raise CorruptData(
                f"partition {self._store.partition_id}: what was fetched up to {self.after} does not chain"
            )
        return False

    def _is_synced(self, ref: BatchRef) -> bool:
        """Or gone since: damaged, or removed."""
        last_index, digest = ref.last_index, ref.digest
        return self._store.is_durable(last_index, digest) or self._store.find(last_index, digest) is None

    def goes_on(self, frame: Frame) -> bool:
        """Nobody has what follows: it is void since, or lost, or gone: the log begins behind it. Raises ProtocolError.

        False: it is gone up to the cut. This copy begins there, with nothing.
        """
        partition_id, last_index = self._store.partition_id, self._tail.last_index
        since = _gap(frame, partition_id, "void")
        if since is not None and since.first_index == self.after + 1 and since.last_index <= last_index:
            self._voids[since.first_index] = since  # declared behind the cut
            return True
        lost = _gap(frame, partition_id, "lost")
        if lost is not None and lost.first_index == self.after + 1 and lost.last_index <= last_index:
            log.error("batch_not_fetched", partition=partition_id, last_index=lost.last_index)
            self._rows.append(lost.last_index, lost.global_index, lost.digest)
            self._lost[lost.last_index] = lost.digest
            self.after = lost.last_index
            return True
        first, before = number(frame.header, "first"), frame.header.get("before")
        log.warning("history_not_fetched", partition=partition_id, after=self.after, first=first)
        if first > last_index:
            return False
        if first <= self.after + 1 or type(before) is not bytes or len(before) != DIGEST_BYTES:
            raise ProtocolError(f"LOG_CHUNK of partition {partition_id}: nothing, and no reason")
        in_front = number(frame.header, "before_global") if "before_global" in frame.header else 0
        self._store.follow(PartitionLogIndex(first - 1), before, in_front)  # and what is here of before, which does not
        self._rows, self._lost, self.after = Rows(), {}, first - 1
        return True

    def check_end(self) -> None:
        """Raises CorruptData for a log that ends otherwise than the snapshot says."""
        if self._rows and self._rows.last_digest != self._tail.digest:
            raise CorruptData(
                f"partition {self._store.partition_id}: what was fetched does not end as the snapshot says"
            )

    def save(self) -> Callable[[], None]:
        """A job, for another thread, that saves the places of all of it, once it is synced."""
        nowhere = {(void.last_index, void.digest) for void in self._voids.values()}
        through_index, lost = self._tail.last_index, self._lost.items()
        return self._store.save_fetched(self._rows, through_index=through_index, voids=nowhere, lost=lost)


def _gap(frame: Frame, partition_id: PartitionId, what: str) -> Void | None:
    """What stands in the place of what was asked for, on a node that says so. Raises ProtocolError."""
    said = frame.header.get(what)
    if said is None:
        return None
    kinds = [type(value) for value in said] if isinstance(said, list) else []
    if kinds != [int, int, bytes, int] or len(said[2]) != DIGEST_BYTES or max(*said[:2], said[3]) >= NUMBER_MAX:
        raise ProtocolError(f"LOG_CHUNK: bad {what}")
    first, last, digest, global_index = said
    gap = Void(partition_id, PartitionLogIndex(first), PartitionLogIndex(last), digest, GlobalLogIndex(global_index))
    gap.check()
    return gap
