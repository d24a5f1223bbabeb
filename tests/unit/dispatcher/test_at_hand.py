"""Reads of a few keys on the loop: never of many, or of what has to be waited for, nor while the disk is slow."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.reading import at_hand, reads
from dispatcher.reading.at_hand import AtHand
from logboom.errors import CorruptData
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.scans_world import Backend

POSITION = Position(PartitionLogIndex(1), GlobalLogIndex(1))
GET = Frame(Kind.GET, 1, {"partition": 0, "read": "stale", "keys": [b"k"]})


class World:
    """A machine whose reads take as long as the test says."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.now, self.takes, self.busy = 5.0, 0.0, False
        self.asked: list[list[bytes]] = []
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        self.at_hand = AtHand(clock, enabled=enabled)
        self.machine: Any = SimpleNamespace(get_at_once=self._get)

    def _get(self, keys: Sequence[bytes]) -> tuple[list[bytes], Position] | None:
        self.asked.append(list(keys))
        self.now += self.takes
        return None if self.busy else (list(keys), POSITION)

    def get(self, count: int = 1) -> bool:
        return self.at_hand.get(self.machine, [b"%d" % k for k in range(count)]) is not None


def test_few_keys_are_read_here_and_many_are_not() -> None:
    world = World()
    assert world.get(at_hand.KEYS_MAX)
    assert not world.get(at_hand.KEYS_MAX + 1)
    assert len(world.asked) == 1


def test_what_would_wait_and_what_cannot_are_read_elsewhere() -> None:
    world = World()
    world.busy = True
    assert not world.get()
    world.machine = SimpleNamespace()
    assert not world.get()
    assert not World(enabled=False).get()


def test_after_a_slow_one_threads_read_for_a_while() -> None:
    world = World()
    world.takes = at_hand.S_MAX * 1.5
    assert world.get()
    world.takes = 0.0
    assert not world.get()
    assert len(world.asked) == 1
    world.now += at_hand.AGAIN_S
    assert world.get()


@pytest.mark.parametrize("busy", [False, True])
async def test_a_get_goes_through_a_thread_only_if_it_must(*, busy: bool) -> None:
    node, jobs = Backend(scans_max=1), list[Any]()

    async def run(job: Any) -> Any:
        jobs.append(job)
        return job()

    node.offload = cast("Any", SimpleNamespace(run=run))
    node.machine = SimpleNamespace(
        get=lambda _: ([b"slow"], POSITION), get_at_once=lambda _: None if busy else ([b"quick"], POSITION)
    )
    _, (_, data) = await reads.get(node, GET, 5.0)
    assert (bytes(data), len(jobs)) == ((b"bslow", 1) if busy else (b"bquick", 0))


async def test_damage_that_is_met_on_the_loop_is_told_as_well() -> None:
    node, told = Backend(scans_max=1), list[Any]()

    def damaged(_: object) -> None:
        raise CorruptData("bad")

    node.machine = SimpleNamespace(get_at_once=damaged)
    world: Any = node
    world.machines = {0: node.machine}
    world.rebuilding = SimpleNamespace(damaged=lambda partition, error: told.append((partition, str(error))))
    with pytest.raises(CorruptData):
        await reads.get(node, GET, 5.0)
    assert told == [(0, "bad")]
