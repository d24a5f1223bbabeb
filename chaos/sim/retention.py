"""What goes by age of ``log`` partitions: nothing younger than was said, and all that is older, segment by segment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from chaos.sim.host import Host
from dispatcher.pipeline.backend import Backend
from logboom.types import PartitionId
from partitions.log.log import PartitionLog
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import ParentState

LATE_MS: Final = 10
"""Between what a leader writes down and what is seen of it."""

Fail = Callable[[str, str], None]


class RetentionWatch:
    """``fail(invariant, story)`` ends the run. Says nothing where clocks of leaders were at odds."""

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
        self.rotten: Collection[str] = ()
        """Hosts whose files were damaged behind their back: how old a record is that cannot be read nobody knows."""

    def inherit(self, before: RetentionWatch) -> None:
        """What was made in another history may be in this one."""
        self._times.update(before._times)

    def started(self, host: Host, backend: Backend) -> None:
        """From now on what is made and removed there is looked at."""
        raft, compaction = backend.raft, backend.snapshots.compaction
        propose, remove = raft.propose, compaction._remove  # noqa: SLF001 - an observer

        def proposed(routes: Sequence[Route], *, payload_bytes: int) -> None:
            self._times.update((route.digest, backend.clock.wall_ms()) for route in routes)
            propose(routes, payload_bytes=payload_bytes)

        async def removed(parent: ParentState, partition: PartitionId, through: int) -> None:
            store, since = backend.logs[partition], backend.clock.wall_ms()
            before, open_before = store.first_available_index, _open(store)
            await remove(parent, partition, through)
            if backend.partitioning.kind(partition).state_machine == "log":
                self._check(host, backend, store, before, since, through, open_before)

        raft.propose = proposed  # type: ignore[method-assign]
        compaction._remove = removed  # type: ignore[assignment, method-assign]  # noqa: SLF001 - an observer

    def _check(
        self,
        host: Host,
        backend: Backend,
        store: PartitionLog,
        before: int,
        since: int,
        through: int,
        open_before: Callable[[int], bool],
    ) -> None:
        settings, partition = backend.settings.snapshot, int(store.partition_id)
        rows = [(self._times.get(self._batches[partition, last][1]), last) for _, last in self._ends(partition)]
        times = [at for at, _ in rows if at is not None]
        if not settings.retain_log_ms or len(times) != len(rows) or any(a > b for a, b in pairwise(times)):
            return
        self.looked += 1
        story = f"{host.name}: partition {partition} begins at {store.first_available_index}"

        def older(now: int) -> int:
            """The last index that has been kept for long enough."""
            count = bisect_left(times, now - settings.retain_log_ms)
            return rows[count - 1][1] if count else 0

        first, young = store.first_available_index, older(backend.clock.wall_ms() + LATE_MS)
        if first > max(before, young + 1) and not settings.retain_log_bytes:
            self._fail("RecordsKept", f"{story}; up to {young} is {settings.retain_log_ms} ms old")
        old = min(older(since - LATE_MS), through)
        oldest = _oldest(store, open_before)
        if oldest and oldest <= old and host.name not in self.rotten and not _is_read(store, oldest):
            self._fail("OutdatedRemoved", f"{story}; its first segment ends at {oldest}, up to {old} nothing stays")


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
