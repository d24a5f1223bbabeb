"""Those who wait for admission are let in when it is time, between two ticks, and no more at a time than is good."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.admission.budgets import Verdict
from dispatcher.pipeline.submitting import ALARM_S_MAX, ALARM_S_MIN, TURN_S
from logboom.errors import Overloaded, QuotaExceeded
from logboom.types import ProducerId
from tests.unit.dispatcher.submitting_world import EACH_S, A, Node

PER_S = 1_000


@pytest.fixture
def node() -> Any:
    made = Node(principal_ops_per_s=PER_S, rate_burst_ms=10)
    yield made
    made.submitting.close()
    made.loop.close()


def test_who_waits_for_a_rate_is_let_in_when_it_opens_though_nobody_ticks(node: Node) -> None:
    """There was a timer for that, and nothing noticed when there was none: up to 50 ms were added to each wait."""
    node.play(lambda: node.ask(40, "p"), lambda: node.ask(1, "p"))
    first, second = node.at()
    opens = first + 0.040 - 0.010 + 1 / PER_S  # but for what may be owed
    assert opens <= second <= opens + 2 * ALARM_S_MIN


def test_what_opens_later_than_the_next_tick_is_left_to_it(node: Node) -> None:
    node.play(lambda: node.ask(200, "p"), lambda: node.ask(1, "p"))
    assert len(node.at()) == 1
    node.play(lambda: node.submitting.tick(node.loop.now))
    assert len(node.at()) == 2


def test_one_that_opens_sooner_is_not_kept_waiting_for_the_first(node: Node) -> None:
    """The timer was set for the first, and stayed."""
    node.play(
        lambda: node.ask(50, "slow"), lambda: node.ask(1, "slow"), lambda: node.ask(15, "fast"),
        lambda: node.ask(1, "fast"),
    )  # fmt: skip
    assert len(node.at()) == 4
    begun = {who: at - node.began for at, who in reversed(node.proposing.admitted)}
    ended = {who: at - node.began for at, who in node.proposing.admitted}
    assert ended["fast"] - begun["fast"] <= 0.006 + 3 * ALARM_S_MIN
    assert ended["slow"] - begun["slow"] <= 0.041 + 3 * ALARM_S_MIN
    assert ALARM_S_MAX > 0.041  # else it were a tick that opened it


def test_thousands_that_may_go_at_once_leave_the_loop_to_others_in_between() -> None:
    """All were admitted in one turn: with four thousand of them heartbeats were late by half a second."""
    node, longest = Node(), 0.0
    node.admission.judge(None, Verdict("full", 1.0))
    for number in range(500):
        node.ask(1, f"p{number % 7}")
    assert node.at() == []
    node.admission.judge(None, None)

    async def run() -> None:
        nonlocal longest
        node.submitting.eased()
        while len(node.answers) < 500:
            before = node.loop.now
            await asyncio.sleep(0)
            longest = max(longest, node.loop.now - before)

    node.loop.run_until_complete(asyncio.wait_for(run(), 60.0))
    assert 0 < longest <= TURN_S + 2 * EACH_S
    assert node.admission.used() == (0, 0)
    node.submitting.close()
    node.loop.close()


def test_a_pace_ends_with_the_leadership_that_it_was_found_in(node: Node) -> None:
    node.admission.pace.per_s = 1.0
    node.submitting.lost_leadership()
    assert node.admission.pace.bytes_per_s is None


def test_a_node_that_stops_does_nothing_more_for_those_that_wait() -> None:
    """Sending away a large one, for which something was kept, woke the others for it when all was over."""
    node = Node(partition_ops=10, fair_share_percent=100, queue_chunk_bytes=8)
    waiting, looks = node.submitting.waiting, list[float]()

    def fill() -> None:
        node.admission.admit([(A, 10, 10)], node.loop.now)
        for principal in ("large", "small"):
            node.ask(9, principal)
        waiting.touch(A)

    def stop() -> None:
        assert dict(node.admission.reservations()) == {A: 1}
        node.submitting.close()
        waiting.serve = looks.append  # type: ignore[method-assign]

    node.play(fill)
    node.play(stop)
    assert len(node.answers) == 2
    assert looks == []
    node.loop.close()


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "when its turn comes"])
def test_what_would_be_refused_when_it_is_applied_is_not_ordered(waits: bool) -> None:
    """Whoever waits for the commit alone would have been answered by then."""
    node, asked = Node(partition_ops=4), list[Any]()

    def makes_room(*part: Any, **_: Any) -> None:
        asked.append(part)
        if len(asked) > waits:
            raise QuotaExceeded("too many ranges", limit=3, used=3)

    dedupe = SimpleNamespace(lookup=lambda *_: None, makes_room=makes_room)
    worker = SimpleNamespace(dedupe=dedupe, remembered=(dedupe, 0), applied_index=0, is_paused=False)
    node.submitting._pipeline.workers = {A: worker}  # type: ignore[misc, dict-item]
    taken = node.admission.admit([(A, 4, 10)], 0.0)
    if waits:
        node.ask(1, "late", producer=ProducerId(b"p" * 16))
        assert node.answers == []
    else:
        taken.release(A)
        with pytest.raises(QuotaExceeded):
            node.ask(1, "late", producer=ProducerId(b"p" * 16))
    node.play(*([lambda: taken.release(A)] if waits else []))
    assert node.proposing.admitted == []
    assert [type(answer) for answer in node.answers] == [QuotaExceeded] * waits
    assert node.admission.used() == (0, 0)
    node.submitting.close()
    node.loop.close()


def test_nor_is_what_lacks_room_for_what_has_to_be_ordered_in_front_of_it() -> None:
    """It was ordered without, when its turn came: acknowledged, and refused when it was applied."""
    node = Node(partition_ops=1)
    needs = iter([None, 5, 5])
    dedupe = SimpleNamespace(lookup=lambda *_: None, makes_room=lambda *_, **__: next(needs))
    worker = SimpleNamespace(dedupe=dedupe, remembered=(dedupe, 0), applied_index=0, is_paused=False)
    node.submitting._pipeline.workers = {A: worker}  # type: ignore[misc, dict-item]
    taken = node.admission.admit([(A, 1, 10)], node.loop.now)
    node.ask(1, "late", producer=ProducerId(b"p" * 16))
    assert node.answers == []
    node.play(lambda: taken.release(A))
    assert node.proposing.admitted == []
    (answer,) = node.answers
    assert (type(answer), answer.limit, answer.outcome) == (Overloaded, "partition_ops", "not_applied")
    assert node.admission.used() == (0, 0)
    node.ask(1, "again", producer=ProducerId(b"p" * 16))
    assert len(node.proposing.admitted) == 2  # what has to be in front, and it
    node.submitting.close()
    node.loop.close()
