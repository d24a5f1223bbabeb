"""The task body against a client that keeps what it is sent, and misbehaves on request."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest

from logboom.commands import OP_PUT
from logboom.errors import (
    BarrierBlocked,
    BarrierTimeout,
    CommandsRejected,
    DeadlineExceeded,
    InvalidRequest,
    LineageMismatch,
    NonDeterministicReplay,
    ProducerFenced,
    Unavailable,
)
from logboom.routing import partition_of
from logboom.spark.batch import plan_write
from logboom.spark.driver import _typed, submit
from logboom.spark.layout import layout_of
from logboom.spark.options import write_options
from logboom.spark.report import combine, finish, load, same_as_before
from logboom.spark.sink import REQUESTS_MAX, _collected, producer_id, write_task
from logboom.spark.stream import commit_plan, plan_of_batch
from logboom.types import Status
from tests.unit.spark.sink_world import KV, Cluster, plan, rows, write


def test_every_row_lands_once_in_its_partition_in_order():
    cluster = Cluster()
    report = write(cluster, [rows(500), rows(500, 500)])
    keys = [f"k{k}".encode() for k in range(1000)]
    assert cluster.rows == {p: [k for k in keys if partition_of(k, 3) == p] for p in KV}
    assert report.rows == 1000
    assert sum(p.rows for p in report.parts) == 1000
    assert not any(p.duplicate for p in report.parts)


def test_a_second_attempt_with_other_batch_sizes_changes_nothing():
    cluster = Cluster()
    first = write(cluster, [rows(1000)])
    before = {p: list(r) for p, r in cluster.rows.items()}
    second = write(cluster, [rows(300), rows(1, 300), rows(699, 301)], attempt=1, maxInFlightBytes="2000")
    assert cluster.rows == before
    assert sum(p.duplicate for p in second.parts) == 1000
    assert [p.fingerprint for p in first.parts] == [p.fingerprint for p in second.parts]


def test_an_attempt_that_died_half_way_is_completed_by_the_next():
    cluster = Cluster()
    cluster.fail_after = 4
    with pytest.raises(DeadlineExceeded):
        write(cluster, [rows(1000)], maxInFlightBytes="3000")
    landed = sum(map(len, cluster.rows.values()))
    cluster.fail_after = None
    report = write(cluster, [rows(1000)], attempt=1)
    assert sum(map(len, cluster.rows.values())) == 1000
    assert sum(p.duplicate for p in report.parts) == landed > 0


def test_tasks_and_writes_are_producers_of_their_own():
    assert len({producer_id(w, t) for w in ("a", "b", "1/a") for t in (0, 1, 11)}) == 9


def test_unacknowledged_bytes_stay_below_the_limit():
    cluster = Cluster()
    write(cluster, [rows(20_000)], maxInFlightBytes="50000")
    assert 25_000 < cluster.most <= 50_000


def test_sorting_takes_little_more_than_twice_what_is_sorted():
    """Spark's batches are let go as they come, and what was collected when it is in one piece."""
    pool, room = pa.system_memory_pool(), 1 << 20
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        before = pool.bytes_allocated()
        most = 0

        def batches():
            nonlocal most
            for number in range(40):
                most = max(most, pool.bytes_allocated() - before)
                names = {"key": [f"{number}/{k}" for k in range(100)], "value": [b"v" * 1000] * 100}
                yield as_spark_hands_them_over(pa.RecordBatch.from_pydict(names))

        for columns in _collected(plan(rowOrder="sorted", maxSortBytes=str(5 * room)), batches()):
            assert columns.count == 4000
            assert most <= columns.nbytes + room, "the batches themselves are held"
            assert pool.bytes_allocated() - before <= columns.nbytes + room, "what is sorted is held unsorted, too"
    finally:
        pa.set_memory_pool(usual)


def as_spark_hands_them_over(batch):
    """All columns in one buffer."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return next(iter(pa.ipc.open_stream(stream.getvalue())))


def test_more_than_arrow_sorts_at_once_is_refused():
    with pytest.raises(InvalidRequest, match="maxSortBytes takes a whole number from 1 to 2147483647"):
        write_options({"endpoints": "a:1", "maxSortBytes": str(2**31)})


def test_requests_under_way_are_few_however_small_they_are():
    """Each takes kilobytes of a task's memory, whatever is in it: there may be a partition for every few rows."""
    cluster, ids = Cluster(), range(REQUESTS_MAX * 3)
    cluster.rows, cluster.records = {p: [] for p in ids}, {p: [] for p in ids}
    each = rows(len(ids)).add_column(0, "partition", pa.array(ids))
    layout = layout_of(each.schema, write_options({"endpoints": "a:1"}), dict.fromkeys(ids, "kv"))
    report = write_task(replace(plan(), layout=layout), [each], task=0, attempt=0, sender=cluster)
    assert (report.rows, len(cluster.calls), cluster.open_most) == (len(ids), len(ids), REQUESTS_MAX)


