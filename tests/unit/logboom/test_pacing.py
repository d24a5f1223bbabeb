"""What a refused client sends, and what waits in it."""

from __future__ import annotations

import asyncio

import pytest

from logboom import Client, Put
from logboom.client.pacing import Pace, Window
from logboom.errors import Overloaded
from logboom.wire import Kind
from tests.unit.logboom.fake_server import FakeNode, cluster, fails, until

MOST = 1000


def refusal(partition: int | None = 0, retry_after: float = 0.05) -> Overloaded:
    return Overloaded("full", partition_id=partition, limit="partition_ops", maximum=1, used=1, retry_after=retry_after)


async def enter(pace: Pace, size: int = 10, *partitions: int, seconds: float = 60.0) -> list[Window]:
    return await pace.enter(partitions or (0,), size, until=asyncio.get_running_loop().time() + seconds)


def answer(pace: Pace, inside: list[Window], *, late: bool | None = False, now: float = 100.0) -> None:
    """``late`` None: it never comes."""
    if late is None:
        pace.leave(inside, 10)
    else:
        pace.answered(inside, 10, sent=now - 1.0, now=now, deadline=now + (2.3 if late else 2.4))


class Crowd:
    """Requests of ten bytes for one partition."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.inside: list[list[Window]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, count: int) -> None:
        async def one() -> None:
            self.inside.append(await enter(self.pace))

        self.tasks += [asyncio.create_task(one()) for _ in range(count)]
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def go(self, count: int, *, late: bool | None = False) -> None:
        for _ in range(count):
            answer(self.pace, self.inside.pop(0), late=late)
        await self.settle()

    def end(self) -> None:
        for task in self.tasks:
            task.cancel()


class TestPace:
    async def test_nothing_waits_before_a_node_has_refused(self) -> None:
        crowd = Crowd(Pace(MOST))
        await crowd.come(90)
        assert len(crowd.inside) == 90

    async def test_a_refusal_halves_what_may_be_on_its_way(self) -> None:
        crowd = Crowd(Pace(MOST))
        await crowd.come(20)
        crowd.pace.refused(refusal(), now=0.0)
        await crowd.come(20)
        assert len(crowd.inside) == 20
        await crowd.go(15, late=None)
        assert len(crowd.inside) == 10
        crowd.end()

    async def test_refusals_of_one_round_halve_it_once(self) -> None:
        crowd = Crowd(Pace(MOST))
        await crowd.come(20)
        for now in (0.0, 0.01, 0.049):
            crowd.pace.refused(refusal(), now=now)
        await crowd.go(12, late=None)
        await crowd.come(5)
        assert len(crowd.inside) == 10
        crowd.pace.refused(refusal(), now=0.06)
        await crowd.go(6, late=None)
        assert len(crowd.inside) == 5
        crowd.end()

    async def test_answers_that_took_a_third_of_the_time_there_was_halve_it_too(self) -> None:
        crowd = Crowd(Pace(MOST))
        await crowd.come(40)
        await crowd.go(1, late=True)
        await crowd.go(4, late=True)  # of the same round
        await crowd.come(9)
        await crowd.go(15, late=None)
        assert len(crowd.inside) == 20
        async with asyncio.timeout(5):
            await enter(crowd.pace, 600, 1)  # other partitions have their own
        crowd.end()

    async def test_answers_widen_it_by_a_request_per_round_and_then_it_is_gone(self) -> None:
        crowd = Crowd(Pace(MOST))
        await crowd.come(20)
        crowd.pace.refused(refusal(), now=0.0)
        await crowd.come(30)
        await crowd.go(10, late=None)
        assert len(crowd.inside) == 10
        await crowd.go(10)
        assert len(crowd.inside) in (10, 11)
        crowd.end()
        await crowd.go(len(crowd.inside), late=None)
        for _ in range(10_000):
            answer(crowd.pace, await enter(crowd.pace))
        await crowd.settle()
        fresh = Crowd(crowd.pace)
        await fresh.come(90)
        assert len(fresh.inside) == 90

    async def test_one_always_goes(self) -> None:
        pace = Pace(MOST)
        inside = await enter(pace)
        pace.refused(refusal(), now=0.0)
        pace.refused(refusal(), now=1.0)
        pace.leave(inside, 10)
        async with asyncio.timeout(5):
            await enter(pace, 10_000)

    async def test_other_partitions_do_not_wait(self) -> None:
        pace = Pace(MOST)
        await enter(pace, 10, 0)
        pace.refused(refusal(0), now=0.0)
        async with asyncio.timeout(5):
            await enter(pace, 500, 1)

    async def test_a_node_that_refuses_holds_up_all_of_them(self) -> None:
        pace = Pace(MOST)
        await enter(pace, 10, 0)
        pace.refused(refusal(None), now=0.0)
        with pytest.raises(Overloaded):
            await enter(pace, 10, 1, seconds=0.02)

    async def test_who_has_waited_in_vain_is_told_why_and_holds_nothing(self) -> None:
        pace = Pace(MOST)
        inside = await enter(pace, 10, 0)
        pace.refused(refusal(0), now=0.0)
        with pytest.raises(Overloaded, match="others of this client went first") as caught:
            await enter(pace, 10, 0, 1, seconds=0.02)
        assert caught.value.outcome == "not_applied"
        assert caught.value.fields["limit"] == "partition_ops"
        pace.leave(inside, 10)
        assert all(not window.budget.used for window in pace._windows.values())


async def test_while_requests_are_being_refused_later_ones_are_not_sent() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.submit(0, [Put(b"k", b"v")] * 2)
        node.answers[Kind.SUBMIT] = fails(refusal())
        many = [asyncio.create_task(boom.submit(0, [Put(b"k", b"v")] * 2, timeout=60)) for _ in range(100)]
        await until(lambda: len(sequences(node)) == 101 and len(node.of(Kind.SUBMIT)) > 101)  # some for the second time
        more = [boom.submit(0, [Put(b"k", b"v")] * 2, timeout=0.5) for _ in range(100)]
        found = await asyncio.gather(*more, return_exceptions=True)
        assert {type(each) for each in found} == {Overloaded}
        assert len(sequences(node)) == 101
        del node.answers[Kind.SUBMIT]
        await asyncio.gather(*many)
        await boom.submit(0, [Put(b"k", b"v")] * 2)


def sequences(node: FakeNode) -> set[int]:
    """First of each request that was sent, however often."""
    return {frame.header["parts"][0][1] for frame in node.of(Kind.SUBMIT)}
