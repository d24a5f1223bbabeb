"""A snapshot that comes over a line which takes longer for a piece than anybody waits at first."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.upkeep import installing, sources
from logboom.errors import Unavailable
from logboom.types import NodeId
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.installing_world import COUNT, G, Source, Target, Wire

ANSWER_S = 0.02
PIECE_S = 0.1


class SlowLine(Wire):
    """Pieces come one after the other, also those that nobody waits for any more."""

    free_at = 0.0

    def _deliver(self, name: str, peer: str, frame: Frame) -> None:
        loop = asyncio.get_running_loop()
        if frame.kind not in (Kind.SNAPSHOT_CHUNK, Kind.LOG_CHUNK):
            super()._deliver(name, peer, frame)
            return
        self.free_at = max(self.free_at, loop.time()) + PIECE_S
        loop.call_at(self.free_at, super()._deliver, name, peer, frame)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANSWER_S", ANSWER_S)
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)
    monkeypatch.setattr(installing, "DURABLE_POLL_S", 0.001)


async def test_what_comes_slowly_is_waited_for_longer_each_time_until_it_comes() -> None:
    line = SlowLine()
    source, target = Source("a", line), Target(line)
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]
    asked = line.asked(Kind.SNAPSHOT_FETCH)
    pieces = {(each["file"], each["offset"]) for each in asked}
    assert len(asked) <= len(pieces) + 8, "once it is known how long that takes, each is asked for once"


async def test_who_answers_at_once_again_is_soon_passed_over_again_when_he_does_not() -> None:
    line = SlowLine()
    source, target = Source("a", line), Target(line)
    source.serving.offer(NodeId("t"))
    await target.ended()
    asking = target.installing._sources
    assert asking._patience > ANSWER_S
    line.__class__ = Wire  # type: ignore[assignment]  # the line is quick from now on
    await asking.piece(G, "meta", 0)
    assert asking._patience < PIECE_S


async def test_an_answer_that_comes_late_is_taken_where_the_same_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by review: it was thrown away, and a batch that takes longer than anybody waits never came."""
    monkeypatch.setattr(sources, "ANSWER_S_MAX", 0.6 * PIECE_S)
    line = SlowLine()
    source, target = Source("a", line, big=10), Target(line, has=COUNT)
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.ready, target.installing.failed) == ([G], 0)


async def test_nor_is_an_answer_to_another_question_or_of_another_node() -> None:
    line = SlowLine()
    Source("a", line)
    asking = Target(line).installing._sources
    with pytest.raises(Unavailable):
        await asking._ask_one(NodeId("a"), Kind.SNAPSHOT_FETCH, {"global_index": G, "file": "meta", "offset": 0})
    (late,) = asking._earlier
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Frame] = loop.create_future()
    asking._answers[99] = NodeId("b"), answer
    asking.on_frame(NodeId("a"), Frame(Kind.SNAPSHOT_CHUNK, late, {"total": 1}))
    asking.on_frame(NodeId("b"), Frame(Kind.SNAPSHOT_CHUNK, late, {"total": 1}))
    assert not answer.done()
    asking._answers[99] = NodeId("a"), answer
    asking.on_frame(NodeId("a"), Frame(Kind.SNAPSHOT_CHUNK, late, {"total": 1}))
    assert answer.done()
    del asking._answers[99]
    with pytest.raises(Unavailable):
        await asking._ask_one(NodeId("a"), Kind.SNAPSHOT_FETCH, {"global_index": G, "file": "meta", "offset": 1})
    assert late not in asking._earlier
