"""A task that has more under way than its cluster takes in the time of one request."""

import logging
from dataclasses import replace

import pytest

from logboom.errors import DeadlineExceeded, Overloaded, PartitionPaused, ProducerFenced
from logboom.spark.sink import write_task
from tests.unit.spark.sink_world import Cluster, plan, rows


class Slow(Cluster):
    """Takes so many requests, then one of those under way has run out of time; and so on."""

    def __init__(self, at_once):
        super().__init__()
        self.at_once, self.taken, self.sent = at_once, 0, 0

    def submit_block(self, partition_id, block, **how):
        self.sent += 1
        return super().submit_block(partition_id, block, **how)

    def apply(self, request):
        if self.taken == self.at_once:
            self.unacknowledged -= request[1].nbytes
            self.open -= 1
            self.taken = 0
            raise Overloaded("as fast as it may; others of this client went first")
        self.taken += 1
        return super().apply(request)


def write(cluster):
    return write_task(replace(plan(), block_bytes_max=1000), [rows(2000)], task=0, attempt=0, sender=cluster)


def test_what_runs_out_of_time_while_others_are_taken_is_sent_again(caplog):
    """A rate that takes less in a request's time than a task has under way is slow, and nothing is wrong."""
    cluster = Slow(3)
    with caplog.at_level(logging.WARNING, "logboom.spark"):
        report = write(cluster)
    assert report.rows == sum(map(len, cluster.rows.values())) == 2000
    assert not any(part.duplicate for part in report.parts)
    assert "task 0: as fast as it may; others of this client went first; going on" in caplog.text
    assert cluster.sent < 2 * len(cluster.calls)


def test_where_nothing_is_taken_nothing_is_sent_again():
    cluster = Slow(0)
    with pytest.raises(Overloaded):
        write(cluster)
    assert cluster.sent == cluster.open_most


@pytest.mark.parametrize(
    "error", [ProducerFenced("a newer batch has written"), PartitionPaused("until it is resumed", partition_id=0)]
)
def test_an_error_that_more_time_does_not_mend_is_not_tried_again(error):
    """Others that were taken meanwhile say nothing of what an operator has to do."""

    class Refused(Cluster):
        refusals = 0

        def apply(self, request):
            if len(self.calls) == 5:
                self.refusals += 1
                raise error
            return super().apply(request)

    cluster = Refused()
    with pytest.raises(type(error)):
        write(cluster)
    assert (len(cluster.calls), cluster.refusals) == (5, 1)


class Shared(Cluster):
    """A rate that others use up, until they have what they wanted."""

    def __init__(self, refusals):
        super().__init__()
        self.refusals, self.waits = refusals, []

    def submit_block(self, partition_id, block, **how):
        self.waits.append(how["admission_wait"])
        return super().submit_block(partition_id, block, **how)

    def apply(self, request):
        if self.refusals:
            self.unacknowledged -= request[1].nbytes
            self.open -= 1
            raise self.refusals.pop()
        return super().apply(request)


def refused():
    return Overloaded("your own requests reach principal_bytes_per_s", limit="principal_bytes_per_s")


def too_late():
    late = DeadlineExceeded("the deadline passed before an answer came")
    late.__cause__ = refused()
    return late


def paced():
    return Overloaded("your own requests reach node_pace", limit="node_pace")


@pytest.mark.parametrize("how", [refused, too_late, paced])
def test_a_rate_that_many_tasks_share_fails_none_of_them(how, caplog):
    """While it was the turn of others for all the time of its first request, nothing of this task had landed."""
    cluster = Shared([how() for _ in range(3)])
    with caplog.at_level(logging.WARNING, "logboom.spark"):
        report = write(cluster)
    assert report.rows == sum(map(len, cluster.rows.values())) == 2000
    assert "lets it in later" in caplog.text
    timeout = plan().target.request_timeout_ms / 1000
    assert set(cluster.waits) == {None, timeout / 2}, "what comes again stands in line"


def test_what_is_refused_for_another_reason_fails_where_nothing_is_taken():
    with pytest.raises(Overloaded):
        write(Shared([Overloaded("node_bytes is used up", limit="node_bytes") for _ in range(1000)]))
