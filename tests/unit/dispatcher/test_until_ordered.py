"""Which partitions there were at an index: a node says it once it knows all that was ordered up to there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline import until_applied
from dispatcher.pipeline.leaderless import ELECTIONS, Leaderless
from dispatcher.sessions import admin
from logboom.errors import InvalidRequest, NotLeader, Unavailable
from logboom.settings import BarrierSettings, RaftSettings
from tests.unit.dispatcher.reading_world import ORDERED, World

LONG_S = ELECTIONS * RaftSettings().election_patience_ms / 1000


class Node(World):
    """It has heard of what is ordered up to 5, and of two partitions."""

    def __init__(self) -> None:
        super().__init__(2)
        self.parent.global_index = 5
        self.recovery = SimpleNamespace(complete=True)
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        self.leaderless = Leaderless(clock, RaftSettings())
        self.settings = SimpleNamespace(barrier=BarrierSettings(ahead_max=10))
        self.rows = [[0], [1]]

    def partition_rows(self) -> Any:
        return list(self.rows)

    def key_partitions(self) -> int:
        return 2

    async def read_index(self, deadline: float) -> int:
        raise NotLeader("n2 leads", leader="n2:1")

    def hears(self) -> None:
        """Of a partition that is created, and of what is ordered behind that."""
        self.rows.append([2])
        self.parent.global_index += 1
        self.wake(ORDERED)

    async def told(self, *, wait_s: float = 60.0, **asked: Any) -> Any:
        backend: Any = self
        return (await admin.act(backend, {"action": "partitions", **asked}, self.now + wait_s))["partitions"]


@pytest.mark.parametrize("asked", [{}, {"at_least": 0}, {"at_least": 5}])
async def test_what_it_knows_it_says_at_once(asked: dict[str, Any]) -> None:
    assert await Node().told(**asked) == [[0], [1]]


async def test_of_what_it_has_not_heard_of_it_waits_to_hear() -> None:
    """It said what it knew: whoever had written to one that was new to it was given a view without that."""
    node = Node()
    asked = asyncio.ensure_future(node.told(at_least=7))
    await asyncio.sleep(0)
    node.hears()
    await asyncio.sleep(0)
    assert not asked.done()
    node.hears()
    node.hears()
    assert await asked == [[0], [1], [2], [2], [2]]
    assert not node.wakers[ORDERED]


@pytest.mark.parametrize("asked", [{}, {"at_least": 3}])
async def test_before_it_has_recovered_it_sends_whoever_asks_to_others(asked: dict[str, Any]) -> None:
    """It knows those that its journal begins with, and what was committed since it has yet to be told."""
    node = Node()
    node.recovery.complete = False
    with pytest.raises(Unavailable, match="recovering"):
        await node.told(**asked)


async def test_it_waits_no_longer_than_it_may_nor_where_nobody_leads() -> None:
    node = Node()
    with pytest.raises(Unavailable, match="up to 6"):
        await node.told(at_least=6, wait_s=0.0)
    node.leaderless.notice(None)
    asked = asyncio.ensure_future(node.told(at_least=6))
    await asyncio.sleep(0)
    node.now += LONG_S + 0.1
    node.leaderless.notice(None)
    with pytest.raises(Unavailable, match="no leader"):
        await asked
    with pytest.raises(Unavailable, match="no leader"):
        await node.told(at_least=6)
    assert await node.told(at_least=5) == [[0], [1]]
    assert not node.wakers[ORDERED]


async def test_nobody_is_kept_for_all_of_his_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was told when he had given up, and could not ask another."""
    monkeypatch.setattr(until_applied, "HEARD_S", 0.01)
    node = Node()
    with pytest.raises(Unavailable, match="has not heard of what was ordered up to 6"):
        await node.told(at_least=6, wait_s=600.0)
    assert not node.wakers[ORDERED]


async def test_what_is_far_ahead_is_not_waited_for() -> None:
    """Thousands who named an index that never comes were looked at whenever anything was ordered."""
    node = Node()
    waiting = asyncio.ensure_future(node.told(at_least=15))
    await asyncio.sleep(0)
    assert len(node.wakers[ORDERED]) == 1
    for far in (16, 1 << 60):
        with pytest.raises(Unavailable, match="by far"):
            await node.told(at_least=far)
    assert len(node.wakers[ORDERED]) == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_what_cannot_be_is_refused() -> None:
    for wrong in ("x", -1, True):
        with pytest.raises(InvalidRequest):
            await Node().told(at_least=wrong)
