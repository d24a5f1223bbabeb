"""Reading in global order where no node has all that the others have: of each log from whoever has it."""

import asyncio
import itertools
import time
from types import SimpleNamespace

import pytest

from logboom.errors import DeadlineExceeded, IndexCompacted, PartitionDestroyed, Unavailable, Voided
from logboom.spark import read, times
from logboom.spark.shares import Share
from tests.unit.spark.read_world import Client, Local, batch, merged, offsets

BOTH = (Share(0, 1, 3), Share(1, 1, 3))
A, B, C, D = (
    batch(1, 2, global_index=4),
    batch(1, 2, partition=1, global_index=6),
    batch(3, partition=1, global_index=7),
    batch(3, global_index=9),
)
SCATTERED = {"n:1": {0: (3, 5, 9)}, "n:2": {1: (3, 6, 9)}, "n:3": {0: (4, 9, 9), 1: (3, 6, 9)}}
"""The second alone has the first batch of 0, and the first alone that of 1."""
GO_ON = {"failOnDataLoss": "false"}


class Any(Client):
    """``logs``: by partition what any of its nodes gives: batches, what is void, errors once, or what happens then."""

    def __init__(self, logs):
        super().__init__()
        self.nodes = {f"n{k}": f"n:{k}" for k in (1, 2, 3)}
        self.held = dict(SCATTERED)
        self.logs = {partition: list(items) for partition, items in logs.items()}
        self.open = self.turns = 0
        self.looking = self.looking_most = 0
        """So many have not said anything yet; at most."""
        self.refusing = None
        """What whoever follows is refused with, who does not wait for ever."""
        self.whole = None
        """What a node gives where its logs begin."""
        self.hanging = 0
        """So many of the next that follow are asked of one that says nothing."""

    def tail(self, partition_id, *, start=0, start_global=0, follow=True, on_void=None, node=None, **how):
        if node is not None:
            return super().tail(partition_id, start=start, start_global=start_global, follow=follow, node=node)
        return self._any(partition_id, start, start_global, follow, on_void, **how)

    async def _any(self, partition, start, start_global, follow, on_void, *, timeout=None, **_):
        self.open += 1
        self.looking += follow
        self.looking_most = max(self.looking_most, self.looking)
        try:
            try:
                await asyncio.sleep(0)
            finally:
                self.looking -= follow
            if follow and timeout is not None and self.refusing is not None:
                raise self.refusing
            if follow and self.hanging:
                self.hanging -= 1
                await asyncio.Event().wait()
            items, least = self.logs[partition], min(held.get(partition, (1, 0))[:2] for held in self.held.values())
            if 0 < start < least[0] or 0 < start_global <= least[1]:
                raise IndexCompacted("gone from all nodes", first=least[0])
            for item in list(items):
                if isinstance(item, Voided) or not isinstance(item, Exception):
                    if item.last_index < start or item.global_index < start_global:
                        continue
                else:
                    items.remove(item)
                    raise item
                if isinstance(item, Voided):
                    on_void(item)
                yield item
            if follow:
                await asyncio.Event().wait()
        finally:
            self.open -= 1

    def scan_log(self, partitions, **how):
        self.scanned.append((how["node"], list(partitions)))
        if self.whole is not None and not how["start_global"]:
            return self._stream(self.whole)
        return self._stream([IndexCompacted("another index is the first", first=12)])


@pytest.fixture
def any_of():
    made = []

    def make(*logs):
        made.append(Local(Any(dict(enumerate(logs)))))
        return made[-1]

    yield make
    for each in made:
        for _ in range(100):
            each.run(lambda _: asyncio.sleep(0))
        assert each.client.open == 0, "a stream stays open at a node"
        each.end()


@pytest.mark.parametrize("go_on", [{}, GO_ON], ids=["fails", "goes-on"])
def test_each_log_is_read_from_whoever_has_it(any_of, go_on, caplog):
    """It was an error, or what the one that had most did not have was left out, though others had it."""
    found = any_of([A, D], [B, C])
    assert offsets(merged(found, BOTH, 1, 9, **go_on)) == [1, 2, 1, 2, 3, 3]
    assert not caplog.text


