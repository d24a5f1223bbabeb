"""What a tail can be asked for: positions, levels, filters, no data; and what it holds meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.reading.feeds import FeedRequest
from dispatcher.reading.tail import Tail
from logboom.client.log_batches import batches_of, metadata_of
from logboom.errors import CorruptData, IndexCompacted, InvalidRequest, PartitionDestroyed
from logboom.settings import ReadSettings
from logboom.types import Level, PartitionId, Record
from logboom.wire import Frame, Kind
from partitions.log.opening import LogBase
from tests.unit.dispatcher.reading_world import Client, World, indexes
from tests.unit.partitions.compaction_world import settle

ROOM = 1 << 30


def begin(world: World, client: Client, **header: Any) -> Tail:
    wanted = FeedRequest.parse({"credit": ROOM, **header})
    tail = Tail(world, PartitionId(0), wanted, **client.how())
    tail.move()
    return tail


def filled(count: int = 30, **how: Any) -> World:
    world = World(2, **how)
    for number in range(count):
        world.append(0, [b"%d-%d" % (number, k) for k in range(3)], at_ms=1000 * (number + 1))
    return world


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("header", "first"),
    [({}, 1), ({"start": 8}, 8), ({"start_global": 5}, 13), ({"start_time_ms": 10_500}, 31), ({"start": 91}, 91)],
)
async def test_positions(header: dict[str, int], first: int, whole: bool) -> None:
    world, client = filled(), Client()
    begin(world, client, whole=whole, **header)
    world.work()
    assert indexes(client) == list(range(first, 91))
    assert client.frames[-1][:2] == (Kind.END, {"next_index": 91})
    assert client.ends == [None]
    assert (world.read_budget.nbytes, world.read_budget.segments) == (0, 0)


@pytest.mark.parametrize("header", [{"start": 1, "start_global": 1}, {"level": "committed"}, {"key_prefix": b""},
    {"key_prefix": 3}, {"header": "h"}, {"header": ["h"]}, {"header": [b"h", b"v"]}, {"header": ["", None]},
    {"header": ["h", "v"]}, {"credit": -1}, {"start_time_ms": "now"}, {"records_max": -1}])  # fmt: skip
def test_what_makes_no_sense(header: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        FeedRequest.parse({"credit": 1, **header})


def test_a_position_ahead_begins_with_what_comes_there_and_nothing_in_front() -> None:
    world, client = filled(5), Client()
    begin(world, client, start_global=8, follow=True)
    for number in range(5):
        world.append(0, [b"more-%d" % number])
        world.work()
    assert indexes(client) == [18, 19, 20]


@pytest.mark.parametrize("level", [Level.DURABLE, Level.APPLIED])
@pytest.mark.parametrize("late", [False, True])
def test_nor_is_one_behind_what_nobody_has_waited_for(late: bool, level: Level) -> None:
    """Nothing comes there before that is void, and the tail said nothing of it."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    world.applied = {0: 1}
    if not late:
        world.append(0, [b"2"], is_lost=True)
    begin(world, client, start_global=3, follow=True, level=str(level))
    if late:
        assert client.ends == []
        world.append(0, [b"2"], is_lost=True)
        world.wake(0)
    (end,) = client.ends
    assert isinstance(end, CorruptData)
    assert end.fields["first_index"] == 2


@pytest.mark.parametrize("header", [{"start": 1}, {"start_global": 1}])
def test_a_position_that_was_removed(header: dict[str, int]) -> None:
    world, client = filled(), Client()
    gone = world.batches[0][19]
    settle(world.logs[0], LogBase(gone.last_index, gone.digest, 20))  # type: ignore[arg-type]
    begin(world, client, **header)
    world.work()
    (error,) = client.ends
    assert isinstance(error, IndexCompacted)
    assert error.first == world.logs[0].first_available_index > 1


def test_what_is_not_applied_is_not_shown_at_that_level() -> None:
    world, client = filled(4), Client()
    world.applied[0] = 6
    tail = begin(world, client, level=str(Level.APPLIED), follow=True)
    world.work()
    assert indexes(client) == list(range(1, 7))
    world.applied[0] = 12
    world.wake(0)
    world.work()
    assert indexes(client) == list(range(1, 13))
    tail.close()


def test_what_is_not_durable_is_not_shown() -> None:
    world, client = World(1), Client()  # the only one is write-behind
    world.append(0, [b"1"])
    world.append(0, [b"2"], sync=False)
    tail = begin(world, client, follow=True, whole=True)
    world.work()
    assert indexes(client) == [1]
    world.sync(0)
    world.wake(0)
    world.work()
    assert indexes(client) == [1, 2]
    tail.close()


async def test_a_time_to_come_is_waited_for() -> None:
    """Whatever came next was given, and the client took it for what it had asked for."""
    world, client = World(2), Client()
    tail = begin(world, client, follow=True, start_time_ms=10_500)
    world.work()
    for number in range(1, 5):
        world.append(0, [b"%d-%d" % (number, k) for k in range(3)], at_ms=1000 * number)
    world.work()
    for number in range(5, 11):
        world.append(0, [b"early"], at_ms=1000 * number)
        world.work()
    assert indexes(client) == []
    assert tail._lease.index == 19  # what it will never give may go
    for number in (11, 12):
        world.append(0, [b"%d" % number], at_ms=1000 * number)
        world.work()
    assert indexes(client) == [19, 20]
    tail.close()
    assert not any(world.wakers.values())


