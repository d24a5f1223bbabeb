"""Streams through a real Spark and real nodes. Keys begin with the test's own prefix."""

import json

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import logboom.spark
from logboom import Record
from logboom.errors import ProducerFenced
from logboom.spark.connection import session
from logboom.spark.layout import layout_of
from logboom.spark.options import write_options
from logboom.spark.sink import WritePlan, write_task
from logboom.spark.stream import plan_of_batch
from logboom.testing import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.process]

LOG = 4
KV = "0-3"


def submit(client, values, partition=LOG):
    return client.submit(partition, [Record(b"%d" % v) for v in values])


def source(spark, cluster, **options):
    return spark.readStream.format("logboom").options(endpoints=cluster.endpoints, **options).load()


def now(client, partition=LOG):
    """JSON of the next offset of a partition."""
    return json.dumps({str(partition): client.watermarks([partition])[0].log_index + 1})


def run(stream, sink, directory, **options):
    """All there is now; returns the progress of each batch."""
    query = (
        stream.writeStream.format(sink)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [p for p in query.recentProgress if p["numInputRows"]]


def collected(spark, directory):
    """Numbers that were written as Parquet files, in order."""
    return sorted(int(r.value) for r in spark.read.parquet(str(directory / "rows")).collect())


def to_files(stream, directory):
    rows = stream.select("partition", "offset", f.col("value").cast("string"))
    return run(rows, "parquet", directory, path=str(directory / "rows"))


def test_a_source_reads_all_within_its_limit_and_goes_on_where_it_was(spark, cluster, client, tmp_path):
    start = now(client)
    submit(client, range(250))
    limited = source(spark, cluster, partitions=LOG, startingOffsets=start, maxOffsetsPerTrigger=100)
    assert [p["numInputRows"] for p in to_files(limited, tmp_path)] == [100, 100, 50]
    submit(client, range(250, 300))
    # Another limit, and another beginning: of a query that has begun, its checkpoint decides.
    again = source(spark, cluster, partitions=LOG, startingOffsets="earliest", minPartitions=3)
    assert [p["numInputRows"] for p in to_files(again, tmp_path)] == [50]
    assert to_files(again, tmp_path) == []
    assert collected(spark, tmp_path) == list(range(300))


def test_a_stream_from_a_global_offset_keeps_to_it(spark, cluster, client, tmp_path):
    submit(client, [1])
    first = submit(client, [2, 3]).global_index
    for _ in range(2):
        to_files(source(spark, cluster, partitions=LOG, startingGlobalOffset=first), tmp_path)
        submit(client, [4])
    assert collected(spark, tmp_path) == [2, 3, 4]


def test_of_equal_numbers_a_stream_keeps_the_one_at_the_lowest_offset(spark, cluster, client, tmp_path):
    """Of those in one batch, and of those in several."""
    start, producer = now(client), b"first-that-comes"
    for number in range(0, 60, 2):  # each but the first has the number before it once more
        again = [Record(b"-1")] if number else []
        rows = [*again, Record(b"%d" % number), Record(b"%d" % (number + 1))]
        client.submit(LOG, rows, producer_id=producer, sequence=number - len(again))
    stream = source(
        spark, cluster, partitions=LOG, startingOffsets=start, includeProducer=True, maxOffsetsPerTrigger=50
    )
    once = stream.dropDuplicates(["partition", "producer", "epoch", "sequence"])
    assert [p["numInputRows"] for p in to_files(once, tmp_path)] == [50, 39]
    assert collected(spark, tmp_path) == list(range(60))


@pytest.fixture
def adds(spark, tmp_path):
    """A stream of ``rows`` commands over 7 keys in batches of one file each: (1, id). Its files are the source."""

    def make(prefix, rows=600, files=2):
        spark.range(0, rows, 1, files).write.parquet(str(tmp_path / "in"))
        return (
            spark.readStream.schema("id bigint")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(tmp_path / "in"))
            .select(
                f.concat(f.lit(prefix), (f.col("id") % 7).cast("string")).alias("key"),
                f.lit(1).cast("bigint").alias("n"),
                f.col("id").alias("total"),
            )
        )

    return make


