"""Planning against a client that knows how far logs go and where they begin."""

import asyncio

import pytest

from logboom.errors import (
    DeadlineExceeded,
    IndexCompacted,
    InvalidRequest,
    NoSuchPartition,
    QuotaExceeded,
    Unavailable,
    Voided,
)
from logboom.spark import times
from logboom.spark.options import read_options
from logboom.spark.shares import Merged, Share, Span, first_batches, log_shares, merged_shares
from logboom.spark.times import offsets_from
from tests.unit.spark.read_world import Local
from tests.unit.spark.shares_world import Client, E


class Slow(Client):
    """What comes next in partition 1 is still to come."""

    def __init__(self):
        super().__init__()
        self.open = 0

    async def tail(self, partition, **how):
        self.open += 1
        try:
            if partition == 1:
                await asyncio.Event().wait()
            async for batch in super().tail(partition, **how):
                yield batch
        finally:
            self.open -= 1


class Behind(Client):
    """Who is asked first has nothing of the logs yet; then others have their turn, as many as there are."""

    def __init__(self, others):
        super().__init__()
        self.others = others
        self.asked = 0

    async def tail(self, partition, **how):
        self.asked += 1
        if self.asked > 1 and self.others:
            async for batch in super().tail(partition, **how):
                yield batch


@pytest.fixture
def behind():
    made = []

    def make(others):
        made.append(Local(Behind(others)))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.mark.parametrize("ordered", ["partition", "global"])
def test_a_node_that_is_behind_does_not_say_where_a_log_begins(behind, ordered):
    """It has nothing of it, and what all others have removed was taken for there."""
    planned = plan(behind(others=True), partitions="0", ordered=ordered)
    assert planned == ([Merged(Span(500, 990), (Share(0, 50, 99),))] if ordered == "global" else [Share(0, 50, 99)])


def test_a_log_of_which_nobody_says_where_it_begins_is_an_error(behind):
    found = behind(others=False)
    found.client.timeout = 0.2
    with pytest.raises(DeadlineExceeded, match="not all of 1 logs"):
        plan(found, partitions="0")
    assert found.client.asked > 1
    named = behind(others=False)
    assert plan(named, partitions="0", node="n1") == [Share(0, 1, 99)], "it is asked alone, and waited for by the task"
    assert named.client.asked == 1


def test_probes_end_when_one_of_them_fails():
    """They stayed open at the node, for as long as the session."""
    found = Local(Slow())
    try:
        with pytest.raises(IndexCompacted):
            first_batches(found, {0: 1, 1: 10, 2: 1}, node=None, follow=True)
        assert found.client.open == 0
    finally:
        found.end()


class Turns(Client):
    """Of three nodes that are asked in turn the first is far behind, or its disk hangs."""

    timeout = 5.0

    def __init__(self):
        super().__init__()
        self.asked = self.waiting = 0

    async def tail(self, partition, *, follow, node=None, **how):
        self.asked += 1
        if node is not None or self.asked % 3 == 1:
            self.waiting += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting -= 1
        async for batch in super().tail(partition, **how):
            yield batch


@pytest.mark.parametrize(
    "how", [{}, {"ordered": "global"}, {"ordered": "global", "startingOffsets": '{"0": 60, "1": 3}'}]
)
def test_whoever_says_nothing_keeps_no_query_from_being_planned(how, monkeypatch):
    """A third of the logs was waited for until the time was over, again and again."""
    monkeypatch.setattr(times, "ANSWERED_S", 0.05)
    found = Local(Turns())
    try:
        parts = [Share(0, 60, 99), Share(1, 3, 9)] if "startingOffsets" in how else [Share(0, 50, 99), Share(1, 1, 9)]
        planned = plan(found, **how)
        assert (list(planned[0].parts) if "ordered" in how else planned) == parts
        assert found.client.waiting == 0
    finally:
        found.end()


class Refusing(Client):
    """Some are refused, again and again; who has the time of the client waits for ever, as that does."""

    def __init__(self, error, *, times):
        super().__init__()
        self.error, self.times = error, times

    async def tail(self, partition, *, timeout=None, **how):
        if partition == 1 and self.times:
            if timeout is None:
                await asyncio.Event().wait()
            self.times -= 1
            raise self.error
        async for batch in super().tail(partition, **how):
            yield batch


@pytest.mark.parametrize("error", [Unavailable("still recovering"), QuotaExceeded("not so many", limit="x")])
def test_why_some_do_not_answer_is_said(error):
    """They were cut off before their client gave up, and nobody knew why."""
    found = Local(Refusing(error, times=10**9))
    found.client.timeout = 0.3
    try:
        with pytest.raises(type(error), match=f"not all of 2 logs answered in time: {error.message}") as caught:
            first_batches(found, {0: 60, 1: 3}, node=None, follow=True)
        assert caught.value.fields == error.fields
    finally:
        found.end()


