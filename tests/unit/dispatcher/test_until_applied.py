"""Reads that wait until a partition is applied so far: what is not committed here yet is not waited for for long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.leaderless import Leaderless
from dispatcher.pipeline.until_applied import HEARD_S, until_applied
from dispatcher.reading.surroundings import Asker
from logboom.errors import QuotaExceeded, Unavailable
from logboom.settings import BarrierSettings, RaftSettings
from logboom.types import GlobalLogIndex, Level, PartitionId
from tests.unit.dispatcher.barrier_desk import PARTITIONS, A, B, Desk

COMMITTED, AHEAD_MAX = 5, 10
FOR_EVER = 10_000.0


class Node(Desk):
    """What is committed up to 5 it has heard of, and applied nothing of it."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.now = 100.0
        self.workers = PARTITIONS
        self.settings = SimpleNamespace(barrier=BarrierSettings(ahead_max=AHEAD_MAX))
        self.clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        self.leaderless = Leaderless(self.clock, RaftSettings())
        self.lagging = SimpleNamespace(check=lambda _: None)
        self.hurried: list[PartitionId] = []
        self.hurry = self.hurried.extend
        self.commit(COMMITTED)

    def look(self) -> None:
        """Nothing has to be done."""

    def global_commit_index(self) -> int:
        return self.barriers.frontier(A, Level.ORDERED)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.barriers.expire(self.now)

    async def asked(
        self, *targets: tuple[PartitionId, int], deadline: float = FOR_EVER, asker: Asker | None = None
    ) -> asyncio.Task[None]:
        backend: Any = self
        wanted = [(p, GlobalLogIndex(at)) for p, at in targets]
        task = asyncio.get_running_loop().create_task(until_applied(backend, wanted, deadline, asker=asker))
        await asyncio.sleep(0)
        return task


@pytest.fixture
def node() -> Node:
    return Node()


async def test_what_is_not_committed_here_is_waited_for_for_a_moment(node: Node) -> None:
    """Each was told when he had given up, and could not ask another."""
    task = await node.asked((A, COMMITTED), (B, COMMITTED + 1))
    node.later(HEARD_S - 0.1)
    await asyncio.sleep(0)
    assert not task.done()
    node.later(0.2)
    with pytest.raises(Unavailable, match=f"partition {B} is not applied up to {COMMITTED + 1} here"):
        await task
    assert len(node.barriers) == 0


async def test_whoever_has_less_time_has_no_more(node: Node) -> None:
    task = await node.asked((A, COMMITTED + 1), deadline=node.now + 1.0)
    node.later(1.1)
    with pytest.raises(Unavailable):
        await task


async def test_what_is_committed_here_is_waited_for_to_the_end(node: Node) -> None:
    task = await node.asked((A, COMMITTED), deadline=node.now + 60.0)
    node.later(59.0)
    await asyncio.sleep(0)
    assert not task.done()
    node.apply(A, COMMITTED)
    await task
    assert node.hurried == [A]


async def test_what_is_far_ahead_is_not_waited_for(node: Node) -> None:
    """Sixteen connections took all places of the node for ten minutes, those that are kept for the node itself, too."""
    near = await node.asked((A, COMMITTED + AHEAD_MAX))
    for far in (COMMITTED + AHEAD_MAX + 1, 1 << 61):
        with pytest.raises(Unavailable, match="by far"):
            await (await node.asked((A, far)))
    assert len(node.barriers) == 1
    near.cancel()
    await asyncio.gather(near, return_exceptions=True)
    assert len(node.barriers) == 0


async def test_whoever_reads_takes_his_own_places_and_not_the_nodes() -> None:
    node = Node(waiters_max=5, waiters_reserved=2, waiters_per_client=2, waiters_per_principal=2)
    one, same, other = Asker("one", "spark"), Asker("same", "spark"), Asker("other", "job")
    waiting = [await node.asked((A, COMMITTED), asker=one), await node.asked((B, COMMITTED), asker=one)]
    for who, why in ((one, "this connection"), (same, "spark")):
        with pytest.raises(QuotaExceeded, match=why):
            await (await node.asked((A, COMMITTED), asker=who))
    waiting.append(await node.asked((A, COMMITTED), asker=other))
    with pytest.raises(QuotaExceeded, match="this node"):
        await (await node.asked((B, COMMITTED), asker=Asker("third", "job")))
    waiting += [await node.asked((A, COMMITTED)) for _ in range(2)]
    node.apply(A, COMMITTED)
    node.apply(B, COMMITTED)
    await asyncio.gather(*waiting)
    assert len(node.barriers) == 0