def expected(prefix, rows=600):
    return {f"{prefix}{k}": (len(range(k, rows, 7)), sum(range(k, rows, 7))) for k in range(7)}


def state(client, prefix):
    found = {}
    for partition in range(4):
        found |= {key.decode(): value for key, value in client.scan(partition, prefix=prefix.encode())}
    return found


def write(stream, cluster, directory, **options):
    chosen = {"endpoints": cluster.endpoints, "partitions": KV, "addColumns": "n,total", **options}
    return run(stream, "logboom", directory, **chosen)


def records(client):
    return sum(mark.log_index for mark in client.watermarks(list(range(4))))


def test_a_sink_applies_every_batch_once(spark, cluster, client, adds, tmp_path):
    assert len(write(adds("once-"), cluster, tmp_path)) == 2
    assert state(client, "once-") == expected("once-")
    before = records(client)
    nothing = (
        spark.readStream.schema("id bigint").parquet(str(tmp_path / "in")).selectExpr("'x' key", "id n", "id total")
    )
    assert write(nothing, cluster, tmp_path) == []
    assert records(client) == before


def test_a_crash_in_commit_and_a_restart_change_nothing(spark, cluster, client, adds, tmp_path):
    report = tmp_path / "report.json"
    report.mkdir()
    stream = adds("commit-", files=1)
    with pytest.raises(StreamingQueryException, match="all 600 rows are in, and no report can be left"):
        write(stream, cluster, tmp_path, reportFile=str(report))
    assert state(client, "commit-") == expected("commit-"), "the tasks had written before the commit"
    report.rmdir()
    write(stream, cluster, tmp_path, reportFile=str(report))
    found = json.loads(report.read_text())["report"]
    assert sum(r["duplicate"] for r in found["receipts"]) == found["rows"] == 600
    assert state(client, "commit-") == expected("commit-")


def forget_last_commit(directory):
    """As if the driver had died between the sink's commit and Spark's own."""
    commits = directory / "checkpoint" / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_batch_that_comes_again_from_other_tasks_is_noticed(spark, cluster, client, adds, tmp_path):
    stream, report = adds("tasks-", files=1), str(tmp_path / "report.json")
    write(stream, cluster, tmp_path, reportFile=report)
    forget_last_commit(tmp_path)
    with pytest.raises(StreamingQueryException, match="ran before with 600 rows"):
        write(stream.repartition(3), cluster, tmp_path, reportFile=report)


def test_a_batch_of_foreach_that_comes_again_changes_nothing(spark, cluster, client, adds, tmp_path):
    """As docs/spark.md has it, where the driver dies between the write and Spark's own commit."""
    reports = []

    def write_batch(frame, batch):
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        named = {"endpoints": cluster.endpoints, "partitions": KV, "addColumns": "n,total"}
        reports.append(logboom.spark.submit(frame, **named, writeId=f"{query}/{batch}", rowOrder="sorted"))

    stream = adds("foreach-")
    for _ in range(2):
        query = stream.writeStream.foreachBatch(write_batch).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        forget_last_commit(tmp_path)
    assert [(r.rows, r.duplicates) for r in reports] == [(300, 0), (300, 0), (300, 300)]
    assert state(client, "foreach-") == expected("foreach-")


@pytest.fixture
def small_batches(spark):
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "100")
    yield
    spark.conf.set(name, before)


