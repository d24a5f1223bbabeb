"""What each Spark task reads: shares of logs, fixed on the driver, equal for every attempt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, Self

from logboom.client import Client
from logboom.errors import (
    IndexCompacted,
    InvalidRequest,
    NoSuchPartition,
    PartitionDestroyed,
    Voided,
)
from logboom.spark.connection import Session
from logboom.spark.ends import check_node, marks
from logboom.spark.options import EARLIEST, LATEST, ReadOptions, ids_shown
from logboom.spark.times import Looks, offsets_from

log: Final = logging.getLogger("logboom.spark")
HIGHEST: Final = (1 << 63) - 1
ASK_AGAIN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Span:
    """Global offsets from ``low`` to ``high``, both inclusive."""

    low: int = 0
    high: int = HIGHEST

    @classmethod
    def of(cls, options: ReadOptions) -> Self:
        """Those that were asked for."""
        return cls(options.start_global, HIGHEST if options.end_global is None else options.end_global)

    def __contains__(self, global_index: int) -> bool:
        return self.low <= global_index <= self.high

    @property
    def is_empty(self) -> bool:
        """Nothing is in it: nobody has to be asked."""
        return self.low > self.high


EVERYTHING: Final = Span()


@dataclass(frozen=True, slots=True)
class Share:
    """What one Spark task reads: of a logboom partition's log, offsets ``start`` to ``end``, both inclusive."""

    partition_id: int
    start: int = 0
    end: int = 0

    @property
    def rows(self) -> int:
        """None, if it ends before it starts."""
        return max(0, self.end - self.start + 1)


class Place(NamedTuple):
    """Where a batch is. Not the batch: of a thousand partitions they would be gigabytes."""

    first_index: int
    global_index: int
    """0: not known."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A range of global offsets over several partitions; of each, what the whole query reads of it.

    There is a batch of these partitions at the end of the range or behind it: whoever has seen that is done.
    """

    span: Span
    parts: tuple[Share, ...]


def state_shares(options: ReadOptions, session: Session) -> list[Share]:
    """One per partition that has keys, or that is named. Raises NoSuchPartition, InvalidRequest, Unavailable."""
    check_node(options, session)
    session.refresh(at_least=options.at_global, node=options.node)
    machines = session.run(lambda client: client.state_machines())
    known = session.run(lambda client: client.partitions())
    if options.partitions is None:  # beside the logs that there are, say
        known = [p for p in known if machines[p] == "kv"] or known
    chosen = _chosen(options, known, every=known)
    other = [p for p in chosen if machines[p] != "kv"]
    if other:
        raise InvalidRequest(f"partition {other[0]} runs {machines[other[0]]}, which has no keys to read: view=log")
    return [Share(p) for p in chosen]


def log_shares(options: ReadOptions, session: Session) -> list[Share]:
    """At least one per partition that has rows, its end pinned now. Raises as ``state_shares``."""
    last = {int(m.partition_id): int(m.log_index) for m in marks(options, session)}
    return split(_logs(options, session, last), options.tasks_min)


