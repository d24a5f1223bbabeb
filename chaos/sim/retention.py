"""What goes by age of ``log`` partitions: nothing younger than was said, and all that is older, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from chaos.sim.host import Host
from dispatcher.pipeline.backend import Backend
from logboom.settings import SnapshotSettings
from logboom.types import PartitionId
from partitions.log.log import PartitionLog
from ports.clock import Clock
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import ParentState

LATE_MS: Final = 10
"""Between what a leader writes down and what is seen of it."""

Fail = Callable[[str, str], None]


class RetentionWatch:
    """``fail(invariant, story)`` ends the run."""

    def __init__(
        self,
        ends: Callable[[int], Sequence[tuple[int, int]]],
        batches: Mapping[tuple[int, int], tuple[int, bytes]],
        fail: Fail,
    ) -> None:
        """``ends``: per partition global and last index of what was committed; ``batches``: with their digests."""
        self._ends = ends
        self._batches = batches
        self._fail = fail
        self._times: dict[bytes, int] = {}
        """By digest: when a batch was made, by the clock of who led."""
        self.looked = 0
        self.voids: Collection[tuple[int, int]] = ()
        """Partition and last index of what was declared void: how old that is says nothing."""
        self.rotten: Collection[str] = ()
        """Hosts whose files were damaged behind their back: how old a record is that cannot be read nobody knows."""

    def inherit(self, before: RetentionWatch) -> None:
        """What was made in another history may be in this one."""
        self._times.update(before._times)

    def started(self, host: Host, backend: Backend) -> None:
        """From now on what is made and removed there is looked at."""
        raft, compaction, aged = backend.raft, backend.snapshots.compaction, dict[PartitionId, Aged]()
        propose, remove = raft.propose, compaction._remove  # noqa: SLF001 - an observer

        def proposed(routes: Sequence[Route], *, payload_bytes: int) -> None:
            self._times.update((route.digest, backend.clock.wall_ms()) for route in routes)
            propose(routes, payload_bytes=payload_bytes)

        async def removed(parent: ParentState, partition: PartitionId, through: int) -> None:
            store, looked = backend.logs[partition], _Clocks(backend.clock)
            before, open_before = store.first_available_index, _open(store)
            await remove(parent, partition, through)
            if backend.partitioning.kind(partition).state_machine == "log":
                known = aged.setdefault(partition, Aged())
                self._check(host, backend.settings.snapshot, store, before, looked, through, open_before, known)

        raft.propose = proposed  # type: ignore[method-assign]
        compaction._remove = removed  # type: ignore[assignment, method-assign]  # noqa: SLF001 - an observer

    def _check(
        self,
        host: Host,
        settings: SnapshotSettings,
        store: PartitionLog,
        before: int,
        looked: _Clocks,
        through: int,
        open_before: Callable[[int], bool],
        aged: Aged,
    ) -> None:
        partition = int(store.partition_id)
        if not settings.retain_log_ms and not settings.retain_log_bytes:
            return
        self.looked += 1
        first, keep_ms = store.first_available_index, settings.retain_log_ms
        story = f"{host.name}: partition {partition} begins at {first}"
        young = old = 0
        if keep_ms:
            rows = [row for row in self._rows(partition) if row.last <= through]
            earliest, latest = looked.shown()
            young = aged.at_most(rows, earliest, latest + LATE_MS, keep_ms)
            old = at_least(rows, earliest - LATE_MS, latest, keep_ms)
        held = _held(store, through)
        if first > max(before, young + 1) and not held >= settings.retain_log_bytes > 0:
            story = f"{story}, no longer at {before}; up to {young} is {keep_ms} ms old"
            self._fail("RecordsKept", f"{story}, and {held} bytes stay")
        oldest = _oldest(store, open_before)
        if oldest and oldest <= old and host.name not in self.rotten and not _is_read(store, oldest):
            self._fail("OutdatedRemoved", f"{story}; its first segment ends at {oldest}, up to {old} nothing stays")

    def _rows(self, partition: int) -> list[Row]:
        """Of its log: when each batch was made, if that is known, and where it ends."""
        ends = [last for _, last in self._ends(partition)]
        times = [self._times.get(self._batches[partition, last][1]) for last in ends]
        void = [(partition, last) in self.voids for last in ends]
        return list(map(Row, times, ends, void))


class Row(NamedTuple):
    """A batch."""

    made_ms: int | None
    """By the clock of who led, or a moment later; None: nobody knows."""
    last: int
    void: bool


class Aged:
    """How far a log is old, as somebody finds who walks along it: clocks of leaders, and his own, may be at odds.

    He goes by what is old, stops at what is not, and steps over what is still to come: nobody knows of that. What he
    has found he keeps in mind as long as his clock goes on.
    """

    def __init__(self) -> None:
        self._found = -1 << 62, 0
        """What was made before then is old, and up to where that went."""

    def at_most(self, rows: Sequence[Row], earliest: int, latest: int, keep_ms: int) -> int:
        """No record behind this index has been kept for long enough, by a clock that shows something in between."""
        before, known = latest - keep_ms, self._found
        found = known[1] if before >= known[0] else 0
        for row in rows:
            if row.last <= found or (row.made_ms is not None and row.made_ms > earliest):
                continue
            if row.made_ms is not None and row.made_ms - LATE_MS >= before and not row.void:
                break
            found = row.last
        self._found = before, found
        return found


def at_least(rows: Sequence[Row], earliest: int, latest: int, keep_ms: int) -> int:
    """All records up to this index have."""
    found = 0
    for row in rows:
        if row.made_ms is None or earliest - keep_ms <= row.made_ms <= latest + LATE_MS:
            break
        if row.made_ms < earliest and not row.void:
            found = row.last
    return found


class _Clocks:
    """What the clock of a node has shown since then, if it was set at most once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms, self._monotonic = clock.wall_ms(), clock.monotonic()

    def shown(self) -> tuple[int, int]:
        """The earliest and the latest time."""
        passed, now = int((self._clock.monotonic() - self._monotonic) * 1000), self._clock.wall_ms()
        return min(self._wall_ms, now - passed), max(now, self._wall_ms + passed)


