"""The job of test_end_to_end, a program of its own so that it can be killed: sums of logs, kept in kv partitions.

Arguments: endpoints, directory of the checkpoint, directory of Spark's own files, and a file: once that is there, the
job writes what is left and ends.
"""

import sys
from pathlib import Path

from pyspark.sql import functions as f

import logboom.spark
from logboom.demo.spark_session import local_spark

LOGS, SUMS = "4-7", "0-3"
RECORD = ["partition", "producer", "epoch", "sequence"]


def main(endpoints, checkpoint, work, finish):
    with local_spark(Path(work)) as spark:
        logboom.spark.register(spark)
        events = (
            spark.readStream.format("logboom")
            .options(endpoints=endpoints, partitions=LOGS, includeProducer=True)
            .option("maxOffsetsPerTrigger", 150)
            .load()
        )
        sums = events.dropDuplicates(RECORD).select(  # what a client sent twice is in the log twice
            "key", f.lit(1).cast("bigint").alias("n"), f.col("value").cast("string").cast("bigint").alias("amount")
        )
        writer = (
            sums.writeStream.format("logboom")
            .options(endpoints=endpoints, partitions=SUMS, addColumns="n,amount")
            .option("checkpointLocation", checkpoint)
        )
        query = writer.trigger(processingTime="0 seconds").start()
        while not query.awaitTermination(0.2):
            if Path(finish).exists():
                query.processAllAvailable()
                query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
