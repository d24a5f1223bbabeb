"""The data source ``logboom``, as Spark sees it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from logboom.errors import DeadlineExceeded, InvalidRequest, Unavailable
from logboom.spark.connection import Session, session
from logboom.spark.layout import layout_of
from logboom.spark.options import ReadOptions, Target, View, WriteOptions, read_options, write_options
from logboom.spark.read import LOG, STATE, Share, project, read_log, read_state, shares
from logboom.spark.report import finish
from logboom.spark.sink import TaskReport, WritePlan, check_write_id, write_task


def view_schema(view: View) -> Any:
    """Columns of a view, as Spark has them."""
    return from_arrow_schema(STATE if view == "state" else LOG)


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):  # type: ignore[misc]
    """What a task tells ``commit``."""

    report: bytes


@dataclass(frozen=True)
class SharePartition(InputPartition):  # type: ignore[misc]
    """A logboom partition as a Spark partition."""

    share: Share


def plan_write(schema: StructType, options: WriteOptions) -> WritePlan:
    """Check everything that can be checked before a job runs; asks the cluster for its partitions."""
    found = reached(options.target)
    machines = found.run(lambda client: client.state_machines())
    if options.partitions is None:
        # As submit_by_key: a key stays where it is, whatever is created later.
        options = replace(options, partitions=tuple(range(found.run(lambda client: client.key_partitions()))))
    return WritePlan(
        target=options.target,
        layout=layout_of(to_arrow_schema(schema, timezone="UTC"), options, machines),
        write_id=check_write_id(options.write_id) if options.write_id is not None else uuid.uuid4().hex,
        wait=options.wait,
        barrier_timeout_ms=options.barrier_timeout_ms,
        in_flight_bytes_max=options.in_flight_bytes_max,
        report_file=options.report_file,
    )


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


def run_task(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> TaskReport:
    """The body of a Spark task that writes."""
    context = TaskContext.get()
    if context is None:
        raise InvalidRequest("the sink writes from Spark tasks only")
    return write_task(
        plan,
        batches,
        task=context.partitionId(),
        attempt=context.attemptNumber(),
        sender=session(plan.target),
    )


class LogboomWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Made once on the driver; its copy serves every attempt and the commit, so they share a write id."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._plan = plan_write(schema, options)
        self._began = time.time()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: write its rows, report."""
        return TaskMessage(run_task(self._plan, iterator).encode())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: check the reports, pass the barrier."""
        tasks = [TaskReport.decode(m.report) if isinstance(m, TaskMessage) else None for m in messages]
        finish(self._plan, tasks, began=self._began)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commands that were applied stay applied; a run with the same ``writeId`` completes them."""


class LogboomReader(DataSourceReader):  # type: ignore[misc]
    """One task per logboom partition."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._names = _columns(schema, options.view)

    def partitions(self) -> Sequence[InputPartition]:
        """On the driver, once per query: pins the ends of logs."""
        return [SharePartition(share) for share in shares(self._options, reached(self._options.target))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        if not isinstance(partition, SharePartition):
            raise InvalidRequest(f"not a partition of this source: {partition!r}")
        reader = read_state if self._options.view == "state" else read_log
        for batch in reader(self._options, partition.share, session(self._options.target)):
            yield project(batch, self._names)


class LogboomSource(DataSource):  # type: ignore[misc]
    """``format("logboom")``: batch sink, batch source of state and of logs. docs/spark.md has the options."""

    @classmethod
    def name(cls) -> str:
        """For ``format``."""
        return "logboom"

    def schema(self) -> StructType:
        """Of the view asked for."""
        return view_schema(read_options(self.options).view)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Batch."""
        return LogboomReader(schema, read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """Batch, appending."""
        if overwrite:
            raise InvalidRequest('logboom appends commands: use mode("append"), not overwrite')
        return LogboomWriter(schema, write_options(self.options))

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802
        """Not in this release."""
        raise InvalidRequest('logboom reads in batches in this release: spark.read.format("logboom")')

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802, FBT001
        """Not in this release."""
        raise InvalidRequest(
            "logboom has no streaming sink in this release: write batches from foreachBatch, "
            'with option("writeId", f"{query}/{batch_id}")'
        )


def _columns(schema: Any, view: View) -> list[str]:
    whole = view_schema(view)
    for column in schema:
        if column.name not in whole.names:
            raise InvalidRequest(f"view={view} has no column {column.name!r}; it has {', '.join(whole.names)}")
        if column.dataType != whole[column.name].dataType:
            raise InvalidRequest(
                f"column {column.name} is {whole[column.name].dataType.simpleString()}, "
                f"not {column.dataType.simpleString()}"
            )
    return list(schema.names)
