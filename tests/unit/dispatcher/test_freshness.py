"""Reads of bounded staleness: an index counts as new as the question that it answers, and no newer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline import freshness
from dispatcher.pipeline.freshness import Freshness
from logboom.errors import BarrierFuture, LogboomError, NotLeader, ProtocolError, QuotaExceeded, Unavailable
from logboom.types import GlobalLogIndex
from logboom.wire import Frame, Kind

ME, LEADER, OTHER = "n1", "n2", "n3"


class World:
    """A node whose clock and leader the test moves; frames are kept."""

    def __init__(self, *, leader: str | None = LEADER) -> None:
        self.now = 100.0
        self.wall = 5_000
        self.linked = self.speaks = True
        self.ups: Counter[str] = Counter()
        self.sent: list[tuple[str, Kind, dict[str, Any], int]] = []
        self.confirming: list[Callable[[LogboomError | None], None]] = []
        self.index = 7
        backend = SimpleNamespace(
            node_id=ME,
            clock=SimpleNamespace(monotonic=lambda: self.now, wall_ms=lambda: self.wall),
            raft=SimpleNamespace(
                engine=SimpleNamespace(leader=leader),
                links=SimpleNamespace(send=self._send, speaks=lambda *_: self.speaks, ups=self.ups),
                read_index=self.confirming.append,
                admits=True,
            ),
            global_commit_index=lambda: self.index,
            leader_address=lambda: "n2:1",
            read_index=self._read_index,
        )
        self.backend = cast("Any", backend)
        self.fresh = Freshness(self.backend)

    def _send(self, peer: str, kind: Kind, header: dict[str, Any], request_id: int = 0) -> bool:
        if self.linked:
            self.sent.append((peer, kind, header, request_id))
        return self.linked

    async def _read_index(self, deadline: float) -> int:
        return self.index

    def ask(self, max_age: float, *, patience: float = 10.0) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.fresh.recent(max_age, self.now + patience))

    def answer(self, index: int, number: int = -1, *, peer: str = LEADER) -> None:
        self.fresh.on_frame(cast("Any", peer), Frame(Kind.INDEX_TOLD, self.sent[number][3], {"global_index": index}))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_index_that_is_new_enough_is_used_again() -> None:
    world = World()
    first = world.ask(1.0)
    await turns()
    world.now += 0.4  # the answer took so long: the index is as old as the question
    world.answer(9)
    assert await first == 9
    world.now += 0.5
    assert await world.ask(1.0) == 9
    assert len(world.sent) == 1


async def test_one_that_is_too_old_by_its_question_is_not() -> None:
    world = World()
    first = world.ask(1.0)
    await turns()
    world.now += 0.4
    world.answer(9)
    await first
    world.now += 0.7
    second = world.ask(1.0)
    await turns()
    assert not second.done()
    assert len(world.sent) == 2
    world.answer(11)
    assert await second == 11


async def test_a_round_that_began_too_early_is_followed_by_another() -> None:
    world = World()
    first = world.ask(0.0)
    await turns()
    world.now += 0.1
    second = world.ask(0.0)
    await turns()
    world.answer(9)
    assert await first == 9
    await turns()
    assert not second.done()
    world.answer(12)
    assert await second == 12
    assert world.fresh.rounds == 2


async def test_a_leader_of_an_earlier_release_is_not_asked() -> None:
    world = World()
    world.speaks = False
    asked = world.ask(1.0)
    await turns()
    assert (world.sent, asked.done()) == ([], False)
    world.speaks = True
    async with asyncio.timeout(5):
        while not world.sent:  # noqa: ASYNC110 - it asks again after a pause
            await asyncio.sleep(0.001)
    world.answer(9)
    assert await asked == 9


async def test_many_share_a_round() -> None:
    world = World()
    asked = [world.ask(0.5) for _ in range(50)]
    await turns()
    world.answer(9)
    assert await asyncio.gather(*asked) == [9] * 50
    assert len(world.sent) == 1


async def test_who_leads_asks_its_own_quorum() -> None:
    world = World(leader=ME)
    assert await world.ask(0.0) == 7
    assert world.sent == []


async def test_the_leader_answers_once_a_quorum_has_confirmed_it() -> None:
    world = World(leader=ME)
    world.fresh.on_frame(cast("Any", OTHER), Frame(Kind.INDEX_ASK, 4, {}))
    assert world.sent == []
    world.index = 13
    world.confirming.pop()(None)
    assert world.sent == [(OTHER, Kind.INDEX_TOLD, {"global_index": 13}, 4)]
    world.fresh.on_frame(cast("Any", OTHER), Frame(Kind.INDEX_ASK, 5, {}))
    world.confirming.pop()(NotLeader("no longer", leader=None))
    assert world.sent[-1][2]["error"]["code"] == "not_leader"


@pytest.mark.parametrize("leader", [None, LEADER])
async def test_without_a_leader_it_is_asked_again_until_the_deadline(leader: str | None) -> None:
    world = World(leader=leader)
    world.linked = False
    asked = world.ask(1.0, patience=0.05)
    async with asyncio.timeout(5):
        while world.fresh.rounds < 2:  # noqa: ASYNC110 - its rounds are what is waited for
            await asyncio.sleep(0.001)
        world.now += 1
        with pytest.raises(Unavailable, match="no leader confirmed"):
            await asked


async def test_a_refusal_and_a_broken_link_are_answers_and_the_next_leader_is_asked() -> None:
    world = World()
    asked = world.ask(1.0)
    await turns()
    header = {"error": NotLeader("no", leader=None).to_wire()}
    world.fresh.on_frame(cast("Any", LEADER), Frame(Kind.INDEX_TOLD, world.sent[0][3], header))
    async with asyncio.timeout(5):
        while len(world.sent) < 2:  # noqa: ASYNC110 - it asks again after a pause
            await asyncio.sleep(0.001)
        world.fresh.peer_down(cast("Any", OTHER))
        world.fresh.peer_down(cast("Any", LEADER))
        world.backend.raft.engine.leader = OTHER
        while len(world.sent) < 3:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.001)
        assert world.sent[-1][0] == OTHER
        world.answer(21, peer=OTHER)
        assert await asked == 21


async def test_what_went_wrong_before_an_answer_is_not_why_a_later_one_is_late() -> None:
    """Found by review: whoever was in a hurry was told of a link that had broken the day before."""
    world = World()
    world.linked = False
    asked = world.ask(0.0)
    await turns()
    world.linked = True
    async with asyncio.timeout(5):
        while not world.sent:  # noqa: ASYNC110 - it asks again after a pause
            await asyncio.sleep(0.001)
    world.answer(9)
    assert await asked == 9
    world.now += 1
    late = world.ask(0.0, patience=0.0)
    with pytest.raises(Unavailable) as caught:
        await late
    assert "reached" not in caught.value.message


async def test_an_answer_that_comes_behind_much_else_counts_for_its_question_however_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(freshness, "ROUND_S", 0.01)
    world = World()
    asked = world.ask(1.0)
    await turns()
    first = world.now
    async with asyncio.timeout(5):
        while len(world.sent) < 3:  # noqa: ASYNC110 - it asks again and again
            await asyncio.sleep(0.001)
        world.now += 0.9
        world.answer(9, 0)
        assert await asked == 9
    assert world.fresh._known == (first, 9), "as old as its question"
    world.now += 0.2
    younger = world.ask(1.0)
    await turns()
    world.fresh.peer_down(cast("Any", LEADER))
    world.answer(11, 1)
    assert world.fresh._known == (first, 9), "of a link that is gone"
    assert not younger.done()
    world.answer(12)
    younger.cancel()
    await world.fresh.close()


async def test_of_questions_that_nobody_answers_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "ROUND_S", 0.0)
    monkeypatch.setattr(freshness, "AGAIN_S", 0.0)
    monkeypatch.setattr(freshness, "ASKED_MAX", 3)
    world = World()
    asked = world.ask(1.0)
    async with asyncio.timeout(5):
        while len(world.sent) < 10:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.001)
    assert len(world.fresh._open) <= 3
    asked.cancel()
    await world.fresh.close()


async def test_an_answer_that_nobody_asked_for_says_nothing() -> None:
    world = World()
    asked = world.ask(1.0)
    await turns()
    world.answer(99, peer=OTHER)
    await turns()
    assert not asked.done()
    with pytest.raises(ProtocolError):
        world.fresh.on_frame(cast("Any", LEADER), Frame(Kind.INDEX_TOLD, world.sent[0][3], {"global_index": -1}))
    world.answer(9)
    world.answer(10)
    assert await asked == 9
    await world.fresh.close()


class TestTimes:
    async def test_a_time_that_has_passed_needs_no_waiting(self) -> None:
        world = World()
        assert await world.fresh.index_at(5_000, world.now + 1) == 7

    async def test_a_time_to_come_is_waited_for_by_the_leaders_clock(self) -> None:
        world = World()
        asked = asyncio.ensure_future(world.fresh.index_at(5_005, world.now + 1))
        await turns()
        assert not asked.done()
        await asyncio.sleep(0.02)
        assert not asked.done()  # the clock stands
        world.wall = 5_005
        async with asyncio.timeout(5):
            assert await asked == 7

    async def test_one_beyond_the_deadline_is_refused_at_once(self) -> None:
        world = World()
        with pytest.raises(BarrierFuture) as refused:
            await world.fresh.index_at(7_000, world.now + 1)
        assert (refused.value.timestamp_ms, refused.value.now_ms) == (7_000, 5_000)

    async def test_a_clock_that_is_set_back_meanwhile_keeps_nobody_beyond_the_deadline(self) -> None:
        world = World()
        asked = asyncio.ensure_future(world.fresh.index_at(5_005, world.now + 1))
        await turns()
        world.wall -= 3_600_000
        async with asyncio.timeout(5):
            with pytest.raises(BarrierFuture):
                await asked

    async def test_no_more_than_the_node_has_room_for_wait_for_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So many for each connection were all that was looked at, for ten minutes each."""
        monkeypatch.setattr(freshness, "AHEAD_MAX", 2)
        world = World()

        def ask(who: str) -> asyncio.Future[GlobalLogIndex]:
            return asyncio.ensure_future(world.fresh.index_at(5_900, world.now + 1, principal=who))

        asked = [ask(who) for who in ("one", "one", "other", "third")]
        await turns()
        assert [each.done() for each in asked] == [False, True, False, True]
        for k, whose in ((1, "for you"), (3, "at this node")):
            with pytest.raises(QuotaExceeded, match=f"requests wait for times to come {whose}"):
                await asked[k]
        assert await world.fresh.index_at(5_000, world.now + 1) == 7  # for which nobody has to wait
        asked[0].cancel()
        await turns()
        another = ask("third")
        await turns()
        assert not another.done()
        for each in asked[2], another:
            each.cancel()
        await turns()
        assert world.fresh.ahead.taken == 0

    async def test_only_a_leader_knows(self) -> None:
        world = World()
        world.backend.raft.admits = False
        with pytest.raises(NotLeader):
            await world.fresh.index_at(1, world.now + 1)


async def test_a_question_over_a_link_that_is_gone_is_answered_by_nobody() -> None:
    """Its number may be that of a question of the next life of whoever asked, which wants to know something younger."""
    world = World(leader=ME)
    world.fresh.on_frame(cast("Any", OTHER), Frame(Kind.INDEX_ASK, 1, {}))
    world.ups[OTHER] += 1
    world.fresh.on_frame(cast("Any", OTHER), Frame(Kind.INDEX_ASK, 1, {}))
    world.confirming.pop(0)(None)
    assert world.sent == []
    world.confirming.pop(0)(None)
    assert len(world.sent) == 1
