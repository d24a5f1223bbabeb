"""A cluster that is written to by tasks."""

from __future__ import annotations

from concurrent.futures import Future

import pyarrow as pa

from logboom.errors import DeadlineExceeded, LogboomError, ProducerFenced
from logboom.spark.layout import layout_of
from logboom.spark.options import write_options
from logboom.spark.sink import WritePlan, write_task
from logboom.types import Receipt, Status

KV = dict.fromkeys(range(3), "kv")


class Cluster:
    """Applies dense sequences as a node does. Requests run when their result is asked for."""

    def __init__(self):
        self.applied, self.epochs = {}, {}
        self.rows = {p: [] for p in KV}
        self.records = {p: [] for p in KV}
        self.calls = []
        self.unacknowledged = self.most = 0
        self.open = self.open_most = 0
        self.fail_after = None
        self.status = Status.OK

    def start(self, call):
        return _Lazy(self, call(self))

    def submit_block(self, partition_id, block, **how):
        self.unacknowledged += block.nbytes
        self.most = max(self.most, self.unacknowledged)
        self.open += 1
        self.open_most = max(self.open_most, self.open)
        return partition_id, block, how

    def apply(self, request):
        partition_id, block, how = request
        self.unacknowledged -= block.nbytes
        self.open -= 1
        if self.fail_after is not None and len(self.calls) >= self.fail_after:
            raise DeadlineExceeded("gone")
        self.calls.append(how)
        key = (how["producer_id"], partition_id)
        epoch = how.get("epoch", 0)
        known = self.epochs.setdefault(key, epoch)
        if epoch < known:
            raise ProducerFenced("a newer batch has written")
        if epoch > known:
            self.epochs[key], self.applied[key] = epoch, 0
        highest = self.applied.get(key, 0)
        assert how["dense"]
        assert how["sequence"] <= highest, "a gap"
        duplicate = min(block.count, highest - how["sequence"])
        self.rows[partition_id] += block.keys()[duplicate:]
        self.records[partition_id] += zip(block.keys()[duplicate:], block.payloads()[duplicate:], strict=True)
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
            except LogboomError as error:
                self.set_exception(error)
        return super().result(timeout)


def rows(count, start=0):
    return pa.RecordBatch.from_pydict(
        {"key": [f"k{k}" for k in range(start, start + count)], "value": ["v" * 20] * count}
    )


def plan(write_id="w", **options):
    given = write_options({"endpoints": "a:1", **options})
    layout = layout_of(rows(1).schema, given, KV)
    sort = given.sort_bytes_max if given.row_order == "sorted" else None
    return WritePlan(
        given.target,
        layout,
        write_id,
        given.wait,
        1000,
        given.in_flight_bytes_max,
        sort_bytes_max=sort,
        fail_on_rejected=given.fail_on_rejected,
    )


def write(cluster, batches, *, task=0, attempt=0, **options):
    return write_task(plan(**options), batches, task=task, attempt=attempt, sender=cluster)
