"""How things end: a client that is closed, or that nobody holds, a loop that stood still, a scan that is left."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import pytest

from logboom import Client, Put, RecordBlock
from logboom.client import connection as connection_module
from logboom.client.lanes import IN_FLIGHT_MAX
from logboom.errors import InvalidRequest, LogboomError
from logboom.wire import Kind
from tests.unit.logboom.fake_server import Answer, Session, cluster, cuts, silent, until


async def test_whoever_waits_for_room_when_the_client_is_closed_is_told_so() -> None:
    async with cluster() as [node]:
        boom = Client(node.address, timeout=600, max_in_flight_bytes=1000)
        await boom.submit(0, Put(b"a", b""))
        node.answers[Kind.SUBMIT] = silent
        tasks = []
        for k in range(IN_FLIGHT_MAX):
            tasks.append(asyncio.create_task(boom.submit(0, Put(b"k", b""))))
            await until(lambda k=k: len(node.of(Kind.SUBMIT)) == k + 2)
        # One that has no place in flight has nearly all the room; others wait for it, as do requests of their own.
        tasks += [asyncio.create_task(boom.submit(0, Put(b"k", b"x" * 800))) for _ in range(3)]
        tasks += [asyncio.create_task(boom.submit(1, [Put(b"k", b"x" * 300)] * 2)) for _ in range(3)]
        await until(lambda: len(boom._submitter.budget._waiting) == 3)
        await boom.close()
        async with asyncio.timeout(10):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, LogboomError) for each in ends)


async def test_a_connection_is_not_given_up_since_the_loop_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "BEAT_S", 0.02)
    monkeypatch.setattr(connection_module, "PING_AFTER_S", 0.02)
    monkeypatch.setattr(connection_module, "DEAD_AFTER_S", 0.2)
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.BARRIER] = silent
        waiting = asyncio.create_task(boom.barrier(1, timeout=60))
        await until(lambda: node.of(Kind.BARRIER))
        opened = await boom._cluster.connection(node.address)
        await until(lambda: node.of(Kind.PING))
        time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still, as while somebody computes on it
        pings = len(node.of(Kind.PING))
        await until(lambda: len(node.of(Kind.PING)) > pings + 1 or opened.closed)
        assert not opened.closed
        waiting.cancel()


async def test_a_client_that_nobody_holds_any_more_leaves_no_connection() -> None:
    async with cluster() as [node]:

        async def use() -> None:
            boom = Client(node.address, timeout=600)
            await boom.submit(0, Put(b"a", b""))

        await use()
        await until(lambda: gc.collect() >= 0 and not node.sessions)


async def test_nor_does_one_whose_close_was_cancelled_at_any_turn() -> None:
    """Nobody closed them then, neither ``close`` nor the collector."""
    async with cluster() as [node], asyncio.timeout(20):
        turns, ended = 0, False
        while not ended:
            boom: Client | None = Client(node.address)
            await boom.submit(0, Put(b"a", b""))  # type: ignore[union-attr]
            closing = asyncio.create_task(boom.close())  # type: ignore[union-attr]
            for _ in range(turns):
                await asyncio.sleep(0)
            ended = closing.done()
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            boom = closing = None  # type: ignore[assignment]
            await until(lambda: gc.collect() >= 0 and not node.sessions)
            turns += 1
        assert turns > 3


@pytest.mark.parametrize(("later", "held"), [(cuts, True), (silent, True), (cuts, False), (silent, False)])
async def test_nor_does_an_outage_keep_one(later: Answer, held: bool) -> None:
    """What was behind an error had been raised below the retries: its frames held the commands, and the client.

    For ever, whoever held the error: such a command is none of the collector's.
    """
    async with cluster() as [node], asyncio.timeout(10):
        boom = Client(node.address)
        await boom.partitions()
        node.answers[Kind.SUBMIT], node.answers[Kind.HELLO] = cuts, later
        answers = [boom.sender(0, timeout=0.1).send(Put(key, b"")) for key in (b"a", b"b")]
        await asyncio.wait(answers)
        errors = [each.exception() for each in answers]
        assert all(isinstance(each, LogboomError) and each.__cause__ is not None for each in errors)
        left = weakref.ref(boom._cluster)
        del boom, answers
        if not held:
            del errors
        await until(lambda: gc.collect() >= 0 and left() is None)
        await until(lambda: not node.sessions)


async def test_a_stream_outlives_the_client_that_nobody_holds() -> None:
    async with cluster() as [node]:
        node.answers[Kind.TAIL] = lambda session, frame: (
            asyncio.get_running_loop().call_later(0.1, session.send, frame, Kind.END, {"next_index": 1}),
            None,
        )[1]
        tail = Client(node.address).tail(0, follow=True)
        following = asyncio.create_task(anext(tail, None))  # type: ignore[arg-type]
        await until(lambda: node.of(Kind.TAIL))
        gc.collect()
        assert await following is None
        assert len(node.of(Kind.TAIL)) == 1


@pytest.mark.parametrize("limit", [0, 500])
async def test_a_scan_that_is_left_ends_then(limit: int) -> None:
    async with cluster() as [node], Client(node.address) as boom:

        def entries(session: Session, frame: Any) -> None:
            block = RecordBlock.from_columns(payloads=[b"b1", b"b2"], keys=[b"a", b"b"])
            header = {"global_index": 5, "count": 2, "metadata": len(block.metadata), "data": len(block.data)}
            session.send(frame, Kind.ENTRIES, header, [bytes(block.metadata), bytes(block.data)], more=True)

        node.answers[Kind.SCAN] = entries
        scan: Any = boom.scan(0, limit=limit)
        await anext(scan)
        await scan.aclose()
        shared = await boom._cluster.connection(node.address)
        assert not shared.has_streams
        await boom.submit(0, Put(b"a", b""))
        assert len(node.of(Kind.CANCEL)) == (limit > 0)
        assert len([each for each in boom._cluster._made.values() if not each.closed]) == 1


async def test_who_uses_a_closed_client_is_told_so() -> None:
    async with cluster() as [node]:
        boom = Client(node.address)
        await boom.submit(0, Put(b"a", b""))
        await boom.close()
        for call in (boom.get(0, b"a"), boom.submit(0, Put(b"a", b"")), boom.barrier(1), boom.status()):
            with pytest.raises(InvalidRequest, match="closed"):
                await call


async def test_a_connection_of_its_own_that_opens_while_the_client_closes_is_none() -> None:
    """A scan that had just begun went on over it, behind the back of a client that was closed."""
    async with cluster() as [node]:
        boom = Client(node.address, timeout=600)
        await boom.partitions()
        hello = list[Any]()
        node.answers[Kind.HELLO] = lambda *request: hello.append(request)
        reading = asyncio.ensure_future(anext(boom.scan(0)))
        await until(lambda: hello)
        await boom.close()
        session, frame = hello[0]
        session.usual(frame)
        with pytest.raises(InvalidRequest, match="closed"):
            await reading
        await until(lambda: not node.sessions)
        assert not node.of(Kind.SCAN)
