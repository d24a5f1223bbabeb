"""What readers hold of a node: counted, given back, and not removed under them; nor is anything that is not applied.

Nobody who asks can tell: a log is read in less time than a lease lasts, and what is counted too much only makes others
wait, some day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from chaos.sim.host import Host
from dispatcher.pipeline.backend import Backend
from dispatcher.reading.feeds import Feed
from logboom.types import PartitionId
from raftlog.entries.parent_state import ParentState

Fail = Callable[[str, str], None]


def look_at_removing(
    host: Host, backend: Backend, fail: Fail, moved: Callable[[PartitionId, Any], None] = lambda *_: None
) -> None:
    """Compaction removes nothing that somebody reads and goes on reading, nor what is yet to be applied.

    ``moved`` is told of a log that begins elsewhere now.
    """
    compaction: Any = backend.snapshots.compaction
    remove, lease_s = compaction._remove, backend.settings.log.reader_lease_ms / 1000  # noqa: SLF001 - an observer

    async def removed(parent: ParentState, partition: PartitionId, through: int) -> None:
        store: Any = backend.logs[partition]
        compact = store.compact

        def compacted(keep_from_index: int, *, ends: bool = False) -> Callable[[], None]:
            first = store.first_available_index
            job: Callable[[], None] = compact(keep_from_index, ends=ends)
            check(partition, store, first)
            return job

        store.compact = compacted
        try:
            await remove(parent, partition, through)
        finally:
            store.compact = compact

    def check(partition: PartitionId, store: Any, first: int) -> None:
        begins, now = store.first_available_index, backend.clock.monotonic()
        if begins == first:
            return
        moved(partition, store)
        story = f"{host.name}: partition {partition} begins at {begins}, no longer at {first}"
        leases = store._leases._leases  # noqa: SLF001 - an observer
        read = min((each.index for each in leases if now - each.taken.at < lease_s), default=begins)
        if begins > max(first, read):
            fail("LeaseKept", f"{story}; somebody reads from {read} on")
        worker = backend.workers.get(partition)
        if worker is None or backend.rebuilding.fenced(partition):
            return
        if begins > max(first, worker.applied_index + 1):
            fail("NothingEvicted", f"{story}; applied is {worker.applied_index}")

    compaction._remove = removed  # noqa: SLF001 - an observer


def look_at_keeping(host: Host, backend: Backend, fail: Fail) -> None:
    """No set goes that is the last from which a damaged state could be made anew here."""
    store: Any = backend.snapshots.store
    prune = store.prune

    def usable() -> list[int]:
        base, applied = backend.raft.journal.base.index, backend.raft.engine.applied_index
        return [int(meta.global_index) for meta in store.sets() if base <= meta.raft_index <= applied]

    def pruned(keep: int, but: Collection[int] = ()) -> Any:
        before = usable()
        removed = prune(keep, but=but)
        if before and not usable():
            fail("SetKept", f"{host.name}: of the sets {before} none is left, and of no other can it go on")
        return removed

    store.prune = pruned


def look_at_holding(host: Host, backend: Backend, fail: Fail) -> None:
    """Whenever somebody asks for room: what is held is over before any checkpoint."""
    budget: Any = backend.read_budget
    ask = budget.ask

    def asked(**what: Any) -> Any:
        grant = ask(**what)
        _check_bounds(host, budget, fail)
        return grant

    budget.ask = asked


def _check_bounds(host: Host, budget: Any, fail: Fail) -> None:
    """Only who is alone may hold more than there is."""
    grants = budget._held  # noqa: SLF001 - an observer
    held = sum(each.nbytes for each in grants), sum(each.segments for each in grants)
    if len(grants) > 1 and (held[0] > budget.bytes_max or held[1] > budget.segments_max):
        most = budget.bytes_max, budget.segments_max
        fail("I10", f"{host.name}: {len(grants)} readers hold {held} bytes and segments of {most}")


def check_held(host: Host, backend: Backend, fail: Fail, *, idle: bool = False) -> None:
    """What readers may have in memory is what they have. ``idle``: nobody reads but those whose streams are open."""
    budget: Any = backend.read_budget
    grants = budget._held  # noqa: SLF001 - an observer
    held = sum(each.nbytes for each in grants), sum(each.segments for each in grants)
    if held != (budget.nbytes, budget.segments):
        fail("I10", f"{host.name}: readers hold {held}, counted are {budget.nbytes, budget.segments}")
    _check_bounds(host, budget, fail)
    ended = [each.nbytes for each in grants if _ended(each._admitted)]  # noqa: SLF001 - an observer
    if ended:
        fail("I10", f"{host.name}: streams that have ended hold {ended} bytes")
    if backend.streams_logs and not backend.streams_open:
        fail("I10", f"{host.name}: no stream is open, and {backend.streams_logs} logs are counted")
    if not idle:
        return
    watched, ahead = backend.watched.taken, backend.freshness.ahead.taken
    if (watched or ahead) and host.node is not None and not host.node.service.sessions:
        fail("I10", f"{host.name}: nobody is there, and {watched} partitions are followed, {ahead} wait for a time")
    logs: list[Any] = list(backend.logs.values())
    leases = sum(len(each._leases._leases) for each in logs)  # noqa: SLF001 - an observer
    if len(grants) > backend.streams_open or (leases and not backend.streams_open):
        story = f"{backend.streams_open} streams are open; {len(grants)} readers hold {held}, there are {leases} leases"
        fail("I10", f"{host.name}: {story}")


def _ended(admitted: Any) -> bool:
    """Whom it tells that there is room is a stream that is over, and reads nothing: what a thread reads is held."""
    around = [cell.cell_contents for cell in getattr(admitted, "__closure__", None) or ()]
    feeds = [each for each in (getattr(admitted, "__self__", None), *around) if isinstance(each, Feed)]
    return any(feed._closed and not feed._reading for feed in feeds)  # noqa: SLF001 - an observer
