"""Reading state and logs into Arrow, in columns. No Spark in here."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from logboom.client import Client
from logboom.client.reads import LogBatch, close_now
from logboom.errors import CorruptData, DeadlineExceeded, IndexCompacted, LogboomError, PartitionDestroyed, Voided
from logboom.records import RecordBlock
from logboom.spark.beginnings import held_by, holder
from logboom.spark.columns import BATCH_BYTES_MAX, cut, log_columns, pieces, state_batch
from logboom.spark.connection import Session, all_or_none
from logboom.spark.options import ReadOptions
from logboom.spark.shares import Merged, Share, Span, without

log: Final = logging.getLogger("logboom.spark")
CREDIT_MIN: Final = 64 * 1024
LOOK_AGAIN_S: Final = 0.05
GLANCE_S: Final = 5.0
"""A node that is asked how far it is, and does not say so in this time, is left for another."""
SPILL_AFTER_S: Final = 5.0
"""In all: a node waits twice as long for whoever takes nothing, at least. Tasks that are quick write no file."""
GONE: Final = "partition %d: %d records from offset %d on are gone; going on behind them"


def read_state(options: ReadOptions, share: Share, names: Sequence[str], session: Session) -> Iterator[pa.RecordBatch]:
    """All keys of a partition from one consistent view: linearizable, or of a replica that has come far enough.

    However slowly it is taken: what the node would not wait for lies on the disk, up to ``maxSpillBytes``.
    """
    node = _address(options, session)
    at_least = options.at_global if options.at_global is not None else (0 if node is not None else None)
    patience = min(SPILL_AFTER_S, options.target.request_timeout_ms / 1000 / 4)

    def scan(client: Client) -> AsyncIterator[tuple[int, RecordBlock]]:
        return client.scan_blocks(share.partition_id, at_least=at_least, node=node)

    failures = 0
    while True:
        begun = False
        try:
            for global_index, block in session.spooled(
                scan, memory_bytes=options.fetch_bytes, file_bytes_max=options.spill_bytes_max, patience=patience
            ):
                begun = True
                batch = state_batch(share.partition_id, global_index, block)
                yield from pieces(batch.select(list(names)))
            return
        except LogboomError as error:
            failures += 1
            # Half of one view and half of another would be no view at all.
            if begun or not error.retryable or failures > options.retries:
                raise


def read_log(
    options: ReadOptions, share: Share, span: Span, schema: pa.Schema, session: Session
) -> Iterator[pa.RecordBatch]:
    """The records of a share. Raises DeadlineExceeded, IndexCompacted, Voided, PartitionDestroyed."""
    node = _address(options, session)
    position, failures = share.start, 0
    while position <= share.end:
        try:
            for batches in _tail(position, node, share.partition_id, options, session):
                position, failures = int(batches[-1].last_index) + 1, 0
                cuts = [_cut(b, share, span) for b in batches]
                for ready in _gathered([c for c in cuts if c is not None]):
                    yield from pieces(log_columns(ready, schema))
                if position > share.end:
                    return
        except IndexCompacted as error:
            first = int(error.fields.get("first", share.end + 1))
            if options.fail_on_data_loss:
                raise _lost(share.partition_id, position, first) from error
            gone = min(first, share.end + 1) - position
            log.warning(GONE, share.partition_id, gone, position)
            position = max(position, first)
        except Voided as error:
            if options.fail_on_data_loss:
                raise
            following = max(position + 1, int(error.fields.get("next", share.end + 1)))
            log.warning(GONE, share.partition_id, min(following, share.end + 1) - position, position)
            position = following
        except PartitionDestroyed as error:
            if options.fail_on_data_loss:
                raise
            gone = share.end + 1 - position
            log.warning("partition %d: destroyed, with %d records unread: %s", share.partition_id, gone, error)
            return
        except TimeoutError:  # whoever was asked is behind, or its disk hangs: the next one has its turn
            failures += 1
            if failures > options.retries or node is not None:
                raise _late(options, f"partition {share.partition_id}", position - 1, share.end) from None
            _meet(share.partition_id, session)
        except LogboomError as error:
            failures += 1
            if not error.retryable or failures > options.retries:
                raise


def _tail(
    position: int, node: str | None, partition_id: int, options: ReadOptions, session: Session
) -> Iterator[list[LogBatch]]:
    # Half of what the task may hold is on its way while the other half waits to be taken.
    ahead = max(CREDIT_MIN, options.fetch_bytes // 2)
    start, asked = position, list[str]()

    def refuse(gap: Voided) -> None:
        raise gap

    def tail(client: Client) -> AsyncIterator[LogBatch]:
        # Follows, because the node that answers may still be on its way to the pinned end.
        return client.tail(
            partition_id, start=start, follow=True, node=node, credit=ahead, on_void=refuse, on_node=asked.append
        )

    patience = options.target.request_timeout_ms / 1000

    def is_behind() -> bool:
        # Else it is a rate, or the disk, that lets us wait: whoever begins anew waits at the end of the line.
        if not asked:
            return False
        try:
            marks = session.run(
                lambda client: client.watermarks([partition_id], node=asked[-1], timeout=min(patience, GLANCE_S))
            )
        except LogboomError:
            return True
        return not any(mark.durable_index >= position for mark in marks)

    glances = options.retries if node is None else 0
    for batches in session.prefetch(
        tail, size=_size, bytes_max=ahead, timeout=patience, glances=glances, hopeless=is_behind
    ):
        position = int(batches[-1].last_index) + 1
        yield batches


def _meet(partition_id: int, session: Session) -> None:
    """Let the client take turns: it is connected to those alone that it has needed, and stays where it is without."""

    async def look(client: Client, node: str) -> None:
        with suppress(LogboomError):  # whoever cannot be reached is none of those
            await client.watermarks([partition_id], node=node, timeout=GLANCE_S)

    async def meet(client: Client) -> None:
        await all_or_none(look(client, node) for node in (await client.members()).values())

    with suppress(LogboomError):  # nobody can: the next attempt says so
        session.run(meet)


class _BeginsLater(Exception):
    """Of the logs of a merged scan, one begins behind the index that was asked for."""


@dataclass(slots=True)
class _Progress:
    """How far a merged scan has come."""

    merged: Merged
    fail_on_data_loss: bool
    after_global: int
    seen: dict[int, int] = field(default_factory=dict)
    from_first: bool = False
    """What comes now comes from where each log begins, not from a global index."""
    passed: Mapping[int, int] = field(default_factory=dict)
    """By partition, where it begins, if what is missing in front of that lies in front of the range, too."""
    _done: bool = False

    def done(self) -> bool:
        """All of the range has been seen."""
        return self._done

    def batches_of(self, items: Sequence[LogBatch | Voided]) -> list[LogBatch]:
        """What is to be read of what has come. Raises Voided, IndexCompacted, CorruptData if something is missing."""
        return [each for each in items if self._take(each) and not isinstance(each, Voided)]

    def _take(self, batch: LogBatch | Voided) -> bool:
        """False: it lies outside of what is to be read yet."""
        span, partition = self.merged.span, batch.partition_id
        self._done = self._done or batch.global_index >= span.high
        before = self.seen.get(partition)
        if batch.global_index <= self.after_global:
            self.seen[partition] = max(before or 0, int(batch.last_index))
            return False
        # One behind the range, too: it tells that nothing is left of what should have come in front of it.
        if before is not None and batch.first_index != before + 1:
            self._gap(batch, before)
        if before is None and (self.from_first or span.low <= 1):
            self._missing(self._rest(partition, 0), int(batch.first_index))
        self.seen[partition] = int(batch.last_index)
        if batch.global_index > span.high:
            return False
        if isinstance(batch, Voided):
            self._step_over(batch)
        self.after_global = batch.global_index
        return True

    def _step_over(self, void: Voided) -> None:
        share = self._share(void.partition_id)
        first = max(share.start, void.first_index)
        missing = min(share.end, void.last_index) + 1 - first
        if missing > 0:
            if self.fail_on_data_loss:
                raise void
            log.warning(GONE, void.partition_id, missing, first)

    def leave_out(self, gone: PartitionDestroyed, rest: Merged) -> None:
        """Go on with the others, which may end earlier."""
        log.warning("%s; it was read up to offset %d", gone, self.seen.get(gone.partition_id, 0))
        self.go_on_with(rest)

    def go_on_with(self, rest: Merged) -> None:
        """What is left of the range."""
        self.merged = rest
        self._done = self._done or self.after_global >= rest.span.high

    def wanted(self) -> list[Share]:
        """What is still to be read of each, or lies behind the range."""
        following = (self._rest(s.partition_id, self.seen.get(s.partition_id, 0)) for s in self.merged.parts)
        return [share for share in following if share.rows]

    def begin_behind(self, gone: Mapping[int, int]) -> frozenset[int]:
        """Nothing is expected in front of these offsets any more. Those of which nothing is left.

        Raises IndexCompacted.
        """
        nothing = set[int]()
        for share in self.wanted():
            first = gone.get(share.partition_id, 0)
            self._missing(share, first)
            if first > share.end:
                nothing.add(share.partition_id)
            if first > share.start:
                self.seen[share.partition_id] = first - 1
        return frozenset(nothing)

    def _rest(self, partition: int, before: int) -> Share:
        share = self._share(partition)
        return replace(share, start=max(share.start, before + 1, self.passed.get(partition, 0)))

    def _gap(self, batch: LogBatch | Voided, before: int) -> None:
        partition = batch.partition_id
        if batch.first_index > before:
            rest = self._rest(partition, before)
            if self.from_first or not self.fail_on_data_loss:
                self._missing(rest, int(batch.first_index))
                return
            if min(rest.end + 1, batch.first_index) <= rest.start:
                return
        raise CorruptData(
            f"partition {partition}: offset {batch.first_index} came after {before}; if what is between was "
            "declared void, failOnDataLoss=false goes on behind it",
            path=f"partition {partition}",
            offset=before,
        )

    def _missing(self, share: Share, first: int) -> None:
        missing = min(first, share.end + 1) - share.start
        if missing <= 0:
            return
        if self.fail_on_data_loss:
            raise _lost(share.partition_id, share.start, first)
        log.warning(GONE, share.partition_id, missing, share.start)

    def _share(self, partition: int) -> Share:
        return next(s for s in self.merged.parts if s.partition_id == partition)


def read_merged(options: ReadOptions, merged: Merged, schema: pa.Schema, session: Session) -> Iterator[pa.RecordBatch]:
    """Several partitions in global order. Raises DeadlineExceeded, IndexCompacted, Voided, CorruptData.

    A node tells no more than it had when it was asked, and it may be behind: it is asked again from there on until
    something at the end of the range, or behind it, has been seen. Where on all nodes one log begins behind the range's
    start, all are read from where they begin: each has removed what it has, and from a common index on others would
    lack more. Then it matters which node is asked (``beginnings``).
    """
    node = _address(options, session)
    progress = _Progress(merged, options.fail_on_data_loss, merged.span.low - 1)
    patience = options.target.request_timeout_ms / 1000
    failures, deadline = 0, time.monotonic() + patience
    begins_later, looked = False, False
    while not progress.done():
        before, asked = progress.after_global, node
        progress.from_first, progress.passed, begins_later = begins_later, {}, False
        try:
            if progress.from_first:
                asked, progress.passed = _begin_anew(progress, node, failures, options, session)
                if progress.done():
                    return
            for batches in _scan(progress, asked, options, session):
                taken = progress.batches_of(batches)
                parts = {s.partition_id: s for s in progress.merged.parts}
                cuts = [_cut(b, parts[b.partition_id], merged.span) for b in taken]
                for ready in _gathered([c for c in cuts if c is not None]):
                    yield from pieces(log_columns(ready, schema))
                if progress.done():
                    return
            if progress.after_global == before and not looked:
                # Of what all others have removed, one that is behind says nothing.
                looked = True
                _begin_anew(progress, node, failures, options, session)
                if progress.done():
                    return
        except _BeginsLater:
            begins_later = True
        except Voided:  # not a failure to be tried again
            raise
        except PartitionDestroyed as error:
            if options.fail_on_data_loss:
                raise
            progress.leave_out(error, without(progress.merged, {error.partition_id}, options, session))
            continue
        except TimeoutError:  # its disk hangs: the next one has its turn
            failures += 1
            if failures > options.retries or node is not None:
                raise _late(options, "in global order", progress.after_global, merged.span.high) from None
            _meet(progress.merged.parts[0].partition_id, session)
            deadline = time.monotonic() + patience
        except LogboomError as error:
            failures += 1
            if not error.retryable or failures > options.retries:
                raise
        if progress.after_global > before:
            failures, deadline, looked = 0, time.monotonic() + patience, False
        elif time.monotonic() > deadline:
            raise _late(options, "in global order", before, merged.span.high)
        else:
            time.sleep(LOOK_AGAIN_S)


def _begin_anew(
    progress: _Progress, node: str | None, turn: int, options: ReadOptions, session: Session
) -> tuple[str, Mapping[int, int]]:
    """Which node to read from where its logs begin, and what that is in front of the range.

    Raises IndexCompacted for what is gone from all; with ``failOnDataLoss=false`` goes on behind that.
    """
    turn += progress.merged.span.low  # not all tasks ask the same
    chosen, held = holder(options, node, progress.wanted(), progress.after_global + 1, session, turn=turn)
    nothing = progress.begin_behind(held.gone)
    if nothing:  # the range may have ended with that
        progress.go_on_with(without(progress.merged, nothing, options, session))
    return chosen, held.passed


def _scan(
    progress: _Progress, node: str | None, options: ReadOptions, session: Session
) -> Iterator[list[LogBatch | Voided]]:
    """From where ``progress`` is; or from where the logs of a node begin, if it still has what it was chosen for."""
    partitions = [s.partition_id for s in progress.merged.parts]
    start_global = 0 if progress.from_first else progress.after_global + 1

    async def scan(client: Client) -> AsyncIterator[LogBatch | Voided]:
        gaps: list[Voided] = []  # those told of since the last batch
        batches = client.scan_log(
            partitions, start_global=start_global, on_compacted="error", on_void=gaps.append, node=node
        )
        try:
            async for batch in batches:
                for gap in gaps:
                    yield gap
                gaps.clear()
                yield batch
            for gap in gaps:
                yield gap
        except IndexCompacted as error:
            raise _BeginsLater from error
        finally:
            await close_now(batches)

    patience = options.target.request_timeout_ms / 1000
    unsure = progress.from_first
    for batches in session.prefetch(scan, size=_size, bytes_max=options.fetch_bytes, timeout=patience):
        if unsure and node is not None:
            # Now that it is under way nothing of it is removed any more.
            held = held_by(node, progress.wanted(), progress.after_global + 1, session, timeout=patience)
            if held.gone:
                raise _BeginsLater
            progress.passed, unsure = {**progress.passed, **held.passed}, False
        yield batches


def _cut(batch: LogBatch, share: Share, span: Span) -> LogBatch | None:
    return cut(batch, share.start, share.end) if batch.global_index in span else None


def _gathered(batches: Sequence[LogBatch]) -> Iterator[list[LogBatch]]:
    """About a megabyte each time: few rows at a time are many calls."""
    ready, size = list[LogBatch](), 0
    for batch in batches:
        ready.append(batch)
        size += batch.records.nbytes
        if size >= BATCH_BYTES_MAX:
            yield ready
            ready, size = [], 0
    if ready:
        yield ready


def _size(item: LogBatch | Voided) -> int:
    return 0 if isinstance(item, Voided) else item.records.nbytes


def _lost(partition_id: int, position: int, first: int) -> IndexCompacted:
    return IndexCompacted(
        f"partition {partition_id}: offset {position} is gone, {first} is the first that is held; failOnDataLoss=false "
        "goes on there",
        first=first,
    )


def _late(options: ReadOptions, where: str, position: int, end: int) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{where}: no record after offset {position} came within {options.target.request_timeout_ms} ms, "
        f"up to {end} were committed",
        outcome="not_applied",
    )


def _address(options: ReadOptions, session: Session) -> str | None:
    if options.node is None:
        return None
    return session.run(lambda client: client.members()).get(options.node, options.node)
