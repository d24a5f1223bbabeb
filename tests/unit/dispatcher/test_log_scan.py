"""A scan over many partitions: the order, the horizon, the memory, and what must not go unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.reading.feeds import REPAIR_S
from logboom.errors import CorruptData, IndexCompacted, PartitionDestroyed
from logboom.settings import ReadSettings
from logboom.types import (
    DurabilityMode,
    GlobalLogIndex,
    Level,
    PartitionId,
    PartitionLogIndex,
)
from logboom.wire import Kind
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from partitions.log.reading import DamagedBatch
from tests.unit.dispatcher.log_scan_world import batches, begin, globals_of, mixed, settle
from tests.unit.dispatcher.reading_world import SETTINGS, Client, World


async def until(world: World, holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            world.work()
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", range(5))
async def test_everything_comes_once_in_global_order(seed: int) -> None:
    reads = ReadSettings(window_bytes=700, window_segments_max=2, memory_bytes=4000, segments_max=2)
    world, client = World(4, reads=reads), Client()
    mixed(world, 120, seed=seed)
    begin(world, client)
    await settle(world)
    assert globals_of(client) == list(range(1, 121)), f"seed {seed}"
    assert client.of(Kind.END) == [({"next_global": 121, "batches": 120}, b"")]
    assert client.ends == [None]
    for partition, made in world.batches.items():
        mine = [batch for batch in batches(client) if batch.partition_id == partition]
        assert [bytes(b.records.data) for b in mine] == [bytes(b.buffers[2]) for b in made]
    assert (world.read_budget.nbytes, world.read_budget.segments) == (0, 0)
    assert not any(world.wakers.values())


async def test_it_ends_at_what_was_safe_when_it_began() -> None:
    world, client = World(), Client()
    mixed(world, 10)
    begin(world, client)
    for _ in range(5):
        world.append(0, [b"later"])
    await settle(world)
    assert globals_of(client) == list(range(1, 11))


async def test_nothing_comes_from_behind_what_is_not_durable() -> None:
    world, client = World(), Client()
    behind = 2  # write-behind
    world.append(0, [b"1"])
    world.append(behind, [b"2"], sync=False)
    world.append(0, [b"3"])
    scan = begin(world, client, follow=True)
    await settle(world)
    assert globals_of(client) == [1]
    world.sync(behind)
    world.wake(behind)
    await settle(world)
    assert globals_of(client) == [1, 2, 3]
    scan.close()


async def test_level_applied_waits_for_the_effects() -> None:
    world, client = World(2), Client()
    world.append(0, [b"1"])
    world.append(1, [b"2"])
    world.sync(1)
    world.applied = {0: 2, 1: 1}
    scan = begin(world, client, follow=True, level=Level.APPLIED)
    await settle(world)
    assert globals_of(client) == [1]
    world.applied[1] = 2
    world.wake(1)
    await settle(world)
    assert globals_of(client) == [1, 2]
    scan.close()


async def test_a_node_that_is_behind_waits_for_the_horizon_of_another() -> None:
    world, client = World(2), Client()
    world.append(0, [b"1"])
    begin(world, client, through=3)
    await settle(world)
    assert client.ends == []
    world.append(1, [b"2"])
    world.sync(1)
    world.append(0, [b"3"])
    world.append(0, [b"4"])
    world.wake(0)
    await settle(world)
    assert globals_of(client) == [1, 2, 3]
    assert client.ends == [None]


async def test_positions_by_global_index_and_time() -> None:
    world = World(3)
    for number in range(1, 31):
        world.append(number % 3, [b"%d" % number], at_ms=1000 * number)
        world.sync(number % 3)
    by_index, by_time = Client(), Client()
    begin(world, by_index, start_global=12)
    begin(world, by_time, start_time_ms=11_500)
    await settle(world)
    assert globals_of(by_index) == globals_of(by_time) == list(range(12, 31))


async def test_a_time_to_come_is_waited_for() -> None:
    world, client = World(3), Client()
    for number in range(1, 11):
        world.append(number % 3, [b"%d" % number], at_ms=1000 * number)
        world.sync(number % 3)
    scan = begin(world, client, start_time_ms=14_500, follow=True)
    await settle(world)
    for number in range(11, 21):
        world.append(number % 3, [b"%d" % number], at_ms=1000 * number)
        world.sync(number % 3)
        world.wake(number % 3)
        await settle(world)
    assert globals_of(client) == list(range(15, 21))
    scan.close()


async def test_a_damaged_batch_where_it_looks_for_a_time_is_waited_for() -> None:
    world, client = World(2), Client()
    for number in range(1, 9):
        world.append(number % 2, [b"%d" % number], at_ms=1000 * number)
        world.sync(number % 2)
    batch = world.damage(1, 2)
    begin(world, client, start_time_ms=4500)
    await until(world, lambda: len(world.damages) >= 2)
    assert client.ends == []
    world.mend(1, batch)
    await until(world, lambda: client.ends)
    assert client.ends == [None]
    assert globals_of(client) == [5, 6, 7, 8]


async def test_who_takes_nothing_gets_nothing_and_holds_nothing_back() -> None:
    """Credit for one window: one more is read ahead, and given back when another reader needs the room."""
    world, slow, quick = World(2, reads=ReadSettings(window_bytes=400, memory_bytes=1000)), Client(), Client()
    mixed(world, 60)
    scan = begin(world, slow, credit=1)
    await settle(world)
    assert globals_of(slow) == [1]
    held = world.read_budget.nbytes
    assert 0 < held <= 500
    begin(world, quick)
    await settle(world)
    assert globals_of(quick) == list(range(1, 61))
    while not slow.ends:
        scan.add_credit(1 << 20)
        await settle(world)
    assert globals_of(slow) == list(range(1, 61))
    assert world.read_budget.nbytes == 0


async def test_cancelling_refunds_whatever_it_was_doing() -> None:
    for when in range(3):
        world, client = World(2), Client()
        mixed(world, 20)
        client.congested = when == 2
        scan = begin(world, client)
        assert world.read_budget.nbytes > 0
        if when:
            world.work()
        scan.close()
        world.work()
        assert (world.read_budget.nbytes, world.read_budget.segments) == (0, 0)
        assert not any(world.wakers.values())
        assert all(not log._leases._leases for log in world.logs.values())


async def test_windows_of_many_readers_never_hold_more_than_the_budget() -> None:
    reads = ReadSettings(window_bytes=500, memory_bytes=1200, segments_max=3, window_segments_max=3)
    world = World(4, reads=reads)
    mixed(world, 80)
    clients = [Client() for _ in range(6)]
    most = 0
    for client in clients:
        begin(world, client)
    while world.jobs:
        most = max(most, world.read_budget.nbytes)
        world.jobs.pop(0)()
    assert 500 < most <= 1200
    assert [globals_of(client) for client in clients] == [list(range(1, 81))] * 6


class TestWhatMustNotGoUnnoticed:
    async def test_a_damaged_batch_is_waited_for_and_what_is_in_front_of_it_comes(self) -> None:
        world, client = World(2), Client()
        for number in range(12):
            world.append(number % 2, [b"%d" % number])
            world.sync(number % 2)
        batch = world.damage(1, 2)
        begin(world, client)
        await until(world, lambda: len(world.damages) >= 2)
        assert globals_of(client) == list(range(1, 6))
        assert not client.ends
        world.mend(1, batch)
        await until(world, lambda: client.ends)
        assert client.ends == [None]
        assert globals_of(client) == list(range(1, 13))
        assert world.read_budget.nbytes == 0

    async def test_it_ends_where_nobody_has_the_batch(self) -> None:
        world, client = World(2), Client()
        for number in range(8):
            world.append(number % 2, [b"%d" % number])
            world.sync(number % 2)
        world.damage(0, 1)
        begin(world, client)
        await until(world, lambda: world.damages)
        world.now += REPAIR_S
        await until(world, lambda: client.ends)
        assert isinstance(client.ends[0], CorruptData)
        assert globals_of(client) == [1, 2]
        assert world.read_budget.nbytes == 0

    async def test_a_batch_that_comes_in_front_of_what_was_given_away(self) -> None:
        world, client = World(2), Client()
        mixed(world, 10)
        begin(world, client, follow=True)
        await settle(world)
        world.parent.global_index = 4
        world.append(0, [b"too late"])
        world.parent.global_index = 20
        world.wake(0)
        await settle(world)
        assert isinstance(client.ends[0], CorruptData)
        assert "safe to give away" in str(client.ends[0])

    async def test_fewer_than_were_there(self) -> None:
        world, client = World(2), Client()
        mixed(world, 10)
        scan = begin(world, client)
        scan._begun = dict.fromkeys(scan._begun, -1)
        await settle(world)
        assert isinstance(client.ends[0], CorruptData)
        assert "expected 12 batches" in str(client.ends[0])
        assert client.of(Kind.END) == []

    async def test_other_bytes_than_were_planned(self) -> None:
        world, client = World(1), Client()
        mixed(world, 10)
        client.congested = True
        scan = begin(world, client)
        await settle(world)
        assert scan._arrived is not None
        scan._arrived[3] = scan._arrived[3][:-1]
        client.congested = False
        scan.move()
        assert isinstance(client.ends[0], CorruptData)
        assert world.read_budget.nbytes == 0

    async def test_what_was_removed(self) -> None:
        world = World(2)
        mixed(world, 60)
        log, gone = world.logs[0], world.batches[0][len(world.batches[0]) * 2 // 3]
        base = LogBase(gone.last_index, gone.digest, 1)  # type: ignore[arg-type]
        log.save_places(base.last_index)()
        log.compact(base.last_index + 1)()
        assert log.first_available_index > 1
        with pytest.raises(IndexCompacted) as caught:
            begin(world, Client(), start_global=1)
        client = Client()
        begin(world, client, start_global=caught.value.first)
        anyhow = Client()
        begin(world, anyhow)
        await settle(world)
        assert globals_of(client) == list(range(caught.value.first, 61))
        after = log.first_available_index - 1
        left = log.read_committed(after_index=after, through_index=1 << 40, max_bytes=1 << 30)
        expected = [batch.global_index for batch in left]
        assert [b.global_index for b in batches(anyhow) if b.partition_id == 0] == expected

    @pytest.mark.parametrize("when", ["before it is planned", "once it is planned"])
    async def test_what_is_removed_under_a_scan_is_said_by_global_index(self, when: str) -> None:
        """An index of the partition was: whoever went on from it got records again, or missed some without a word."""
        world, client = World(2, reads=ReadSettings(window_bytes=400)), Client()
        mixed(world, 60)
        log, gone = world.logs[0], world.batches[0][len(world.batches[0]) * 2 // 3]
        scan = begin(world, client, credit=1)
        await settle(world)
        assert globals_of(client) == [1]
        scan._drop()
        if when == "before it is planned":
            scan._window = None
        for lease in scan._leases.values():
            lease.release()
        base = LogBase(gone.last_index, gone.digest, 1)  # type: ignore[arg-type]
        log.save_places(base.last_index)()
        log.compact(base.last_index + 1)()
        scan.add_credit(1 << 20)
        await settle(world)
        [error] = client.ends
        assert isinstance(error, IndexCompacted)
        assert error.first == log.first_global_index != log.first_available_index
        rest = Client()
        begin(world, rest, start_global=error.first)
        await settle(world)
        assert globals_of(rest) == list(range(error.first, 61))

    async def test_a_partition_that_is_destroyed(self) -> None:
        world, client = World(2), Client()
        mixed(world, 5)
        begin(world, client, follow=True)
        await settle(world)
        world.wake(1, PartitionDestroyed("gone", partition_id=1))
        assert isinstance(client.ends[0], PartitionDestroyed)
        assert not any(world.wakers.values())


def with_a_hole(world: World) -> Batch:
    """Nobody has the second one, of three that are committed."""
    world.append(0, [b"1"])
    batch = world.append(0, [b"late"], is_lost=True)
    world.append(0, [b"3"])
    return batch


@pytest.mark.parametrize("follow", [True, False])
async def test_a_batch_that_turns_up_while_the_scan_waits_in_front_of_it_is_given(follow: bool) -> None:
    """It was taken for void: it had been nowhere when it was looked at. Nothing said that a record was missing."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    world.append(1, [b"2"], sync=False)  # what it waits for
    batch = world.append(0, [b"late"], is_lost=True)
    world.append(0, [b"4"])
    begin(world, client, follow=follow, through=0 if follow else 4)
    await settle(world)
    assert globals_of(client) == [1]
    assert world.logs[0].append(batch)
    for partition in (0, 1):
        world.sync(partition)
        world.wake(partition)
    await settle(world)
    assert globals_of(client) == [1, 2, 3, 4]


