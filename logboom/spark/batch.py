"""Batches, as Spark sees them: a DataFrame written, logs and state read as one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from logboom.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LineageMismatch,
    PartitionDestroyed,
    Unavailable,
    UnknownOutcome,
)
from logboom.spark.columns import STATE, log_schema
from logboom.spark.connection import Session, session
from logboom.spark.layout import layout_of
from logboom.spark.options import ReadOptions, Target, View, WriteOptions
from logboom.spark.read import read_log, read_merged, read_state
from logboom.spark.report import check_where, finish, leave_begun, leave_error, leaving_errors
from logboom.spark.shares import EVERYTHING, Merged, Share, Span, history, log_shares, merged_shares, state_shares
from logboom.spark.sink import BLOCK_BYTES_MAX, TaskReport, WritePlan, check_write_id, write_task
from logboom.spark.whole import whole
from logboom.types import lineage_shown


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):  # type: ignore[misc]
    """What a task tells ``commit``."""

    report: bytes


@dataclass(frozen=True)
class SharePartition(InputPartition):  # type: ignore[misc]
    """A logboom partition, or a piece of its log, as a Spark partition."""

    share: Share
    span: Span = EVERYTHING
    """Global offsets that are read of it."""
    history: tuple[str, str] | None = None
    """Of the cluster, which it was planned in."""


@dataclass(frozen=True)
class MergedPartition(InputPartition):  # type: ignore[misc]
    """A range in global order as a Spark partition."""

    merged: Merged
    history: tuple[str, str] | None = None
    """As above."""


def view_schema(view: View, *, headers: bool = False, producer: bool = False) -> Any:
    """Columns of a view, as Spark has them."""
    return from_arrow_schema(STATE if view == "state" else log_schema(headers=headers, producer=producer))


def columns_of_schema(schema: StructType, options: ReadOptions) -> pa.Schema:
    """The columns asked for, which may be some of the view's. Raises InvalidRequest for others."""
    view = options.view
    whole = view_schema(view, headers=options.headers, producer=options.producer)
    for column in schema:
        if column.name not in whole.names:
            raise InvalidRequest(f"view={view} has no column {column.name!r}; it has {', '.join(whole.names)}")
        if not column.nullable:
            raise InvalidRequest(f"column {column.name} may be null to Spark, as all of the source: leave NOT NULL out")
        has, asked = whole[column.name].dataType, column.dataType
        if has != asked:
            alike = has.simpleString() == asked.simpleString()
            raise InvalidRequest(
                f"column {column.name} is {has.simpleString()}, not {asked.simpleString()}"
                + (" without nulls in it: leave NOT NULL (containsNull, nullable) out" if alike else "")
            )
    arrow = STATE if view == "state" else log_schema(headers=options.headers, producer=options.producer)
    return pa.schema([arrow.field(name) for name in schema.names])


def plan_write(schema: StructType, options: WriteOptions) -> WritePlan:
    """Check everything that can be checked before a job runs; asks the cluster for its partitions."""
    if options.report_file is not None and not Path(options.report_file).absolute().parent.is_dir():
        raise InvalidRequest(
            f"option reportFile: the directory of {options.report_file} does not exist on this machine"
        )
    found = reached(options.target)
    machines = found.run(lambda client: client.state_machines())
    by_name = options.partitions is None and "partition" in schema.names
    if options.partitions is None or not machines.keys() >= set(options.partitions):
        found.refresh()
        machines = found.run(lambda client: client.state_machines())
    if options.partitions is None:
        # As submit_by_key: a key stays where it is, whatever is created later.
        first = range(found.run(lambda client: client.key_partitions()))
        # Rows that name their partition may name a later one, of the same kind; once those are gone that of all others.
        kinds = {machines[p] for p in first if p in machines} or set(machines.values())
        alike = tuple(p for p, machine in machines.items() if machine in kinds)
        gone = [p for p in first if p not in machines]
        if gone and not by_name:
            raise PartitionDestroyed(
                f"partition {gone[0]} was destroyed, and keys are routed over all that the cluster began with: name "
                "those that are left (option partitions); most keys then go to another than before",
                partition_id=gone[0],
            )
        options = replace(options, partitions=alike if by_name else tuple(first))
    return WritePlan(
        target=options.target,
        layout=layout_of(_arrow_schema(schema), options, machines),
        write_id=check_write_id(options.write_id) if options.write_id is not None else uuid.uuid4().hex,
        wait=options.wait,
        barrier_timeout_ms=options.barrier_timeout_ms,
        barrier_scope=options.barrier_scope,
        barrier_level=options.barrier_level,
        in_flight_bytes_max=options.in_flight_bytes_max,
        report_file=options.report_file,
        fail_on_rejected=options.fail_on_rejected,
        block_bytes_max=min(BLOCK_BYTES_MAX, found.block_bytes),
        block_records_max=found.block_records,
        sort_bytes_max=options.sort_bytes_max if options.row_order == "sorted" else None,
    )


