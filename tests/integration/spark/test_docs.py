"""The examples of the README and of docs/spark.md run as they stand."""

import re
import tempfile
import textwrap
from pathlib import Path

import pytest

from logboom import Record
from logboom.routing import partition_of
from logboom.testing import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.process]

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
GUIDE, _, NOTEBOOK = (ROOT / "docs" / "spark.md").read_text().partition("## A notebook")
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture
def small(monkeypatch):
    with LocalCluster(nodes=1, partitions=4) as running:
        monkeypatch.setenv("LOGBOOM_ENDPOINTS", running.endpoints)
        yield running


def test_the_client_example(small, capsys):
    exec(EXAMPLES[0], {})
    assert capsys.readouterr().out == "b'v' (1,)\n1000\n"


def test_the_spark_example(spark, small, capsys):
    """Behind the client's, on the same cluster: whoever reads the page pastes both, and its key has one number."""
    exec(EXAMPLES[0], {})
    exec(EXAMPLES[1], {"spark": spark})
    shown = capsys.readouterr().out
    assert "|apples|    10|  400|" in shown
    assert "| pears|     2|   90|" in shown


def test_the_notebook(spark, small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = re.findall(r"```python\n(.*?)```", NOTEBOOK, re.DOTALL)
    names = {"spark": spark.newSession()}  # its settings are its own
    for cell in cells:
        exec(cell, names)
    names["boom"].close()
    assert capsys.readouterr().out == "10000 events\n10000 read\n100 users, 0 differ\n"
    # The cell of the stream again: nothing new, nothing changed.
    exec(cells[2], names)
    exec(cells[3], names)
    assert capsys.readouterr().out == "0 read\n100 users, 0 differ\n"


def test_the_guide(spark, tmp_path, monkeypatch):
    """From top to bottom: each block uses what stands above it."""
    with LocalCluster(nodes=1, partitions=4) as running, running.client() as client:
        assert [client.create_partition(state_machine="log") for _ in range(4)] == [4, 5, 6, 7]
        monkeypatch.setenv("LOGBOOM_ENDPOINTS", running.endpoints)
        spark = spark.newSession()  # with temporary views of its own
        names = {"spark": spark}
        spark.createDataFrame([("ann", 3), ("bob", 4)], ["customer", "pieces"]).createOrReplaceTempView("sales")
        for kind, block in re.findall(r"^ *```(python|sql)\n(.*?)^ *```", GUIDE, re.DOTALL | re.MULTILINE):
            if kind == "python":
                exec(textwrap.dedent(block).replace("/data/checkpoints", str(tmp_path)), names)
                continue
            for statement in filter(str.strip, block.replace("127.0.0.1:7701", running.endpoints).split(";")):
                spark.sql(statement)
        names["query"].processAllAvailable()
        found = {bytes(row.key): row.numbers or bytes(row.value) for row in names["state"].collect()}
        assert (found.pop(b"type/N14228"), found.pop(b"type/N24211")) == (b"737-824", b"737-824")
        assert (found.pop(b"UA1545"), found.pop(b"UA1714")) == ([1, 7], [1, 7])
        twice = dict.fromkeys((b"N14228", b"N24211"), 2)  # submit wrote what save() had, under another name
        assert {key: numbers[0] for key, numbers in found.items()} == {**twice, b"ann": 3, b"bob": 4}
        assert names["log"].count() == names["once"].count() == 10
        client.submit(4, [Record(b"12345", b"k"), Record(b"67", b"k")])
        names["query"].processAllAvailable()
        names["query"].stop()
        where = partition_of(b"k", 4)
        assert client.get(where, b"k") == (2, 7)
        frames = names["events"].selectExpr("key", "1 as n", "length(value) as distance")
        each = frames.writeStream.foreachBatch(names["write"]).option("checkpointLocation", str(tmp_path / "each"))
        each.trigger(availableNow=True).start().awaitTermination()
        assert client.get(where, b"k") == (4, 14)
