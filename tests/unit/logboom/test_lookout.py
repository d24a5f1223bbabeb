"""Who does nothing but follow a stream knows who the members are by now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logboom import Client
from logboom.client import connection, lookout
from logboom.errors import InvalidRequest, Unavailable
from logboom.wire import Kind
from tests.unit.logboom.fake_server import Answer, FakeNode, cluster, fails, silent, until

pytestmark = pytest.mark.timeout(60)
"""Who never looks, or follows on where nothing comes, would wait for as long as all tests may."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BEAT_S", 0.01)
    monkeypatch.setattr(lookout, "LOOK_S", 0.05)
    monkeypatch.setattr(lookout, "SOON_S", 0.02)


def says(*nodes: FakeNode, at: int, removed: tuple[str, ...] = ()) -> Answer:
    rows = [{"id": each.name, "client_address": each.address, "role": "voter"} for each in nodes]
    said = {"members": rows, "term": 1, "index": at, "removed": list(removed)}
    return lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, {"members": said})


def follows(boom: Client) -> asyncio.Task[list[Any]]:
    async def follow() -> list[Any]:
        return [batch async for batch in boom.tail(0, follow=True)]

    return asyncio.create_task(follow())


async def test_who_follows_while_all_that_it_knows_are_replaced_goes_on() -> None:
    async with cluster(1) as [first], cluster(1) as [second], Client(first.address) as boom:
        second.name, second.members = "n2", {"n2": second.address}
        first.answers[Kind.TAIL] = lambda session, frame: None  # nothing new
        first.answers[Kind.ADMIN] = says(second, at=7)
        second.answers[Kind.TAIL] = lambda session, frame: session.send(frame, Kind.END, {"next_index": 1})
        following = follows(boom)
        await until(lambda: first.of(Kind.ADMIN))
        await until(lambda: "n2" in boom._cluster.members)
        await first.stop()
        assert await following == []
        assert second.of(Kind.TAIL)
        assert await boom.members() == {"n2": second.address}


async def test_who_follows_at_a_node_that_was_removed_and_runs_on_goes_on_at_a_member() -> None:
    async with cluster(2) as [gone, member], Client(gone.address) as boom:
        gone.answers[Kind.TAIL] = lambda session, frame: None  # nothing new, for ever
        gone.answers[Kind.ADMIN] = says(member, at=7, removed=("n1",))
        member.answers[Kind.TAIL] = lambda session, frame: session.send(frame, Kind.END, {"next_index": 1})
        member.answers[Kind.STATUS] = lambda session, frame: session.send(frame, Kind.STATUS_REPLY, {})
        await boom._cluster.connection(gone.address)
        assert await follows(boom) == []
        await boom._cluster.connection(gone.address)  # as somebody does who asks just this one
        await boom._cluster.connection(member.address)
        for _ in range(10):
            await boom.status()
        assert not gone.of(Kind.STATUS)


async def test_one_node_is_asked_at_a_time_and_not_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "LOOK_S", 3600.0)
    async with cluster(3) as nodes, Client([each.address for each in nodes]) as boom:
        for each in nodes:
            each.answers[Kind.ADMIN] = says(*nodes, at=2)
            await boom._cluster.connection(each.address)
        asked = lambda: sum(len(each.of(Kind.ADMIN)) for each in nodes)  # noqa: E731
        await until(lambda: boom._cluster._look_at is not None)
        boom._cluster._look_at = 0.0
        await until(asked)
        assert boom._cluster._look_at > boom._cluster.now + 1000
        assert asked() == 1


async def test_when_a_connection_is_lost_they_are_asked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "LOOK_S", 3600.0)
    async with cluster(2) as [one, two], Client([one.address, two.address]) as boom:
        two.answers[Kind.ADMIN] = says(two, at=3)
        for each in (one, two):
            await boom._cluster.connection(each.address)
        await one.stop()
        await until(lambda: boom._cluster.members == {"n2": two.address})
        assert list(boom._cluster._connections) == [two.address]  # nothing is kept of what is gone


async def test_what_is_older_than_what_is_known_is_not_believed() -> None:
    async with cluster(2) as [one, two], Client(one.address) as boom:
        one.once(Kind.ADMIN, says(one, two, at=9))
        one.answers[Kind.STATUS] = lambda session, frame: session.send(frame, Kind.STATUS_REPLY, {})
        await boom.status()
        await until(lambda: boom._cluster._members_at == [1, 9])
        one.answers[Kind.ADMIN] = says(one, at=8)
        asked = len(one.of(Kind.ADMIN))
        await until(lambda: len(one.of(Kind.ADMIN)) > asked + 2)
        assert set(boom._cluster.members) == {"n1", "n2"}


@pytest.mark.parametrize("error", [InvalidRequest("action must be one of"), Unavailable("it failed to answer")])
async def test_a_node_that_does_not_say_it_is_asked_again_and_nothing_is_forgotten(error: Any) -> None:
    async with cluster(2) as [one, two], Client(one.address) as boom:
        one.answers[Kind.ADMIN] = fails(error)
        await boom._cluster.connection(one.address)
        await until(lambda: len(one.of(Kind.ADMIN)) > 2)
        assert boom._cluster.members == {"n1": one.address, "n2": two.address}