def test_order_changes_the_fingerprint():
    swapped = rows(100).take(pa.array([*range(50, 100), *range(50)]))
    assert write(Cluster(), [rows(100)]).parts != write(Cluster(), [swapped]).parts


def test_a_fingerprint_does_not_depend_on_where_rows_are_cut():
    whole, cut = Cluster(), Cluster()
    report = write(whole, [rows(3_000)])
    again = write(cut, [rows(3_000).slice(k, 100) for k in range(0, 3_000, 100)], maxInFlightBytes="5000")
    assert len(cut.calls) > len(whole.calls)
    assert [p.fingerprint for p in report.parts] == [p.fingerprint for p in again.parts]


def test_one_refused_command_among_many_is_counted():
    class Odd(Cluster):
        def apply(self, request):
            receipt = super().apply(request)
            return msgspec.structs.replace(receipt, results=(*receipt.results[:-1], Status.OVERFLOW))

    assert write(Odd(), [rows(90)]).rejected == {"OVERFLOW": len(KV)}


def test_no_rows_are_a_report_of_none():
    report = write(Cluster(), [])
    assert combine(plan(), [report]).global_index == 0


def test_the_reports_of_all_tasks_become_one():
    cluster = Cluster()
    tasks = [write(cluster, [rows(100, 100 * t)], task=t) for t in range(3)]
    report = combine(plan(), tasks)
    assert report.rows == 300
    assert report.partitions == (0, 1, 2)
    assert report.global_index == max(p.global_index for t in tasks for p in t.parts)


def test_reports_that_do_not_fit_together_are_refused():
    task = write(Cluster(), [rows(10)])
    for tasks in ([task, task], [task, None], [write(Cluster(), [rows(10)], write_id="other")]):
        with pytest.raises(NonDeterministicReplay):
            combine(plan(), tasks)


def test_refused_commands_are_an_error_that_counts_them():
    cluster = Cluster()
    cluster.status = Status.WRONG_TYPE
    task = write(cluster, [rows(10)])
    with pytest.raises(CommandsRejected, match=r"10 of 10.*WRONG_TYPE") as caught:
        finish(plan(), [task], began=0)
    assert caught.value.statuses == {"WRONG_TYPE": 10}


def batch_of(cluster, batch, batches, *, task=0, query="q", **options):
    """As a task of a streaming query writes."""
    return write_task(plan_of_batch(plan(**options), query, batch), batches, task=task, attempt=0, sender=cluster)


def landed(cluster):
    return sum(map(len, cluster.rows.values()))


def test_a_stream_is_as_many_producers_as_it_has_tasks():
    cluster = Cluster()
    for batch in range(5):
        for task in range(2):
            batch_of(cluster, batch, [rows(30, 100 * batch + 50 * task)], task=task)
    assert landed(cluster) == 300
    assert len({producer for producer, _ in cluster.applied}) == 2
    batch_of(cluster, 4, [rows(30, 450)], task=1)
    assert landed(cluster) == 300, "the last batch again is the same"
    batch_of(cluster, 4, [rows(30)], query="another")
    assert landed(cluster) == 330


def test_who_still_writes_for_a_batch_after_the_next_one_is_refused():
    cluster = Cluster()
    batch_of(cluster, 0, [rows(30)])
    batch_of(cluster, 1, [rows(30, 30)])
    with pytest.raises(ProducerFenced):
        batch_of(cluster, 0, [rows(90)])
    assert landed(cluster) == 60


def test_sorted_rows_have_the_same_numbers_in_whatever_order_they_come():
    cluster = Cluster()
    # Several values of each key: the order of rows has to come from all that they have.
    names = {"key": [f"k{k % 7}" for k in range(500)], "value": [f"v{k}" for k in range(500)]}
    columns = pa.RecordBatch.from_pydict(names)
    first = write(cluster, [columns], rowOrder="sorted")
    landed_rows = {(k, v) for part in cluster.records.values() for k, v in part}
    assert landed_rows == {(k.encode(), bytes([OP_PUT]) + v.encode()) for k, v in zip(*names.values(), strict=True)}
    backwards = columns.take(pa.array(range(499, -1, -1)))
    second = write(cluster, [backwards.slice(0, 7), backwards.slice(7)], attempt=1, rowOrder="sorted")
    assert landed(cluster) == 500
    assert sum(p.duplicate for p in second.parts) == 500
    assert [p.fingerprint for p in first.parts] == [p.fingerprint for p in second.parts]


