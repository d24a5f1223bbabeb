"""``submit`` around a write that does what a test says; no Spark, no cluster."""

import json

import pytest

from logboom.errors import CommandsRejected, InvalidRequest, NonDeterministicReplay
from logboom.spark import driver
from logboom.spark.options import write_options
from logboom.spark.report import FORM, Report, _leave, _portable


class Frame:
    """A DataFrame of ``rows`` rows: its write leaves a report where it is told to, or fails."""

    columns = ("key", "value")
    schema = sparkSession = None  # noqa: N815 - as Spark calls it

    def __init__(self, rows, error=None):
        self.rows, self.error, self.given = rows, error, {}
        self.write = self

    def format(self, _):
        return self

    def options(self, **given):
        self.given = {name.lower(): value for name, value in given.items()}
        return self

    def mode(self, _):
        return self

    def save(self):
        target = write_options(self.given).target
        if self.error is not None:
            _leave(self.given["reportfile"], {"error": self.error.to_wire()})
            raise RuntimeError("as Spark words it")
        fingerprint = f"{FORM}{self.rows}"
        report = Report(self.given["writeid"], self.rows, 7, (), 0.1, 0, fingerprint, target)
        _leave(self.given["reportfile"], {"report": _portable(report)})


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(driver, "plan_write", lambda schema, options: None)
    monkeypatch.setattr(driver, "register", lambda spark: None)
    monkeypatch.setattr(driver, "_fingerprints", {})


def submit(rows, *, error=None, endpoints="a:1", **options):
    return driver.submit(Frame(rows, error), endpoints=endpoints, writeId="w", **options)


@pytest.mark.parametrize("name", ["reportFile", "reportfile"])
def test_a_report_is_left_where_it_is_asked_for_too(tmp_path, name):
    path = tmp_path / "report.json"
    path.write_text("of an earlier write")
    assert submit(3, **{name: str(path)}).rows == 3
    assert json.loads(path.read_text())["report"]["rows"] == 3
    with pytest.raises(CommandsRejected):
        submit(3, error=CommandsRejected("one of them"), **{name: str(path)})
    assert json.loads(path.read_text())["error"]["code"] == "commands_rejected"
    (tmp_path / "taken").mkdir()
    with pytest.raises(InvalidRequest, match="all 3 rows are in, and no report can be left") as caught:
        submit(3, **{name: str(tmp_path / "taken")})
    assert caught.value.outcome == "applied"
    with pytest.raises(CommandsRejected):
        submit(3, error=CommandsRejected("that says more"), **{name: str(tmp_path / "taken")})


def test_the_same_name_in_two_clusters_is_two_writes():
    submit(3, endpoints="a:1,b:1")
    assert submit(4, endpoints="c:1").rows == 4
    with pytest.raises(NonDeterministicReplay, match="ran before from here with 3 rows and now with 4"):
        submit(4, endpoints="b:1,a:1")
    assert submit(4, endpoints="c:1").rows == 4


def test_several_are_given_as_python_has_them_and_bytes_as_the_text_they_are():
    """``str`` of them would name a column ``['n'``, and a key ``b'none'``."""
    frame = Frame(3)
    driver.submit(
        frame, endpoints=["a:1", "b:2"], writeId="w", addColumns=("n", "m"), partitions=range(3), wait="durable"
    )
    assert frame.given["endpoints"] == "a:1,b:2"
    assert (frame.given["addcolumns"], frame.given["partitions"]) == ("n,m", "0,1,2")
    driver.submit(frame, endpoints="a:1", writeId="w", nullKey=b"none", failOnRejected=False)
    assert (frame.given["nullkey"], frame.given["failonrejected"]) == ("none", "False")
    with pytest.raises(InvalidRequest, match="option nullKey takes text"):
        driver.submit(frame, endpoints="a:1", writeId="w", nullKey=b"\xff")
