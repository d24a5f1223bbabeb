"""Reading state and logs through Spark."""

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

import logboom.spark
from logboom import Add, Put, Record

# One JVM: whichever worker runs one of these runs them all.
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.xdist_group("spark")]

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
