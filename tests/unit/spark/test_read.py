"""Readers against a client that has what it is given, and misbehaves on request."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from logboom.errors import (
    CorruptData,
    DeadlineExceeded,
    IndexCompacted,
    NoSuchPartition,
    PartitionDestroyed,
    Unavailable,
    Voided,
)
from logboom.spark import read
from logboom.spark.options import read_options
from logboom.spark.shares import Share, Span, _last_held
from tests.unit.spark.read_world import LATER, E, batch, log, merged, offsets, session

__all__ = ["session"]


def test_a_share_is_read_from_its_start_to_its_end_and_no_further(session):
    found = session([batch(3, 4), batch(7, 5), None])
    assert offsets(log(found, Share(0, 3, 9))) == list(range(3, 10))
    assert found.client.asked == [3]


def test_a_reader_goes_on_where_it_was_after_a_failure(session):
    found = session([batch(1, 4), Unavailable("gone")], [Unavailable("still")], [batch(5, 2)])
    assert offsets(log(found, Share(0, 1, 6))) == list(range(1, 7))
    assert found.client.asked == [1, 5, 5]


def test_failures_in_a_row_are_counted(session):
    found = session(*[[Unavailable("gone")]] * 5)
    with pytest.raises(Unavailable):
        list(log(found, Share(0, 1, 6), numRetries="2"))
    assert len(found.client.asked) == 3


def test_what_is_gone_is_an_error_that_says_what_is_held(session):
    found = session([IndexCompacted("removed", first=50)])
    with pytest.raises(IndexCompacted, match="offset 1 is gone, 50 is the first") as caught:
        list(log(found, Share(0, 1, 60)))
    assert caught.value.first == 50


def test_what_is_gone_may_be_passed_over_and_is_counted(session, caplog):
    found = session([IndexCompacted("removed", first=50)], [batch(50, 11)])
    with caplog.at_level(logging.WARNING, "logboom.spark"):
        assert offsets(log(found, Share(0, 1, 60), failOnDataLoss="false")) == list(range(50, 61))
    assert found.client.asked == [1, 50]
    assert "49 records from offset 1 on are gone" in caplog.text


def test_what_was_declared_void_is_an_error_or_passed_over_and_counted(session, caplog):
    gap = Voided("void", partition_id=0, first_index=5, last_index=7, next=8)
    with pytest.raises(Voided):
        list(log(session([batch(1, 4), gap]), Share(0, 1, 9)))
    found = session([batch(1, 4), gap], [batch(8, 2)])
    assert offsets(log(found, Share(0, 1, 9), failOnDataLoss="false")) == [1, 2, 3, 4, 8, 9]
    assert found.client.asked == [1, 8]
    assert "3 records from offset 5 on are gone" in caplog.text
    # At the end of a share nothing is waited for that will not come.
    assert offsets(log(session([batch(1, 4), gap]), Share(0, 1, 6), failOnDataLoss="false")) == [1, 2, 3, 4]


def test_a_share_that_is_gone_altogether_is_empty(session, caplog):
    found = session([IndexCompacted("removed", first=500)])
    assert offsets(log(found, Share(0, 1, 60), failOnDataLoss="false")) == []
    assert "60 records from offset 1 on are gone" in caplog.text


def test_a_partition_destroyed_on_the_way(session, caplog):
    gone = PartitionDestroyed("destroyed", partition_id=0)
    with pytest.raises(PartitionDestroyed):
        list(log(session([batch(1, 4), gone]), Share(0, 1, 6)))
    assert offsets(log(session([batch(1, 4), gone]), Share(0, 1, 6), failOnDataLoss="false")) == [1, 2, 3, 4]
    assert "with 2 records unread" in caplog.text


def test_a_node_that_has_not_heard_of_a_partition_loses_none_of_its_records(session):
    """The driver knew it, from the leader: it is not destroyed."""
    unheard = NoSuchPartition("partition 0 does not exist", partition_id=0)
    with pytest.raises(NoSuchPartition):
        list(log(session([unheard]), Share(0, 1, 6), failOnDataLoss="false"))


def test_records_that_do_not_come_are_an_error(session):
    with pytest.raises(DeadlineExceeded, match="no record after offset 4 came"):
        list(log(session([batch(1, 4), None], [None]), Share(0, 1, 6), requestTimeoutMs="50", numRetries="1"))


def test_a_node_that_is_behind_is_left_for_another(session):
    """A task waited for one that had not come so far until its time was over, and failed."""
    found = session([None], [batch(1, 2), None], [batch(3, 6)])
    assert offsets(log(found, Share(0, 1, 6), requestTimeoutMs="200")) == [1, 2, 3, 4, 5, 6]
    assert found.client.asked == [1, 1, 3]


def test_a_node_that_is_behind_is_left_for_another_however_slowly_the_task_works(session, monkeypatch):
    """The time that it took over its rows counted as waited for more: none was asked but the first."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(read, "time", SimpleNamespace(monotonic=lambda: clock.now))
    found = session([batch(1, 2), None], [None], [batch(3, 4)])
    seen = []
    for columns in log(found, Share(0, 1, 6), requestTimeoutMs="200"):
        seen += columns["offset"].to_pylist()
        clock.now += 60
    assert seen == [1, 2, 3, 4, 5, 6]
    assert found.client.asked == [1, 3, 3]


