"""A node that finds out that its disk was lost: what it says from then on, and to whom (docs/decisions/0031)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logboom.settings import RaftSettings
from logboom.types import NodeId
from raftlog.engine.elections import ALONE_S
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership, Rejoining
from raftlog.links.directories import Directories, Met
from raftlog.links.hello import Identity
from raftlog.members.rejoin import Rejoin
from raftlog.members.roster import Roster
from tests.unit.raftlog.cluster import Cluster, SimNode
from tests.unit.raftlog.forgetting import ForgettingCluster
from tests.unit.raftlog.voter_world import Voter
from tests.unit.raftlog.world import MemoryDisk, voters

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
OWN, TOKEN = b"o" * 16, b"t" * 16
OURS, THEIRS = "ab" * 16, "cd" * 16


class Node:
    """n2, which has links with the others."""

    def __init__(self, lineage: str | None = "") -> None:
        disk: Any = MemoryDisk()
        self.journal = Journal.open(disk=disk, directory=Path("/n2/journal"), cluster_id="c", random_bytes=bytes)
        self.forgot: list[bool] = []
        self.kept: list[tuple[bytes, Met]] = []
        self.cut: list[NodeId] = []
        self.membership = Membership(node_id=N2, journal=self.journal, begins=voters(N0, N1, N2), forget=self._forget)
        self.links: Any = SimpleNamespace(
            rejoining=False,
            directories=Directories(N2, OWN, {N0: OWN}, lambda own, met: self.kept.append((own, met))),
            identity=Identity(N2, "c", b"same", lineage),
            links={peer: self._link(peer) for peer in (N0, N1)},
        )
        engine: Any = SimpleNamespace(journal=self.journal, applied_index=1)
        self.rejoin = Rejoin(membership=self.membership, engine=engine, links=self.links)

    def _forget(self, foreign: bool) -> Rejoining:
        self.forgot.append(foreign)
        return Rejoining(TOKEN, lambda done: done())

    def _link(self, peer: NodeId) -> Any:
        return SimpleNamespace(connection=SimpleNamespace(close=lambda: self.cut.append(peer)))


@pytest.mark.parametrize(
    ("lineage", "theirs", "foreign"), [("", "", False), ("", THEIRS, True), (OURS, OURS, False), (None, THEIRS, False)]
)
def test_an_empty_one_says_so_to_everybody_from_then_on(
    lineage: str | None,
    theirs: str,
    foreign: bool,
) -> None:
    node = Node(lineage)
    assert node.links.directories.forget(theirs)
    assert node.forgot == [foreign]
    assert node.membership.rejoining is not None
    assert node.membership.rejoining.token == TOKEN
    assert node.links.rejoining
    assert node.cut == [N0, N1], "they have to hear it before anything else"
    assert node.kept == [(TOKEN, {N0: OWN})], "the token is its directory's id"
    assert node.links.identity.lineage == (None if foreign else lineage)


def test_one_with_data_never_begins_anew_by_itself() -> None:
    node = Node()
    node.journal.setCurrentTerm(1, N2)
    node.journal.add(b"\x00", 2, 1)
    assert not node.links.directories.forget("")
    assert not node.forgot
    assert not node.links.rejoining
    assert not node.cut


def test_who_finds_it_out_while_it_stands_for_election_does_not_lead() -> None:
    """The votes that it asked for before come in."""
    cluster = ForgettingCluster(3)

    async def story() -> None:
        for each in cluster.ids:
            await cluster.start(each)
        while not (standing := [n for n in cluster.nodes.values() if n.raft.engine.is_candidate]):
            await cluster.sleep(0.0002)
        lost = standing[0].raft
        lost.engine.membership.rejoining = Rejoining(TOKEN, lambda done: done())
        term = lost.engine.term
        while lost.engine.term == term and cluster.leader() is None:
            await cluster.sleep(0.001)
        assert not lost.engine.is_leader

    cluster.tell(story())


def test_everybody_here_hears_of_it_before_the_link_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, heard = ForgettingCluster(3), list[str]()
    monkeypatch.setattr(SimNode, "peer_forgot", lambda *_: heard.append("forgot"))
    monkeypatch.setattr(SimNode, "peer_up", lambda *_: heard.append("up"))
    changed = iter((True, False))
    monkeypatch.setattr(Roster, "link_up", lambda *_: next(changed))

    async def story() -> None:
        await cluster.start(N0)
        for _ in range(2):
            cluster.nodes[N0].raft.link_up(N1)

    cluster.tell(story())
    assert heard == ["forgot", "up", "up"]


def test_who_knows_of_nobody_waits_to_be_called_before_it_begins_a_cluster_and_only_then() -> None:
    """It may have lost its disk, and others have been added since it began one."""
    cluster = Cluster(1, nodes=1)
    taken = list[float]()

    async def story() -> None:
        for entries in (False, True):
            await cluster.start(N0)
            since = cluster.loop.now
            assert (cluster.nodes[N0].raft.journal.last_index > 1) is entries
            while cluster.leader() is None:
                await cluster.sleep(0.01)
            taken.append(cluster.loop.now - since)
            cluster.crash(N0, power=False)

    cluster.tell(story())
    assert taken[1] < ALONE_S <= taken[0]


@pytest.mark.parametrize("stands_still_at", [0.01, 1.2])
def test_so_long_it_waits_once_more_where_it_stood_still_meanwhile(stands_still_at: float) -> None:
    """It began one thirty milliseconds later: whoever called it in vain had not called again."""
    node = Voter(now=1000.0, peers=(), entries=0)
    node.engine.listens()
    node.wait(stands_still_at)
    node.now += 3
    node.wait(ALONE_S - 0.02)
    assert not node.engine.is_leader
    node.now += 0.2  # its processor is scarce, as it may be all the time
    node.wait(0.2)
    assert node.engine.is_leader


def test_a_slow_rhythm_is_no_standing_still() -> None:
    node = Voter(now=1000.0, peers=(), entries=0)
    node.engine.settings = RaftSettings(heartbeat_ms=1_200, election_min_ms=5_000, election_max_ms=10_000)
    node.engine.listens()
    for _ in range(40):
        node.engine.tick()
        node.now += 0.4
    assert node.engine.is_leader
