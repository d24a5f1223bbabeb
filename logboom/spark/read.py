"""Reading state and logs into Arrow, in columns. No Spark in here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa

from logboom.client import Client
from logboom.client.reads import LogBatch, close_now
from logboom.errors import DeadlineExceeded, IndexCompacted, LogboomError, PartitionDestroyed, Voided
from logboom.records import RecordBlock
from logboom.spark.apart import APART_MAX, HELD_FETCHES, HELD_MIN, TooLarge, in_order, size_of
from logboom.spark.beginnings import GLANCE_S, Choice, held_by, holder
from logboom.spark.columns import BATCH_BYTES_MAX, cut, log_columns, pieces, state_batch
from logboom.spark.connection import Session, all_or_none
from logboom.spark.options import ReadOptions
from logboom.spark.progress import GONE, Progress, lost, scattered
from logboom.spark.shares import Merged, Share, Span, first_from, without

log: Final = logging.getLogger("logboom.spark")
CREDIT_MIN: Final = 64 * 1024
LOOK_AGAIN_S: Final = 0.05
EMPTY_PASSES: Final = 5
"""After so many without a batch nodes are asked where their logs begin: mostly one is a moment behind."""
SPILL_AFTER_S: Final = 5.0
"""How long a task is waited for, in all, before what it does not take goes into a file: a node waits at least twice as
long. Tasks that are quick have none."""


def read_state(options: ReadOptions, share: Share, names: Sequence[str], session: Session) -> Iterator[pa.RecordBatch]:
    """All keys of a partition from one consistent view: linearizable, or of a replica that has come far enough.

    However slowly it is taken: what the node would not wait for lies on the disk, up to ``maxSpillBytes``.
    """
    node = _address(options, session)
    at_least = options.at_global if options.at_global is not None else (0 if node is not None else None)
    patience = min(SPILL_AFTER_S, options.target.request_timeout_ms / 1000 / 4)
    any_replica = node is None and at_least is not None
    failures = 0

    def scan(client: Client) -> AsyncIterator[tuple[int, RecordBlock]]:
        blocks = client.scan_blocks(share.partition_id, at_least=at_least, node=node)
        left = options.retries - failures
        # The last one that is asked has all of the time.
        return _begun(blocks, _share_of(client.timeout, left)) if any_replica and left > 0 else blocks

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
            # Whoever was asked is behind, or its disk hangs: the next one has its turn.
            late = any_replica and isinstance(error, DeadlineExceeded)
            # Half of one view and half of another would be no view at all.
            if begun or not (error.retryable or late) or failures > options.retries:
                raise
            if late:
                _meet(share.partition_id, session)


def _share_of(timeout: float, left: int) -> float:
    """Of the time to answer in, for one that is asked before so many others; each has more than the one before."""
    return max(min(GLANCE_S, timeout / 2), timeout / (1 << min(left, 8)))


async def _begun(
    blocks: AsyncGenerator[tuple[int, RecordBlock], None], timeout: float
) -> AsyncIterator[tuple[int, RecordBlock]]:
    """The same blocks. Raises DeadlineExceeded where the first one does not come in this time."""
    try:
        try:
            async with asyncio.timeout(timeout):
                first = await anext(blocks, None)
        except TimeoutError:
            raise DeadlineExceeded("a replica did not answer in time", outcome="not_applied") from None
        if first is not None:
            yield first
            async for block in blocks:
                yield block
    finally:
        await close_now(blocks)


def read_log(
    options: ReadOptions, share: Share, span: Span, schema: pa.Schema, session: Session
) -> Iterator[pa.RecordBatch]:
    """The records of a share, of the span. Raises DeadlineExceeded, IndexCompacted, Voided, PartitionDestroyed."""
    node = _address(options, session)
    position, failures = share.start, 0
    while position <= share.end:
        try:
            for batches in _tail(position, node, share.partition_id, options, session):
                position, failures = int(batches[-1].last_index) + 1, 0
                cuts = [_cut(b, share, span) for b in batches]
                for ready in _gathered([c for c in cuts if c is not None]):
                    yield from pieces(log_columns(ready, schema))
                if position > share.end or batches[-1].global_index > span.high:
                    return
        except IndexCompacted as error:
            first = int(error.fields.get("first", share.end + 1))
            if options.fail_on_data_loss:
                raise lost(share.partition_id, position, first) from error
            gone = min(first, share.end + 1) - position
            log.warning(GONE, share.partition_id, gone, position)
            position = max(position, first)
        except Voided as error:
            following = max(position + 1, int(error.fields.get("next", share.end + 1)))
            if error.fields.get("global_index", span.low) in span:
                if options.fail_on_data_loss:
                    raise
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
        tail, size=size_of, bytes_max=ahead, timeout=patience, glances=glances, hopeless=is_behind
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


def read_merged(options: ReadOptions, merged: Merged, schema: pa.Schema, session: Session) -> Iterator[pa.RecordBatch]:
    """Several partitions in global order. Raises DeadlineExceeded, IndexCompacted, Voided, CorruptData.

    A node tells no more than it had when it was asked, and it may be behind: it is asked again from there on until
    something at the end of the range, or behind it, has been seen. Where on all nodes one log begins behind the range's
    start, all are read from where they begin: each has removed what it has, and from a common index on others would
    lack more. Then it matters which node is asked (``beginnings``), and lost is what none of those that answer has.
    Where each of them lacks something that another has, each log is read from whoever has it (``apart``).
    """
    node = _address(options, session)
    progress = Progress(merged, options.fail_on_data_loss, merged.span.low - 1)
    patience = options.target.request_timeout_ms / 1000
    failures, why, deadline = 0, "", time.monotonic() + patience
    begins_later, empty = False, 0
    refused = False  # by index, by the very node that was chosen: what it has removed nobody wants
    while not progress.done():
        before, source = progress.after_global, _scan(progress, node, options, session)
        progress.from_first, progress.passed, begins_later, begun_anew = begins_later, {}, False, False
        try:
            if progress.from_first:
                begun_anew = True
                source = _begin_anew(progress, node, failures, options, session, all_of_it=refused)
                if progress.done():
                    return
            for batches in source:
                taken = progress.batches_of(batches)
                parts = {s.partition_id: s for s in progress.merged.parts}
                cuts = [_cut(b, parts[b.partition_id], merged.span) for b in taken]
                for ready in _gathered([c for c in cuts if c is not None]):
                    yield from pieces(log_columns(ready, schema))
                if progress.done():
                    return
            empty += progress.after_global == before
            if progress.after_global == before and empty == EMPTY_PASSES:
                # Of what all others have removed, one that is behind says nothing.
                began = time.monotonic()
                _pass_over_lost(progress, node, failures, options, session)
                deadline += time.monotonic() - began
                if progress.done():
                    return
        except _BeginsLater:
            begins_later, refused = True, refused or (begun_anew and not progress.from_first)
        except Voided:  # not a failure to be tried again
            raise
        except PartitionDestroyed as error:
            if options.fail_on_data_loss:
                raise
            progress.leave_out(error, without(progress.merged, {error.partition_id}, options, session))
            continue
        except TimeoutError as late:  # its disk hangs: the next one has its turn
            failures, why = failures + 1, str(late)
            if failures > options.retries or node is not None:
                raise _late(options, "in global order", progress.after_global, merged.span.high, why) from None
            _meet(progress.merged.parts[0].partition_id, session)
            deadline = time.monotonic() + patience
        except LogboomError as error:
            failures, why = failures + 1, error.message
            if not error.retryable or failures > options.retries:
                raise
        if progress.after_global > before:
            failures, why, empty, refused = 0, "", 0, False
            deadline = time.monotonic() + patience
        elif time.monotonic() > deadline:
            raise _late(options, "in global order", before, merged.span.high, why)
        else:
            time.sleep(LOOK_AGAIN_S)


def _begin_anew(
    progress: Progress, node: str | None, turn: int, options: ReadOptions, session: Session, *, all_of_it: bool
) -> Iterator[list[LogBatch | Voided]]:
    """What comes from a node where its logs begin, or else from several.

    ``all_of_it``: from there whichever it is, be it behind.
    Raises IndexCompacted for what is gone; with ``failOnDataLoss=false`` goes on behind that.
    """
    found = _holder(progress, node, turn, options, session)
    _go_on_behind(progress, found.lost, options, session)
    if found.elsewhere and len(progress.merged.parts) <= APART_MAX and not progress.too_large:
        progress.from_first = False
        return _apart(progress, options, session)
    if found.elsewhere and options.fail_on_data_loss:
        raise scattered(found.node, found.elsewhere)
    _go_on_behind(progress, found.elsewhere, options, session)
    held = found.held
    # One that is behind is asked again and again, and not for all from the beginning: it has removed nothing.
    progress.from_first = all_of_it or not held.behind or bool(held.gone or held.passed)
    progress.passed = held.passed
    return _scan(progress, found.node, options, session)


def _apart(progress: Progress, options: ReadOptions, session: Session) -> Iterator[list[LogBatch | Voided]]:
    wanted, start_global = progress.wanted(), progress.after_global + 1
    ends = {share.partition_id: share.end for share in wanted}
    # What another task reads, or nobody wants, may be gone everywhere.
    firsts = first_from(start_global, session, ends, node=None)
    shares = [replace(s, start=max(s.start, firsts.get(s.partition_id, 0))) for s in wanted]
    credit = max(1, options.fetch_bytes // 2 // max(1, len(shares)))
    held_max = max(HELD_MIN, HELD_FETCHES * options.fetch_bytes)

    async def read(client: Client) -> AsyncIterator[LogBatch | Voided]:
        items = in_order(client, shares, credit=credit, held_max=held_max)
        try:
            async for item in items:
                yield item
        except IndexCompacted as error:
            raise _BeginsLater from error
        except TooLarge as error:
            progress.too_large = True
            raise _BeginsLater from error
        finally:
            await close_now(items)

    patience = options.target.request_timeout_ms / 1000
    yield from session.prefetch(read, size=size_of, bytes_max=options.fetch_bytes, timeout=patience)


def _pass_over_lost(progress: Progress, node: str | None, turn: int, options: ReadOptions, session: Session) -> None:
    """Go on behind what nobody has. What one node has is waited for: another may be asked next. Raises as above."""
    _go_on_behind(progress, _holder(progress, node, turn, options, session).lost, options, session)


def _holder(progress: Progress, node: str | None, turn: int, options: ReadOptions, session: Session) -> Choice:
    turn += progress.merged.span.low  # not all tasks ask the same
    return holder(options, node, progress.wanted(), progress.after_global + 1, session, turn=turn)


def _go_on_behind(progress: Progress, gone: Mapping[int, int], options: ReadOptions, session: Session) -> None:
    nothing = progress.begin_behind(gone)
    if nothing:  # the range may have ended with that
        progress.go_on_with(without(progress.merged, nothing, options, session))


def _scan(
    progress: Progress, node: str | None, options: ReadOptions, session: Session
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
    for batches in session.prefetch(scan, size=size_of, bytes_max=options.fetch_bytes, timeout=patience):
        if unsure and node is not None:
            # Now that it is under way nothing of it is removed any more.
            alone = options.node is not None
            held = held_by(node, progress.wanted(), progress.after_global + 1, session, timeout=patience, alone=alone)
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


def _late(options: ReadOptions, where: str, position: int, end: int, why: str = "") -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{where}: no record after offset {position} came within {options.target.request_timeout_ms} ms, "
        f"up to {end} were committed" + (f"; {why}" if why else ""),
        outcome="not_applied",
    )


def _address(options: ReadOptions, session: Session) -> str | None:
    if options.node is None:
        return None
    return session.run(lambda client: client.members()).get(options.node, options.node)
