"""Streams, as Spark sees them: micro-batches in, micro-batches out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from logboom.errors import InvalidRequest, LineageMismatch, NonDeterministicReplay, NoSuchPartition, PartitionDestroyed
from logboom.spark.batch import (
    SharePartition,
    columns_of_schema,
    plan_write,
    reached,
    session_of,
    task_message,
    task_reports,
)
from logboom.spark.connection import session
from logboom.spark.ends import STILL, LeftOut, marks
from logboom.spark.offsets import StreamOffset, advance, shares_between
from logboom.spark.options import EARLIEST, LATEST, ReadOptions, WriteOptions
from logboom.spark.read import LOOK_AGAIN_S, read_log
from logboom.spark.report import finish, same_as_before, went_before
from logboom.spark.shares import Span, check_in_log, first_asked, history, living
from logboom.spark.sink import WritePlan
from logboom.spark.times import offsets_from

log: Final = logging.getLogger("logboom.spark")
QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
EPOCH_MAX: Final = 0xFFFFFFFF


class LogboomStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One on the driver for as long as a query runs; copies of it in the tasks, for ``read`` alone."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._schema = columns_of_schema(schema, options)
        self._initial: StreamOffset | None = None
        self._until: dict[int, int] | None = None
        self._ends: dict[int, int] | None = None
        self._logged: dict[int, int] = {}
        self._still: set[int] = set()
        self._planned: float | None = None
        """When the last batch was."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins; asked more than once, answered once."""
        if self._initial is None:
            self._initial = self._begin()
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; ``start`` if there is nothing to read."""
        known = StreamOffset.from_json(start)
        # One that cannot be shown keeps no stream from the others; a run that is to end there waits for what moves.
        self._ends = self._now(LeftOut.HIDDEN if self._until is None else LeftOut.STILL)
        ends, here = self._ends, self._here()
        known.check(*here)
        self._check_ends(known)
        if self._until is not None:
            # Of a partition that has come since, nothing. A new leader may yet have to apply what the one before had:
            # it has it, and a task waits for it.
            ends = {p: self._until.get(p, known.next.get(p, 1)) for p in ends}
        options = self._options
        strict = options.node is None and options.fail_on_data_loss
        named = (options.partitions or ()) if strict else ()
        never = [p for p in named if p not in ends and p not in known.next]
        missing = [p for p in known.next if p not in ends and self._chosen(p)]
        if missing or never:
            # A node that begins anew, or is behind, does not know them yet, or has not opened them: forgotten, they
            # would be read again from 1.
            alive = living(reached(options.target))
            never = [p for p in never if p not in alive]
            ends |= {p: known.next[p] for p in missing if p in alive}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        step = advance(known, ends, rows_max=rows_max, tasks_min=options.tasks_min, chosen=options.partitions)
        gone = step.gone
        if never:
            raise NoSuchPartition(
                f"option partitions names {never[0]}, which does not exist; failOnDataLoss=false waits for it",
                partition_id=never[0],
                partitions=len(ends),
            )
        if gone and options.fail_on_data_loss:
            raise PartitionDestroyed(
                f"partition {gone[0]} was read up to offset {known.next[gone[0]] - 1} and does not exist any more; "
                "failOnDataLoss=false goes on without it",
                partition_id=gone[0],
            )
        for p in gone:
            log.warning("partition %d is destroyed; it was read up to offset %d", p, known.next[p] - 1)
        if step.offset == known or (not gone and self._is_too_little(known, ends, limit)):
            return start
        self._planned = time.monotonic()
        return replace(step.offset, cluster=here[0], lineage=here[1]).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxOffsetsPerTrigger``, or the least: a trigger that wants all there is asks otherwise."""
        most, least = self._options.rows_per_trigger_max, self._options.rows_per_trigger_min
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far the logs go, for the query's progress."""
        return None if self._ends is None else StreamOffset(self._ends).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What there is now is all that this run reads."""
        self._until = self._settled(LeftOut.STILL)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch: decided by the two offsets alone. Raises LineageMismatch for another history's."""
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        here = self._here()
        last.check(*here)  # of a batch that is run again nobody has asked for offsets
        span = Span(low=last.since_global)
        return [SharePartition(share, span, here) for share in shares_between(first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        if not isinstance(partition, SharePartition):
            raise InvalidRequest(f"not a partition of this source: {partition!r}")
        found = session_of(self._options.target, partition)
        return read_log(self._options, partition.share, partition.span, self._schema, found)

    def _is_too_little(self, known: StreamOffset, ends: Mapping[int, int], limit: ReadLimit) -> bool:
        """It may wait for more: ``minOffsetsPerTrigger``, and not for long yet. Nothing waits for the first batch."""
        least, delay_s = self._options.rows_per_trigger_min, self._options.trigger_delay_max_ms / 1000
        if least is None or self._until is not None or isinstance(limit, ReadAllAvailable):
            return False
        rows = sum(max(0, end - known.next.get(p, 1)) for p, end in ends.items())
        return rows < least and self._planned is not None and time.monotonic() < self._planned + delay_s

    def _now(self, left_out: LeftOut = LeftOut.NOTHING) -> dict[int, int]:
        """The ends (exclusive) of what is applied: committed, and synced on a majority in either mode."""
        seen = marks(self._options, reached(self._options.target), left_out=left_out)
        found = [m for m in seen if self._chosen(m.partition_id)]
        self._logged = {int(m.partition_id): int(m.log_index) for m in found}
        self._still = {int(m.partition_id) for m in found if m.state in STILL}
        return {int(m.partition_id): int(m.applied_index) + 1 for m in found}

    def _settled(self, left_out: LeftOut = LeftOut.NOTHING) -> dict[int, int]:
        """The same, once whoever leads has applied all that was committed before this call.

        One that has come to lead just now has all that the one before had applied, and may have applied less of it.
        Of a partition that stands still, or is not applied within ``requestTimeoutMs``, it is what is applied by then.
        """
        ends, committed = self._now(left_out), self._logged
        late = time.monotonic() + self._options.target.request_timeout_ms / 1000
        while self._options.node is None:  # one that is named may be behind whatever it says
            behind = [p for p, last in committed.items() if ends.get(p, last + 1) <= last and p not in self._still]
            if not behind:
                break
            if time.monotonic() > late:
                log.warning(
                    "partition %d: applied up to %d, not to %d", behind[0], ends[behind[0]] - 1, committed[behind[0]]
                )
                break
            time.sleep(LOOK_AGAIN_S)
            ends = self._now(left_out)
        return ends

    def _chosen(self, partition_id: int) -> bool:
        return self._options.partitions is None or partition_id in self._options.partitions

    def _here(self) -> tuple[str, str]:
        return history(reached(self._options.target))

    def _check_ends(self, known: StreamOffset) -> None:
        """Whoever leads has all that was ever read; of a node alone, it may be behind."""
        for p, following in known.next.items():
            if self._options.node is None and following > self._logged.get(p, following) + 1:
                raise LineageMismatch(
                    f"partition {p} was read up to offset {following - 1}, and its log ends at {self._logged[p]}: the "
                    "checkpoint is of another cluster, or of one that was made anew; begin a new query, with a new "
                    "checkpoint",
                    cluster=known.cluster,
                    expected=self._here()[0],
                )

    def _begin(self) -> StreamOffset:
        options = self._options
        begins = options.start.values() if isinstance(options.start, Mapping) else (options.start,)
        ends = self._settled() if LATEST in begins else self._now()
        asked = {p: _start(options, p) for p in ends}
        named = [*(options.partitions or ()), *(options.start if isinstance(options.start, Mapping) else ())]
        missing = [p for p in named if p not in ends]
        if missing:
            raise NoSuchPartition(
                f"partition {missing[0]} does not exist, or is none of the option partitions",
                partition_id=missing[0],
                partitions=len(ends),
            )
        logged = {p: self._logged[p] for p in ends}
        times = offsets_from(options.start_time_ms, logged, session(options.target), node=options.node)
        earliest = [p for p in ends if p not in times and asked[p] == EARLIEST and ends[p] > 1]
        held = first_asked(options, session(options.target), {p: logged[p] for p in earliest})
        following = {}
        for p, end in ends.items():
            at = times.get(p) or {EARLIEST: held.get(p, 1), LATEST: end}.get(asked[p], max(1, asked[p]))
            if options.node is None:
                check_in_log("startingOffsets", at, p, logged[p])
            following[p] = at
        cluster, lineage = self._here()
        return StreamOffset(
            following, initial=True, since_global=options.start_global, cluster=cluster, lineage=lineage
        )


def _start(options: ReadOptions, partition: int) -> int:
    return options.start.get(partition, EARLIEST) if isinstance(options.start, Mapping) else options.start


class LogboomStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Made anew for the tasks and for the commit of every batch: who writes comes from the tasks' own properties."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        plan = plan_write(schema, options)
        self._plan = replace(plan, went=went_before(plan.report_file))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: write its rows, report."""
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) if context else None for name in (QUERY, BATCH))
        if context is None or query is None or batch is None:
            raise InvalidRequest("a stream's writer writes from the tasks of a streaming query only")
        plan = plan_of_batch(self._plan, query, int(batch))
        return task_message(plan, iterator, context)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver: check the reports, pass the barrier. Spark counts the batch as done when this returns."""
        tasks = task_reports(messages)
        if tasks and not any(tasks):
            raise InvalidRequest(
                f"batch {batchId}: none of {len(tasks)} tasks has written: with a continuous trigger Spark hands a "
                "sink in Python no rows; use trigger(processingTime=...) or trigger(availableNow=True)"
            )
        plan = commit_plan(self._plan, [t.write_id for t in tasks if t is not None], batchId)
        finish(plan, tasks, began=time.time(), check=same_as_before)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commands that were applied stay applied; the batch that Spark runs again completes them."""


def plan_of_batch(plan: WritePlan, query: str, batch: int) -> WritePlan:
    """What the tasks of a batch write as.

    The producer is the query's task, over all batches; the batch is its epoch. So a stream is as many producers as it
    has tasks, however long it runs, and whoever still writes for a batch after the next one has, is refused.
    """
    if not 0 <= batch <= EPOCH_MAX:
        raise InvalidRequest(f"batch {batch} of query {query}: a stream has at most {EPOCH_MAX + 1} batches")
    return replace(plan, write_id=f"{query}/{batch}", producer=f"stream/{query}", epoch=batch)


def commit_plan(plan: WritePlan, write_ids: Sequence[str], batch: int) -> WritePlan:
    """The plan as its tasks had it. Raises NonDeterministicReplay when they wrote for another batch."""
    if not write_ids:
        return replace(plan, write_id=f"/{batch}")
    other = [w for w in write_ids if w != write_ids[0] or not w.endswith(f"/{batch}")]
    if other:
        raise NonDeterministicReplay(f"batch {batch}: a task wrote as {other[0]}", write_id=other[0])
    return replace(plan, write_id=write_ids[0])
