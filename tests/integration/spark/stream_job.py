"""The job of test_end_to_end, a program of its own so that it can be killed: sums of logs, kept in kv partitions.

Arguments: endpoints, directory of the checkpoint, directory of Spark's own files, ``follow`` or ``finish``.
"""

import sys
from pathlib import Path

from pyspark.sql import functions as f

import logboom.spark
from logboom.demo.spark_session import local_spark

EVENTS_MAX = 10_000
LOGS, SUMS = "4-7", "0-3"
RECORD = ["partition", "producer", "epoch", "sequence"]


def main(endpoints, checkpoint, work, how):
    with local_spark(Path(work)) as spark:
        logboom.spark.register(spark)
        events = (
            spark.readStream.format("logboom")
            .options(endpoints=endpoints, partitions=LOGS, includeProducer=True)
            .option("maxOffsetsPerTrigger", 200 if how == "follow" else EVENTS_MAX)
            .load()
        )
        sums = events.dropDuplicates(RECORD).select(  # what a client sent twice is in the log twice
            "key", f.lit(1).cast("bigint").alias("n"), f.col("value").cast("string").cast("bigint").alias("amount")
        )
        query = (
            sums.writeStream.format("logboom")
            .options(endpoints=endpoints, partitions=SUMS, addColumns="n,amount")
            .option("checkpointLocation", checkpoint)
        )
        trigger = {"processingTime": "0 seconds"} if how == "follow" else {"availableNow": True}
        query.trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
