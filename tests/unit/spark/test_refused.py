"""Commands that a state machine refuses, in writes that are run again: what is told of them."""

from dataclasses import replace

import msgspec
import pytest

from logboom.errors import CommandsRejected
from logboom.spark.report import combine, finish, load
from logboom.spark.sink import TaskReport
from logboom.types import Status
from tests.unit.spark.sink_world import Cluster, plan, rows, write


class Forgetful(Cluster):
    """Refuses everything, and does not remember what it refused: as a node after 16 requests, or of a large one."""

    def apply(self, request):
        self.status = Status.WRONG_TYPE
        receipt = super().apply(request)
        if not receipt.duplicate:
            return receipt
        return msgspec.structs.replace(receipt, results=(Status.UNKNOWN_RESULT,) * len(receipt.results))


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("logboom.spark.report.wait_for", lambda report, **how: None)


def test_what_nobody_can_tell_of_a_repeated_task_is_told(caplog):
    cluster = Forgetful()
    assert write(cluster, [rows(90)]).rejected == {"WRONG_TYPE": 90}
    again = finish(plan(), [write(cluster, [rows(90)], attempt=1)], began=0.0)
    assert (again.rows, again.duplicates, again.unknown, again.rejected) == (90, 90, 90, {})
    assert "nobody remembers what became of 90" in caplog.text
    assert combine(plan(), [write(Cluster(), [rows(90)])]).unknown == 0


def test_a_write_may_go_on_over_refused_commands(caplog):
    """A stream has no other way: its batch would be run again, and refused again."""
    cluster = Cluster()
    cluster.status = Status.WRONG_TYPE
    tasks = [write(cluster, [rows(10)])]
    with pytest.raises(
        CommandsRejected, match=r"\(10 WRONG_TYPE: add on a key that holds bytes.*failOnRejected=false goes on"
    ):
        finish(plan(), tasks, began=0.0)
    report = finish(plan(failOnRejected="false"), tasks, began=0.0)
    assert (report.rows, report.rejected) == (10, {"WRONG_TYPE": 10})
    assert "refused 10 of 10" in caplog.text


def test_a_report_brings_it_along(tmp_path):
    cluster = Forgetful()
    tasks = [write(cluster, [rows(10)]), write(cluster, [rows(20)], task=1)]
    path = tmp_path / "report.json"
    report = finish(replace(plan(failOnRejected="false"), report_file=str(path)), tasks, began=0.0)
    assert load(path, report.target) == report
    assert report.rejected == {"WRONG_TYPE": 30}


def test_a_task_of_an_executor_that_does_not_count_them_is_understood():
    task = write(Cluster(), [rows(10)])
    shorter = msgspec.msgpack.encode(msgspec.msgpack.decode(task.encode())[:-1])
    assert TaskReport.decode(shorter) == task


def test_whoever_writes_other_rows_under_a_name_that_was_there_before_is_told(caplog):
    """``save`` brings no report back, and it is no error: that makes a repetition harmless."""
    cluster = Cluster()
    combine(plan(), [write(cluster, [rows(90)])])
    assert not caplog.text
    combine(plan(), [write(cluster, [rows(120, 1000)])])
    assert "write w: " in caplog.text
    assert "of 120 rows had taken effect before" in caplog.text