async def test_who_reads_over_a_connection_of_his_own_is_not_asked_there() -> None:
    async with cluster(1) as [node], Client(node.address) as boom:
        own = await boom._cluster.dedicated(node.address)
        beats = []
        own._beaten, look = beats.append, own._beaten
        await until(lambda: len(beats) > 2)
        boom._cluster._look_at = 0.0
        assert look is not None
        look(own)
        assert not own._replies


async def test_whom_nobody_holds_any_more_a_connection_does_not_keep() -> None:
    async with cluster(1) as [node]:
        boom = Client(node.address)
        opened = await boom._cluster.connection(node.address)
        assert opened._beaten is not None
        assert not any(cell.cell_contents is boom._cluster for cell in opened._beaten.__closure__ or ())  # type: ignore[attr-defined]
        await boom.close()


async def test_a_node_that_knows_of_nobody_makes_nobody_forgotten() -> None:
    """It has only just begun; whoever believed it would have nobody left to go to."""
    async with cluster(2) as [one, two], Client(one.address) as boom:
        one.answers[Kind.ADMIN] = says(at=9)
        await boom._cluster.connection(one.address)
        known = dict(boom._cluster.members)
        await until(lambda: len(one.of(Kind.ADMIN)) > 2)
        assert boom._cluster.members == known == {"n1": one.address, "n2": two.address}


async def test_what_is_under_way_at_a_node_that_was_removed_is_answered_there() -> None:
    """It may be done already: nobody is told that it is unknown because of that."""
    async with cluster(2) as [gone, member], Client(gone.address) as boom:
        asked = list[Any]()
        gone.answers[Kind.WATERMARKS] = lambda *request: asked.append(request)
        gone.answers[Kind.ADMIN] = says(member, at=7, removed=("n1",))
        under_way = asyncio.create_task(boom.watermarks(node=gone.address))
        await until(lambda: asked and "n1" in boom._cluster._removed)
        session, frame = asked[0]
        session.send(frame, Kind.WATERMARKS_REPLY, {"watermarks": []})
        assert await under_way == []
        assert len(asked) == 1


async def test_who_adds_a_member_knows_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``add_member("n4", ...)``, then ``status(node="n4")``: no node 'n4', for half a minute."""
    monkeypatch.setattr(lookout, "LOOK_S", 3600)
    async with cluster(1) as [first], cluster(1) as [added], Client(first.address) as boom:
        added.name, added.members = "n4", first.members
        added.answers[Kind.STATUS] = lambda session, frame: session.send(frame, Kind.STATUS_REPLY, {"node": "n4"})
        first.answers[Kind.ADMIN] = says(first, at=1)
        with pytest.raises(InvalidRequest, match="no node 'n4'"):
            await boom.status(node="n4")
        first.answers[Kind.ADMIN] = says(first, added, at=7)
        await boom.add_member("n4", peer_address="h:1", client_address=added.address)
        assert (await boom.status(node="n4"))["node"] == "n4"
        assert set(await boom.members()) == {"n1", "n4"}
        first.answers[Kind.ADMIN] = says(first, at=8, removed=("n4",))
        await boom.remove_member("n4")
        assert set(await boom.members()) == {"n1"}


async def test_one_that_somebody_else_has_added_is_found_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "LOOK_S", 3600)
    async with cluster(1) as [first], cluster(1) as [added], Client(first.address) as boom:
        added.name, added.members = "n4", first.members
        added.answers[Kind.STATUS] = lambda session, frame: session.send(frame, Kind.STATUS_REPLY, {"node": "n4"})
        assert set(await boom.members()) == {"n1"}
        first.answers[Kind.ADMIN] = says(first, added, at=7)
        assert (await boom.status(node="n4"))["node"] == "n4"


async def test_one_that_has_moved_is_found_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by its id it was looked for where it had been, for up to half a minute."""
    monkeypatch.setattr(lookout, "LOOK_S", 3600)
    async with cluster(2) as [first, before], cluster(1) as [moved], Client(first.address) as boom:
        moved.name, moved.members = "n2", {"n1": first.address, "n2": moved.address}
        moved.answers[Kind.STATUS] = lambda session, frame: session.send(frame, Kind.STATUS_REPLY, {"node": "n2"})
        assert (await boom.members())["n2"] == before.address
        await before.stop()
        first.answers[Kind.ADMIN] = says(first, moved, at=7)
        assert (await boom.status(node="n2", timeout=5.0))["node"] == "n2"


async def test_a_node_that_tells_nobody_who_the_members_are_makes_no_id_known() -> None:
    async with cluster(1) as [first], Client(first.address) as boom:
        first.answers[Kind.ADMIN] = fails(InvalidRequest("not to you"))
        with pytest.raises(InvalidRequest, match="no node 'n4'; members are n1"):
            await boom.status(node="n4")


