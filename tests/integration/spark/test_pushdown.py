"""Filters that the source would answer: they are refused, because Spark does not keep those of two queries apart."""

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, LessThan

pytestmark = [pytest.mark.spark, pytest.mark.process]


class Numbers(DataSource):
    """0 to 19, of which it leaves out those that a filter leaves out."""

    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "number int"

    def reader(self, schema):
        class Reader(DataSourceReader):
            def __init__(self):
                self.below = 20

            def pushFilters(self, filters):  # noqa: N802 - Spark's name
                for each in filters:
                    if isinstance(each, LessThan):
                        self.below = min(self.below, each.value)
                    else:
                        yield each

            def read(self, partition):
                return iter([(number,) for number in range(self.below)])

        return Reader()


def test_it_is_refused_and_says_why(spark, cluster):
    frame = spark.read.format("logboom").options(endpoints=cluster.endpoints, pushdown="true").load()
    with pytest.raises(AnalysisException, match="answers one query of a DataFrame with the filters of another"):
        frame.where("partition = 4").count()


def test_spark_answers_one_query_with_the_filters_of_another(spark):
    """Why it is refused. When this fails, Spark has mended it, and sources may answer filters."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.dataSource.register(Numbers)
    spark.conf.set(name, "true")
    try:
        frame = spark.read.format("numbers").load()
        assert frame.where("number < 5").count() == 5
        assert frame.count() == 5, "of 20"
    finally:
        spark.conf.unset(name)
