"""What a state has of producers may take seconds to read: it is read where the state was opened, not on the loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from chaos.sim.disk import SimDisk
from dispatcher.upkeep.rebuilding import Rebuilding, Rebuilt
from logboom.errors import CorruptData
from logboom.settings import ApplySettings, Settings
from logboom.state_machine import NOWHERE
from logboom.types import DurabilityMode, PartitionId
from partitions.apply.dedupe import Producer
from partitions.apply.worker import ApplyWorker
from raftlog.entries.lifecycle import PartitionKind
from server.directory.partitions import PartitionRooms

P = PartitionId(3)
KIND = PartitionKind("kv", DurabilityMode.WRITE_AHEAD)
WHO = bytes(range(16))


class Machine:
    """Notes on which threads it is read."""

    unsaved_bytes = 0

    def __init__(self) -> None:
        self.threads: list[int] = []

    def position(self) -> Any:
        self.threads.append(threading.get_ident())
        return NOWHERE

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        self.threads.append(threading.get_ident())
        yield WHO, Producer(epoch=7).encode()


def rooms_of(made: list[Machine]) -> PartitionRooms:
    """Where machines are opened, and made anew, that one gets to see."""

    def another(*_: object, **__: object) -> Rebuilt:
        made.append(Machine())
        return Rebuilt(cast("Any", made[-1]), None)

    world = SimpleNamespace(disk=SimDisk(random.Random(0)), apply_offload=None, save_offload=None, clock=None)
    rooms = PartitionRooms(
        settings=Settings(),
        world=cast("Any", world),
        data_dir=cast("Any", SimpleNamespace(partition=lambda p: Path("/data") / str(p))),
        sets=cast("Any", None),
        fatal=lambda _: None,
    )
    rooms._states = cast("Any", SimpleNamespace(open=another, rebuild=another))
    rooms.logs[P] = cast("Any", SimpleNamespace(partition_id=P, committed_index=0))
    return rooms


def knows(worker: ApplyWorker) -> bool:
    found = worker.dedupe._producers.get(cast("Any", WHO))
    return found is not None and found.epoch == 7


async def test_of_a_partition_that_is_opened_while_the_node_runs() -> None:
    made = list[Machine]()
    rooms = rooms_of(made)
    opened = await asyncio.to_thread(rooms.open, P, KIND)
    rooms.machines[P] = opened.machine
    assert knows(rooms.worker(P, lambda _: None))
    assert made[-1].threads
    assert threading.get_ident() not in made[-1].threads


async def test_of_a_state_that_is_made_anew() -> None:
    """The loop stood still for 1.7 s, with as many producers as there may be."""
    made = list[Machine]()
    rooms = rooms_of(made)
    rooms._kinds[P], rooms._apply[P], rooms.machines[P] = KIND, ApplySettings(), cast("Any", Machine())
    workers = {P: rooms.worker(P, lambda _: None)}
    first, ended = workers[P], asyncio.Event()

    async def unused(*_: object) -> None:
        ended.set()

    rebuilding = Rebuilding(
        machines=rooms.machines,
        workers=workers,
        worker_of=lambda partition_id, begun: rooms.worker(partition_id, lambda _: None, begun),
        rebuild=lambda p, damaged, applied: rooms.rebuild(p, damaged, applied, cast("Any", None)),
        unused=unused,
        retire=lambda *_: None,
        clock=cast("Any", SimpleNamespace(monotonic=lambda: 0.0)),
        offload=cast("Any", SimpleNamespace(run=asyncio.to_thread)),
        want=lambda *_: None,
        changed=lambda _: None,
        fatal=lambda error: asyncio.get_running_loop().call_soon(ended.set),
    )
    rebuilding.damaged(P, CorruptData("a test's"))
    await ended.wait()
    assert workers[P] is not first
    assert workers[P].machine is cast("Any", made[-1])
    assert knows(workers[P])
    assert made[-1].threads
    assert threading.get_ident() not in made[-1].threads
    await rebuilding.close()
