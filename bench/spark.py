"""``python -m bench.spark``: a million rows of 100 bytes from Spark (``local[2]``) into three nodes, and out again.

The rows are made and cached by Spark before any clock runs. A write counts from the call of ``logboom.spark.submit``
to its return: Spark's job, the tasks' requests, and the barrier at the end. Every write is one of its own (a new
``writeId``); the first five of each work warm up and do not count. What was written is read after that, into Spark's
``noop``: all that the log partitions have come to hold, or all keys of a state. Java compiles as it does by default:
the demo's quicker start makes a row cost Spark twice as much.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.report import RESULTS, SCRATCH, Check, say, three, verdict, write
from logboom.demo.spark_session import local_spark
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 1_000_000
QUICK_ROWS: Final = 50_000
VALUE_BYTES: Final = 100
TASKS: Final = 2
WARM_UPS: Final = 5
"""Of each work, before it counts: Java compiles what is called often only then, and a row costs it a third."""
PARTITIONS: Final = 8
"""Of either state machine: ``kv`` from 0 on, then ``log``."""


@dataclass(frozen=True)
class Work:
    """What is written where, and until when a write is waited for."""

    machine: str
    wait: str
    least_per_s: float | None = None
    """Rows per second."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.machine}, {self.wait}"

    @property
    def partitions(self) -> str:
        """The option: ids of the partitions that have this state machine."""
        first = 0 if self.machine == "kv" else PARTITIONS
        return f"{first}-{first + PARTITIONS - 1}"


WORKS: Final = (
    Work("log", "committed", least_per_s=500_000),
    Work("log", "durable", least_per_s=500_000),
    Work("kv", "applied", least_per_s=100_000),
)


@dataclass(frozen=True)
class Reading:
    """What is read: the columns of a view."""

    view: str
    columns: tuple[str, ...] = ()
    """All of them."""
    least_per_s: float | None = None
    """Rows per second."""

    @property
    def name(self) -> str:
        """For people."""
        return f"read {self.view}, {', '.join(self.columns) or 'all columns'}"

    def frame(self, spark: SparkSession, endpoints: str) -> DataFrame:
        """Nothing is read yet."""
        machine = "kv" if self.view == "state" else "log"
        options = {"endpoints": endpoints, "view": self.view, "partitions": Work(machine, "").partitions}
        reader = spark.read.format("logboom").options(**options)
        if self.columns:
            whole = reader.load().schema
            reader = reader.schema(type(whole)([whole[name] for name in self.columns]))
        return reader.load()


READINGS: Final = (
    Reading("log", least_per_s=2_000_000),
    Reading("log", ("value",), least_per_s=2_000_000),
    Reading("state"),
)


@dataclass(frozen=True)
class Run:
    """One write, or one reading."""

    rate: float
    """Rows per second."""
    again: int
    """Rows whose request was sent again, after a change of leader or a lost connection; they took effect once."""


def frames(spark: SparkSession, rows: int) -> dict[str, DataFrame]:
    """Cached rows for either state machine: a key of 16 bytes for ``kv``, a partition for ``log``."""
    from pyspark.sql import functions as f

    number = f.col("id").cast("string")
    # Two SHA-256 in hexadecimal are 128 characters that no codec on the way makes shorter.
    text = f.substring(f.concat(f.sha2(number, 256), f.sha2(f.concat(number, f.lit("/")), 256)), 1, VALUE_BYTES)
    values = spark.range(0, rows, 1, TASKS).withColumn("value", f.encode(text, "utf-8"))
    made = {
        "kv": values.select(f.encode(f.lpad(number, 16, "0"), "utf-8").alias("key"), "value"),
        "log": values.select((f.col("id") % PARTITIONS + PARTITIONS).cast("int").alias("partition"), "value"),
    }
    return {name: frame.persist() for name, frame in made.items()}


