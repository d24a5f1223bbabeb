"""Barriers of one client that ask for the same: who shares a request, who must not, and that each keeps what is his."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from logboom import Client, Token
from logboom.client import sharing
from logboom.errors import (
    BarrierBlocked,
    BarrierTimeout,
    DeadlineExceeded,
    InvalidRequest,
    LogboomError,
    PartitionDestroyed,
    Unavailable,
)
from logboom.types import BarrierResult
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Session, cluster, cuts, fails, silent, until
from tests.unit.logboom.sharing_world import NOT_YET, REACHED, Held, ask, left, turns


async def test_those_who_wait_for_the_same_are_one_request_and_each_has_an_answer_of_his_own() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        tasks = [ask(boom) for _ in range(100)]
        await held.come(1)
        tasks += [ask(boom) for _ in range(100)]
        await turns()
        held.reach()
        results = await asyncio.gather(*tasks)
        assert {(each.global_index, each.node_id) for each in results} == {(9, "n1")}
        assert len({id(each.frontiers) for each in results}) == 200
        assert len(node.of(Kind.BARRIER)) == 1
        assert boom.last_seen == 9
        assert not left(boom)


async def test_without_a_connection_yet_they_are_one_all_the_same() -> None:
    async with cluster(3) as nodes:
        for scope in ("node", "leader", "all"):
            async with Client(nodes[0].address) as boom:
                before = sum(len(node.of(Kind.BARRIER)) for node in nodes)
                await asyncio.gather(*(ask(boom, scope=scope) for _ in range(20)))
                assert sum(len(node.of(Kind.BARRIER)) for node in nodes) == before + 1


@pytest.mark.parametrize(
    "other",
    [
        {"target": 10},
        {"partitions": [1]},
        {"partitions": None},
        {"target": {0: 9}, "partitions": None},
        {"level": "durable"},
        {"scope": "leader"},
        {"scope": "all"},
        {"mode": 1},
        {"wait_blocked": True},
        {"node": "n1"},
        {"target": Token("test", 9)},
    ],
)
async def test_who_asks_for_something_else_has_a_request_of_his_own(other: dict[str, Any]) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        tasks = [ask(boom), ask(boom, **other)]
        await held.come(2)
        held.reach(0)
        held.reach(1)
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    "how",
    [
        {"partitions": None},
        {"scope": "leader"},
        {"scope": "quorum"},
        {"scope": "all"},
        {"level": "snapshotted"},
    ],
)
async def test_what_may_be_another_thing_by_now_is_asked_again_by_those_who_come_later(how: dict[str, Any]) -> None:
    """Partitions and members come, leaders go, snapshots are removed: an answer may be on its way from before that."""
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        first = [ask(boom, **how) for _ in range(10)]
        await held.come(1)
        second = [ask(boom, **how) for _ in range(10)]
        await held.come(2)
        held.reach(0)
        await asyncio.gather(*first)
        assert not any(task.done() for task in second)
        held.reach(1)
        await asyncio.gather(*second)


@pytest.mark.parametrize("level", ["ordered", "committed", "durable", "applied"])
async def test_what_stays_true_is_shared_by_those_who_come_later(level: str) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        targets: list[dict[str, Any]] = [{"target": 9}, {"target": {0: 9, 1: 7}, "partitions": None}]
        for count, how in enumerate(targets, 1):
            first = ask(boom, level=level, **how)
            await held.come(count)
            second = ask(boom, level=level, **how)
            await turns()
            held.reach()
            await asyncio.gather(first, second)
        assert len(held.asked) == 2


async def test_each_asks_for_himself_which_index_a_time_is() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.INDEX_AT] = lambda s, f: s.send(f, Kind.INDEX_IS, {"global_index": 7, "cluster": "test"})
        when = datetime(2026, 11, 22, 3, 5, tzinfo=UTC)
        await asyncio.gather(*(ask(boom, target=when) for _ in range(3)))
        assert len(node.of(Kind.INDEX_AT)) == 3


async def test_the_request_has_the_latest_deadline_and_each_is_told_at_his_own_where_things_stand() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        short = [ask(boom, timeout=0.1) for _ in range(10)]
        long = ask(boom, timeout=20.0)
        also = [ask(boom, timeout=0.1) for _ in range(10)]
        await held.come(1)
        assert 19_000 < held.headers[0]["timeout_ms"] <= 20_000
        node.answers[Kind.BARRIER] = fails(NOT_YET)
        errors = await asyncio.gather(*short, *also, return_exceptions=True)
        looks = node.of(Kind.BARRIER)[1:]
        assert {frame.header["timeout_ms"] for frame in looks} == {1}
        assert 1 <= len(looks) <= 2  # one for all whose time is up, or two if they are just so far apart
        assert {type(each) for each in errors} == {BarrierTimeout}
        assert len({id(each) for each in errors}) == 20
        assert all(each.watermarks[0].applied_global_index == 3 and each.behind == [0] for each in errors)  # type: ignore[union-attr]
        assert not long.done()
        assert not node.of(Kind.CANCEL)
        held.reach(0)
        assert (await long).global_index == 9
        assert not left(boom)


async def test_whose_time_is_up_hears_it_if_it_is_reached_by_then() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        long, short = ask(boom, timeout=20.0), ask(boom, timeout=0.05)
        await held.come(2)
        held.reach(1)
        assert (await short).global_index == 9
        held.reach(0)
        await long


async def test_who_has_left_is_not_looked_for_when_his_time_is_up() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        long, leaves, last = ask(boom, timeout=20.0), ask(boom, timeout=0.1), ask(boom, timeout=0.2)
        await held.come(1)
        leaves.cancel()
        await held.come(2)
        held.fail(NOT_YET)
        with pytest.raises(BarrierTimeout):
            await last
        held.reach(0)
        await long
        assert len(held.asked) == 2


async def test_who_gives_up_just_as_his_time_is_up_keeps_nobody_from_a_last_look() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        long = ask(boom, timeout=20.0)
        await held.come(1)
        (flight,) = boom._sharing._flights
        deadline = asyncio.get_running_loop().time() + 0.1
        gone, waits = flight.join(deadline), flight.join(deadline)
        gone.cancel()  # and does not leave before the time is up
        assert await asyncio.wait_for(waits, 10.0) is None
        held.reach(0)
        await long


async def test_the_end_of_a_request_that_nobody_can_join_any_more_leaves_the_one_after_it_alone() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        first = ask(boom, scope="all")
        await held.come(1)
        second = ask(boom, scope="all")
        first.cancel()  # ends in the turn in which the second one asks
        third = ask(boom, scope="all")
        await until(lambda: len(held.asked) > 1)
        held.reach()
        await asyncio.wait_for(second, 10.0)
        await asyncio.wait_for(third, 10.0)
        assert len(held.asked) == 2


async def test_each_answer_tells_where_things_stand_then() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        for index in (9, 9, 11):
            told = {**REACHED, "watermarks": [[0, index, index, index, 0, index, "running"]]}
            node.once(Kind.BARRIER, lambda session, frame, told=told: session.send(frame, Kind.REACHED, told))
            assert [mark.applied_global_index for mark in (await ask(boom)).watermarks] == [index]


async def test_a_last_look_is_taken_where_it_was_waited_for() -> None:
    """Another node may be starting, and say nothing of where it is."""
    async with cluster(3) as nodes, Client(nodes[0].address) as boom:
        await boom.members()
        for node in nodes:
            await boom.barrier(1, node=node.name)  # all are connected
        for _ in range(3):
            for node in nodes:
                node.frames.clear()
            helds = [Held(node) for node in nodes]
            long, short = ask(boom, timeout=20.0), ask(boom, timeout=0.05)
            await until(lambda helds=helds: sum(len(held.asked) for held in helds) == 2)
            [asked] = [held for held in helds if held.asked]
            asked.reach(1)
            asked.reach(0)
            await asyncio.gather(long, short)


async def test_who_comes_later_and_has_more_time_goes_on_when_that_of_the_others_is_up() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        first = ask(boom, timeout=0.3)
        await held.come(1)
        second = ask(boom, timeout=20.0)
        await turns()
        held.fail(NOT_YET)
        with pytest.raises(BarrierTimeout):
            await first
        await held.come(2)
        assert held.headers[1]["timeout_ms"] > 10_000
        held.reach()
        await second
        assert not left(boom)


async def test_one_who_is_cancelled_takes_nothing_from_the_others_and_the_last_takes_the_request_along() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        tasks = [ask(boom) for _ in range(3)]
        await held.come(1)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        await boom.members()  # what has been said before this has arrived
        assert not node.of(Kind.CANCEL)
        tasks[2].cancel()
        await until(lambda: node.of(Kind.CANCEL))
        assert node.of(Kind.CANCEL)[0].request_id == held.asked[0][1].request_id
        assert not left(boom)
        again = ask(boom)  # and is not joined any more
        await held.come(2)
        held.reach()
        await again


async def test_the_first_may_go_before_anything_is_sent() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        tasks = [ask(boom) for _ in range(3)]
        await asyncio.sleep(0)  # they have begun, no more
        tasks[0].cancel()
        await held.come(1)
        held.reach()
        assert [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)] == [
            asyncio.CancelledError,
            BarrierResult,
            BarrierResult,
        ]


async def test_those_who_all_go_before_anything_is_sent_leave_nothing() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        introduced: list[tuple[Session, Frame]] = []
        node.answers[Kind.HELLO] = lambda session, frame: introduced.append((session, frame))
        tasks, stays = [ask(boom) for _ in range(3)], ask(boom, target=1)
        await until(lambda: introduced)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert left(boom) == 1
        del node.answers[Kind.HELLO]
        introduced[0][0].usual(introduced[0][1])
        await stays
        assert not left(boom)
        assert [frame.header["global_index"] for frame in node.of(Kind.BARRIER)] == [1]


@pytest.mark.parametrize(
    "error",
    [
        BarrierBlocked("paused", blocked=[[0, "paused"]], watermarks=[], frontiers=[]),
        PartitionDestroyed("gone", partition_id=0),
    ],
)
async def test_a_refusal_counts_for_those_who_had_asked_when_it_was_made(error: LogboomError) -> None:
    """The partition may have been resumed before the others asked, and the answer be from before."""
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        before = [ask(boom) for _ in range(2)]
        await held.come(1)
        after = [ask(boom) for _ in range(2)]
        await turns()
        held.fail(error)
        refused = await asyncio.gather(*before, return_exceptions=True)
        assert [type(each) for each in refused] == [type(error)] * 2
        assert refused[0] is not refused[1]
        await held.come(2)
        held.reach()
        await asyncio.gather(*after)


async def test_what_is_lost_on_the_way_is_asked_again_once_for_all() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.BARRIER, cuts, fails(Unavailable("starting")))
        results = await asyncio.gather(*(ask(boom) for _ in range(20)))
        assert len(results) == 20
        assert len(node.of(Kind.BARRIER)) == 3
        assert not left(boom)


async def test_while_it_is_tried_again_more_may_join_and_the_last_ends_it() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = Held(node)
        first = ask(boom)
        await held.come(1)
        held.fail(Unavailable("starting", retry_after=0.01))
        await held.come(2)
        second = ask(boom)
        await turns()
        first.cancel()
        await turns()
        assert not node.of(Kind.CANCEL)
        second.cancel()
        await until(lambda: node.of(Kind.CANCEL))
        assert not left(boom)


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is waited after a deadline, for an answer that is on its way."""
    monkeypatch.setattr(sharing, "BARRIER_GRACE_S", 0.05)
    monkeypatch.setattr(sharing, "LOOK_S", 0.01)


