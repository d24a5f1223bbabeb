"""The task body against a client that keeps what it is sent, and misbehaves on request."""

from concurrent.futures import Future

import pyarrow as pa
import pytest

from logboom.errors import CommandsRejected, DeadlineExceeded, NonDeterministicReplay
from logboom.routing import partition_of
from logboom.spark.layout import layout_of
from logboom.spark.options import write_options
from logboom.spark.report import combine
from logboom.spark.sink import WritePlan, producer_id, write_task
from logboom.types import Receipt, Status

KV = dict.fromkeys(range(3), "kv")


class Cluster:
    """Applies dense sequences as a node does. Requests run when their result is asked for."""

    def __init__(self):
        self.applied = {}
        self.rows = {p: [] for p in KV}
        self.calls = []
        self.unacknowledged = self.most = 0
        self.fail_after = None
        self.status = Status.OK

    def start(self, call):
        return _Lazy(self, call(self))

    def submit_block(self, partition_id, block, **how):
        self.unacknowledged += block.nbytes
        self.most = max(self.most, self.unacknowledged)
        return partition_id, block, how

    def apply(self, request):
        partition_id, block, how = request
        self.unacknowledged -= block.nbytes
        if self.fail_after is not None and len(self.calls) >= self.fail_after:
            raise DeadlineExceeded("gone")
        self.calls.append(how)
        key = (how["producer_id"], partition_id)
        highest = self.applied.get(key, 0)
        assert how["dense"]
        assert how["sequence"] <= highest, "a gap"
        duplicate = min(block.count, highest - how["sequence"])
        self.rows[partition_id] += block.keys()[duplicate:]
        self.applied[key] = max(highest, how["sequence"] + block.count)
        first = len(self.rows[partition_id])
        results = (self.status,) * block.count
        return Receipt(partition_id, first, first + block.count - 1, len(self.calls), duplicate, results)


class _Lazy(Future):
    def __init__(self, cluster, request):
        super().__init__()
        self.cluster, self.request = cluster, request

    def result(self, timeout=None):
        if not self.done():
            try:
                self.set_result(self.cluster.apply(self.request))
            except DeadlineExceeded as error:
                self.set_exception(error)
        return super().result(timeout)


def rows(count, start=0):
    return pa.RecordBatch.from_pydict(
        {"key": [f"k{k}" for k in range(start, start + count)], "value": ["v" * 20] * count}
    )


def plan(write_id="w", **options):
    given = write_options({"endpoints": "a:1", **options})
    layout = layout_of(rows(1).schema, given, KV)
    return WritePlan(given.target, layout, write_id, given.wait, 1000, given.in_flight_bytes_max)


def write(cluster, batches, *, task=0, attempt=0, **options):
    return write_task(plan(**options), batches, task=task, attempt=attempt, sender=cluster)


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


def test_order_changes_the_fingerprint():
    swapped = rows(100).take(pa.array([*range(50, 100), *range(50)]))
    assert write(Cluster(), [rows(100)]).parts != write(Cluster(), [swapped]).parts


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
        combine(plan(), [task])
    assert caught.value.statuses == {"WRONG_TYPE": 10}