def test_a_node_that_is_not_behind_and_lets_a_task_wait_for_its_rate_is_waited_for(session):
    """After its share of the time the task went to the end of the line, again and again, and failed."""
    found = session([LATER, LATER, batch(1, 2), LATER, batch(3, 4)])
    found.client.durable = 6
    assert offsets(log(found, Share(0, 1, 6), requestTimeoutMs="30000", numRetries="300")) == [1, 2, 3, 4, 5, 6]
    assert found.client.asked == [1]


def test_a_node_that_does_not_say_how_far_it_is_is_left_for_another(session):
    found = session([None], [batch(1, 6)])
    found.client.durable = Unavailable("gone")
    assert offsets(log(found, Share(0, 1, 6), requestTimeoutMs="200")) == [1, 2, 3, 4, 5, 6]
    assert found.client.asked == [1, 1]


def test_a_node_that_comes_to_a_stand_on_the_way_is_asked_for_what_is_still_to_come(session):
    found = session([batch(1, 4), None], [batch(5, 2)])
    found.client.durable = 4
    assert offsets(log(found, Share(0, 1, 6), requestTimeoutMs="200")) == [1, 2, 3, 4, 5, 6]
    assert found.client.asked == [1, 5]


def test_a_node_that_was_named_is_waited_for_however_far_it_is(session):
    found = session([None])
    with pytest.raises(DeadlineExceeded, match="no record after offset 0 came"):
        list(log(found, Share(0, 1, 6), requestTimeoutMs="200", node="n1"))
    assert found.client.asked == [1]
    assert found.client.looks.empty()


def test_a_reader_that_is_left_half_way_ends_its_stream(session):
    found = session([batch(k) for k in range(1, 100)] + [None])
    reading = log(found, Share(0, 1, 1000))
    next(reading)
    reading.close()
    found.run(lambda _: asyncio.sleep(0))
    assert found.client.closed == 1


def test_a_stream_that_the_collector_finds_on_the_sessions_own_thread_ends_too(session):
    found = session([batch(1), None])
    held = [found.prefetch(lambda client: client.tail(0, start=1), size=lambda _: 1, bytes_max=9)]
    next(held[0])

    async def collected():
        held.clear()  # as the collector may, with whatever is in a cycle

    found.start(lambda _: collected()).result(10)
    while not found.client.closed:
        found.start(lambda _: asyncio.sleep(0)).result(10)


def test_no_more_is_fetched_than_there_is_room_for(session):
    found = session([batch(k, size=10_000) for k in range(1, 1000)])
    reading = found.prefetch(
        lambda c: c.tail(0, start=1), size=lambda b: b.records.nbytes, bytes_max=100_000, timeout=2
    )
    taken = len(next(reading))
    while found.client.given < taken + 10:
        found.run(lambda _: asyncio.sleep(0))
    for _ in range(50):
        found.run(lambda _: asyncio.sleep(0))
    assert found.client.given <= taken + 11
    assert taken + sum(map(len, reading)) == 999


