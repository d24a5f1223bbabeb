"""Loops whose tasks begin at once, before whoever makes them goes on (``asyncio.eager_task_factory``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from types import coroutine
from typing import Any

from logboom import Client, Put
from logboom.errors import NotLeader
from logboom.types import MIB
from logboom.wire import Kind
from tests.unit.logboom.fake_server import FakeNode, cluster, cuts, fails


class Ended(Exception):
    """The first step was the last one."""


@coroutine
def gone_on(work: Coroutine[Any, Any, Any], first: list[Any]) -> Generator[Any, Any, Any]:
    """A coroutine, from where its first step has left it."""
    said = first.pop()
    if isinstance(said, StopIteration):
        return said.value
    if isinstance(said, BaseException):
        raise said
    while True:
        try:
            given = yield said
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's own
            step, what = work.throw, error
        else:
            step, what = work.send, given
        try:
            said = step(what)
        except StopIteration as end:
            return end.value


def begins_at_once(loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
    """What Python 3.12 has: the first step is made here, as the task that is made."""
    first = list[Any]()
    task = asyncio.Task(gone_on(work, first), loop=loop, **how)
    around = asyncio.current_task(loop)
    if around is not None:
        asyncio.tasks._leave_task(loop, around)
    asyncio.tasks._enter_task(loop, task)
    try:
        first.append(work.send(None))
    except BaseException as error:  # noqa: BLE001 - it is the task's
        first.append(error)
    finally:
        asyncio.tasks._leave_task(loop, task)
        if around is not None:
            asyncio.tasks._enter_task(loop, around)
    return task


EAGER: Any = getattr(asyncio, "eager_task_factory", begins_at_once)


@asynccontextmanager
async def eager_cluster(**how: Any) -> AsyncIterator[tuple[FakeNode, Client]]:
    async with cluster() as [node], Client(node.address, timeout=10.0, **how) as boom:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(EAGER)
        try:
            async with asyncio.timeout(8.0):
                yield node, boom
        finally:
            loop.set_task_factory(None)


async def test_the_loop_does_what_this_is_about() -> None:
    async with eager_cluster():
        seen = list[int]()

        async def work() -> str:
            assert asyncio.current_task() is not around
            seen.append(1)
            await asyncio.sleep(0)
            return "done"

        around = asyncio.current_task()
        task = asyncio.create_task(work())
        assert seen == [1]
        assert asyncio.current_task() is around
        assert await task == "done"


async def test_barriers_are_sent() -> None:
    """The task that sends what was gathered had begun before anything was."""
    async with eager_cluster() as (node, boom):
        assert (await boom.barrier(9, partitions=[0])).global_index == 9
        found = await asyncio.gather(*(boom.barrier(9, partitions=[0]) for _ in range(20)))
        assert len(found) == 20
        assert 2 <= len(node.of(Kind.BARRIER)) <= 3
        node.once(Kind.BARRIER, cuts)
        await boom.barrier(9, partitions=[0], scope="leader")
        assert not len(boom._sharing)


async def test_commands_are_sent_once_and_in_order() -> None:
    async with eager_cluster(max_in_flight_bytes=3 * MIB) as (node, boom):
        node.once(Kind.SUBMIT, cuts, fails(NotLeader("not me", leader=node.address)))
        await boom.submit(0, Put(b"first", b""))
        sender = boom.sender(0)
        large = bytes(MIB + 100_000)
        sent = [Put(b"%d" % k, large if k % 3 == 0 else b"") for k in range(9)]
        await asyncio.gather(*(sender.send(each) for each in sent))
        await asyncio.gather(*(boom.submit(1, [Put(b"a", b""), Put(b"b", b"")]) for _ in range(10)))
        assert [len(each) for each in node.log[0][1:]] == [len(each.record().payload) for each in sent]
        assert len(node.log[1]) == 20
        assert boom._submitter.budget.used == 0