def merged_shares(options: ReadOptions, session: Session) -> list[Merged]:
    """Ranges of global offsets, in order; one, unless ``minPartitions`` asks for more."""
    last = {int(m.partition_id): int(m.log_index) for m in marks(options, session)}
    parts, span = tuple(s for s in _logs(options, session, last) if s.rows), Span.of(options)
    parts, ends = _last_held(parts, options, session)
    low = max(1, span.low, _first_global(parts, options, session))
    high = min(max((int(b.global_index) for b in ends.values()), default=0), span.high)
    count = min(max(1, options.tasks_min), high - low + 1)
    edges = [low + (high - low + 1) * k // count for k in range(count + 1)] if count > 0 else []
    return [Merged(Span(a, b - 1), parts) for a, b in pairwise(edges)]


def _first_global(parts: tuple[Share, ...], options: ReadOptions, session: Session) -> int:
    """Where the first of the shares begins in the order of all: what lies in front of it need not be read.

    0: not known, or at the beginning. What is gone, or void, is for the tasks to say.
    """
    if all(s.start <= 1 for s in parts):
        return 0
    found = first_batches(session, {s.partition_id: s.start for s in parts}, node=options.node, follow=False)
    starts = [found.get(s.partition_id) for s in parts]
    known = [b for b, s in zip(starts, parts, strict=True) if b is not None and b.first_index <= s.start]
    return min((b.global_index for b in known), default=0) if len(known) == len(parts) else 0


def _last_held(
    parts: tuple[Share, ...], options: ReadOptions, session: Session
) -> tuple[tuple[Share, ...], dict[int, Place]]:
    """The shares, and the batch at the end of each. Raises Voided where it was declared void, and PartitionDestroyed.

    With ``failOnDataLoss=false``: those of them that are there, and as far as they are.
    """
    while True:
        try:
            return parts, first_batches(session, {s.partition_id: s.end for s in parts}, node=options.node, follow=True)
        except Voided as gap:
            if options.fail_on_data_loss:
                raise
            cut = {gap.partition_id: gap.first_index - 1}
            shorter = [replace(s, end=min(s.end, cut.get(s.partition_id, s.end))) for s in parts]
            parts = tuple(s for s in shorter if s.rows)
        except PartitionDestroyed as gone:
            if options.fail_on_data_loss:
                raise
            parts = tuple(s for s in parts if s.partition_id != gone.partition_id)
        except IndexCompacted as gone:  # so is what lies in front of it
            if options.fail_on_data_loss:
                raise
            partition = gone.fields["partition_id"]
            (share,) = [s for s in parts if s.partition_id == partition]
            log.warning("partition %d: all %d records from offset %d on are gone", partition, share.rows, share.start)
            parts = tuple(s for s in parts if s.partition_id != partition)


def without(merged: Merged, partitions: Collection[int], options: ReadOptions, session: Session) -> Merged:
    """What is left of a range when partitions are gone; where it ended, nobody may be able to see now."""
    parts = tuple(s for s in merged.parts if s.partition_id not in partitions)
    parts, ends = _last_held(parts, options, session)
    high = max((int(b.global_index) for b in ends.values()), default=0)
    return Merged(Span(merged.span.low, min(merged.span.high, high)), parts)


def living(session: Session) -> frozenset[int]:
    """The partitions that there are now, as whoever leads knows it."""
    session.refresh()
    return frozenset(session.run(lambda client: client.partitions()))


def history(session: Session) -> tuple[str, str]:
    """The cluster's name, and which of its histories this is."""
    token = session.run(lambda client: client.token())
    return token.cluster, token.lineage


def first_asked(options: ReadOptions, session: Session, last: Mapping[int, int]) -> dict[int, int]:
    """Of logs with records, by their last: the first offset that is still there, of the batches that are asked for.

    In the global order that is for the tasks to find. Raises as ``first_held``.
    """
    wanted = dict[int, int]()
    if options.start_global and options.ordered == "partition":
        wanted = first_from(options.start_global, session, last, node=options.node)
    return wanted | first_held(session, [p for p in last if p not in wanted], node=options.node)


def first_from(start_global: int, session: Session, last: Mapping[int, int], *, node: str | None) -> dict[int, int]:
    """The first offset with this global index or a higher one; behind ``last``: none yet.

    Not of a log of which something from there on was removed, or of which who is asked does not have the last record.
    """
    found = first_batches(session, dict.fromkeys(last, 0), node=node, follow=False, start_global=start_global)
    # Void or not: its reader says so.
    first = {p: int(place.first_index) for p, place in found.items()}
    rest = {p: end for p, end in last.items() if p not in found}
    ends = first_batches(session, rest, node=node, follow=False) if rest else {}
    return first | {p: last[p] + 1 for p, place in ends.items() if 0 < place.global_index < start_global}


def first_held(session: Session, partitions: Iterable[int], *, node: str | None) -> dict[int, int]:
    """Of logs with records: the first offset that is still there, on any node that can be reached or the one asked for.

    Not of a log of which that one has nothing yet, nor has removed anything. Raises DeadlineExceeded.
    """
    # From 1 on: of a node that has removed it, the client goes on to the others before it says what there is.
    found = first_batches(session, dict.fromkeys(partitions, 1), node=node, follow=False, again=node is None)
    return {p: int(place.first_index) for p, place in found.items()}


def first_batches(
    session: Session,
    starts: Mapping[int, int],
    *,
    node: str | None,
    follow: bool,
    again: bool = False,
    start_global: int = 0,
) -> dict[int, Place]:
    """Per partition the first batch from an offset on, void or not; with ``follow``, when it is there, or Voided.

    ``again``: there is one. A node that has none is behind: it says nothing, and the next one is asked.
    ``start_global``: beside offsets of 0; nothing is said of a log of which something from there on was removed.
    """

    def refuse(gap: Voided) -> None:
        raise gap

    async def all_of(client: Client) -> dict[int, Place]:
        looks, found = Looks(client, node), dict[int, Place]()

        async def ask(partition: int, start: int) -> None:
            await looks.one(partial(look, partition, start))
            while again and partition not in found:
                await asyncio.sleep(ASK_AGAIN_S)
                await looks.one(partial(look, partition, start))

        async def look(partition: int, start: int, timeout: float | None) -> None:
            # A credit of one byte: one batch.
            batches = client.tail(
                partition,
                start=start,
                start_global=start_global,
                follow=follow,
                node=node,
                credit=1,
                on_void=refuse,
                timeout=timeout,
            )
            async with aclosing(batches):
                try:
                    async for batch in batches:
                        found[partition] = Place(batch.first_index, batch.global_index)
                        return
                except IndexCompacted as gone:
                    if follow:
                        raise IndexCompacted(gone.message, first=gone.first, partition_id=partition) from gone
                    if not start_global:
                        found[partition] = Place(gone.first, 0)
                except Voided as gap:
                    if follow:
                        raise
                    found[partition] = Place(gap.first_index, gap.fields.get("global_index", 0))  # its reader says so

        await looks.all([partial(ask, p, start) for p, start in starts.items()])
        return found

    return session.run(all_of)


def split(shares: Sequence[Share], tasks_min: int) -> list[Share]:
    """Large shares in pieces, so that there are about as many as asked for; nothing but the arguments matters."""
    shares = [s for s in shares if s.rows]
    total = sum(s.rows for s in shares)
    found = []
    for share in shares:
        count = 1
        if len(shares) < tasks_min:
            count = min(share.rows, max(1, -(-share.rows * tasks_min // total)))
        edges = [share.start + share.rows * k // count for k in range(count + 1)]
        found += [Share(share.partition_id, a, b - 1) for a, b in pairwise(edges)]
    return found


def _logs(options: ReadOptions, session: Session, last: Mapping[int, int]) -> list[Share]:
    shown = session.run(lambda client: client.partitions())
    chosen = _chosen(options, sorted(last), every=shown)
    from_time = options.start_time_ms is not None
    earliest = [p for p in chosen if last[p] and not from_time and _asked(options.start, p, EARLIEST) == EARLIEST]
    held = first_asked(options, session, {p: last[p] for p in earliest})
    ends = {p: last[p] for p in chosen}
    starts = offsets_from(options.start_time_ms, ends, session, node=options.node)
    stops = offsets_from(options.end_time_ms, ends, session, node=options.node)
    found = []
    for p in chosen:
        start = starts.get(p) or _at(options.start, p, EARLIEST, held.get(p, 1), last[p])
        end = (stops.get(p) or _at(options.end, p, LATEST, held.get(p, 1), last[p])) - 1
        if options.node is None:
            check_in_log("startingOffsets", start, p, last[p])
            if options.fail_on_data_loss:
                check_in_log("endingOffsets", end + 1, p, last[p])
            end = min(end, last[p])
        # Of a node that may be behind, what was asked for by number is waited for.
        found.append(Share(p, start, end))
    return found


def check_in_log(option: str, offset: int, partition: int, last: int) -> None:
    """Raises InvalidRequest for an offset behind the one that comes next."""
    if offset > last + 1:
        raise InvalidRequest(
            f"option {option} names {offset} of partition {partition}, whose log ends at {last}"
            + ("; failOnDataLoss=false reads what there is" if option == "endingOffsets" else "")
        )


def _chosen(options: ReadOptions, known: Sequence[int], *, every: Sequence[int]) -> list[int]:
    chosen = list(options.partitions) if options.partitions is not None else list(known)
    named = [p for offsets in (options.start, options.end) if isinstance(offsets, Mapping) for p in offsets]
    there = frozenset(known)
    missing = [p for p in (*chosen, *named) if p not in there]
    if missing:
        raise NoSuchPartition(
            f"partition {missing[0]} does not exist; this cluster has {ids_shown(every)}",
            partition_id=missing[0],
            partitions=len(every),
        )
    read = frozenset(chosen)
    passed = [p for p in named if p not in read]
    if passed:
        raise InvalidRequest(f"there are offsets of partition {passed[0]}, which is none of the option partitions")
    return chosen


def _asked(offsets: int | Mapping[int, int], partition: int, default: int) -> int:
    return offsets.get(partition, default) if isinstance(offsets, Mapping) else offsets


def _at(offsets: int | Mapping[int, int], partition: int, default: int, first: int, last: int) -> int:
    """The offset meant: LATEST is the one that comes next, as in Kafka an end is exclusive."""
    offset = _asked(offsets, partition, default)
    if offset == LATEST:
        return last + 1
    return first if offset == EARLIEST else max(1, offset)
