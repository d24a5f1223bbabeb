"""The README's examples run as they stand, but for the addresses."""

import re
from pathlib import Path

import pytest

from logboom.testing import LocalCluster

# One JVM: whichever worker runs one of these runs them all.
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.xdist_group("spark")]

README = Path(__file__).parents[3] / "README.md"
ENDPOINTS = "127.0.0.1:7701,127.0.0.1:7702,127.0.0.1:7703"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture
def small():
    with LocalCluster(nodes=1, partitions=4) as running:
        yield running


def test_the_client_example(small, capsys):
    exec(EXAMPLES[0].replace(ENDPOINTS, small.endpoints), {})
    assert capsys.readouterr().out == "b'v' (1,)\n"


def test_the_spark_example(spark, small, capsys):
    exec(EXAMPLES[1].replace(ENDPOINTS, small.endpoints), {"spark": spark})
    shown = capsys.readouterr().out
    assert "|apples|    10|  400|" in shown
    assert "| pears|     2|   90|" in shown