def test_a_half_written_batch_is_completed_from_rows_in_another_order():
    cluster = Cluster()
    cluster.fail_after = 4
    with pytest.raises(DeadlineExceeded):
        batch_of(cluster, 0, [rows(1000)], rowOrder="sorted", maxInFlightBytes="3000")
    assert 0 < landed(cluster) < 1000
    cluster.fail_after = None
    backwards = rows(1000).take(pa.array(range(999, -1, -1)))
    batch_of(cluster, 0, [backwards], rowOrder="sorted")
    assert sorted(key for part in cluster.rows.values() for key in part) == sorted(
        f"k{k}".encode() for k in range(1000)
    )


def test_more_rows_than_may_be_sorted_are_refused_before_anything_is_sent():
    cluster = Cluster()
    with pytest.raises(InvalidRequest, match="maxSortBytes"):
        write(cluster, [rows(300), rows(300, 300)], rowOrder="sorted", maxSortBytes="10000")
    assert not cluster.calls


def test_the_same_rows_from_another_number_of_tasks_are_a_mixture():
    """As docs/spark.md says: not written twice, which would be noticed, but some twice and some not at all."""
    cluster = Cluster()
    write(cluster, [rows(50, 50)], task=1, partitions="0")  # of four tasks this one came to its end
    for task in range(2):
        write(cluster, [rows(100, 100 * task)], task=task, partitions="0")
    times = Counter(cluster.rows[0])
    assert {times[f"k{k}".encode()] for k in range(50, 100)} == {2}
    assert not any(times[f"k{k}".encode()] for k in range(100, 150))


def test_the_tasks_of_a_commit_wrote_for_its_batch():
    assert commit_plan(plan(), ["q/7", "q/7"], 7).write_id == "q/7"
    assert commit_plan(plan(), [], 7).write_id == "/7"
    for ids in (["q/7", "q/8"], ["q/8"], ["q/7", "r/7"]):
        with pytest.raises(NonDeterministicReplay):
            commit_plan(plan(), ids, 7)


def test_a_batch_is_compared_with_what_its_last_run_left(tmp_path, monkeypatch):
    kept = replace(plan("q/7"), report_file=str(tmp_path / "report"))

    def commit(count, write_id="q/7"):
        tasks = [write(Cluster(), [rows(count)], write_id=write_id)]
        return finish(replace(kept, write_id=write_id), tasks, began=0, check=same_as_before)

    def times_out(*_, **__):
        raise BarrierTimeout("not yet")

    monkeypatch.setattr("logboom.spark.report.wait_for", times_out)
    with pytest.raises(BarrierTimeout):
        commit(10)
    monkeypatch.setattr("logboom.spark.report.wait_for", lambda *_, **__: None)
    for _ in range(2):  # it is noticed as often as it happens
        with pytest.raises(NonDeterministicReplay, match="ran before with 10 rows and now with 11"):
            commit(11)
        left = json.loads((tmp_path / "report").read_text())
        assert left["error"]["code"] == "non_deterministic_replay", "whoever looks there takes it for a good batch"
    commit(10)
    commit(10)
    commit(11, "q/8")


def test_a_run_on_both_sides_of_a_restore_leaves_what_the_one_before_it_left(tmp_path, monkeypatch):
    """Its error alone was left, and the next run could bring whatever rows it liked."""
    kept = replace(plan("q/7"), report_file=str(tmp_path / "report"))
    monkeypatch.setattr("logboom.spark.report.wait_for", lambda *_, **__: None)

    def commit(count, *more):
        tasks = [write(Cluster(), [rows(count)], write_id="q/7"), *more]
        return finish(kept, tasks, began=0, check=same_as_before)

    commit(10)
    one = msgspec.structs.replace(write(Cluster(), [rows(5)], write_id="q/7"), task=1, cluster="c", lineage="before")
    with pytest.raises(LineageMismatch, match="both sides of a restore"):
        commit(5, one, msgspec.structs.replace(one, task=2, lineage="after"))
    with pytest.raises(NonDeterministicReplay, match="ran before with 10 rows and now with 11"):
        commit(11)


