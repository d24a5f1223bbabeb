"""A small, quiet Spark on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from logboom.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def local_spark(work: Path, *, brief: bool = True) -> Iterator[SparkSession]:
    """Two cores, three attempts per task, no web page; what Java says goes to ``work/spark.log``.

    ``brief``: Java starts sooner and compiles less, for a session of a minute; it takes twice the time for a row.
    Raises InvalidRequest when there is no Java, or no pyspark.
    """
    _need_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise InvalidRequest("Spark is not installed: pip install 'logboom[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" if brief else "-XX:+UseSerialGC"
    with _errors_to(work / "spark.log"):
        spark = (
            SparkSession.builder.master("local[2,3]")
            .appName("logboom demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.files.openCostInBytes", str(64 << 20))
            .config("spark.sql.warehouse.dir", str(work / "warehouse"))
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", java)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    except Exception:
        spark.stop()
        raise
    # An interrupt may have cut a call to Java short: that connection cannot be used again. Java ends when we do.
    spark.stop()


def _need_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return
    if home or shutil.which("java") is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java here"
        raise InvalidRequest(
            f"{where}, and Spark needs Java 17 or newer: `make demo` brings one as a wheel; "
            "on Debian, apt-get install openjdk-17-jre-headless"
        )


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """Processes started in here inherit the file as their standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