def test_a_range_is_read_to_its_end_and_no_further(any_of):
    logs = [A, D, batch(4, global_index=12)], [B, C, batch(4, partition=1, global_index=11)]
    parts = (Share(0, 1, 4), Share(1, 1, 4))
    assert offsets(merged(any_of(*logs), parts, 1, 7)) == [1, 2, 1, 2, 3]
    found = any_of(*logs)
    found.client.held = {"n:1": {0: (4, 9, 9)}, "n:2": {1: (3, 6, 9)}, "n:3": {0: (4, 9, 9), 1: (4, 7, 9)}}
    assert offsets(merged(found, parts, 5, 9)) == [1, 2, 3, 3], "what lies in front is another task's"


def test_a_log_of_which_nothing_is_left_in_a_range_is_not_waited_for(any_of):
    found = any_of([A, D], [B, C], [batch(1, partition=2, global_index=2)])
    assert offsets(merged(found, (*BOTH, Share(2, 1, 1)), 3, 9)) == [1, 2, 1, 2, 3, 3]


def test_what_was_declared_void_has_its_place(any_of, caplog):
    first, last = Voided.of(1, 1, 2, 6), Voided.of(0, 3, 3, 9)
    found = any_of([A, last], [first, C])
    reading = merged(found, BOTH, 1, 9)
    with pytest.raises(Voided, match="partition 1: the batch from 1 to 2"):
        list(reading)
    assert offsets(merged(any_of([A, last], [first, C]), BOTH, 1, 9, **GO_ON)) == [1, 2, 3]
    assert "partition 1: 2 records from offset 1 on are gone" in caplog.text
    assert "partition 0: 1 records from offset 3 on are gone" in caplog.text
    unsaid = Voided("void", partition_id=1, first_index=1, last_index=2)
    unsaid.global_index = 6
    with pytest.raises(Voided, match="void"):
        list(merged(any_of([A, D], [unsaid, C]), BOTH, 1, 9, **GO_ON))


def test_after_a_failure_it_goes_on_where_it_was(any_of):
    found = any_of([A, Unavailable("gone"), D], [B, C])
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3, 3]
    assert len(found.client.scanned) == 1, "of a log that has said something its tail has all of the time once more"
    found = any_of([A, Unavailable("gone"), Unavailable("still gone"), D], [B, C])
    found.client.held["n:1"] = {0: (4, 9, 9)}
    assert offsets(merged(found, BOTH, 1, 9)) == [1, 2, 1, 2, 3, 3]
    assert len(found.client.scanned) == 2


def test_what_is_lost_on_all_nodes_meanwhile_is_said(any_of, caplog):
    def lost():
        found = any_of([D], [B, C])
        found.client.held["n:2"] = {0: (3, 5, 9), 1: (3, 6, 9)}
        return found

    with pytest.raises(IndexCompacted, match="partition 0: offset 1 is gone, 3 is the first"):
        list(merged(lost(), BOTH, 1, 9))
    found = lost()
    found.client.held["n:3"], found.client.held["n:1"] = {1: (3, 6, 9), 0: (3, 5, 9)}, {0: (4, 9, 9)}
    assert offsets(merged(found, BOTH, 1, 9, **GO_ON)) == [1, 2, 3, 3]
    assert "partition 0: 2 records from offset 1 on are gone" in caplog.text


def test_one_that_is_destroyed_is_left_out(any_of):
    gone = PartitionDestroyed("partition 1 was destroyed", partition_id=1)
    with pytest.raises(PartitionDestroyed):
        list(merged(any_of([A, D], [gone]), BOTH, 1, 9))
    found = any_of([A, D], [gone])
    found.client.whole = [A, D]  # of 0 alone the second has all
    assert offsets(merged(found, BOTH, 1, 9, **GO_ON)) == [1, 2, 3]


