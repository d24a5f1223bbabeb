"""A stream into a cluster that was restored from a backup of before its last batches."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from logboom.errors import LineageMismatch
from logboom.spark import batch, stream
from logboom.spark.report import finish, load, same_as_before
from logboom.spark.stream import LogboomStreamWriter, plan_of_batch
from tests.unit.spark.sink_world import Cluster, plan, rows, write


class TestRestored:
    """What its batches had written since the backup was missing, and a stream went on without a word."""

    @pytest.fixture(autouse=True)
    def at_once(self, tmp_path, monkeypatch):
        monkeypatch.setattr("logboom.spark.report.wait_for", lambda *_, **__: None)
        self.kept = str(tmp_path / "report")

    def commit(self, write_id, lineage, cluster="c", *, count=10):
        tasks = []
        if lineage is not None:
            task = write(Cluster(), [rows(count)], write_id=write_id)
            tasks.append(msgspec.structs.replace(task, cluster=cluster, lineage=lineage))
        return finish(replace(plan(write_id), report_file=self.kept), tasks, began=0, check=same_as_before)

    def test_a_stream_does_not_go_on_in_another_history(self):
        self.commit("q/5", "before")
        for _ in range(2):  # it is noticed until somebody does something about it
            with pytest.raises(
                LineageMismatch, match=r"q/6: the batches before it went into .* only a new checkpoint"
            ) as caught:
                self.commit("q/6", "after")
            assert caught.value.outcome == "unknown"
            with pytest.raises(LineageMismatch):
                load(self.kept, plan().target)
        with pytest.raises(LineageMismatch):
            self.commit("q/6", "before", "another")
        Path(self.kept).unlink()
        for number in (6, 7):
            assert self.commit(f"q/{number}", "after").lineage == "after"

    def test_nor_is_it_said_to_go_on_exactly_where_rows_of_it_are_in(self, monkeypatch):
        """The tasks of its next run said so: what to do is as the commit had said."""
        self.commit("q/5", "before")
        for _ in range(2):
            with pytest.raises(LineageMismatch, match="only a new checkpoint"):
                self.commit("q/6", "after")
            with pytest.raises(LineageMismatch, match=r"q/6: .* only a new checkpoint") as no:
                self.written(6, "after", monkeypatch)
            assert (no.value.outcome, self.sent) == ("not_applied", 0)
        self.commit("q/6", "before")
        with pytest.raises(LineageMismatch, match=r"q/7: .* put the checkpoint of the backup back"):
            self.written(7, "after", monkeypatch)

    def test_nor_from_the_first_one_nor_with_a_batch_that_is_run_again(self):
        self.commit("q/5", "")
        for number in (5, 6):
            with pytest.raises(LineageMismatch):
                self.commit(f"q/{number}", "after")

    @pytest.mark.parametrize("empty", ["q/6", "/6"])
    def test_nor_where_a_batch_between_had_no_rows(self, empty):
        self.commit("q/5", "before")
        self.commit(empty, None)
        with pytest.raises(LineageMismatch):
            self.commit("q/7", "after")
        assert self.commit("q/7", "before").rows == 10

    def test_another_query_begins_there(self):
        self.commit("q/5", "before")
        assert self.commit("r/0", "after").rows == 10

    @pytest.mark.parametrize("batch_write", ["w", "2024-06/1"])
    def test_and_so_does_one_where_a_batch_write_has_left_its_report(self, batch_write):
        """It counted as the stream's own, where its name had no stroke in it."""
        self.commit(batch_write, "before")
        assert self.commit("q/0", "after").rows == 10

    def test_a_report_that_does_not_say_where_it_went_says_nothing(self):
        self.commit("q/5", "", cluster="")
        assert self.commit("q/6", "after").rows == 10

    def written(self, batch_id, lineage, monkeypatch, *, query="q", older=None):
        """What a task of a batch does, in a process whose client knows of a history, or of ``older`` until it asks."""
        cluster, asked = Cluster(), []
        known = {None: older or lineage, cluster: lineage}
        monkeypatch.setattr(stream, "plan_write", lambda *_: replace(plan(), report_file=self.kept))
        monkeypatch.setattr(batch, "session", lambda _, but=False: cluster if but is None or not older else None)
        monkeypatch.setattr(batch, "history", lambda found: asked.append(found) or ("c", known[found]))
        of_batch = plan_of_batch(LogboomStreamWriter(None, None)._plan, query, batch_id)
        try:
            batch.task_message(of_batch, [rows(10)], Context())
        finally:
            self.sent = sum(map(len, cluster.rows.values()))
            self.fresh = [found is cluster for found in asked]

    @pytest.mark.parametrize(("last", "batch_id"), [("q/5", 6), ("q/5", 5), ("q/10", 6), ("/5", 6)])
    def test_nothing_is_written_there(self, last, batch_id, monkeypatch):
        """It was noticed by the commit: rows were in, and fenced off the batches of a checkpoint that was put back."""
        self.commit("q/4", "before")
        self.commit(last, None if last == "/5" else "before")
        with pytest.raises(LineageMismatch, match=r"put the checkpoint of the backup back and remove /.*report,") as no:
            self.written(batch_id, "after", monkeypatch)
        assert (no.value.outcome, self.sent) == ("not_applied", 0)
        Path(self.kept).unlink()
        self.written(batch_id, "after", monkeypatch)
        assert self.sent == 10

    def test_what_goes_where_the_others_went_is_written(self, monkeypatch):
        self.commit("q/5", "here")
        for query, where in [("q", "here"), ("r", "there")]:
            self.written(6, where, monkeypatch, query=query)
            assert self.sent == 10

    def test_a_process_that_outlived_a_restore_asks_before_it_refuses(self, monkeypatch):
        self.commit("q/5", "here")
        self.written(6, "here", monkeypatch, older="before")
        assert (self.sent, self.fresh) == (10, [False, True, True]), "to write, and to say where it has written"


class Context:
    """As Spark tells a task of itself."""

    def partitionId(self):  # noqa: N802
        return 0

    def attemptNumber(self):  # noqa: N802
        return 0