def test_whoever_is_refused_for_a_while_is_asked_again(monkeypatch):
    monkeypatch.setattr(times, "ANSWERED_S", 0.01)
    found = Local(Refusing(Unavailable("still recovering"), times=3))
    try:
        assert first_batches(found, {1: 3}, node=None, follow=True) == {1: (3, 30)}
        assert found.client.times == 0
    finally:
        found.end()


class Slowly(Client):
    """Each answer takes three tenths of the client's time, by the loop's clock."""

    late = 0.0

    async def with_its_clock(self):
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + self.late

    async def tail(self, partition, **how):
        self.late += 0.3 * self.timeout
        for _ in range(5):
            await asyncio.sleep(0)
        async for batch in super().tail(partition, **how):
            yield batch


def test_many_logs_may_take_longer_than_one_as_long_as_some_answer(monkeypatch):
    """With a node whose disk hangs a few hundred of them were too many, though each was answered."""
    monkeypatch.setattr(times, "PROBES_MAX", 1)
    found = Local(Slowly())
    found.client.timeout = 60.0
    found.run(Slowly.with_its_clock)
    try:
        many = range(10, 20)
        found.client.held |= dict.fromkeys(many, (1, 9))
        assert first_batches(found, dict.fromkeys(many, 3), node="n1", follow=True).keys() == set(many)
        assert offsets_from(5_000, dict.fromkeys(many, 9), found, node="n1") == dict.fromkeys(many, 5)
        assert found.client.late > 8 * found.client.timeout
    finally:
        found.end()


def test_but_one_that_was_named_is_waited_for():
    found = Local(Turns())
    found.client.timeout = 0.2
    try:
        with pytest.raises(DeadlineExceeded, match="not all of 1 logs"):
            first_batches(found, {0: 60}, node="n1", follow=True)
        assert (found.client.asked, found.client.waiting) == (1, 0)
    finally:
        found.end()


@pytest.fixture
def session():
    found = Local(Client())
    yield found
    found.end()


def plan(session, **options):
    asked = read_options({**E, **options})
    planner = merged_shares if asked.ordered == "global" else log_shares
    return planner(asked, session)


def test_the_earliest_record_is_the_first_that_is_held(session):
    assert plan(session) == [Share(0, 50, 99), Share(1, 1, 9)]


@pytest.mark.parametrize("node", [{}, {"node": "n1"}])
def test_a_partition_that_is_being_opened_is_not_left_out(session, node):
    """Whoever leads since a moment ago was asked for all that it had, and the rest was missing without a word."""
    session.client.opening = {1}
    assert plan(session, **node) == [Share(0, 50, 99), Share(1, 1, 9)]


@pytest.mark.parametrize("node", [{}, {"node": "n1"}])
def test_one_that_cannot_be_shown_keeps_nobody_from_the_others(session, node):
    session.client.stand = {0}
    assert plan(session, partitions="1,2", **node) == [Share(1, 1, 9)]
    for options in ({}, {"partitions": "0,1"}):
        with pytest.raises(Unavailable):
            plan(session, **options, **node)
    with pytest.raises(NoSuchPartition, match="partition 9 does not exist; this cluster has 0-2") as caught:
        plan(session, partitions="1,9", **node)
    assert caught.value.fields["partitions"] == 3
    with pytest.raises(NoSuchPartition):
        plan(session, partitions="9", **node)


def test_one_that_is_destroyed_while_the_others_are_asked_for_is_none(session):
    session.client.destroyed = {0}
    assert plan(session) == [Share(1, 1, 9)]


def test_times_are_offsets_once_a_query_is_planned(session):
    assert plan(session, startingTimestamp="60000") == [Share(0, 60, 99)]
    assert plan(session, startingTimestamp="8500", endingTimestamp="60000") == [Share(0, 50, 59), Share(1, 9, 9)]
    assert plan(session, startingTimestamp="1970-01-01T00:01:30.001Z") == [Share(0, 91, 99)]
    assert plan(session, endingTimestamp="1970-01-01T01:00:09+01:00") == [Share(1, 1, 8)]
    assert plan(session, startingTimestamp="99001") == []
    assert plan(session, startingOffsets='{"0": 70}', endingTimestamp="80000", partitions="0") == [Share(0, 70, 79)]


def test_a_log_that_begins_with_what_was_declared_void_begins_there(session):
    """Its task says so: the earliest record that is held lies behind it, and nobody would know."""
    session.client.held[1], session.client.voids[1] = (3, 9), Voided.of(1, 1, 2, 10)
    assert plan(session, partitions="1") == [Share(1, 1, 9)]
    assert plan(session, partitions="1", ordered="global") == [Merged(Span(1, 90), (Share(1, 1, 9),))]