def test_whoever_says_nothing_is_left_for_another(any_of, monkeypatch):
    monkeypatch.setattr(times, "ANSWERED_S", 0.05)
    found = any_of([A, D], [B, C])
    found.client.hanging = 2
    assert offsets(merged(found, BOTH, 1, 9, numRetries="0")) == [1, 2, 1, 2, 3, 3]
    found = any_of([A], [B, C])  # nobody knows whether something of 0 comes in front of B
    with pytest.raises(DeadlineExceeded, match="in global order: no record after offset 4"):
        list(merged(found, BOTH, 1, 9, numRetries="0", requestTimeoutMs="2000"))


def test_there_is_a_limit_to_how_many_logs_are_read_like_that(any_of, monkeypatch, caplog):
    monkeypatch.setattr(read, "APART_MAX", 1)
    with pytest.raises(IndexCompacted, match="partition 1: n:2 holds most of these logs, this one from offset 3 on"):
        list(merged(any_of([A, D], [B, C]), BOTH, 1, 9))


def test_there_is_one_to_how_much_of_them_is_held(any_of, monkeypatch, caplog):
    """Of each a batch is, however large: of 256 logs it was a gigabyte, whatever fetchBytes said."""
    monkeypatch.setattr(read, "HELD_MIN", (A.records.nbytes + B.records.nbytes) - 1)
    monkeypatch.setattr(read, "HELD_FETCHES", 0)
    with pytest.raises(IndexCompacted, match=r"partition 1: n:2 holds most .* or too large batches"):
        list(merged(any_of([A, D], [B, C]), BOTH, 1, 9))
    found = any_of([A, D], [B, C])
    found.client.whole = [A, C, D]
    assert offsets(merged(found, BOTH, 1, 9, **GO_ON)) == [1, 2, 3, 3]
    assert "partition 1: 2 records from offset 1 on are gone" in caplog.text
    monkeypatch.setattr(read, "HELD_MIN", A.records.nbytes + B.records.nbytes)
    assert offsets(merged(any_of([A, D], [B, C]), BOTH, 1, 9)) == [1, 2, 1, 2, 3, 3]


def test_a_few_are_asked_at_once_where_they_begin(any_of):
    """All were, for a batch each, in the time of a glance; and were cancelled, and asked again."""
    count = 3 * times.PROBES_MAX
    found = any_of(*([batch(1, partition=p, global_index=p + 1)] for p in range(count)))
    found.client.held = {"n:1": {0: (2, 1, 1)}, "n:2": {1: (2, 2, 1)}, "n:3": {0: (2, 1, 1)}}
    assert len(offsets(merged(found, [Share(p, 1, 1) for p in range(count)], 1, count))) == count
    assert found.client.looking_most == times.PROBES_MAX


def test_why_some_do_not_say_where_they_begin_is_said(any_of):
    found = any_of([A, D], [B, C])
    found.client.timeout, found.client.refusing = 0.2, Unavailable("still recovering")
    with pytest.raises(Unavailable, match="not all of 2 logs answered in time: still recovering"):
        list(merged(found, BOTH, 1, 9, numRetries="0", requestTimeoutMs="20000"))
    found.client.refusing, found.client.hanging = None, 10**9
    with pytest.raises(DeadlineExceeded, match=r"up to 9 were committed; not all of 2 logs answered in time"):
        list(merged(found, BOTH, 1, 9, numRetries="0", requestTimeoutMs="20000"))


def test_and_where_it_is_tried_again_until_the_time_is_up(any_of, monkeypatch):
    """With so many retries the end of the time came first, and said no more than that nothing had come."""
    found = any_of([A, D], [B, C])
    found.client.timeout, found.client.refusing = 0.2, Unavailable("still recovering")
    passing = SimpleNamespace(monotonic=itertools.count(0, 15).__next__, sleep=time.sleep)
    monkeypatch.setattr(read, "time", passing)  # a request has 20 s
    with pytest.raises(DeadlineExceeded, match=r"up to 9 were committed; not all of 2 logs .* time: still recovering"):
        list(merged(found, BOTH, 1, 9, requestTimeoutMs="20000"))
