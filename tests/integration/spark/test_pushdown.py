"""Filters that the source would answer: they are refused, because Spark does not keep those of two queries apart."""

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

from logboom import Put, Record
from logboom.spark.batch import FilteringReader
from logboom.spark.options import read_options
from logboom.spark.source import LogboomSource

# One JVM: whichever worker runs one of these runs them all.
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.xdist_group("spark")]

LOG = 4


@pytest.fixture
def load(spark, cluster):
    """Frames of a source that takes filters, as ours would if Spark kept them apart."""

    class Filtering(LogboomSource):
        @classmethod
        def name(cls):
            return "filtering"

        def reader(self, schema):
            return FilteringReader(schema, read_options(self.options))

    spark.dataSource.register(Filtering)
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield lambda **options: spark.read.format("filtering").options(endpoints=cluster.endpoints, **options).load()
    spark.conf.unset(name)


def scan_of(frame):
    """What Spark does itself: its plan in words."""
    return frame._jdf.queryExecution().executedPlan().toString().replace("RuntimeFilters", "")


def test_it_is_refused_and_says_why(spark, cluster):
    frame = spark.read.format("logboom").options(endpoints=cluster.endpoints, pushdown="true").load()
    with pytest.raises(AnalysisException, match="answers one query of a DataFrame with the filters of another"):
        frame.where("partition = 4").count()


def test_spark_answers_one_query_with_the_filters_of_another(load, client):
    """Why it is refused. When this fails, Spark has mended it, and `pushdown` may come back."""
    first = client.submit(LOG, [Record(b"%d" % k) for k in range(20)]).first_index
    frame = load(partitions=LOG, startingOffsets=f'{{"{LOG}": {first}}}')
    assert frame.where(f"offset < {first + 5}").count() == 5
    assert frame.count() == 5, "of 20"


def test_filters_are_answered_by_the_source(load, client):
    receipt = client.submit(LOG, [Record(b"pushed-%d" % k, b"key-%d" % (k % 4)) for k in range(20)])
    first = receipt.first_index

    def some(more="true"):
        return load().where(f"partition = {LOG} and offset >= {first} and offset < {first + 12} and {more}")

    keyed = some("key = cast('key-1' as binary)")
    assert sorted(r.offset for r in keyed.collect()) == [first + 1, first + 5, first + 9]
    assert "Filter" not in scan_of(keyed), "nothing is left for Spark to filter"
    assert [bytes(r.value) for r in some("cast(value as string) like '%7'").collect()] == [b"pushed-7"]
    at = some().first()
    later = load(partitions=LOG).where(f.col("timestamp") > f.lit(at.timestamp))
    assert at.offset not in {r.offset for r in later.collect()}
    assert load(partitions=LOG).where(f"global_offset = {at.global_offset}").count() == 20
    assert load().where("partition = 4 and partition = 3").count() == 0


def test_a_range_of_keys_of_a_state_is_answered_by_the_source(load, client):
    client.submit(2, [Put(b"range-%d" % k, b"v") for k in range(9)])
    state = {"view": "state", "partitions": "0-3"}
    some = load(**state).where("key >= cast('range-3' as binary) and key < cast('range-6' as binary)")
    assert sorted(bytes(r.key) for r in some.collect()) == [b"range-3", b"range-4", b"range-5"]
    assert "Filter" not in scan_of(some)
    one = load(**state).where("key in (cast('range-8' as binary), cast('range-0' as binary)) and partition = 2")
    assert sorted(bytes(r.key) for r in one.collect()) == [b"range-0", b"range-8"]