async def test_whoever_may_wait_longer_than_at_a_barrier_waits_as_long_as_that(node: Node) -> None:
    node.settings.barrier = BarrierSettings(ahead_max=AHEAD_MAX, wait_ms_max=10_000)
    task = await node.asked((A, COMMITTED), asker=Asker("one", "one"))
    node.later(9.0)
    await asyncio.sleep(0)
    assert not task.done()
    node.later(2.0)
    with pytest.raises(Unavailable):
        await task


def crowded(**limits: int) -> Node:
    """Barriers have all places that they may."""
    node = Node(waiters_max=4, waiters_reserved=2, waiters_per_principal=2, **limits)
    for _ in range(2):
        waiter, _ = node.wait(COMMITTED + 2, (A,), client="barriers", principal="spark", deadline=500.0)
        assert waiter is not None
    return node


async def test_barriers_keep_nobody_from_reading_what_is_committed() -> None:
    """Those of the same certificate were enough."""
    node = crowded()
    for mine in (Asker("reads", "spark"), Asker("other", "other")):
        task = await node.asked((A, COMMITTED), asker=mine)
        assert not task.done()
        assert len(node.barriers) == 3
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(QuotaExceeded, match="2 barriers of"):
            await (await node.asked((A, COMMITTED + 1), asker=mine))
    reads = [await node.asked((A, COMMITTED), asker=Asker(who, who)) for who in "ab"]
    with pytest.raises(QuotaExceeded, match="2 reads of this node"):
        await (await node.asked((A, COMMITTED), asker=Asker("c", "c")))
    own = [await node.asked((A, COMMITTED)) for _ in range(2)]
    node.apply(A, COMMITTED)
    await asyncio.gather(*reads, *own)
    assert len(node.barriers) == 2


async def test_nor_do_their_targets() -> None:
    node = crowded()
    node.barriers._quotas._targets = node.barriers._quotas._targets_as["spark"] = 1 << 40
    task = await node.asked((B, COMMITTED), asker=Asker("reads", "spark"))
    node.apply(B, COMMITTED)
    await task


async def test_reads_keep_no_barrier_out() -> None:
    node = Node(waiters_max=2, waiters_per_principal=2)
    reads = [await node.asked((A, COMMITTED), asker=Asker("reads", "spark")) for _ in range(2)]
    waiter, _ = node.wait(COMMITTED, (A,), client="barriers", principal="spark", deadline=500.0)
    assert waiter is not None
    node.apply(A, COMMITTED)
    await asyncio.gather(*reads)
    assert node.barriers._quotas._principals == {}


@pytest.mark.parametrize("asker", [None, Asker("one", "one")])
async def test_what_is_heard_of_meanwhile_is_waited_for_to_the_end(node: Node, asker: Asker | None) -> None:
    """A millisecond later it had all of its time, and so it had not."""
    deadline = node.now + 60.0
    late, applied = [await node.asked((p, COMMITTED + 1), deadline=deadline, asker=asker) for p in (A, B)]
    node.commit(COMMITTED + 1)
    node.later(HEARD_S + 0.1)
    await asyncio.sleep(0)
    node.later(50.0)
    node.apply(B, COMMITTED + 1)
    await applied
    assert not late.done()
    node.later(10.0)
    with pytest.raises(Unavailable, match=f"partition {A} is not applied up to {COMMITTED + 1} here"):
        await late
    assert len(node.barriers) == 0


async def test_what_is_heard_of_is_waited_for_though_nobody_leads_any_more(node: Node) -> None:
    task = await node.asked((A, COMMITTED + 1))
    node.commit(COMMITTED + 1)
    node.leaderless.notice(None)
    node.now += 1_000.0
    node.leaderless.notice(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    node.apply(A, COMMITTED + 1)
    await task
    with pytest.raises(Unavailable, match="heard of no leader"):
        await (await node.asked((A, COMMITTED + 2)))