@contextmanager
def started(directory: Path) -> Iterator[LocalCluster]:
    """Three fresh nodes with partitions of both kinds."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=directory) as place:
        overrides = {str(p): {"state_machine": "log"} for p in range(PARTITIONS, 2 * PARTITIONS)}
        settings = {"cluster.overrides": overrides, "node.log_level": "warning"}
        with LocalCluster(nodes=3, partitions=2 * PARTITIONS, directory=place, settings=settings) as cluster:
            yield cluster


def measure(directory: Path, *, rows: int, runs: int) -> dict[str, list[Run]]:
    """Every run, by work. Raises the errors of ``logboom.errors``."""
    import logboom.spark

    found: dict[str, list[Run]] = {work.name: [] for work in (*WORKS, *READINGS)}
    with started(directory) as cluster, local_spark(cluster.directory, brief=False) as spark:
        data = frames(spark, rows)
        for frame in data.values():
            if frame.count() != rows:
                raise RuntimeError(f"Spark made other than {rows} rows")
        for work in WORKS:
            for run in range(1 - WARM_UPS, runs + 1):
                began = time.perf_counter()
                report = logboom.spark.submit(
                    data[work.machine],
                    endpoints=cluster.endpoints,
                    partitions=work.partitions,
                    op="put" if work.machine == "kv" else None,
                    wait=work.wait,
                )
                rate = rows / (time.perf_counter() - began)
                if report.rows != rows:
                    raise RuntimeError(f"{work.name}: {report.rows} rows written, not {rows}")
                again = f", {report.duplicates:,} of them sent again" if report.duplicates else ""
                say(f"  {work.name}, {f'run {run}' if run > 0 else 'warm-up'}: {rate:,.0f} rows/s{again}")
                if run > 0:
                    found[work.name].append(Run(rate, report.duplicates))
        for reading in READINGS:
            frame = reading.frame(spark, cluster.endpoints)
            held = frame.count()
            for run in range(1 - WARM_UPS, runs + 1):
                began = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                rate = held / (time.perf_counter() - began)
                say(f"  {reading.name}, {f'run {run}' if run > 0 else 'warm-up'}: {rate:,.0f} rows/s of {held:,}")
                if run > 0:
                    found[reading.name].append(Run(rate, 0))
    return found


def table(found: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """A row per work: median, least and most, and rows sent again over all runs."""
    return [
        {"work": name, "unit": "rows/s", **three([run.rate for run in runs]), "again": sum(run.again for run in runs)}
        for name, runs in found.items()
    ]


def judge(rows: Sequence[dict[str, Any]]) -> list[Check]:
    """The works and readings that have a floor."""
    median = {row["work"]: row["median"] for row in rows}
    written = [(f"rows/s from Spark, {work.name}", median[work.name], work.least_per_s) for work in WORKS]
    read = [(f"rows/s into Spark, {each.name}", median[each.name], each.least_per_s) for each in READINGS]
    return [Check(name, rate, at_least=least) for name, rate, least in (*written, *read) if least is not None]


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a floor was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="from Spark to durable and applied")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows, once: a look, not a measurement")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--runs", type=int, default=3, help="of each work, after one that does not count")
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "spark.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.rows < 1 or asked.runs < 1:
        parser.error("--rows and --runs are above 0")
    rows, runs = (QUICK_ROWS, 1) if asked.quick else (asked.rows, asked.runs)
    signal.signal(signal.SIGTERM, _on_term)
    try:
        found = table(measure(asked.directory, rows=rows, runs=runs))
    except (LogboomError, TimeoutError, OSError, RuntimeError) as error:
        say(f"spark: {error}")
        return 2
    checks = judge(found)
    settings = {
        "nodes": 3,
        "rows": rows,
        "runs": runs,
        "value_bytes": VALUE_BYTES,
        "key_bytes": {"kv": 16, "log": 0},
        "partitions": PARTITIONS,
        "spark": "local[2], two tasks, rows cached before, Java's default compilers",
        "servers": "defaults; every acknowledged write is synced on a majority",
    }
    write(asked.output, settings=settings, checks=checks, packages=("pyspark", "pyarrow"), table=found)
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
