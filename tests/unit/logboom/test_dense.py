"""Requests of a dense producer leave in order, whatever befalls them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from logboom import Client, Put, Receipt
from logboom.client import connection, turns
from logboom.client.dense import Lines, Turn
from logboom.errors import NotLeader, OutOfSequence
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Session, cluster

PRODUCER = bytes(range(16))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Crowd:
    """Requests of one stream, which are sent when their turn comes and end when they are told to."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.order: list[int] = []
        self.turns: dict[int, Turn] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.ends: dict[int, asyncio.Future[bool]] = {}

    async def ask(self, sequence: int) -> None:
        self.tasks[sequence] = asyncio.create_task(self._ask(sequence))
        await settled()

    async def _ask(self, sequence: int) -> None:
        with self.lines.turn("stream", sequence) as turn:
            self.turns[sequence] = turn
            done = False
            while not done:
                await turn.come()
                self.order.append(sequence)
                turn.sent()
                self.ends[sequence] = asyncio.get_running_loop().create_future()
                done = await self.ends[sequence]
                if not done:
                    turn.failed()

    async def answer(self, sequence: int, *, done: bool = True) -> None:
        self.ends[sequence].set_result(done)
        await settled()


async def test_who_failed_is_sent_again_before_those_that_follow() -> None:
    crowd = Crowd()
    for sequence in (0, 10, 20):
        await crowd.ask(sequence)
    assert crowd.order == [0, 10, 20]  # each as soon as the one before is on its way
    for sequence in (10, 20):
        crowd.turns[sequence].failed()
    crowd.turns[0].failed()
    crowd.order.clear()
    for sequence in (20, 10, 0):
        await crowd.answer(sequence, done=False)
    assert crowd.order == [0, 10, 20]
    for sequence in (0, 10, 20):
        await crowd.answer(sequence)
    assert not crowd.lines._lines


async def test_who_gives_up_holds_up_nobody() -> None:
    crowd = Crowd()
    await crowd.ask(0)
    crowd.turns[0].failed()
    await crowd.ask(10)
    await crowd.ask(20)
    assert crowd.order == [0]
    crowd.tasks[10].cancel()
    await settled()
    assert crowd.order == [0]
    crowd.tasks[0].cancel()
    await settled()
    assert crowd.order == [0, 20]
    await crowd.answer(20)
    assert not crowd.lines._lines


async def test_streams_do_not_wait_for_each_other() -> None:
    lines = Lines()
    with lines.turn("a", 0), lines.turn("b", 5) as other:
        async with asyncio.timeout(1):
            await other.come()


async def test_a_congested_node_gets_them_in_order_and_a_failed_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found with Spark beside a change of leader: the last to come went first, all were refused, one at a time."""
    monkeypatch.setattr(turns, "LAST_FIRST_AFTER_S", -1.0)
    monkeypatch.setattr(connection, "QUEUED_BYTES_MAX", 1)
    expected, seen = 0, Counter[int]()

    def submit(session: Session, frame: Frame) -> None:
        nonlocal expected
        [[_, first, _, count, *_]] = frame.header["parts"]
        seen[first] += 1
        if seen.total() == 3:
            session.fail(frame, NotLeader("an election"))
        elif first != expected:
            session.fail(frame, OutOfSequence(f"{first} before {expected}", expected=expected, got=first))
        else:
            expected += count
            session.usual(frame)

    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.SUBMIT] = submit
        await asyncio.gather(
            *(
                boom.submit(0, [Put(b"k", b"%d" % n)] * 2, producer_id=PRODUCER, sequence=2 * n, dense=True)
                for n in range(20)
            )
        )
        assert node.log[0] == [payload for n in range(20) for payload in [_payload(n)] * 2]
    assert max(seen.values()) == 2, "again after the failure, and then it was their turn"


@pytest.mark.parametrize("seen", [False, True], ids=["at once", "refused before"])
async def test_called_in_the_wrong_order_with_room_for_one_they_do_not_wait_for_each_other(*, seen: bool) -> None:
    expected = 0
    refused = asyncio.Event()

    def submit(session: Session, frame: Frame) -> None:
        nonlocal expected
        [[_, first, _, count, *_]] = frame.header["parts"]
        if first != expected:
            session.fail(frame, OutOfSequence(f"{first} before {expected}", expected=expected, got=first))
            refused.set()
            return
        expected += count
        session.usual(frame)

    async with cluster() as [node], Client(node.address, max_in_flight_bytes=50) as boom:
        node.answers[Kind.SUBMIT] = submit

        def ask(n: int) -> asyncio.Task[Receipt]:
            rows = [Put(b"k", b"%d" % n)] * 2
            return asyncio.create_task(boom.submit(0, rows, producer_id=PRODUCER, sequence=2 * n, dense=True))

        tasks = [ask(9)]
        if seen:
            await refused.wait()
        tasks += [ask(n) for n in reversed(range(9))]
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)
        assert node.log[0] == [payload for n in range(10) for payload in [_payload(n)] * 2]
        assert boom._submitter.budget.used == 0


def _payload(number: int) -> bytes:
    from logboom.commands import to_record

    return to_record(Put(b"k", b"%d" % number)).payload
