"""Offsets by time, of two nodes that have removed what each has."""

import asyncio

import pytest

from logboom.client.reads import LogBatch
from logboom.errors import DeadlineExceeded, IndexCompacted, Voided
from logboom.records import RecordBlock
from logboom.spark import times
from logboom.spark.times import offsets_from
from tests.unit.spark.read_world import Local


class Client:
    """Partition 0 has batches of two records each, at 1, 3, 5, ...; ``times`` are theirs, None is void.

    ``begins``: where each node's log begins. Whoever asks by time gets the first node's answer, as it knows no better.
    """

    def __init__(self, times, begins=(1,)):
        self.times, self.begins, self.timeout, self.asked = times, begins, 0.3, 0

    async def close(self):
        pass

    async def tail(self, partition, *, start=0, start_time=0, follow, node, credit, on_void, timeout):
        assert follow
        assert credit == 1
        assert (timeout is None) == (node is not None), "why it has none is told while there is time for it"
        self.asked += 1
        if start:
            holding = [b for b in self.begins if b <= start] if node is None else [self.begins[0]]
            if not holding or start < holding[0]:
                raise IndexCompacted("gone from all nodes", first=min(self.begins))
            position = (start - 1) // 2
        else:
            position, end = (self.begins[0] - 1) // 2, len(self.times)
            while position < end and self.times[position] is not None and self.times[position] < start_time:
                position += 1
        if position >= len(self.times):
            await asyncio.Event().wait()
        if self.times[position] is None:
            on_void(Voided("void", first_index=2 * position + 1, last_index=2 * position + 2))
        block = RecordBlock.from_columns(keys=None, payloads=[b"a", b"b"])
        yield LogBatch(partition, 2 * position + 1, 1 + position, 1, self.times[position], b"p" * 16, 0, 0, block)


def look(client, time_ms, *, last=None, node=None):
    session = Local(client)
    try:
        end = 2 * len(client.times) if last is None else last
        return offsets_from(time_ms, {0: end}, session, node=node)[0]
    finally:
        session.end()


@pytest.mark.parametrize(
    ("time_ms", "offset"), [(0, 1), (100, 1), (101, 3), (200, 3), (300, 5), (301, 9), (400, 9), (401, 11)]
)
def test_the_first_record_from_a_time_on_or_what_comes_next(time_ms, offset):
    assert look(Client([100, 200, 300, 300, 400]), time_ms) == offset


def test_a_log_without_records_is_not_asked():
    client = Client([])
    assert look(client, 5) == 1
    assert client.asked == 0
    assert offsets_from(None, {0: 7}, None, node=None) == {}


@pytest.mark.parametrize("begins", [(7, 1), (7, 3), (7, 5), (5, 7)])
def test_what_the_node_that_answers_has_removed_counts_if_another_has_it(begins):
    """It cannot know of it: a query would begin behind records that are there."""
    times = [100, 200, 300, 400, 500]
    held = min(begins)
    for time_ms, offset in [(1, 1), (150, 3), (250, 5), (350, 7), (450, 9)]:
        assert look(Client(times, begins), time_ms) == max(offset, held)


def test_of_one_node_alone_what_that_has_counts():
    assert look(Client([100, 200, 300], (3, 1)), 50, node="n1") == 3


def test_a_log_of_which_all_was_removed_has_nothing_from_any_time_on():
    assert look(Client([100, 200, 300], (7,)), 150, last=6) == 7


@pytest.mark.parametrize("times", [[100, None, 300], [100, 200, None]])
def test_what_was_declared_void_is_not_passed_over(times):
    """Nobody knows when it was: whoever reads from there is told, or goes on behind it if he says so."""
    assert look(Client(times), 150) == 3
    assert look(Client([100, 120, None]), 150) == 5


class Turns(Client):
    """The one that has every other turn is far behind, or its disk hangs."""

    async def tail(self, partition, **how):
        if self.asked % 2 == 0:
            self.asked += 1
            await asyncio.Event().wait()
        async for batch in super().tail(partition, **how):
            yield batch


def test_whoever_says_nothing_is_left_for_another(monkeypatch):
    """It was waited for until the time was over."""
    monkeypatch.setattr(times, "ANSWERED_S", 0.05)
    client = Turns([100, 200, 300, 400, 500])
    client.timeout = 5.0
    assert look(client, 150) == 3
    assert client.asked > 2
    named = Turns([100, 200])
    with pytest.raises(DeadlineExceeded, match="not all of 1 logs"):
        look(named, 150, node="n1")
    assert named.asked == 1


def test_a_log_that_does_not_answer_is_an_error():
    with pytest.raises(DeadlineExceeded, match="not all of 1 logs"):
        look(Client([100]), 50, last=99)
