"""A node that says that it has a record, and gives none, as its disk hangs: another one is asked."""

import asyncio

import pytest

from logboom.errors import DeadlineExceeded
from logboom.spark.columns import LOG
from logboom.spark.connection import Session
from logboom.spark.options import read_options
from logboom.spark.read import read_log, read_merged
from logboom.spark.shares import EVERYTHING, Merged, Share, Span
from logboom.wire import Kind
from tests.unit.logboom.fake_server import cluster
from tests.unit.logboom.log_frames import raw, whole
from tests.unit.spark.read_world import E, batch, log, merged, offsets, session

__all__ = ["session"]

SOON = {"requestTimeoutMs": "200"}


def test_another_one_has_its_turn_in_the_log_of_a_partition(session):
    found = session([batch(1, 2), None], [batch(3, 4)])
    found.client.durable = 6
    assert offsets(log(found, Share(0, 1, 6), **SOON)) == [1, 2, 3, 4, 5, 6]
    assert found.client.asked == [1, 3]


def test_another_one_has_its_turn_in_global_order(session):
    found = session([batch(1, 2, global_index=4), None], [None], [batch(3, global_index=9)])
    assert offsets(merged(found, (Share(0, 1, 3),), 1, 9, **SOON, numRetries="1")) == [1, 2, 3]
    assert found.client.asked == [1, 5, 5]


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("in_order", [False, True], ids=["partition", "global"])
def test_where_none_gives_any_each_turn_counts(session, in_order, retries):
    found, share, how = session(*[[None]] * 3), Share(0, 1, 3), {**SOON, "numRetries": str(retries)}
    found.client.durable = 6
    with pytest.raises(DeadlineExceeded, match="no record after offset 0 came"):
        list(merged(found, (share,), 1, 9, **how) if in_order else log(found, share, **how))
    assert len(found.client.asked) == 1 + retries


def test_in_global_order_one_that_was_named_is_waited_for_once(session):
    found = session([None])
    with pytest.raises(DeadlineExceeded):
        list(merged(found, (Share(0, 1, 3),), 1, 9, **SOON, node="n1"))
    assert found.client.asked == [1]


@pytest.mark.parametrize("in_order", [False, True], ids=["partition", "global"])
async def test_another_one_is_asked_though_the_client_was_connected_to_no_other(in_order):
    """A task's client is connected to those that it has needed, which is one."""
    async with cluster(3) as nodes:
        asked = []

        def give(node, frame):
            asked.append(node.node)
            if node.node is not asked[0]:
                node.send(frame, Kind.BATCHES, *whole([(9, raw(0, 1, [b"a", b"b"]))], after=0, through=9), more=True)

        for each in nodes:
            each.features = ["log_scan"]
            each.answers[Kind.TAIL] = each.answers[Kind.LOG_SCAN] = give
            each.answers[Kind.WATERMARKS] = lambda node, frame: node.send(
                frame, Kind.WATERMARKS_REPLY, {"watermarks": [[0, 2, 2, 2, 9, 0, "running"]], "commit_index": 9}
            )
        options = read_options({**E, **SOON, "endpoints": ",".join(node.address for node in nodes), "numRetries": "1"})
        found = Session(options.target)
        share = Share(0, 1, 2)
        reading = (
            read_merged(options, Merged(Span(1, 9), (share,)), LOG, found)
            if in_order
            else read_log(options, share, EVERYTHING, LOG, found)
        )
        try:
            assert await asyncio.to_thread(lambda: offsets(reading)) == [1, 2]
        finally:
            await asyncio.to_thread(found.rest)
        assert len(asked) == 2