def test_so_is_one_of_which_commands_were_refused(tmp_path, monkeypatch):
    """What its first run had left was the error alone: nobody could tell that the next one brought other rows."""
    kept = replace(plan("q/7"), report_file=str(tmp_path / "report"))
    monkeypatch.setattr("logboom.spark.report.wait_for", lambda *_, **__: None)

    def commit(count):
        cluster = Cluster()
        cluster.status = Status.WRONG_TYPE
        return finish(kept, [write(cluster, [rows(count)], write_id="q/7")], began=0, check=same_as_before)

    for _ in range(2):
        with pytest.raises(CommandsRejected):
            commit(10)
        with pytest.raises(CommandsRejected):
            load(kept.report_file, kept.target)
        for again in (lambda: commit(11), lambda: load(kept.report_file, kept.target)):
            with pytest.raises(NonDeterministicReplay, match="ran before with 10 rows and now with 11"):
                again()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unavailable("no node can be reached", addresses=["a:1"]), "all 10 rows are in.*no node can be reached"),
        (BarrierTimeout("not yet", behind=[0]), "after 1 s not every partition.*raise barrierTimeoutMs"),
        (BarrierBlocked("partition 0 is paused", blocked=[[0, "paused"]]), "all 10 rows are in.*is paused"),
    ],
)
def test_whatever_fails_when_all_is_written_says_that_it_is(tmp_path, monkeypatch, error, message):
    class Away:
        def run(self, _):
            raise error

    monkeypatch.setattr("logboom.spark.report.session", lambda _: Away())
    kept = replace(plan(), report_file=str(tmp_path / "report"))
    for attempt in (
        lambda: finish(kept, [write(Cluster(), [rows(10)])], began=0),
        lambda: load(kept.report_file, kept.target),
    ):
        with pytest.raises(type(error), match=message) as caught:
            attempt()
        assert type(caught.value) is type(error)
        assert (caught.value.outcome, caught.value.fields) == ("applied", error.fields)


@pytest.mark.parametrize("name", ["InvalidRequest", "Overloaded", "CommandsRejected", "UnknownOutcome"])
def test_nobody_knows_what_took_effect_of_a_write_with_a_task_that_failed(name):
    error = _typed(
        RuntimeError(f"Job aborted: logboom.errors.{name}: column value has 1 nulls\n at org.apache"), "write w"
    )
    assert (type(error).__name__, error.outcome) == (name, "unknown")
    assert error.message == "write w: a Spark task failed: column value has 1 nulls"


def test_a_report_of_another_release_says_nothing_of_rows(tmp_path, monkeypatch):
    kept = replace(plan("q/7"), report_file=str(tmp_path / "report"))
    old = {"report": {"write_id": "q/7", "rows": 10, "fingerprint": "00" * 16}}
    Path(kept.report_file).write_bytes(msgspec.json.encode(old))
    monkeypatch.setattr("logboom.spark.report.wait_for", lambda *_, **__: None)
    tasks = [write(Cluster(), [rows(10)], write_id="q/7")]
    assert finish(kept, tasks, began=0, check=same_as_before).rows == 10


def test_a_report_that_cannot_be_left_takes_no_row_back_and_hides_no_error(tmp_path, monkeypatch):
    kept = replace(plan(), report_file=str(tmp_path / "gone" / "report"))
    tasks = [write(Cluster(), [rows(10)])]
    monkeypatch.setattr("logboom.spark.report.wait_for", lambda *_, **__: None)
    with pytest.raises(
        InvalidRequest, match=r"all 10 rows are in, and no report can be left at .*gone/report"
    ) as caught:
        finish(kept, tasks, began=0)
    assert caught.value.outcome == "applied"
    with pytest.raises(NonDeterministicReplay, match="left no report"):
        finish(kept, [None], began=0)
    with pytest.raises(InvalidRequest, match=r"reportFile: the directory of .*gone/report does not exist"):
        plan_write(None, write_options({"endpoints": "a:1", "reportFile": kept.report_file}))


@pytest.mark.parametrize("torn", [b"", b'{"repo', b"[1]", b'{"report": 7}', b"\0\0\0"])
def test_a_report_that_was_left_in_part_says_nothing(tmp_path, monkeypatch, torn):
    kept = replace(plan("q/7"), report_file=str(tmp_path / "report"))
    Path(kept.report_file).write_bytes(torn)
    monkeypatch.setattr("logboom.spark.report.wait_for", lambda *_, **__: None)
    tasks = [write(Cluster(), [rows(10)], write_id="q/7")]
    assert finish(kept, tasks, began=0, check=same_as_before).rows == 10


@pytest.mark.parametrize(
    ("given", "meant"), [(3, (3,)), ([3, 1], (1, 3)), (range(2), (0, 1)), ({5}, (5,)), ("3-4", (3, 4)), (None, None)]
)
def test_partitions_of_submit_are_one_or_several(monkeypatch, given, meant):
    class Planned(Exception):
        pass

    def plans(_, options):
        assert options.partitions == meant
        raise Planned

    monkeypatch.setattr("logboom.spark.driver.plan_write", plans)
    with pytest.raises(Planned):
        submit(SimpleNamespace(schema=None, columns=["key"]), endpoints="a:1", partitions=given)
    for strange in (3.5, -1, ["x"], True):
        with pytest.raises(InvalidRequest, match="option partitions takes"):
            submit(SimpleNamespace(schema=None, columns=["key"]), endpoints="a:1", partitions=strange)
