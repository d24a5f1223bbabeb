"""Planning and writing with a real client, against a node that does what a test tells it to."""

import os

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from logboom.client.submits import PART_OVERHEAD
from logboom.settings import Settings
from logboom.spark import connection
from logboom.spark.batch import plan_write
from logboom.spark.options import write_options
from logboom.spark.sink import BLOCK_BYTES_MAX, write_task
from logboom.types import KIB, MIB
from logboom.wire import Kind
from tests.unit.logboom.conftest import node

__all__ = ["node"]

PAIRS = StructType().add("key", "string").add("value", "string")


@pytest.fixture
def options(node):
    """Of a session that ends with the test."""
    made = []

    def make(**more):
        made.append(write_options({"endpoints": node.address, **more}))
        return made[-1]

    yield make
    for target in {each.target for each in made}:
        found = connection._sessions.pop((os.getpid(), target), None)
        if found is not None:
            found._background.close()


def test_the_largest_block_fits_a_cluster_with_its_defaults():
    settings = Settings()
    assert min(settings.net.client_frame_bytes, settings.log.batch_bytes_max) >= BLOCK_BYTES_MAX + PART_OVERHEAD


@pytest.mark.parametrize("frame_bytes", [64 * KIB, 1 * MIB, 8 * MIB])
def test_blocks_are_no_larger_than_the_cluster_takes(node, options, frame_bytes):
    node.frame_bytes = frame_bytes
    plan = plan_write(PAIRS, options(partitions="0"))
    rows = pa.RecordBatch.from_pydict({"key": [f"k{k}" for k in range(3_000)], "value": ["v" * 1_000] * 3_000})
    assert write_task(plan, [rows], task=0, attempt=0, sender=connection.session(plan.target)).rows == 3_000
    largest = max(len(frame.body) for frame in node.of(Kind.SUBMIT))
    limit = min(BLOCK_BYTES_MAX, frame_bytes - PART_OVERHEAD)
    assert limit // 2 < largest <= limit
    assert len(node.log[0]) == 3_000
