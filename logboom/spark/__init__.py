"""logboom for Spark: the data source ``logboom``, and ``submit`` and ``barrier`` for the driver.

::

    commands.write.format("logboom").options(endpoints=E, op="add", addColumns="n,distance").mode("append").save()
    spark.read.format("logboom").options(endpoints=E, view="state").load()
    spark.readStream.format("logboom").options(endpoints=E, partitions="4-7").load()

Spark finds the source by itself (``pyspark_logboom``); importing this registers it with the active session where it did
not. Executors need logboom's base dependencies alone. docs/spark.md has columns, options and guarantees.
"""

from __future__ import annotations

from pyspark.sql import SparkSession as _SparkSession

from logboom.spark.driver import barrier, register, submit
from logboom.spark.report import PartitionReceipt, Report
from logboom.spark.source import LogboomSource

__all__ = ["LogboomSource", "PartitionReceipt", "Report", "barrier", "register", "submit"]

_active = _SparkSession.getActiveSession()
if _active is not None:
    register(_active)