async def test_a_time_to_come_is_not_waited_for_behind_what_nobody_has() -> None:
    """It stood still without a word: nothing becomes durable any more."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    begin(world, client, follow=True, start_time_ms=10_500)
    world.work()
    assert client.ends == []
    gone = world.append(0, [b"2", b"3"], is_lost=True)
    world.append(0, [b"4"], at_ms=11_000)
    world.work()
    (end,) = client.ends
    assert isinstance(end, CorruptData)
    assert (end.first_index, end.last_index) == (2, gone.last_index)
    assert not any(world.wakers.values())


class TestFilters:
    def world(self) -> World:
        world = World(2)
        for number in range(6):
            rows = [
                Record(b"%d" % k, b"%s/%d" % (b"ab"[k % 2 : k % 2 + 1], k), (("n", b"%d" % number),)) for k in range(4)
            ]
            world.append(0, rows)
        for _ in range(3):
            world.append(0, [b"neither"])
        return world

    def test_by_key(self) -> None:
        world, client = self.world(), Client()
        begin(world, client, key_prefix=b"b/", whole=True)
        world.work()
        assert indexes(client) == [k for k in range(1, 25) if k % 2 == 0]
        skipped = client.of(Kind.SKIPPED)
        assert skipped[-1][0] == {"next_index": 28}  # whoever comes again need not read them again

    def test_by_header(self) -> None:
        world, client = self.world(), Client()
        begin(world, client, header=["n", b"4"])
        world.work()
        assert indexes(client) == [17, 18, 19, 20]

    def test_from_within_a_batch(self) -> None:
        world, client = self.world(), Client()
        begin(world, client, start=3, key_prefix=b"b/")
        world.work()
        assert indexes(client)[:3] == [4, 6, 8]

    def test_without_data(self) -> None:
        world, client = self.world(), Client()
        begin(world, client, metadata_only=True, start=2, key_prefix=b"b/")
        world.work()
        rows = [metadata_of(Frame(Kind.METADATA, 1, h, memoryview(b))) for h, b in client.of(Kind.METADATA)]
        assert not client.of(Kind.RECORDS)
        found = [(d.index, d.size) for row in rows for d in row.descriptors()]
        assert found == [(k, 1) for k in range(2, 25, 2)]
        assert rows[0].keys() == [b"b/1", b"b/3"]
        assert rows[0].headers() == [(("n", b"0"),)] * 2


class TestMemory:
    async def test_one_chunk_is_read_ahead_and_is_there_when_there_is_credit(self) -> None:
        world, client = filled(reads=ReadSettings(memory_bytes=1 << 20)), Client()
        tail = begin(world, client, credit=1, whole=True)
        world.work()
        assert indexes(client) == [1, 2, 3]
        assert world.read_budget.nbytes == world.batches[0][1].nbytes
        tail.add_credit(1000)
        assert len(indexes(client)) == 6  # without another read
        tail.close()
        world.work()
        assert world.read_budget.nbytes == 0

    async def test_nothing_is_read_ahead_while_others_need_the_memory(self) -> None:
        world, client = filled(reads=ReadSettings(memory_bytes=400)), Client()
        other = world.read_budget.ask(nbytes=300, segments=1, order=0, admitted=lambda: None)
        tail = begin(world, client, credit=1)
        assert not world.jobs  # it waits for its turn
        other.release()
        world.work()
        assert indexes(client) == [1, 2, 3]
        tail.close()

    async def test_what_is_read_ahead_goes_for_another_and_is_read_again(self) -> None:
        world, client = filled(reads=ReadSettings(memory_bytes=1000)), Client()
        tail = begin(world, client, credit=1)
        world.work()
        assert tail._chunk is not None
        other = world.read_budget.ask(nbytes=900, segments=1, order=0, admitted=lambda: None)
        assert other.held
        assert tail._chunk is None
        other.release()
        tail.add_credit(ROOM)
        while world.jobs:
            world.work()
            await asyncio.sleep(0)
        assert indexes(client) == list(range(1, 91))

    async def test_a_congested_connection_is_not_given_more(self) -> None:
        """Found by reading: many tails of one connection read at the same time, and it was cut for that."""
        world, client = filled(), Client()
        tail = begin(world, client, bytes_max=300)
        client.congested = True
        world.work()
        assert indexes(client) == []
        client.congested = False
        tail.move()
        while world.jobs:
            world.work()
        assert indexes(client) == list(range(1, 91))

    def test_limits_of_a_frame(self) -> None:
        world, client = filled(), Client()
        begin(world, client, whole=True, records_max=6)
        world.work()
        frames = [list(batches_of(Frame(Kind.BATCHES, 1, h, memoryview(b)))) for h, b in client.of(Kind.BATCHES)]
        assert max(sum(b.records.count for b in frame) for frame in frames) <= 9
        assert len(frames) >= 10


async def test_a_partition_that_is_destroyed_ends_who_follows_it() -> None:
    world, client = filled(3), Client()
    begin(world, client, follow=True)
    world.work()
    gone = PartitionDestroyed("gone", partition_id=PartitionId(0))
    world.wake(0, gone)
    assert client.ends == [gone]
    world.wake(0, gone)
    assert client.ends == [gone]
    assert (world.read_budget.nbytes, world.read_budget.segments) == (0, 0)