@pytest.mark.parametrize("order", ["input", "sorted"])
def test_tasks_of_a_stream_that_die_half_way_take_effect_once(
    spark, cluster, client, adds, small_batches, tmp_path, order
):
    @f.udf("bigint", useArrow=False)
    def dies_once(number):
        if number == 9_900 and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("injected")
        return number

    # As they come, and few at a time, so that much is sent before the task dies; or much has come, to be sorted.
    rows, report, prefix = 10_000, tmp_path / "report.json", f"dies-{order}-"
    stream = adds(prefix, rows, files=1).withColumn("total", dies_once("total"))
    write(stream, cluster, tmp_path, rowOrder=order, maxInFlightBytes=16_384, reportFile=str(report))
    assert state(client, prefix) == expected(prefix, rows)
    duplicates = sum(r["duplicate"] for r in json.loads(report.read_text())["report"]["receipts"])
    if order == "input":
        assert duplicates > 0, "the first attempt left nothing: the test shows nothing"
    else:
        assert duplicates == 0, "of a part of its rows the first attempt cannot know the numbers"


def test_nodes_refuse_who_still_writes_for_an_earlier_batch(cluster, client):
    """As attempts that Spark has given up, which write on: without Spark, to have them when they are wanted."""
    options = write_options(
        {"endpoints": cluster.endpoints, "partitions": KV, "op": "add", "addColumns": "n"}, stream=True
    )
    schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
    layout = layout_of(schema, options, client.state_machines())
    plan = WritePlan(options.target, layout, "", options.wait, 60_000, options.in_flight_bytes_max)

    def attempt(batch, rows):
        columns = pa.RecordBatch.from_arrays(
            [pa.array([f"late-{k}" for k in range(rows)]), pa.array([1] * rows)], schema=schema
        )
        return write_task(
            plan_of_batch(plan, "late", batch), [columns], task=0, attempt=0, sender=session(options.target)
        )

    attempt(0, 50)
    assert sum(p.duplicate for p in attempt(0, 50).parts) == 50, "a second attempt at the batch"
    attempt(1, 50)
    with pytest.raises(ProducerFenced):
        attempt(0, 80)
    assert state(client, "late-") == {f"late-{k}": (2,) for k in range(50)}


@pytest.mark.parametrize(
    ("options", "mode", "message"),
    [
        ({"writeId": "w"}, "append", "writeId does not apply to writing a stream"),
        ({"wat": "applied"}, "append", "did you mean wait"),
        ({}, "complete", "not complete"),
    ],
)
def test_what_a_sink_does_not_take_is_said(spark, cluster, adds, tmp_path, options, mode, message):
    stream = adds("wrong-")
    if mode == "complete":
        stream = stream.groupBy("key").agg(f.sum("n").alias("n"), f.sum("total").alias("total"))
    writer = stream.writeStream.format("logboom").options(endpoints=cluster.endpoints, addColumns="n,total", **options)
    with pytest.raises(StreamingQueryException, match=message):
        writer.outputMode(mode).option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()


def test_partitions_that_come_and_go(spark, tmp_path):
    with LocalCluster(nodes=1, partitions=2, state_machine="log") as small, small.client() as client:
        submit(client, [1], partition=0)
        assert len(to_files(source(spark, small), tmp_path)) == 1
        made = client.create_partition()
        submit(client, [2, 3], partition=made)
        assert len(to_files(source(spark, small), tmp_path)) == 1
        client.destroy_partition(made)
        submit(client, [4], partition=1)
        with pytest.raises(StreamingQueryException, match=f"partition {made} was read up to offset 2"):
            to_files(source(spark, small), tmp_path)
        to_files(source(spark, small, failOnDataLoss="false"), tmp_path)
        assert collected(spark, tmp_path) == [1, 2, 3, 4]


def test_a_checkpoint_says_what_a_batch_reads_and_by_how_many_tasks(spark, cluster, client, tmp_path):
    start = now(client)
    submit(client, range(3))
    to_files(source(spark, cluster, partitions=LOG, startingOffsets=start, minPartitions=2), tmp_path)
    text = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    first = json.loads(start)["4"]
    found = json.loads(text)
    assert found.pop("cluster") == client.token().cluster
    assert found == {"version": 1, "next": {"4": first + 3}, "begin": {"4": first}, "tasks": 2}
