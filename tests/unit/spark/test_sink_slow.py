"""A task that has more under way than its cluster takes in the time of one request."""

import logging
from dataclasses import replace

import pytest

from logboom.errors import Overloaded, ProducerFenced, UnknownOutcome
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


class Rated(Slow):
    """Shares its rate with others, who are taken first, for longer than a request's time."""

    def __init__(self, refusals, error):
        super().__init__(0)
        self.refusals, self.error = refusals, error

    def apply(self, request):
        if self.refusals:
            self.refusals -= 1
            self.unacknowledged -= request[1].nbytes
            self.open -= 1
            raise self.error
        return Cluster.apply(self, request)


def rate(limit):
    return Overloaded("the node: your own requests reach it", partition_id=None, limit=limit, retry_after=2.0)


def test_where_a_rate_is_all_that_is_in_the_way_it_is_waited_for_however_long(caplog):
    """Many tasks of one principal: it may be the turn of others for longer than one request may take."""
    with caplog.at_level(logging.WARNING, "logboom.spark"):
        report = write(Rated(50, rate("principal_ops_per_s")))
    assert report.rows == 2000
    assert "task 0: the node: your own requests reach it; going on, as a rate lets it in later" in caplog.text
    doubtful = UnknownOutcome("the deadline passed; an earlier attempt was sent, the last one failed")
    doubtful.__cause__ = rate("partition_bytes_per_s")
    assert write(Rated(3, doubtful)).rows == 2000
    for full in ("node_bytes", None):
        with pytest.raises(Overloaded):
            write(Rated(1, rate(full)))


def test_an_error_that_more_time_does_not_mend_is_not_tried_again():
    class Fenced(Cluster):
        def apply(self, request):
            if len(self.calls) == 5:
                raise ProducerFenced("a newer batch has written")
            return super().apply(request)

    cluster = Fenced()
    with pytest.raises(ProducerFenced):
        write(cluster)
    assert len(cluster.calls) == 5