def _arrow_schema(schema: StructType) -> pa.Schema:
    for column in schema:
        try:
            to_arrow_schema(StructType([column]), timezone="UTC")
        except PySparkTypeError as error:
            raise InvalidRequest(
                f"column {column.name} is {column.dataType.simpleString()}, which Spark cannot hand to Python: drop or "
                "cast() it"
            ) from error
    return to_arrow_schema(schema, timezone="UTC")


def reached(target: Target) -> Session:
    """A session that has found its cluster. Raises Unavailable, naming the endpoints, or why a node refused us."""
    found = session(target)
    try:
        found.run(lambda client: client.partitions())
    except (DeadlineExceeded, Unavailable) as error:
        raise Unavailable(
            f"no node at {target.endpoints} answered within {target.request_timeout_ms} ms: {error.message}"
        ) from error
    return found


def session_of(target: Target, partition: SharePartition | MergedPartition) -> Session:
    """In a task: of the history that it was planned in. Raises LineageMismatch."""
    found, planned = session(target), partition.history
    if planned is None or (now := history(found)) == planned:
        return found
    # Spark uses its workers again: a client of before the restore has not asked anybody since.
    found = session(target, but=found)
    if (now := history(found)) != planned:
        raise LineageMismatch(
            f"the cluster was restored since this query was planned: that was in {planned[0]!r} "
            f"({lineage_shown(planned[1])}), and this is {now[0]!r} ({lineage_shown(now[1])}); load() it anew",
            outcome="not_applied",
            cluster=planned[1] or planned[0],
            expected=now[1] or now[0],
        )
    return found


def task_reports(messages: Iterable[WriterCommitMessage | None]) -> list[TaskReport | None]:
    """What the tasks said, in the order of the messages."""
    return [TaskReport.decode(m.report) if isinstance(m, TaskMessage) else None for m in messages]


def task_message(plan: WritePlan, rows: Iterable[pa.RecordBatch], context: Any) -> TaskMessage:
    """In a task: write its rows, and say what was written, and in which history of the cluster.

    Raises LineageMismatch, with nothing written, where a stream's batches before went into another one.
    """
    found = session(plan.target)
    if plan.went is not None:
        try:
            check_where(plan, history(found))
        except LineageMismatch:  # of a client of before the restore, say, which has not asked anybody since
            found = session(plan.target, but=found)
            check_where(plan, history(found))
    if plan.sort_bytes_max is not None:  # in the order that they come in, a part of them has the same numbers as in all
        rows = whole(rows)
    report = write_task(plan, rows, task=context.partitionId(), attempt=context.attemptNumber(), sender=found)
    if report.rows:
        cluster, lineage = history(found)
        report = msgspec.structs.replace(report, cluster=cluster, lineage=lineage)
    return TaskMessage(report.encode())


class LogboomWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Made once on the driver; its copy serves every attempt and the commit, so they share a write id."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        with leaving_errors(options.report_file):
            self._plan = plan = plan_write(schema, options)
        self._began = time.time()
        if plan.report_file is not None:
            leave_begun(plan.report_file, f"write {plan.write_id}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: write its rows, report."""
        context = TaskContext.get()
        if context is None:
            raise InvalidRequest("the sink writes from Spark tasks only")
        return task_message(self._plan, iterator, context)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: check the reports, pass the barrier."""
        finish(self._plan, task_reports(messages), began=self._began)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commands that were applied stay applied; a run with the same ``writeId`` completes them.

        Where a task failed, that is left in place of the report; a commit leaves its own error.
        """
        plan, failed = self._plan, sum(message is None for message in messages)
        if plan.report_file is not None and failed:
            story = (
                f"write {plan.write_id}: {failed} of {len(messages)} tasks did not come to their end; what they wrote, "
                "and others, stays, and a run under the same writeId completes it"
            )
            leave_error(plan.report_file, UnknownOutcome(story))


class LogboomReader(DataSourceReader):  # type: ignore[misc]
    """What is read is fixed in ``partitions``; tasks that are run again read the same."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._span = Span.of(options)
        self._schema = columns_of_schema(schema, options)

    def partitions(self) -> Sequence[InputPartition]:
        """On the driver, once per query: pins the ends of logs."""
        options = self._options
        if self._span.is_empty:
            return []
        found = reached(options.target)
        if options.ordered == "global":
            ranges, here = merged_shares(options, found), history(found)
            return [MergedPartition(merged, here) for merged in ranges]
        shares, here = (state_shares if options.view == "state" else log_shares)(options, found), history(found)
        return [SharePartition(share, history=here) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        options = self._options
        if not isinstance(partition, SharePartition | MergedPartition):
            return  # there is nothing to read: Spark makes a partition of its own then
        found = session_of(options.target, partition)
        if isinstance(partition, MergedPartition):
            yield from read_merged(options, partition.merged, self._schema, found)
        elif options.view == "state":
            yield from read_state(options, partition.share, self._schema.names, found)
        else:
            yield from read_log(options, partition.share, self._span, self._schema, found)
