"""Batches that were declared void, in the way of everything that reads the log."""

from __future__ import annotations

import pytest

from dispatcher.reading import fetching
from dispatcher.reading.feeds import FeedRequest
from dispatcher.reading.tail import Tail
from logboom.errors import CorruptData, Voided
from logboom.types import PartitionId
from logboom.wire import Kind
from partitions.log.batch import Batch
from tests.unit.dispatcher.log_scan_world import begin, globals_of, settle
from tests.unit.dispatcher.reading_world import Client, World, answer, indexes


def void(world: World, partition: int, number: int) -> Batch:
    batch = world.batches[partition][number]
    world.logs[partition]._committed.void(batch.last_index, batch.digest)
    return batch


def world() -> World:
    made = World(2)
    for number in range(12):
        made.append(number % 2, [b"%d" % number, b"x"], at_ms=1000 * (number + 1))
        made.sync(number % 2)
    return made


def told(client: Client) -> list[list[int]]:
    """With the batches, of what was stepped over in front of them."""
    return [row for header, _ in client.of(Kind.BATCHES) for row in header.get("voids", ())]


async def test_a_scan_steps_over_them_and_its_count_is_right() -> None:
    made, client = world(), Client()
    void(made, 0, 1)
    void(made, 1, 5)
    begin(made, client)
    await settle(made)
    assert globals_of(client) == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    last = [1, 11, 12, 12]  # behind all that was sent
    assert client.of(Kind.END) == [({"next_global": 13, "batches": 10, "voids": [last]}, b"")]
    assert told(client) == [[0, 3, 4, 3]]
    assert client.ends == [None]


async def test_a_scan_that_had_planned_one_before_goes_on_behind_it() -> None:
    made, client = world(), Client()
    begin(made, client)  # the window is planned, and not read yet
    void(made, 1, 2)
    await settle(made)
    assert globals_of(client) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
    assert told(client) == [[1, 5, 6, 6]]
    assert client.ends == [None]
    assert made.read_budget.nbytes == 0


def test_a_tail_ends_there_and_says_where_to_go_on() -> None:
    made, client = world(), Client()
    batch = void(made, 0, 2)
    tail = Tail(made, PartitionId(0), FeedRequest(credit=1 << 20, whole=True), **client.how())
    tail.move()
    made.work()
    assert indexes(client) == [1, 2, 3, 4]
    (gap,) = client.ends
    assert isinstance(gap, Voided)
    assert gap.next == batch.last_index + 1


async def test_its_data_is_not_there() -> None:
    made = world()
    void(made, 0, 0)
    with pytest.raises(CorruptData, match="declared void"):
        await answer(fetching.fetch(made, {"rows": [[0, 1, None]]}))
    assert await answer(fetching.fetch(made, {"rows": [[0, 3, None]]})) == {0: b"2"}


def test_a_time_is_found_beside_them() -> None:
    made = world()
    log = made.logs[0]
    for number in (1, 2, 5):
        void(made, 0, number)
    found = [
        log.chunks.first_at_time(ms, through_index=log.durable_index) for ms in (0, 1_001, 7_000, 7_001, 9_001, 12_000)
    ]
    assert found[0] == 0
    assert found[1] in (1, 2, 3)  # what is void has no time
    assert found[2] in (1, 2, 3)
    assert found[3:] == [4, 5, 5]


async def test_each_is_told_with_the_batches_that_lie_behind_it() -> None:
    """A small window each: nobody hears of what is void before all in front of it is there, nor twice."""
    made, client = world(), Client()
    for partition, number in ((0, 0), (1, 2), (0, 3), (1, 3)):
        void(made, partition, number)
    scan = begin(made, client, credit=1)
    for _ in range(12):
        await settle(made)
        scan.add_credit(300)
    assert told(client) == [[0, 1, 2, 1], [1, 5, 6, 6], [0, 7, 8, 7], [1, 7, 8, 8]]
    for header, _ in client.of(Kind.BATCHES):
        sent = memoryview(header["global_indexes"]).cast("Q").tolist()
        assert all(header["after"] < row[3] < sent[-1] for row in header.get("voids", ()))
