"""A machine is not closed while a thread still asks it, whoever has given up; and digests take one thread at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline.partitioning import Partitioning
from dispatcher.reading import reads
from dispatcher.reading.asking import Asking
from dispatcher.reading.views import Views
from logboom.settings import ClusterSettings
from logboom.state_machine import NOWHERE
from logboom.types import PartitionId
from partitions.machines.guarded import guard
from server.world.offload_os import ThreadOffload
from tests.unit.dispatcher import scans_world, views_world

P = PartitionId(0)


@pytest.fixture
async def offload() -> AsyncIterator[ThreadOffload]:
    found = ThreadOffload(workers=4, name="asked")
    yield found
    await found.close()


class Slow:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.now = self.most = 0
        self.closed = False

    def ask(self) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.release()
        assert self.go_on.wait(60)
        assert not self.closed, "closed while it was asked"
        self.now -= 1
        return bytes(16), NOWHERE

    digest = ask

    def close(self) -> None:
        self.closed = True


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not question():  # noqa: ASYNC110 - a thread answers
            await asyncio.sleep(0.001)


async def test_who_has_given_up_does_not_have_it_closed_under_the_thread_that_asks(offload: ThreadOffload) -> None:
    """Found by review: a partition was destroyed, its file closed, while a cancelled read still walked through it."""
    machine: Any = Slow()
    rooms: Any = SimpleNamespace(machines={}, ending={P: machine}, room=lambda: None)
    taking = SimpleNamespace(holds=lambda _: False)
    pipeline = SimpleNamespace(
        cluster=ClusterSettings(), snapshots=SimpleNamespace(taking=taking), raft=SimpleNamespace(fatal=pytest.fail)
    )
    partitioning = Partitioning(cast(Any, pipeline), rooms)
    asked = asyncio.ensure_future(Asking(offload, lambda: partitioning.hold(machine)).run(machine.ask))
    await until(lambda: machine.begun.acquire(blocking=False))
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)

    async def ended() -> None:
        pass

    worker: Any = SimpleNamespace(close=ended, offload=offload, forget=lambda: None)
    closing = partitioning._closing[P] = asyncio.ensure_future(partitioning._close(P, worker))
    await asyncio.wait([closing], timeout=0.1)
    assert not machine.closed
    machine.go_on.set()
    await asyncio.wait_for(closing, 20)
    assert machine.closed


@pytest.mark.parametrize("error", [StopIteration(5), SystemExit(1), asyncio.CancelledError(), ValueError("no")])
async def test_whatever_it_raises_its_asker_is_told(offload: ThreadOffload, error: BaseException) -> None:
    """Found by review: no future takes StopIteration; who asked waited for ever, and SystemExit ended the node."""
    held = [0]

    def hold() -> Callable[[], None]:
        held[0] += 1
        return lambda: held.__setitem__(0, held[0] - 1)

    def ask() -> None:
        raise error

    with pytest.raises((RuntimeError, ValueError), match=r"raised|no"):
        await asyncio.wait_for(Asking(offload, hold).run(ask), 20)
    assert held == [0]


class Ends:
    """At the end of a scan it has something to do, for which it waits."""

    needs_records, unsaved_bytes = False, 0

    def __init__(self) -> None:
        self.go_on, self.ended_by = threading.Event(), list[int]()

    def scan(self, **_: object) -> Iterator[Any]:
        try:
            yield [(b"k", b"v")], NOWHERE
        finally:
            self.go_on.wait(20)
            self.ended_by.append(threading.get_ident())


@pytest.mark.parametrize("kind", ["scan", "view"])
async def test_what_a_users_machine_does_at_the_end_of_a_scan_is_done_off_the_loop(
    offload: ThreadOffload, kind: str
) -> None:
    """The loop waited for it, for as long as an `apply` that had its lock: no heartbeat left, and others elected."""
    machine, held = Ends(), [0]
    guarded: Any = guard("mine", cast(Any, machine))
    guarded.applied = 0
    backend: Any

    def hold() -> Callable[[], None]:
        held[0] += 1
        return lambda: held.__setitem__(0, held[0] - 1)

    if kind == "scan":
        backend = scans_world.Backend(scans_max=1)
        backend.machine = guarded
        frames = scans_world.scan(backend)
    else:
        backend = views_world.Backend({0: 0})
        backend.workers[0].machine = guarded
        frames = views_world.scan(backend, Views(backend, views_max=1), 0)
    backend.offload = Asking(offload, hold)
    await anext(frames)
    await frames.aclose()
    assert (held, machine.ended_by) == ([1], []), "it stays open until then"
    machine.go_on.set()
    await until(lambda: held == [0])
    assert len(machine.ended_by) == 1
    assert machine.ended_by[0] != threading.get_ident()


async def test_digests_leave_the_other_threads_to_others(offload: ThreadOffload) -> None:
    """Found by review: each STATUS with digests took a thread that applying needs, and kept it when nobody waited."""
    machine: Any = Slow()
    alone = asyncio.Lock()

    class Backend:
        rebuilding = SimpleNamespace(fenced=lambda _: False)
        machines = {P: machine}  # noqa: RUF012 - of this test

        partitioning = SimpleNamespace(using=lambda _: nullcontext(machine))
        """Not ``using``: however far behind the partition is here, its state has a digest."""

        def digesting(self, _: object) -> asyncio.Lock:
            return alone

        def threads_of(self, _: object, __: object) -> Asking:
            return Asking(offload, lambda: lambda: None)

    backend = Backend()
    asked = [asyncio.ensure_future(reads.digest(backend, P)) for _ in range(8)]
    await until(lambda: machine.begun.acquire(blocking=False))
    for each in asked[:4]:
        each.cancel()
    await asyncio.gather(*asked[:4], return_exceptions=True)
    await asyncio.wait(asked[4:], timeout=0.1)
    assert machine.most == 1
    machine.go_on.set()
    assert await asyncio.wait_for(asyncio.gather(*asked[4:]), 20) == [(bytes(16), NOWHERE)] * 4
    assert machine.most == 1
