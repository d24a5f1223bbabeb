"""The partition logs, as the parent log sees them (raftlog.links.payloads.Payloads)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

import structlog

from logboom.errors import CorruptData, PartitionDestroyed
from logboom.types import DurabilityMode, PartitionId, PartitionLogIndex, Term
from partitions.log.batch import parse_batch
from partitions.log.log import ChainBroken, PartitionLog
from partitions.log.reading import DamagedBatch
from raftlog.entries.entry import Route
from raftlog.links.lacks import Lack
from raftlog.links.payloads import DamagedPayload

log = structlog.get_logger(__name__)


def _raise(error: OSError) -> None:
    raise error


class PartitionPayloads:
    """``appended`` is told which log has queued writes. Partitions that are not here yet hold nothing."""

    def __init__(
        self,
        logs: Mapping[PartitionId, PartitionLog],
        appended: Callable[[PartitionLog], None],
        *,
        gone: Callable[[PartitionId], bool] = lambda _: False,
        applied: Callable[[PartitionId, int], bool | None] = lambda _partition, _index: False,
        untouched: Callable[[PartitionId], bool] = lambda _: False,
        covered: Callable[[PartitionId, int], bool] = lambda _partition, _index: False,
        unneeded: Callable[[PartitionId, int], bool] = lambda _partition, _index: False,
        now: Callable[[], float] = lambda: 0.0,
        fatal: Callable[[OSError], None] = _raise,
    ) -> None:
        """``gone``: the partition was destroyed; without a log, too, nothing of it is needed any more.

        ``untouched``: of one without a log nothing was ever written here. Looks at the disk.

        ``applied``: its state has what is applied up to an index, saved to stay; None: nobody can say yet. ``covered``:
        a snapshot has. ``unneeded``: its log may begin behind an index, as far as its kind and a start of this node go.
        ``now``: monotonic seconds. ``fatal``: the disk must not be trusted any more; whoever brought the batch has
        nothing to do with that.
        """
        self._fatal = fatal
        self._covered = covered
        self._unneeded = unneeded
        self._now = now
        self._applied = applied
        self._untouched = untouched
        self._sealed: set[bytes] = set()
        self._waiting: set[PartitionId] = set()
        """They lack something, and room to say so."""
        self._logs = logs
        self._gone = gone
        self._appended = appended

    def holds(self, route: Route) -> bool:
        """See Payloads."""
        store = self._logs.get(route.partition_id)
        if store is None:
            return self._gone(route.partition_id)
        return store.holds(route.last_index, route.digest)

    def lack(self, route: Route) -> Lack:
        """See Payloads."""
        store = self._logs.get(route.partition_id)
        if store is None:
            if self._gone(route.partition_id):
                return Lack.COMPACTED
            # One that will be opened may have it on the disk. Of one that nobody has told this node of it has nothing,
            # and must say so: else all wait for it, which hears of it only when they go on.
            return Lack.ABSENT if self._untouched(route.partition_id) else Lack.UNKNOWN
        if route.last_index < store.first_available_index:
            return Lack.COMPACTED
        if store.is_unwritten(route.last_index, route.digest):
            return Lack.UNKNOWN  # it has turned up, and is held in a moment
        applied = self._applied(route.partition_id, route.last_index)
        if applied is None:
            return Lack.UNKNOWN
        if applied:
            return Lack.APPLIED
        return Lack.DAMAGED if store.is_lost(route.last_index, route.digest) else Lack.ABSENT

    def is_covered(self, route: Route) -> bool:
        """See Payloads."""
        return self._covered(route.partition_id, route.last_index)

    def concede(self, route: Route) -> bool:
        """See Payloads."""
        store = self._logs.get(route.partition_id)
        return store is not None and store.concede(route.last_index, route.digest)

    def lost(self) -> list[Route]:
        """See Payloads."""
        found = ((p, *batch) for p, store in self._logs.items() for batch in store.lost())
        return [Route(p, Term(0), PartitionLogIndex(last_index), digest) for p, last_index, digest in found]

    def is_hole(self, route: Route) -> bool:
        """See Payloads."""
        store = self._logs.get(route.partition_id)
        return store is not None and store.is_hole(route.last_index, route.digest)

    def ended(self, route: Route) -> bool:
        """See Payloads."""
        return self._gone(route.partition_id)

    def begin_behind(self, route: Route) -> None:
        """See Payloads."""
        partition_id, last_index = route.partition_id, route.last_index
        store = self._logs.get(partition_id)
        if store is None or self.lack(route) is not Lack.APPLIED or not self._unneeded(partition_id, last_index):
            return
        if store.begin_behind(last_index, route.digest, now=self._now()):
            log.warning("log_begins_behind_damage", partition=partition_id, last_index=last_index)

    def seal(self, digest: bytes, *, on: bool) -> None:
        """See Payloads."""
        (self._sealed.add if on else self._sealed.discard)(digest)

    def receive(self, raw: memoryview, *, behind: bytes = b"") -> Route | None:
        """See Payloads."""
        batch = parse_batch(raw)
        header = batch.header
        store = self._logs.get(header.partition_id)
        if store is None or header.digest in self._sealed:
            return None  # the gate asks again, until the partition is created here
        if self._waiting and not self._takes_copies(store):
            return None  # it is asked for again, until there is room
        try:
            if not store.append(batch, behind=behind):
                return None
        except ChainBroken:
            return None  # its predecessor was lost on the way; the gate will ask from there on
        self._appended(store)
        return Route(header.partition_id, header.term, batch.last_index, batch.digest)

    def size(self, route: Route) -> int:
        """See Payloads."""
        store = self._logs.get(route.partition_id)
        found = store.find(route.last_index, route.digest) if store is not None else None
        return found.length if found is not None else 0

    def read(self, route: Route) -> bytes:
        """See Payloads."""
        store = self._logs.get(route.partition_id)
        if store is None:
            if self._gone(route.partition_id):
                raise PartitionDestroyed(
                    f"partition {route.partition_id} was destroyed", partition_id=route.partition_id
                )
            raise CorruptData(f"partition {route.partition_id} is not here")
        try:
            return store.read_batch(route.last_index, route.digest)
        except DamagedBatch as error:
            raise DamagedPayload(str(error), route, at=error.place) from error

    def write_again(self, acknowledged: Iterable[Route], carried: AbstractSet[bytes]) -> None:
        """See Payloads."""
        ahead = [store for store in self._logs.values() if store.mode is DurabilityMode.WRITE_AHEAD]
        found = {digest for store in ahead for digest in store.found_last()}
        proven = {route.digest for route in acknowledged if route.digest in found} - carried
        for store in self._logs.values():
            store.write_again(lambda ref: ref.digest in proven)

    def doubt(self, lacking: AbstractSet[PartitionId]) -> None:
        """See Payloads."""
        for partition_id, store in self._logs.items():
            store.doubt(lacks=partition_id in lacking and store.mode is DurabilityMode.WRITE_AHEAD)
            if not store.takes_copies():
                self._waiting.add(partition_id)

    def _takes_copies(self, store: PartitionLog) -> bool:
        if store.partition_id in self._waiting:
            try:
                if not store.takes_copies():
                    return False
            except OSError as error:
                self._fatal(error)
                return False
            self._waiting.remove(store.partition_id)
            log.info("copies_are_taken", partition=store.partition_id)
        return True

    def lose(self, route: Route, *, at: object = None) -> bool:
        """See Payloads."""
        store = self._logs.get(route.partition_id)
        return store is not None and store.lose(route.last_index, route.digest, at=at)
