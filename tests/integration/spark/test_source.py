"""Reading state and logs through Spark."""

import time

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

import logboom.spark
from logboom import Add, Put, Record

pytestmark = [pytest.mark.spark, pytest.mark.process]

LOG = 4


def load(spark, cluster, **options):
    return spark.read.format("logboom").options(endpoints=cluster.endpoints, **options).load()


def test_state_has_a_column_for_each_kind_of_value(spark, cluster, client):
    client.submit(3, [Put(b"kinds-a", b"bytes"), Add(b"kinds-b", 7, 8), Add(b"kinds-c", 0.5)])
    rows = load(spark, cluster, view="state", partitions="3").where("cast(key as string) like 'kinds-%'").collect()
    assert [(bytes(r.key), r.value, r.numbers, r.doubles) for r in sorted(rows)] == [
        (b"kinds-a", b"bytes", None, None),
        (b"kinds-b", None, [7, 8], None),
        (b"kinds-c", None, None, [0.5]),
    ]


def test_state_of_one_replica_waits_for_the_index_asked_for(spark, cluster, client):
    for k in range(3):
        index = client.submit(3, Put(b"replica", b"%d" % k)).global_index
        for node in cluster.nodes:
            rows = load(spark, cluster, view="state", partitions=3, node=node, atGlobalOffset=index)
            row = rows.where("key = cast('replica' as binary)").first()
            assert row.value == b"%d" % k
            assert row.global_offset >= index


def test_a_log_is_read_with_offsets_from_where_to_where_asked(spark, cluster, client):
    first = client.submit(LOG, [Record(b"payload-%d" % k, b"key" if k % 2 else None) for k in range(10)])
    rows = load(spark, cluster, partitions=LOG).orderBy("offset").collect()
    assert [r.offset for r in rows] == list(range(1, first.last_index + 1))
    mine = rows[first.first_index - 1 :]
    assert [(r.value, r.key) for r in mine] == [(b"payload-%d" % k, b"key" if k % 2 else None) for k in range(10)]
    assert {r.global_offset for r in mine} == {first.global_index}
    start, end = first.first_index + 2, first.first_index + 5
    some = load(spark, cluster, partitions=LOG, startingOffsets=f'{{"4": {start}}}', endingOffsets=f'{{"4": {end}}}')
    assert sorted(r.offset for r in some.collect()) == [start, start + 1, start + 2]
    later = load(spark, cluster, partitions=LOG, startingGlobalOffset=first.global_index)
    assert later.count() == 10
    assert load(spark, cluster, partitions=LOG, startingOffsets="latest").count() == 0


def test_a_log_is_read_from_a_time_on_and_up_to_one(spark, cluster, client, tmp_path):
    early = client.submit(LOG, [Record(b"early"), Record(b"early")])
    taken = next(client.tail(LOG, start=early.first_index, follow=True)).timestamp_ms  # who answers may be behind
    while time.time() * 1000 <= taken + 1:
        time.sleep(0.001)
    late = client.submit(LOG, [Record(b"late")])
    since = {"startingTimestamp": taken + 1}
    assert [r.offset for r in load(spark, cluster, partitions=LOG, **since).collect()] == [late.first_index]
    between = load(spark, cluster, partitions=LOG, startingTimestamp=taken, endingTimestamp=taken + 1)
    assert {early.first_index, early.last_index} <= {r.offset for r in between.collect()}
    assert between.agg(f.max("offset")).first()[0] == early.last_index
    stream = spark.readStream.format("logboom").options(endpoints=cluster.endpoints, partitions=f"0,{LOG}", **since)
    files = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    files.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
    assert [r.offset for r in spark.read.parquet(str(tmp_path / "rows")).collect()] == [late.first_index]


def test_a_frame_ends_where_its_first_query_found_the_end(spark, cluster, client):
    """Spark plans a Python source once for each frame or temporary view: docs/spark.md says so."""
    client.submit(LOG, Record(b"planned"))
    frame = load(spark, cluster, partitions=LOG)
    before = frame.count()
    client.submit(LOG, Record(b"later"))
    assert frame.select("offset").count() == before
    assert load(spark, cluster, partitions=LOG).count() == before + 1


def test_columns_can_be_chosen_by_schema(spark, cluster, client):
    client.submit(LOG, Record(b"chosen"))
    reader = spark.read.schema("offset bigint, value binary").format("logboom")
    rows = reader.options(endpoints=cluster.endpoints, partitions=LOG).load()
    assert rows.columns == ["offset", "value"]
    assert b"chosen" in {bytes(r.value) for r in rows.collect()}


def test_a_log_partition_takes_plain_values(spark, cluster, client):
    frame = spark.range(0, 50, 1, 1).select(f.lit(LOG).alias("partition"), f.col("id").cast("string").alias("value"))
    report = logboom.spark.submit(frame, endpoints=cluster.endpoints, partitions=[LOG])
    read = load(spark, cluster, partitions=LOG).where(f"global_offset <= {report.global_index}").orderBy("offset")
    assert [int(r.value) for r in read.collect()[-50:]] == list(range(50))


