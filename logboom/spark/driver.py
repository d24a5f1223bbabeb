"""The driver's own interface: write and get a report, wait on a report."""

from __future__ import annotations

import re
import tempfile
import uuid
import weakref
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException

from logboom.errors import BY_CODE, InvalidRequest, LogboomError, NonDeterministicReplay, UnknownOutcome
from logboom.spark.batch import plan_write
from logboom.spark.options import WriteOptions, write_options
from logboom.spark.report import Report, leave, leave_begun, leave_error, leaving_errors, load, wait_for
from logboom.spark.source import LogboomSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES: Final = {kind.__name__: kind for kind in BY_CODE.values()}
_RAISED: Final = re.compile(r"logboom\.errors\.(\w+): (.*)")
_REMEMBERED_MAX: Final = 1024
_fingerprints: dict[tuple[str, ...], tuple[int, str]] = {}
"""Of writes that were made here, by write id and cluster: one name may be two writes, to two clusters."""
_registered: weakref.WeakSet[Any] = weakref.WeakSet()


def register(spark: SparkSession) -> None:
    """Make ``format("logboom")`` known to a session where Spark has not found it by itself, as with Spark Connect.

    It looks for modules called ``pyspark_*`` when the first source is asked for.
    """
    if spark in _registered or _is_found(spark):
        return
    try:
        spark.dataSource.register(LogboomSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        _register_active(spark)
    _registered.add(spark)


def _is_found(spark: SparkSession) -> bool:
    """To register it all the same is a warning in the driver's log, each time."""
    inside: Any = getattr(spark, "_jsparkSession", None)  # Spark Connect has none
    return inside is not None and bool(inside.sessionState().dataSourceManager().dataSourceExists(LogboomSource.name()))


def _register_active(spark: SparkSession) -> None:
    """Spark looks for the name in the session that is active, not in the one that is to have it."""
    before = type(spark).getActiveSession()
    spark.createDataFrame([], "nothing int")  # makes it the active one
    try:
        spark.dataSource.register(LogboomSource)
    finally:
        if before is not None:
            before.createDataFrame([], "nothing int")


def submit(
    df: DataFrame,
    *,
    endpoints: str | Iterable[str],
    partitions: str | int | Iterable[int] | None = None,
    key: str | None = None,
    wait: str = "applied",
    writeId: str | None = None,  # noqa: N803 - the option's own name
    **options: Any,
) -> Report:
    """Write a DataFrame through the sink, and return what ``save()`` cannot: a report.

    ``key`` names the column to take as the key; further sink options go by their names (``op="add"``,
    ``addColumns=["n", "distance"]``). Returns after the barrier at level ``wait``. Raises the errors of
    ``logboom.errors``; those of tasks by type and message, without their fields, and with outcome ``unknown``. Needs
    the driver's own Python: over Spark Connect use ``save()``.
    """
    named = {k: _text(k, v) for k, v in options.items() if v is not None}
    named |= {"endpoints": _text("endpoints", endpoints), "wait": wait}
    if writeId is not None:
        named["writeId"] = writeId
    if partitions is not None:
        named["partitions"] = _text("partitions", partitions)
    checked = write_options(named)
    if checked.write_id is None:  # here: what is left of a write that has not come to its end has to name it
        named["writeId"] = uuid.uuid4().hex
        checked = replace(checked, write_id=named["writeId"])
    with leaving_errors(checked.report_file):
        df = _with_key(df, key)
        plan_write(df.schema, checked)  # here first: its errors are typed, those of the planner are text
    with tempfile.TemporaryDirectory(prefix="logboom-report-") as directory:
        report = _save(df, named, checked, Path(directory) / "report.json")
    with leaving_errors(checked.report_file):
        _compare(report)
    return report


def barrier(report: Report, *, timeout: float = 60.0, level: str = "applied", scope: str = "leader") -> None:
    """Wait until the partitions of a write have come to ``report.global_index``.

    ``level``: ``ordered``, ``durable``, ``applied``, ``snapshotted``; ``scope``: ``node``, ``leader``, ``quorum``,
    ``all``; ``timeout`` in seconds. Raises BarrierTimeout with the watermarks reached.
    """
    wait_for(report, timeout=timeout, level=level, scope=scope)


def _with_key(df: DataFrame, key: str | None) -> DataFrame:
    """The frame, with the column that is to be the key by that name. Raises InvalidRequest."""
    if key is None or key == "key":
        return df
    if key not in df.columns:
        raise InvalidRequest(f"there is no column {key!r} to take as the key: {', '.join(df.columns)}")
    if "key" in df.columns:
        raise InvalidRequest(f"column {key!r} is to be the key, and there is a column 'key': drop or rename that")
    return df.withColumnRenamed(key, "key")


def _text(name: str, value: Any) -> str:
    """An option as Spark takes them. Raises InvalidRequest for bytes that are no text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"option {name} takes text, not {value!r}") from error
    one = isinstance(value, str) or not isinstance(value, Iterable)
    return str(value) if one else ",".join(map(str, value))


def _save(df: DataFrame, named: dict[str, str], checked: WriteOptions, file: Path) -> Report:
    name = f"write {checked.write_id}"
    if checked.report_file is not None:
        leave_begun(checked.report_file, name)
    try:
        register(df.sparkSession)
        df.write.format("logboom").options(**{**named, "reportFile": str(file)}).mode("append").save()
    except Exception as error:
        left = _left(file, checked)
        if left is not None and not _is_of_tasks(left):
            typed: LogboomError | None = left  # of the commit, typed and whole
        else:
            typed = _typed(error, name)
        if checked.report_file is not None:
            if typed is not None:
                leave_error(checked.report_file, typed)
            else:
                leave_begun(checked.report_file, name, error)
        if typed is None:
            raise
        raise typed from error
    report = load(file, checked.target)
    if report is None:
        raise InvalidRequest(
            "the write is done, and its report is on another machine: submit needs the driver's own Python",
            outcome="applied",
        )
    if checked.report_file is not None:
        leave(checked.report_file, report)
    return report


def _left(file: Path, checked: WriteOptions) -> LogboomError | None:
    """The error that a write has left, if it left one."""
    try:
        load(file, checked.target)
    except LogboomError as left:
        return left
    return None


def _is_of_tasks(left: LogboomError) -> bool:
    """As ``abort`` leaves it: it says less than what Spark says of them. Of a commit it would be that all is in."""
    return isinstance(left, UnknownOutcome) and left.outcome == "unknown"


def _typed(error: Exception, write: str) -> LogboomError | None:
    """What a task raised comes back as text: the last logboom error in it, typed again.

    Whatever it was, rows before it, and those of other tasks, may have taken effect.
    """
    found = [(name, message) for name, message in _RAISED.findall(str(error)) if name in _TYPES]
    if not found:
        return None
    name, message = found[-1]
    return _TYPES[name](f"{write}: a Spark task failed: {message}", outcome="unknown")


def _compare(report: Report) -> None:
    """A write repeated from this driver must have the rows it had: else what took effect is a mixture."""
    name = (report.write_id, *sorted(report.target.endpoints.split(",")))
    known = _fingerprints.get(name)
    if known is not None and known != (report.rows, report.fingerprint):
        raise NonDeterministicReplay(
            f"write {report.write_id} ran before from here with {known[0]} rows and now with {report.rows}, or others, "
            "or in another order; sort within partitions or checkpoint the DataFrame, and use a new writeId",
            write_id=report.write_id,
        )
    while len(_fingerprints) >= _REMEMBERED_MAX:
        _fingerprints.pop(next(iter(_fingerprints)))
    _fingerprints[name] = (report.rows, report.fingerprint)