@pytest.mark.usefixtures("briefly")
async def test_without_any_answer_the_deadline_and_a_moment_more_is_the_end() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.BARRIER] = silent
        tasks = [ask(boom, timeout=0.1) for _ in range(3)]
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in errors] == [DeadlineExceeded] * 3
        assert [each.outcome for each in errors] == ["not_applied"] * 3  # type: ignore[union-attr]
        await until(lambda: node.of(Kind.CANCEL))
        assert not left(boom)


@pytest.mark.usefixtures("briefly")
async def test_nor_is_a_connection_waited_for_any_longer() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.HELLO] = silent
        with pytest.raises(DeadlineExceeded):
            await ask(boom, timeout=0.1)
        assert not left(boom)


async def test_an_answer_that_says_nothing_is_an_error_where_it_is_waited_for() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.BARRIER, lambda session, frame: session.send(frame, Kind.REACHED, {}))
        with pytest.raises(KeyError):
            await ask(boom)
        await ask(boom)  # the connection is as it was
        assert len(node.of(Kind.HELLO)) == 1


async def test_closing_the_client_ends_all_who_wait() -> None:
    async with cluster() as [node]:
        boom = Client(node.address)
        held = Held(node)
        tasks = [ask(boom), ask(boom), ask(boom, scope="all")]
        await held.come(2)
        await boom.close()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, LogboomError) for each in errors)
        assert not left(boom)


@pytest.mark.parametrize("how", [{"partitions": [object()]}, {"target": {0: 1 << 70}, "partitions": None}, {"node": 3}])
async def test_what_cannot_be_sent_is_refused_to_each(how: dict[str, Any]) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        errors = await asyncio.gather(ask(boom, **how), ask(boom, **how), return_exceptions=True)
        assert [type(each) for each in errors] == [InvalidRequest] * 2
        assert not left(boom)


@pytest.mark.parametrize("caller_too", [False, True])
async def test_whoever_cancels_all_tasks_of_the_loop_leaves_a_client_that_goes_on(caller_too: bool) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.barrier(1)
        task = ask(boom)
        await asyncio.sleep(0)
        for each in asyncio.all_tasks() - {asyncio.current_task(), None if caller_too else task}:
            each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not left(boom)
        async with asyncio.timeout(10.0):
            await ask(boom)