@pytest.mark.parametrize("comes", [True, False])
async def test_what_nobody_has_though_the_state_has_what_it_did_is_not_void(*, comes: bool) -> None:
    """The scan passed over it as if it had been declared void: a command that had taken effect was missing from it."""
    world, client = World(2), Client()
    batch = with_a_hole(world)
    world.logs[0].excuse(batch.last_index)
    scan = begin(world, client, through=3)
    await settle(world)
    assert (globals_of(client), scan._later is None) == ([1], False)
    if comes:
        assert world.logs[0].append(batch)
        world.sync(0)
        scan._look_again()
    else:
        world.lost.add(batch.digest)
        scan._look_again()
    await settle(world)
    assert globals_of(client) == ([1, 2, 3] if comes else [1])
    assert [type(end) for end in client.ends] == ([type(None)] if comes else [DamagedBatch])
    assert not any("voids" in header for header in client.of(Kind.BATCHES) + client.of(Kind.END))


@pytest.mark.parametrize("written_since", [False, True])
async def test_a_partition_that_is_idle_since_its_node_was_given_a_snapshot(written_since: bool) -> None:
    """Its log begins behind the snapshot, with nothing: a scan was told that what it wanted had been removed."""
    world = World(2)
    base = LogBase(PartitionLogIndex(7), bytes([1]) * 16, GlobalLogIndex(30), True)
    world.logs[0] = PartitionLog.open(
        disk=world.disk,
        directory=Path("/n1/given"),
        partition_id=PartitionId(0),
        settings=SETTINGS,
        mode=DurabilityMode.WRITE_AHEAD,
        base=base,
    )
    world.parent.global_index = 30
    world.append(1, [b"31"])
    world.sync(1)
    if written_since:
        given: Any = SimpleNamespace(last_index=7, digest=bytes([1]) * 16, nbytes=0)
        world.batches[0] = [Batch(given, [])]
        world.append(0, [b"32"])
    for start, rest in ((0, [31, 32]), (31, [31, 32]), (32, [32])):
        client = Client()
        begin(world, client, start_global=start)
        await settle(world)
        assert client.ends == [None]
        assert globals_of(client) == [each for each in rest if each == 31 or written_since]
    with pytest.raises(IndexCompacted) as removed:
        begin(world, Client(), start_global=30)
    assert removed.value.first == 31
