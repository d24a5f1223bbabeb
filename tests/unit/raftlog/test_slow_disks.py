"""A follower whose disk is slower than its link: what it holds in its memory is bounded, and it has all in the end."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logboom.settings import RaftSettings
from logboom.types import KIB, NodeId, PartitionId, PartitionLogIndex, Term
from logboom.wire import Kind
from raftlog.entries.entry import Route, pack_routes
from raftlog.journal.outbox import GroupLimits
from raftlog.links.feed import CHUNK_ROUTES, STEPS, Feeds
from raftlog.links.lacks import Lack
from raftlog.repair.needs import MENDS_S, Needs
from raftlog.repair.repair import ROUTES_PER_FETCH
from tests.unit.raftlog import holes_world
from tests.unit.raftlog.cluster import Cluster, SimNode

BATCH = 64
MOST = 16 * KIB
SLOW = NodeId("n3")
PEER = NodeId("n2")


class Hung:
    """A disk that takes no more, until it is let go on."""

    def __init__(self, node: SimNode) -> None:
        self._submit = node.offload.submit
        self._waiting: list[tuple[Any, Any]] = []
        node.offload.submit = lambda job, done: self._waiting.append((job, done))  # type: ignore[method-assign]
        self._node = node

    def goes_on(self) -> None:
        self._node.offload.submit = self._submit  # type: ignore[method-assign]
        for job, done in self._waiting:
            self._submit(job, done)


def unwritten(node: SimNode) -> int:
    return BATCH * len(node.store.queue)


async def behind_a_leader(cluster: Cluster) -> tuple[SimNode, SimNode]:
    """Who leads, and another one."""
    for each in cluster.ids:
        await cluster.start(each)
    await cluster.load(1.0)
    leader = cluster.leader()
    assert leader is not None
    return leader, next(node for node in cluster.nodes.values() if node is not leader)


async def written(cluster: Cluster, leader: SimNode, batches: int) -> None:
    """By the others; as much at a time as is proposed in a turn."""
    for salt in range(batches):
        leader.submit(2 * salt)
        if salt % 16 == 0:
            await cluster.sleep(0.01)
            cluster.check()
    await cluster.sleep(1.0)


@pytest.mark.parametrize("away", [False, True])
def test_it_is_sent_no_more_than_that_beyond_what_it_has_synced(away: bool) -> None:
    """All that the others wrote meanwhile was in its memory, as it came from the leader or from the logs."""
    cluster = Cluster(3, settings=RaftSettings(unsynced_bytes_max=MOST))

    async def story() -> None:
        leader, slow = await behind_a_leader(cluster)
        if away:
            cluster.crash(slow.node_id, power=False)
            await written(cluster, leader, 2_000)
            await cluster.start(slow.node_id)
            slow = cluster.nodes[slow.node_id]
        disk = Hung(slow)
        before = max(cluster.log)
        await written(cluster, leader, 2_000)
        assert max(cluster.log) >= before + 2_000, "the others go on"
        assert unwritten(slow) <= MOST + BATCH * CHUNK_ROUTES
        assert leader.raft.feeds.state(slow.node_id) == "catching_up"
        disk.goes_on()
        await cluster.heal()
        assert leader.raft.feeds.state(slow.node_id) == "live"

    cluster.tell(story())


def test_what_it_has_lost_comes_no_faster_than_its_disk_takes_it() -> None:
    """A disk that has lost files and hangs, which goes together: all that was missing came into memory."""
    cluster = Cluster(3, settings=RaftSettings(unsynced_bytes_max=MOST))
    cluster.limits = GroupLimits(inline=0, redo=0)

    async def story() -> None:
        leader, slow = await behind_a_leader(cluster)
        await written(cluster, leader, 2_000)
        cluster.crash(slow.node_id, power=False)
        file = cluster.disks[slow.node_id].open(Path(f"/{slow.node_id}/aof"))
        file.truncate(0)
        file.sync()
        await cluster.start(slow.node_id)
        slow = cluster.nodes[slow.node_id]
        disk = Hung(slow)
        missing = len(slow.raft.repair._missing)
        assert missing >= 2_000
        await cluster.sleep(5.0)
        assert abs(unwritten(slow) - MOST) <= BATCH * ROUTES_PER_FETCH, "the first ones are being written"
        disk.goes_on()
        await cluster.heal()
        assert not slow.raft.repair.active

    cluster.tell(story())


class World:
    """A leader's feed of one peer, whose link takes all."""

    def __init__(self, most: int) -> None:
        self.entries: list[tuple[bytes, int, int]] = [(b"", 1, 1)]
        self.sent = 0
        self.acknowledged = 1
        self.now = 0.0
        self.jobs: deque[Callable[[], None]] = deque()
        journal = SimpleNamespace(base_index=1, last_index=1, entry=lambda index: self.entries[index - 1])
        self.journal = journal
        payloads = SimpleNamespace(size=lambda _: BATCH, is_hole=lambda _: False, read=lambda _: bytes(BATCH))
        links = SimpleNamespace(has_room=lambda _: True, send=self._took, send_frame=self._took, seldom=None)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        self.needs = Needs(
            journal=cast(Any, journal),
            engine=cast(Any, SimpleNamespace(acknowledged_by=lambda _: self.acknowledged)),
            feeds=cast(Any, None),
            links=cast(Any, None),
            clock=cast(Any, clock),
        )
        self.feeds = Feeds(
            peers=[PEER],
            journal=cast(Any, journal),
            payloads=cast(Any, payloads),
            links=cast(Any, links),
            offload=cast(Any, SimpleNamespace(submit=lambda job, done: self.jobs.append(lambda: done(job(), None)))),
            advanced=lambda _: None,
            damaged=lambda _: None,
            bytes_max=most,
            acknowledged=lambda _: self.acknowledged,
            mends=self.needs.mends,
        )

    def _took(self, _: NodeId, kind: Kind, *__: object) -> bool:
        self.sent += kind is Kind.PAYLOAD
        return True

    def write(self, batches: int) -> None:
        for _ in range(batches):
            self.turn(1)

    def turn(self, batches: int) -> None:
        """They are proposed together."""
        for _ in range(batches):
            self.feeds.broadcast(1, [bytes(BATCH)])
        for _ in range(batches):
            self.journal.last_index += 1
            index = self.journal.last_index
            route = Route(PartitionId(0), Term(1), PartitionLogIndex(index), bytes(16))
            self.entries.append((pack_routes([route]), index, 1))

    def pump(self) -> None:
        self.feeds.pump(term=1, settled=True)
        while self.jobs:
            self.jobs.popleft()()
            self.feeds.pump(term=1, settled=True)


