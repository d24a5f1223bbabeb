import sys

import pytest

from logboom.demo.spark_session import local_spark
from logboom.testing import LocalCluster


@pytest.fixture(scope="package")
def one_spark(tmp_path_factory):
    path = list(sys.path)
    with local_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
    sys.path[:] = path  # a directory of Spark's, which is gone, is no place to import from


@pytest.fixture
def spark(one_spark):
    """The session that all share, and the active one: a test before may have left one of its own."""
    one_spark.createDataFrame([], "nothing int")  # makes it that
    return one_spark


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    """Three nodes, four kv partitions and, last, one log. Idle, they take a tenth of a processor."""
    settings = {"cluster.overrides": {"4": {"state_machine": "log"}}}
    with LocalCluster(partitions=5, directory=tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


@pytest.fixture
def client(cluster):
    with cluster.client() as made:
        yield made