def test_only_batches_of_the_global_offsets_that_were_asked_for_are_read(session):
    found = session([batch(1, 3, global_index=10), batch(4, 3, global_index=11), batch(7, 3, global_index=12)])
    assert offsets(log(found, Share(0, 1, 9), Span(11, 11))) == [4, 5, 6]


@pytest.mark.parametrize("go_on", [{}, {"failOnDataLoss": "false"}], ids=["fails", "goes-on"])
def test_what_is_void_and_of_no_global_offset_that_was_asked_for_is_no_loss(session, go_on, caplog):
    """The query failed, though all that it asked for was there."""
    before, behind = Voided.of(0, 1, 3, 2), Voided.of(0, 7, 8, 14)
    found = session([before], [batch(4, 3, global_index=11), behind], [batch(9, global_index=15)])
    assert offsets(log(found, Share(0, 1, 9), Span(10, 13), **go_on)) == [4, 5, 6]
    assert found.client.asked == [1, 4, 9]
    assert not caplog.text


def test_what_is_void_and_was_asked_for_by_its_global_offset_is_a_loss(session):
    within = Voided.of(0, 7, 8, 13)
    with pytest.raises(Voided):
        list(log(session([batch(4, 3, global_index=11), within]), Share(0, 4, 9), Span(10, 13)))
    unsaid = Voided("void", partition_id=0, first_index=4, last_index=6, next=7)
    with pytest.raises(Voided):
        list(log(session([unsaid]), Share(0, 4, 9), Span(10, 13)))


def test_behind_the_last_global_offset_nothing_is_read(session):
    """Nor missed: what was removed or lost there failed the query."""
    found = session([batch(1, 3, global_index=10), batch(4, 3, global_index=12), Voided.of(0, 7, 9, 13)])
    assert offsets(log(found, Share(0, 1, 99), Span(1, 11))) == [1, 2, 3]
    assert len(found.client.asked) == 1


# -- in global order


BOTH = (Share(0, 1, 3), Share(1, 1, 2))
A, B, C = batch(1, 2, global_index=4), batch(1, 2, partition=1, global_index=6), batch(3, 1, global_index=9)


def test_a_node_that_is_behind_is_asked_again_from_there(session):
    found = session([A], [], [B, C])
    assert [c.num_rows for c in merged(found, BOTH, 1, 9)] == [2, 3]
    assert found.client.asked == [1, 5, 5]


def test_a_range_ends_with_the_first_batch_behind_it(session):
    found = session([A, B, C, None])
    assert [(c["partition"].to_pylist(), c["offset"].to_pylist()) for c in merged(found, BOTH, 4, 7)] == [
        ([0, 0, 1, 1], [1, 2, 1, 2])
    ]


def test_a_batch_that_is_missing_in_the_middle_is_noticed(session):
    with pytest.raises(CorruptData, match="offset 3 came after 1"):
        list(merged(session([batch(1, global_index=4), C]), BOTH, 1, 9))
    found = merged(session([batch(1, global_index=4), C]), BOTH, 1, 9, failOnDataLoss="false")
    assert offsets(found) == [1, 3], "as where a batch was declared void"


def test_what_was_declared_void_is_missed_wherever_a_task_begins_or_ends(session, caplog):
    """Between two tasks neither saw it: one ends in front of it, and the other does not know where it should begin."""
    first, last = Voided.of(0, 3, 4, 5), Voided.of(1, 3, 3, 7)
    parts, later = (Share(0, 1, 9), Share(1, 1, 9)), batch(5, global_index=8)
    for low, high in ((5, 8), (5, 5), (7, 7), (1, 7)):
        found = session([*([A] if low == 1 else []), first, B, last, later, None])
        with pytest.raises(Voided, match="lost on all nodes and declared void"):
            list(merged(found, parts, low, high))
        assert len(found.client.asked) == 1, "it is not tried again"
    assert offsets(merged(session([B, last, later]), parts, 6, 6)) == [1, 2], "it is another task's"
    found = session([first, B, Unavailable("gone")], [last, later])
    assert offsets(merged(found, parts, 5, 8, failOnDataLoss="false")) == [1, 2, 5]
    assert found.client.asked == [5, 7]
    assert "partition 0: 2 records from offset 3 on are gone" in caplog.text
    assert caplog.text.count("are gone") == 2, "each once"
    # What is void and not asked for is not missed.
    assert offsets(merged(session([first, B, None]), (Share(0, 5, 9), Share(1, 1, 9)), 5, 6)) == [1, 2]
    found = session([A, first, B, last, batch(5, global_index=9)])
    assert offsets(merged(found, (Share(0, 1, 2), Share(1, 1, 2)), 1, 9)) == [1, 2, 1, 2]