def test_whoever_keeps_up_is_never_held_back() -> None:
    """However much is sent: with nine tenths of it under way all the time."""
    world = World(MOST)
    most = MOST // BATCH
    for _ in range(100):
        world.write(most // 10)
        world.acknowledged = max(1, world.journal.last_index - 8 * most // 10)
    assert (world.feeds.state(PEER), world.sent) == ("live", 100 * (most // 10))


def test_one_batch_always_goes() -> None:
    world = World(BATCH // 2)
    for _ in range(9):
        world.write(1)
        world.acknowledged = world.journal.last_index
    assert (world.feeds.state(PEER), world.sent) == ("live", 9)


def test_it_gets_more_as_it_acknowledges_some() -> None:
    world, most = World(MOST), MOST // BATCH
    world.write(10 * most)
    assert world.sent == most
    assert world.feeds.sendable(PEER) == 1 + most, "no entry goes ahead of its payload"
    while world.acknowledged < world.journal.last_index:
        world.pump()
        assert world.sent * BATCH <= (world.acknowledged - 1) * BATCH + MOST + BATCH * CHUNK_ROUTES + MOST // 32
        world.acknowledged += 1
    world.pump()
    assert (world.feeds.state(PEER), world.sent) == ("live", 10 * most)


@pytest.mark.parametrize("seed", range(5))
def test_what_came_in_front_of_a_batch_that_finds_no_room_counts_on(seed: int) -> None:
    """Found by reading: with the batch that was to come again a step of those before it was forgotten, each time."""
    rng, world = random.Random(seed), World(MOST)
    for _ in range(400):
        world.turn(rng.randrange(2, 5))
        world.pump()
    assert world.sent * BATCH <= MOST + MOST // STEPS
    assert world.feeds.state(PEER) == "catching_up"
    assert len(world.feeds._feeds[PEER].marks) <= 2 * STEPS + 2


def test_what_it_is_to_get_again_does_not_count_twice() -> None:
    """Else it would wait for what it may never have got."""
    world, most = World(MOST), MOST // BATCH
    world.write(2 * most)
    world.pump()
    sent = world.sent
    world.feeds.rewind(PEER, held=1)
    world.pump()
    assert world.sent > sent
    sent = world.sent
    world.feeds.begin(PEER, held=1 + most // 2)
    world.pump()
    assert world.sent > sent, "over a new link nothing is under way"
    world.feeds.reset()
    sent = world.sent
    world.write(1)
    assert world.sent == sent + 1, "nor in a new leadership"


def test_whoever_mends_something_is_fed_all_the_same() -> None:
    """It acknowledges nothing behind what it lacks: what is to be done about that may lie in front of it for ever."""
    world, most = World(MOST), MOST // BATCH
    world.needs.fetched(PEER, {})
    world.write(3 * most)
    assert (world.feeds.state(PEER), world.sent) == ("live", 3 * most)
    world.now += MENDS_S
    world.write(1)
    assert (world.feeds.state(PEER), world.sent) == ("catching_up", 3 * most)
    world.needs.fetched(PEER, {})
    world.pump()
    assert (world.feeds.state(PEER), world.sent) == ("live", 3 * most + 1)


@pytest.mark.parametrize("link_breaks", [False, True])
def test_whoever_has_mended_it_is_so_no_longer(*, link_breaks: bool) -> None:
    """It asks no more then, and counted as mending for half a minute: it got all that its link took."""
    world, most = World(MOST), MOST // BATCH
    world.needs.fetched(PEER, {})
    world.write(3 * most)
    assert world.sent == 3 * most
    if link_breaks:
        world.needs.link_down(PEER)
    else:
        world.acknowledged = world.journal.last_index
    before = world.sent
    world.write(3 * most)
    world.pump()
    assert world.sent <= before + most
    world.needs.fetched(PEER, {})
    world.pump()
    assert (world.feeds.state(PEER), world.sent) == ("live", 6 * most), "it lacks something else"


@pytest.mark.parametrize(
    ("committed", "told", "fed"), [(True, False, False), (False, False, True), (False, True, False)]
)
def test_whoever_acknowledges_what_it_gets_is_not_fed_without_end(*, committed: bool, told: bool, fed: bool) -> None:
    """A hole is asked for until it is void: it took all into its memory as long as there was one."""
    follower = holes_world.World()
    follower.misses(5, committed=committed)
    for node in (holes_world.A, holes_world.B):
        follower.say(node, Lack.ABSENT)
    if told:
        follower.say(holes_world.A, Lack.LOST)
    follower.repair.work()
    follower.now += 1
    follower.repair.work()
    kind, header = follower.sent[-1][1:3]
    assert kind is Kind.FETCH
    world, most = World(MOST), MOST // BATCH
    world.needs.fetched(PEER, header)
    world.write(3 * most)
    assert world.sent == (3 * most if fed else most)
