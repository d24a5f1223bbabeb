"""The examples of the README and the notebook of docs/spark.md run as they stand."""

import re
import tempfile
from pathlib import Path

import pytest

from logboom.testing import LocalCluster

# One JVM: whichever worker runs one of these runs them all.
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.xdist_group("spark")]

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
NOTEBOOK = (ROOT / "docs" / "spark.md").read_text().partition("## A notebook")[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture
def small(monkeypatch):
    with LocalCluster(nodes=1, partitions=4) as running:
        monkeypatch.setenv("LOGBOOM_ENDPOINTS", running.endpoints)
        yield running


def test_the_client_example(small, capsys):
    exec(EXAMPLES[0], {})
    assert capsys.readouterr().out == "b'v' (1,)\n"


def test_the_spark_example(spark, small, capsys):
    exec(EXAMPLES[1], {"spark": spark})
    shown = capsys.readouterr().out
    assert "|apples|    10|  400|" in shown
    assert "| pears|     2|   90|" in shown


def test_the_notebook(spark, small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = re.findall(r"```python\n(.*?)```", NOTEBOOK, re.DOTALL)
    names = {"spark": spark}
    for cell in cells:
        exec(cell, names)
    names["boom"].close()
    assert capsys.readouterr().out == "10000 events\n10000 read\n100 users, 0 differ\n"
    # The cell of the stream again: nothing new, nothing changed.
    exec(cells[2], names)
    exec(cells[3], names)
    assert capsys.readouterr().out == "0 read\n100 users, 0 differ\n"
