"""The driver's own interface: write and get a report, wait on a report."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logboom.errors import BY_CODE, LogboomError, NonDeterministicReplay
from logboom.spark.options import write_options
from logboom.spark.report import Report, combine, wait_for
from logboom.spark.sink import TaskReport, WritePlan
from logboom.spark.source import plan_write, run_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TYPES: Final = {kind.__name__: kind for kind in BY_CODE.values()}
_RAISED: Final = re.compile(r"^logboom\.errors\.(\w+): (.*)$", re.MULTILINE)
_REMEMBERED_MAX: Final = 1024
_fingerprints: dict[str, tuple[int, str]] = {}


def submit(
    df: DataFrame,
    *,
    endpoints: str,
    partitions: str | Sequence[int] | None = None,
    key: str | None = None,
    wait: str = "applied",
    write_id: str | None = None,
    **options: Any,
) -> Report:
    """Write a DataFrame as the sink does, and return what ``save()`` cannot: a report.

    ``key`` names the column to take as the key; further sink options go by their names (``op="add"``,
    ``addColumns="n,distance"``, ``writeId`` works too). Returns after the barrier at level ``wait``. Raises
    the errors of ``logboom.errors``; those of tasks by type and message, without their fields.
    """
    named = {k: str(v) for k, v in options.items() if v is not None}
    named |= {"endpoints": endpoints, "wait": wait}
    if write_id is not None:
        named["writeId"] = write_id
    if partitions is not None:
        named["partitions"] = partitions if isinstance(partitions, str) else ",".join(map(str, partitions))
    if key is not None and key != "key":
        df = df.withColumnRenamed(key, "key")
    plan = plan_write(df.schema, write_options(named))
    began = time.monotonic()
    tasks = _run(df, plan)
    report = combine(plan, tasks, seconds=0.0)
    _compare(report)
    wait_for(report, timeout=plan.barrier_timeout_ms / 1000)
    return _timed(report, time.monotonic() - began)


def barrier(report: Report, *, timeout: float = 60.0, level: str = "applied", scope: str = "leader") -> None:
    """Wait until the partitions of a write have come to ``report.global_index``.

    ``level``: ``ordered``, ``durable``, ``applied``; ``scope``: ``node``, ``leader``, ``quorum``, ``all``;
    ``timeout`` in seconds. Raises BarrierTimeout with the watermarks reached.
    """
    wait_for(report, timeout=timeout, level=level, scope=scope)


def _run(df: DataFrame, plan: WritePlan) -> list[TaskReport]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"report": pa.array([run_task(plan, batches).encode()], pa.binary())})

    try:
        rows = df.mapInArrow(task, "report binary").collect()
    except Exception as error:
        typed = _typed(error)
        if typed is None:
            raise
        raise typed from error
    return [TaskReport.decode(bytes(row.report)) for row in rows]


def _typed(error: Exception) -> LogboomError | None:
    """What a task raised comes back as text: the last logboom error in it, typed again."""
    found = _RAISED.findall(str(error))
    if not found or found[-1][0] not in _TYPES:
        return None
    name, message = found[-1]
    return _TYPES[name](f"a Spark task failed: {message}")


def _compare(report: Report) -> None:
    """A write repeated from this driver must have the rows it had: else what took effect is a mixture."""
    known = _fingerprints.get(report.write_id)
    if known is not None and known != (report.rows, report.fingerprint):
        raise NonDeterministicReplay(
            f"write {report.write_id} ran before from here with {known[0]} rows and now has {report.rows}, or others, "
            "or in another order; sort within partitions or checkpoint the DataFrame, and use a new writeId",
            write_id=report.write_id,
        )
    while len(_fingerprints) >= _REMEMBERED_MAX:
        _fingerprints.pop(next(iter(_fingerprints)))
    _fingerprints[report.write_id] = (report.rows, report.fingerprint)


def _timed(report: Report, seconds: float) -> Report:
    from dataclasses import replace

    return replace(report, seconds=seconds)