def test_a_log_is_read_from_the_global_offset_on_that_is_asked_for(session):
    """It was read from its first record on, and the query failed if that was gone meanwhile, or one of those void."""
    assert plan(session, startingGlobalOffset="600") == [Share(0, 60, 99)], "of 1 there is nothing as late"
    assert plan(session, startingGlobalOffset="31", partitions="1") == [Share(1, 4, 9)]
    assert plan(session, startingGlobalOffset="991") == []
    session.client.voids[1] = Voided.of(1, 4, 5, 40)
    assert plan(session, startingGlobalOffset="31", partitions="1") == [Share(1, 4, 9)], "its task says so"
    assert plan(session, startingGlobalOffset="51", partitions="1") == [Share(1, 6, 9)]
    named = {"startingOffsets": '{"0": 7, "1": -2}', "startingGlobalOffset": "51"}
    assert plan(session, **named) == [Share(0, 7, 99), Share(1, 6, 9)], "an offset is taken at its word"


def test_where_something_from_a_global_offset_on_was_removed_a_log_begins_with_what_is_held(session):
    assert plan(session, startingGlobalOffset="31") == [Share(0, 50, 99), Share(1, 4, 9)]


def test_whoever_is_behind_does_not_say_that_there_is_nothing_from_a_global_offset_on(behind):
    found = behind(others=True)
    assert plan(found, startingGlobalOffset="600", partitions="0") == [Share(0, 50, 99)]
    named = behind(others=False)
    assert plan(named, startingGlobalOffset="600", partitions="0", node="n1") == [Share(0, 1, 99)]


def test_a_log_of_which_all_was_removed_has_nothing_to_read(session):
    session.client.held[0] = (100, 99)
    assert plan(session) == [Share(1, 1, 9)]


def test_offsets_that_are_named_are_taken_at_their_word(session):
    # What is gone of them is for the task to say.
    assert plan(session, startingOffsets='{"0": 7}', partitions="0") == [Share(0, 7, 99)]
    assert plan(session, startingOffsets="latest") == []
    assert plan(session, endingOffsets='{"0": 60, "1": 1}') == [Share(0, 50, 59)]
    with pytest.raises(NoSuchPartition):
        plan(session, partitions="0,9")


def test_global_order_ends_with_the_last_batch_of_all(session):
    parts = (Share(0, 50, 99), Share(1, 1, 9))
    assert plan(session, ordered="global") == [Merged(Span(10, 990), parts)]
    ranges = plan(session, ordered="global", minPartitions="4", startingGlobalOffset="11", endingGlobalOffset="50")
    assert [m.span for m in ranges] == [Span(11, 20), Span(21, 30), Span(31, 40), Span(41, 50)]
    assert plan(session, ordered="global", partitions="2") == []


def test_what_lies_in_front_of_where_a_query_begins_is_not_read_in_global_order(session):
    """Whole logs were, and with several tasks all but one of them found nothing."""
    named = {"ordered": "global", "startingOffsets": '{"0": 90, "1": 9}'}
    parts = (Share(0, 90, 99), Share(1, 9, 9))
    assert plan(session, **named) == [Merged(Span(90, 990), parts)]
    assert [m.span for m in plan(session, **named, minPartitions="3")] == [
        Span(90, 389),
        Span(390, 689),
        Span(690, 990),
    ]
    assert plan(session, ordered="global", startingTimestamp="95000")[0].span == Span(950, 990)
    assert plan(session, **named, startingGlobalOffset="600")[0].span == Span(600, 990)
    removed = plan(session, ordered="global", partitions="0", minPartitions="2")
    assert [m.span for m in removed] == [Span(500, 744), Span(745, 990)], "so does what was removed"
    gone = plan(session, ordered="global", startingOffsets='{"0": 40, "1": 9}')
    assert gone[0].span == Span(1, 990), "it is for the task to say"


def test_offsets_that_a_log_does_not_have_are_an_error_not_fewer_rows(session):
    with pytest.raises(InvalidRequest, match="startingOffsets names 101 of partition 0, whose log ends at 99"):
        plan(session, startingOffsets='{"0": 101}')
    with pytest.raises(InvalidRequest, match="endingOffsets names 11 of partition 1, whose log ends at 9; failOnData"):
        plan(session, endingOffsets='{"1": 11}')
    assert plan(session, startingOffsets='{"0": 100}', endingOffsets='{"0": 100}', partitions="0") == []
    some = {"partitions": "1", "endingOffsets": '{"1": 11}'}
    assert plan(session, **some, failOnDataLoss="false") == [Share(1, 1, 9)]
    assert plan(session, **some, node="n1") == [Share(1, 1, 10)], "it may be behind: its task waits"
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidRequest, match="offsets of partition 1, which is none of the option partitions"):
            plan(session, **{name: '{"1": 5}'}, partitions="0")


def test_a_log_of_which_all_that_was_asked_for_is_gone_is_left_out_of_the_global_order_or_an_error(session, caplog):
    session.client.held[0] = (100, 99)
    named = {"ordered": "global", "startingOffsets": '{"0": 40}'}
    with pytest.raises(IndexCompacted):
        plan(session, **named)
    assert plan(session, **named, failOnDataLoss="false") == [Merged(Span(1, 90), (Share(1, 1, 9),))]
    assert "partition 0: all 60 records from offset 40 on are gone" in caplog.text
    assert plan(session, **named, partitions="0", failOnDataLoss="false") == []