@pytest.mark.parametrize("tasks", [None, 3])
def test_global_order_is_that_of_the_parent_log(spark, cluster, client, tasks):
    begin = client.submit(LOG, Record(b"order-begin")).global_index
    for k in range(30):
        commands = [Put(b"order", b"%d" % k), Put(b"order", b"again")] if k % 3 else Record(b"order-%d" % k)
        client.submit(k % 3 or LOG, commands)
    options = {"minPartitions": tasks} if tasks else {}
    frame = load(spark, cluster, ordered="global", startingGlobalOffset=begin, **options)
    rows = [
        (r.global_offset, r.partition, r.offset) for r in frame.select("global_offset", "partition", "offset").collect()
    ]
    assert rows == sorted(rows)
    assert len(rows) == 1 + 10 + 2 * 20
    assert len({p for _, p, _ in rows}) == 3
    assert frame.rdd.getNumPartitions() == (tasks or 1)


def test_a_partition_is_read_by_as_many_tasks_as_asked_for(spark, cluster, client):
    receipt = client.submit(LOG, [Record(b"%d" % k) for k in range(40)])
    start = f'{{"4": {receipt.first_index}}}'
    frame = load(spark, cluster, partitions=LOG, startingOffsets=start, minPartitions=4, fetchBytes=1)
    assert frame.rdd.getNumPartitions() == 4
    assert [int(r.value) for r in frame.orderBy("offset").collect()] == list(range(40))


def headers_of(frame):
    return [[(h.key, bytes(h.value)) for h in r.headers or []] for r in frame.orderBy("offset").collect()]


def keys_of(frame):
    return [r.key and bytes(r.key) for r in frame.orderBy("offset").collect()]


def test_headers_that_were_written_are_read_and_a_stream_passes_them_on(spark, cluster, client, tmp_path):
    first = client.submit(LOG, [Record(b"before")]).last_index + 1
    made = spark.sql(
        f"select {LOG} as partition, string(nullif(id, 1)) as key, 'v' as value, "
        "map('id', encode(string(id), 'utf-8'), 'kind', X'00FF') as headers "
        f"from range(0, 3, 1, 1) union all select {LOG}, null, 'v', null"
    ).coalesce(1)
    made.write.format("logboom").options(endpoints=cluster.endpoints, partitions=LOG).mode("append").save()
    written = load(
        spark, cluster, partitions=LOG, includeHeaders="true", startingOffsets=f'{{"{LOG}": {first}}}',
        endingOffsets=f'{{"{LOG}": {first + 4}}}',
    )  # fmt: skip
    wanted = [[("id", b"%d" % k), ("kind", b"\x00\xff")] for k in range(3)] + [[]]
    assert headers_of(written) == wanted
    keys = [b"0", None, b"2", None]
    assert keys_of(written) == keys

    reads = {"endpoints": cluster.endpoints, "partitions": LOG, "includeHeaders": "true"}
    events = spark.readStream.format("logboom").options(**reads, startingOffsets=f'{{"{LOG}": {first}}}').load()
    copy = events.select("partition", "key", "value", "headers").writeStream.format("logboom")
    copy = copy.options(endpoints=cluster.endpoints, partitions=LOG, rowOrder="input")
    copy.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    copied = load(
        spark, cluster, partitions=LOG, includeHeaders="true", startingOffsets=f'{{"{LOG}": {first + 4}}}'
    )  # fmt: skip
    assert headers_of(copied) == wanted
    assert keys_of(copied) == keys


def test_headers_and_producers_are_columns_when_asked_for(spark, cluster, client):
    numbered = {"producer_id": b"spark-source-123", "epoch": 2, "sequence": 5}
    client.submit(LOG, [Record(b"with", None, (("a", b"1"), ("b", b"2"))), Record(b"without")], **numbered)
    frame = load(spark, cluster, partitions=LOG, includeHeaders="true", includeProducer="true")
    rows = frame.where("producer = cast('spark-source-123' as binary)").orderBy("offset").collect()
    assert [(r.epoch, r.sequence) for r in rows] == [(2, 5), (2, 6)]
    assert [[(h.key, bytes(h.value)) for h in r.headers or []] for r in rows] == [[("a", b"1"), ("b", b"2")], []]


@pytest.mark.parametrize("tasks", [{}, {"minPartitions": 3}], ids=["one", "three"])
def test_of_equal_numbers_the_one_at_the_lowest_offset_can_be_had(spark, cluster, client, tasks):
    """As docs/spark.md has it. Of ``dropDuplicates`` Spark does not say which it keeps."""
    producer = b"lowest-of-%d-task" % (len(tasks) + 1)
    for number in range(0, 40, 2):  # each but the first has the number before it once more
        again = [Record(b"other")] if number else []
        rows = [*again, Record(b"%d" % number), Record(b"%d" % (number + 1))]
        client.submit(LOG, rows, producer_id=producer, sequence=number - len(again))
    frame = load(spark, cluster, partitions=LOG, includeProducer="true", **tasks)
    numbered = frame.where(f.col("producer") == f.lit(producer))
    first = f.min_by(f.struct("offset", "key", "value"), "offset").alias("first")
    once = numbered.groupBy("partition", "producer", "epoch", "sequence").agg(first).select("sequence", "first.*")
    assert numbered.where("value = cast('other' as binary)").count() == 19
    assert {row.sequence: bytes(row.value) for row in once.collect()} == {n: b"%d" % n for n in range(40)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"viev": "state"}, "unknown option 'viev'; did you mean view"),
        ({"view": "state", "partitions": "4"}, "runs log, which has no keys"),
        ({"partitions": "9"}, "partition 9 does not exist"),
        ({"node": "n9"}, "node takes a node's id or address"),
    ],
)
def test_wrong_options_are_errors(spark, cluster, options, message):
    with pytest.raises(AnalysisException, match=message):
        load(spark, cluster, **options).count()
