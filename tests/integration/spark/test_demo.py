"""The demo as a program, small and without the kill: what it says, and that it can say no."""

import subprocess
import sys

import pytest

from logboom.demo.flights import NO_TAIL, ROWS, flights
from logboom.testing import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.fixture(scope="module")
def small():
    with LocalCluster(nodes=3, partitions=2) as running:
        yield running


def test_the_data_is_what_the_demo_says():
    table = flights()
    assert table.num_rows == ROWS
    assert table["tailnum"].null_count == 2_512
    assert NO_TAIL not in set(table["tailnum"].to_pylist())


def test_a_difference_on_one_node_is_exit_status_1(small):
    # Spark's aggregation, falsified by one: once for the program that finds nothing else wrong.
    program = (
        "import sys, logboom.demo as demo\n"
        "honest = demo.aggregate\n"
        "demo.aggregate = lambda c: {k: (v[0] + (k == b'N14228'), *v[1:]) for k, v in honest(c).items()}\n"
        "sys.exit(demo.run(endpoints=sys.argv[1], rows=5000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, small.endpoints], check=False, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("1 DIFFER") == 3
    assert f"the cluster at {small.endpoints}" in done.stdout
    assert "its leader is not killed" in " ".join(done.stdout.split())
    assert "3 values differ" in done.stdout


def test_without_java_it_says_what_to_install(small):
    done = subprocess.run(
        [sys.executable, "-m", "logboom", "demo", "--endpoints", small.endpoints],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": "/nowhere"},
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("logboom: there is no java here, and Spark needs Java 17 or newer")
    assert done.stderr.count("\n") == 1