def _held(store: PartitionLog, through: int) -> int:
    """Bytes of the batches up to there that are left."""
    inside: Any = store
    committed = inside._committed  # noqa: SLF001 - an observer
    return int(committed.nbytes(committed.columns.start, committed.columns.through(through)))


def _open(store: PartitionLog) -> Callable[[int], bool]:
    """Whether a segment is one now that something is written to, or in which something may yet be committed.

    The newest is none as long as nobody writes.
    """
    inside: Any = store
    written, tips = inside._written_segment, inside._tentative.segments_behind(store.committed_index)  # noqa: SLF001 - an observer
    order, idle = inside._order, _is_idle(inside)  # noqa: SLF001 - an observer

    def is_open(segment: int) -> bool:
        still = idle and inside._order == order  # noqa: SLF001 - an observer
        return segment in tips or segment > written or (segment == written and not still)

    return is_open


def _is_idle(inside: Any) -> bool:
    """Nothing is written, or synced, or about to be."""
    out = inside._job is not None or inside._unwritten.queued  # noqa: SLF001 - an observer
    return not out and not inside._journaled and inside._synced_order == inside._order  # noqa: SLF001 - an observer


def _oldest(store: PartitionLog, open_before: Callable[[int], bool]) -> int:
    """Where the first segment ends, if it was open neither before (it was closed meanwhile) nor now; or 0."""
    inside: Any = store
    segments = sorted(inside._names)  # noqa: SLF001 - an observer
    if not segments or open_before(segments[0]) or _open(store)(segments[0]):
        return 0
    return int(inside._committed.newest_in(segments[0]))  # noqa: SLF001 - an observer


def _is_read(store: PartitionLog, index: int) -> bool:
    """Somebody does, or did a moment ago."""
    inside: Any = store
    return any(lease.index <= index + 1 for lease in inside._leases._leases)  # noqa: SLF001 - an observer