def test_a_beginning_that_is_gone_is_noticed(session, caplog):
    with pytest.raises(IndexCompacted, match="offset 1 is gone, 3 is the first"):
        list(merged(session([B, C]), BOTH, 1, 9))
    assert offsets(merged(session([B, C]), BOTH, 1, 9, failOnDataLoss="false")) == [1, 2, 3]
    assert "2 records from offset 1 on are gone" in caplog.text


def test_of_a_partition_destroyed_on_the_way_the_global_order_goes_on_without_it(session, caplog):
    """Where the range ended with it, nobody would ever see that end."""
    gone = PartitionDestroyed("partition 1 was destroyed", partition_id=1)
    with pytest.raises(PartitionDestroyed):
        list(merged(session([A, gone]), BOTH, 1, 9))
    # Asked meanwhile: the end of what is left.
    ended = batch(3, global_index=9)
    assert offsets(merged(session([A, B, gone], [ended], [C]), BOTH, 1, 9, failOnDataLoss="false")) == [1, 2, 1, 2, 3]
    assert "partition 1 was destroyed; it was read up to offset 2" in caplog.text
    last = (Share(0, 1, 2), Share(1, 1, 3))
    assert offsets(merged(session([A, gone], [A]), last, 1, 9, failOnDataLoss="false")) == [1, 2], "all that is left"
    found = session([A, gone], [PartitionDestroyed("0, too", partition_id=0)])
    assert offsets(merged(found, BOTH, 1, 9, failOnDataLoss="false")) == [1, 2]
    assert offsets(merged(session([gone], [A]), last, 5, 9, failOnDataLoss="false")) == []


def test_logs_that_begin_at_different_places_are_read_from_there(session, caplog):
    """Of one everything in front of 9 was removed before the query, of the other nothing."""
    parts, later = (Share(0, 3, 3), Share(1, 1, 2)), IndexCompacted("9 is the first", first=9)
    assert offsets(merged(session([B, C]), parts, 1, 9)) == [1, 2, 3]
    found = session([later], [A, B, C])
    assert offsets(merged(found, BOTH, 5, 9)) == [1, 2, 3], "behind 5: not the first of the partitions"
    assert found.client.asked == [5, 0]
    found = session([A, later], [A, B, C])
    assert offsets(merged(found, BOTH, 2, 9)) == [1, 2, 1, 2, 3], "nothing twice"
    assert found.client.asked == [2, 0]
    with pytest.raises(IndexCompacted, match="partition 0: offset 1 is gone"):
        list(merged(session([later], [B, C]), BOTH, 5, 9))
    assert not caplog.text


def test_a_scan_that_is_silent_is_an_error_that_says_so(session):
    with pytest.raises(DeadlineExceeded, match="in global order: no record after offset 4"):
        list(merged(session([A, None]), BOTH, 1, 9, requestTimeoutMs="100", numRetries="0"))


def test_a_node_that_stays_behind_is_an_error(session):
    with pytest.raises(DeadlineExceeded, match="in global order"):
        list(merged(session(*[[]] * 100), BOTH, 1, 9, requestTimeoutMs="100"))


def test_a_log_that_ends_in_a_void_is_read_up_to_it(session):
    gap = Voided("void", partition_id=0, first_index=2, last_index=3, next=4)
    parts = (Share(0, 1, 3),)
    with pytest.raises(Voided):
        _last_held(parts, read_options(E), session([gap]))
    shorter, ends = _last_held(parts, read_options({**E, "failOnDataLoss": "false"}), session([gap], [A]))
    assert shorter == (Share(0, 1, 1),)
    assert int(ends[0].global_index) == 4
