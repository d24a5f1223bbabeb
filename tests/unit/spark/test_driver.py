"""``submit`` around a write that does what a test says; no Spark, no cluster."""

import json
from dataclasses import replace

import pytest

from logboom.errors import CommandsRejected, InvalidRequest, NonDeterministicReplay, Unavailable, UnknownOutcome
from logboom.spark import batch, driver
from logboom.spark.batch import LogboomWriter, TaskMessage
from logboom.spark.options import write_options
from logboom.spark.report import FORM, Report, _leave, _portable, load
from tests.unit.spark.sink_world import plan


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


class Failing(Frame):
    """One of its tasks fails: Spark has the write aborted, and says why in its own words."""

    said = "Job aborted: logboom.errors.InvalidRequest: column value has 1 nulls\n at org.apache"

    def save(self):
        writer = LogboomWriter(None, write_options(self.given))
        writer.abort([TaskMessage(b""), None, None])
        self.raises()

    def raises(self):
        raise RuntimeError(self.said)


@pytest.fixture
def planned(monkeypatch):
    monkeypatch.setattr(batch, "plan_write", lambda _, given: replace(plan("w"), report_file=given.report_file))


def test_a_write_of_which_a_task_failed_leaves_no_report_of_an_earlier_one(tmp_path, planned):
    """Whoever looked there found that all its rows were in."""
    path = tmp_path / "report.json"
    submit(3, reportFile=str(path))
    with pytest.raises(InvalidRequest, match="write w: a Spark task failed: column value has 1 nulls") as caught:
        driver.submit(Failing(3), endpoints="a:1", writeId="w", reportFile=str(path))
    assert caught.value.outcome == "unknown"
    assert json.loads(path.read_text())["error"] == caught.value.to_wire()


def test_nor_does_one_whose_task_raised_no_error_of_ours(tmp_path, planned, monkeypatch):
    path = tmp_path / "report.json"
    submit(3, reportFile=str(path))
    monkeypatch.setattr(Failing, "said", "Job aborted: ZeroDivisionError")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        driver.submit(Failing(3), endpoints="a:1", writeId="w", reportFile=str(path))
    with pytest.raises(UnknownOutcome, match=r"write w was begun, .* \(Job aborted: ZeroDivisionError\)") as caught:
        load(path, write_options({"endpoints": "a:1"}).target)
    assert caught.value.outcome == "unknown"


def test_nor_does_one_that_fails_before_its_tasks(tmp_path):
    """Of a shuffle in front of them, say: nobody had it aborted, so nothing was left in its place."""
    path, seen = tmp_path / "report.json", []

    class Dying(Frame):
        def save(self):
            seen.append(path.read_text())
            raise RuntimeError("of a stage in front")

    for how in ({"writeId": "w"}, {"writeid": "w"}, {}):
        submit(3, reportFile=str(path))
        dying = Dying(3)
        with pytest.raises(RuntimeError, match="of a stage"):
            driver.submit(dying, endpoints="a:1", reportFile=str(path), **how)
        name = f"write {dying.given['writeid']}"
        assert (name == "write w") == bool(how), "one is made where none is said: under that it can be completed"
        with pytest.raises(UnknownOutcome, match=rf"{name} was begun, and has not come to its end \(of a stage in f"):
            load(path, write_options({"endpoints": "a:1"}).target)
        assert "has not come to its end;" in seen.pop(), "while it runs: who is killed leaves no more"


STACK = "Traceback:\n" + '  File "pandas.py", line 7, in f\n' * 100 + "ZeroDivisionError: by zero\n"
JAVA = "\tat org.apache.spark.Task.run(Task.scala:1)\n" * 100


@pytest.mark.parametrize("behind", ["", f"\n{JAVA}\nDriver stacktrace:\n{JAVA}", f"\nJVM stacktrace:\nof{JAVA}\nx" * 3])
def test_the_reason_is_left_however_long_the_stack_is(tmp_path, monkeypatch, behind):
    """The beginning was, where Python's stacks have it at the end."""
    monkeypatch.setattr(Failing, "said", f"Job aborted: {STACK}{behind}")
    monkeypatch.setattr(Failing, "save", Failing.raises)
    path = tmp_path / "report.json"
    with pytest.raises(RuntimeError):
        driver.submit(Failing(3), endpoints="a:1", writeId="w", reportFile=str(path))
    left = json.loads(path.read_text())["error"]["message"]
    assert "(Job aborted: Traceback:" in left
    assert "ZeroDivisionError: by zero" in left
    assert len(left) < 2_500


def wrong(*_):
    raise Unavailable("no node at a:1 answered")


def test_nor_does_a_submit_that_is_refused_before_it_has_begun(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    submit(3, reportFile=str(path))
    with pytest.raises(InvalidRequest, match="no column 'name'"):
        submit(3, key="name", reportFile=str(path))
    assert json.loads(path.read_text())["error"]["code"] == "invalid_request"
    monkeypatch.setattr(driver, "plan_write", wrong)
    with pytest.raises(Unavailable):
        submit(3, reportFile=str(path))
    assert json.loads(path.read_text())["error"]["message"] == "no node at a:1 answered"
    with pytest.raises(Unavailable):
        submit(3, reportFile=str(tmp_path / "nowhere" / "report.json"))
    with pytest.raises(Unavailable):
        submit(3)


def test_nor_does_a_save_that_is(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    submit(3, reportFile=str(path))
    monkeypatch.setattr(batch, "plan_write", wrong)
    with pytest.raises(Unavailable):
        LogboomWriter(None, write_options({"endpoints": "a:1", "reportFile": str(path)}))
    assert json.loads(path.read_text())["error"]["message"] == "no node at a:1 answered"


def test_nor_does_a_save_of_which_nothing_more_is_heard(tmp_path, planned):
    """Its driver was killed."""
    path = tmp_path / "report.json"
    submit(3, reportFile=str(path))
    writer = LogboomWriter(None, write_options({"endpoints": "a:1", "reportFile": str(path)}))
    writer.abort([TaskMessage(b"")])
    with pytest.raises(UnknownOutcome, match="write w was begun, and has not come to its end; what") as caught:
        load(path, write_options({"endpoints": "a:1"}).target)
    assert caught.value.outcome == "unknown"


def test_a_task_that_failed_is_told_of(tmp_path, planned):
    path = tmp_path / "report.json"
    writer = LogboomWriter(None, write_options({"endpoints": "a:1", "reportFile": str(path)}))
    writer.abort([TaskMessage(b""), None, None])
    with pytest.raises(UnknownOutcome, match="write w: 2 of 3 tasks did not come to their end"):
        load(path, write_options({"endpoints": "a:1"}).target)


def test_what_a_commit_has_left_stays(tmp_path, planned):
    """Spark has a write aborted whose commit failed, too."""
    path = tmp_path / "report.json"
    writer = LogboomWriter(None, write_options({"endpoints": "a:1", "reportFile": str(path)}))
    path.write_text("of the commit")
    writer.abort([TaskMessage(b""), TaskMessage(b"")])
    assert path.read_text() == "of the commit"
    LogboomWriter(None, write_options({"endpoints": "a:1"})).abort([None])


def test_nor_is_one_with_other_rows_under_its_name(tmp_path):
    path = tmp_path / "report.json"
    submit(3, reportFile=str(path))
    with pytest.raises(NonDeterministicReplay):
        submit(4, reportFile=str(path))
    with pytest.raises(NonDeterministicReplay, match="ran before from here with 3 rows and now with 4"):
        load(path, write_options({"endpoints": "a:1"}).target)


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