@pytest.mark.parametrize(("count", "least", "most"), [(1, 30.0, 60.0), (3, 1800.0, 3600.0)])
async def test_who_knows_a_single_member_looks_more_often(
    count: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that had grown from one, and lost that one, within half a minute was never found again."""
    monkeypatch.setattr(lookout, "LOOK_S", 3600.0)
    monkeypatch.setattr(lookout, "LONE_S", 60.0)
    async with cluster(count) as nodes, Client([each.address for each in nodes]) as boom:
        await boom._cluster.connection(nodes[0].address)
        await until(lambda: boom._cluster._look_at is not None)
        began = boom._cluster.now
        assert boom._cluster._look_at is not None
        assert least - 5 < boom._cluster._look_at - began <= most


def pongs(leaderless_ms: int | None) -> Answer:
    said = {} if leaderless_ms is None else {"leaderless_ms": leaderless_ms}
    return lambda session, frame: session.send(frame, Kind.PONG, said)


@pytest.mark.parametrize("at", [[1, 7], [1, 0], "7", None])
async def test_who_follows_hears_soon_that_there_are_others(monkeypatch: pytest.MonkeyPatch, at: Any) -> None:
    """Between two looks all members could be replaced: it knew nobody that was left, for good."""
    monkeypatch.setattr(lookout, "LED_S", 0.02)
    monkeypatch.setattr(lookout, "LOOK_S", 1_000.0)
    async with cluster(2) as [first, second], Client(first.address) as boom:
        said = {"leaderless_ms": 0, "members_at": at}
        first.answers[Kind.TAIL] = lambda session, frame: None
        first.answers[Kind.PING] = lambda session, frame: session.send(frame, Kind.PONG, said)
        first.answers[Kind.ADMIN] = says(second, at=7)
        await boom._cluster.connection(first.address)
        boom._cluster._members_at = [1, 0]
        following = follows(boom)
        await until(lambda: len(first.of(Kind.PING)) > 3)
        if at == [1, 7]:
            await until(lambda: [*boom._cluster.members] == [second.name])
            asked = len(first.of(Kind.ADMIN))
            seen = len(first.of(Kind.PING))
            await until(lambda: len(first.of(Kind.PING)) > seen + 3)
            assert len(first.of(Kind.ADMIN)) == asked, "once it knows them it asks no more"
        else:
            assert not first.of(Kind.ADMIN)
        following.cancel()


async def test_who_follows_at_a_node_that_hears_of_no_leader_goes_on_where_one_is_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookout, "LED_S", 0.02)
    monkeypatch.setattr(lookout, "LOOK_S", 1_000.0)  # that long it is left alone
    async with cluster(2) as [lone, other], Client(lone.address) as boom:
        lone.answers[Kind.TAIL] = lambda session, frame: None  # nothing new, for ever
        lone.answers[Kind.STATUS] = other.answers[Kind.STATUS] = silent
        lone.answers[Kind.PING], other.answers[Kind.PING] = pongs(lookout.LEADERLESS_MS), pongs(0)
        other.answers[Kind.TAIL] = lambda session, frame: session.send(frame, Kind.END, {"next_index": 1})
        await boom._cluster.connection(lone.address)
        asked = asyncio.create_task(boom.status(node="n1"))
        await until(lambda: lone.of(Kind.STATUS))
        assert await follows(boom) == []
        await until(lambda: lone.of(Kind.CANCEL))
        assert [each.request_id for each in lone.of(Kind.CANCEL)] == [each.request_id for each in lone.of(Kind.TAIL)]
        assert not asked.done(), "what was asked of it alone waits there"
        asked.cancel()
        for _ in range(10):
            assert (await boom._cluster.any()).address == other.address


@pytest.mark.parametrize(
    ("here", "there"),
    [(lookout.LEADERLESS_MS, 1), (lookout.LEADERLESS_MS, None), (lookout.LEADERLESS_MS - 1, 0), (None, 0)],
)
async def test_who_follows_stays_where_no_other_hears_of_a_leader_or_says_so(
    monkeypatch: pytest.MonkeyPatch, here: int | None, there: int | None
) -> None:
    monkeypatch.setattr(lookout, "LED_S", 0.02)
    async with cluster(2) as [lone, other], Client(lone.address) as boom:
        lone.answers[Kind.TAIL] = lambda session, frame: None
        lone.answers[Kind.PING], other.answers[Kind.PING] = pongs(here), pongs(there)
        await boom._cluster.connection(lone.address)
        following = follows(boom)
        await until(lambda: len(lone.of(Kind.PING)) > 5)
        await boom._cluster.connection(other.address)
        seen = len(lone.of(Kind.PING))
        await until(lambda: len(lone.of(Kind.PING)) > seen + 5)
        assert not following.done()
        assert len(lone.of(Kind.TAIL)) == 1
        assert not other.of(Kind.TAIL)
        following.cancel()
