"""A node that is fed with what is from before, until it has what others have told it of (docs/decisions/0031)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logboom.types import NodeId
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership, Refill
from raftlog.links.directories import Directories
from raftlog.links.hello import Claim, Identity
from raftlog.members.refilling import Refilling
from tests.unit.raftlog.cluster import Cluster
from tests.unit.raftlog.forgetting import ForgettingCluster
from tests.unit.raftlog.world import MemoryDisk, voters

N0, N1 = NodeId("n0"), NodeId("n1")
OURS, THEIRS = "ab" * 16, "cd" * 16
LAST = Refill(1 << 40, 1, "", lambda done: done())
"""Nothing comes that far."""


class Node:
    """n0, which voted alone once."""

    def __init__(self, lineage: str | None = "") -> None:
        disk: Any = MemoryDisk()
        self.journal = Journal.open(disk=disk, directory=Path("/n0/journal"), cluster_id="c", random_bytes=bytes)
        self.kept: list[tuple[int, int, bool]] = []
        self.ending: list[Callable[[], None]] = []
        self.membership = Membership(node_id=N0, journal=self.journal, begins=voters(N0), wait_for=self._wait_for)
        self.directories = Directories(N0, b"o" * 16, {}, lambda *_: None)
        self.links: Any = SimpleNamespace(
            directories=self.directories, identity=Identity(N0, "c", b"same", lineage), links={}
        )
        self.engine: Any = SimpleNamespace(
            journal=self.journal, applied_index=1, term_at=lambda index: self.journal.entry(index)[2]
        )
        self.refilling = Refilling(membership=self.membership, engine=self.engine, links=self.links)

    def _wait_for(self, term: int, index: int, lineage: str, foreign: bool) -> Refill:
        self.kept.append((term, index, foreign))
        return Refill(term, index, lineage, self.ending.append)

    def told(self, term: int, index: int, lineage: str = "", *, lost: bool = True) -> bool:
        return self.directories.wait_for(Claim(term, index, (N0, N1)), lineage, lost)

    def fed(self, *terms: int) -> None:
        for term in terms:
            self.journal.add(b"\x00", self.journal.last_index + 1, term)


def test_it_stands_for_no_election_until_its_journal_is_there() -> None:
    node = Node()
    assert node.directories.empty()
    assert node.membership.may_campaign(1)
    assert not node.told(3, 4)
    assert node.kept == [(3, 4, False)]
    for terms, lacks in (((), True), ((1, 1), True), ((1,), True), ((3,), False)):
        node.fed(*terms)
        assert node.membership.lacks is node.directories.lacks() is lacks
        assert node.membership.may_campaign(1) is not lacks
    assert not node.directories.empty()


def test_what_was_cut_off_is_waited_for_no_longer_than_until_a_later_term() -> None:
    node = Node()
    node.told(3, 40)
    node.fed(1, 4)
    assert not node.membership.lacks


def test_who_has_it_waits_for_nothing() -> None:
    node = Node()
    node.fed(1, 3, 3)
    assert not node.told(3, 4)
    assert node.kept == []
    node.told(3, 6)
    node.told(3, 5)
    node.told(4, 2)
    assert node.kept == [(3, 6, False), (4, 2, False)], "what is further counts"


def test_it_is_over_once_that_is_handed_up_and_the_disk_says_so() -> None:
    node = Node()
    node.told(3, 3)
    node.fed(1, 3, 3)
    for applied, over in ((1, 0), (2, 0), (3, 1), (4, 1)):
        node.engine.applied_index = applied
        node.refilling.follow()
        assert len(node.ending) == over
    assert node.membership.refill is not None
    node.ending.pop()()
    assert node.membership.refill is None


def test_what_ends_late_does_not_end_what_is_waited_for_by_then() -> None:
    node = Node()
    node.told(3, 3)
    node.fed(1, 3)
    node.engine.applied_index = 3
    node.refilling.follow()
    node.told(5, 9)
    node.ending.pop()()
    assert node.membership.lacks


@pytest.mark.parametrize(
    ("own", "lost", "taken"), [("", True, True), ("", False, False), (OURS, True, False), (None, True, False)]
)
def test_an_empty_one_that_was_lost_takes_the_history_of_the_others(own: str | None, lost: bool, taken: bool) -> None:
    """But not for one that was begun on purpose, nor that of whoever may be a stranger."""
    node, closed = Node(own), list[bool]()
    node.links.links = {N1: SimpleNamespace(connection=SimpleNamespace(close=lambda: closed.append(True)))}
    assert node.told(0, 1, THEIRS, lost=lost) is taken
    assert bool(closed) is taken, "links are of one history"
    assert node.kept == ([(0, 1, True)] if taken else [])
    assert node.links.identity.lineage == (None if taken else own)
    assert not node.membership.lacks, "it has that configuration"


def test_who_knows_of_no_entry_tells_of_none() -> None:
    """With a file that says so no node would start."""
    node = Node()
    assert not node.told(0, 0, THEIRS)
    assert node.kept == []


def test_what_was_told_of_another_history_does_not_count_beside_what_is_told_of_its_own() -> None:
    node = Node(None)
    node.told(50, 9000, THEIRS)
    node.told(3, 4, OURS)
    assert node.kept == [(50, 9000, False), (3, 4, False)]


def test_nor_once_it_has_taken_another_in_which_nothing_is_to_come() -> None:
    node = Node()
    node.told(50, 9000, THEIRS)
    node.refilling.follow()
    assert node.membership.refill is not None, "it is of none meanwhile"
    node.told(0, 1, OURS)
    node.links.identity = replace(node.links.identity, lineage=OURS)
    node.refilling.follow()
    assert not node.membership.may_campaign(1), "there is nothing of that one yet"
    node.fed(1)
    node.refilling.follow()
    node.ending.pop()()
    assert node.membership.may_campaign(1)


def test_what_it_was_ended_in_before_it_had_taken_that_history_is_not_over() -> None:
    """The file was written, the manifest was not: it led alone, with nothing, a moment after its start."""
    node = Node("")
    node.membership.refill = Refill(50, 9000, THEIRS, node.ending.append)
    node.refilling.follow()
    assert not node.ending
    assert not node.membership.may_campaign(1)
    assert node.told(50, 9000, THEIRS)
    assert node.links.identity.lineage is None


def test_one_that_votes_alone_by_what_it_has_does_not_lead_meanwhile() -> None:
    cluster = Cluster(1, nodes=1)

    async def story() -> None:
        await cluster.start(N0)
        while cluster.leader() is None:
            await cluster.sleep(0.01)
        cluster.crash(N0, power=False)
        await cluster.start(N0)
        membership = cluster.nodes[N0].raft.members.membership
        assert membership.journal.last_index > 1
        membership.refill = LAST
        await cluster.sleep(2)
        assert not cluster.nodes[N0].raft.engine.is_leader
        membership.refill = None
        await cluster.sleep(2)
        assert cluster.leader() is not None

    cluster.tell(story())


def test_of_three_one_that_was_empty_may_be_the_only_one_that_can_lead() -> None:
    """Who told it of an entry is gone, with that; the third one has less."""
    cluster = Cluster(1)
    n0, n1, n2 = cluster.ids

    async def story() -> None:
        for each in (n0, n2):
            await cluster.start(each)
        raft = cluster.nodes[n2].raft
        membership, known = raft.members.membership, Directories(n2, b"o" * 16, {}, lambda *_: None)
        membership.wait_for = lambda term, index, lineage, _: Refill(term, index, lineage, lambda done: done())
        links: Any = SimpleNamespace(directories=known, identity=raft.links.identity, links={})
        Refilling(membership=membership, engine=raft.engine, links=links)
        known.follow(membership.current, settled=True)
        told = {"members": [99, 101, cluster.ids], "voters": 3, "lineage": "", "settings": b"same"}
        known.find_out(n0, told, Claim.of(told), Claim(0, 1, tuple(cluster.ids)), links.identity)
        await cluster.load(1)
        assert raft.engine.journal.last_index > 1
        cluster.crash(n0, power=False)
        await cluster.start(n1)
        await cluster.sleep(5)
        assert cluster.leader() is cluster.nodes[n2]

    cluster.tell(story())


def test_who_is_told_while_it_stands_for_election_does_not_lead() -> None:
    """The votes that it asked for before come in."""
    cluster = ForgettingCluster(3)

    async def story() -> None:
        for each in cluster.ids:
            await cluster.start(each)
        while not (standing := [n for n in cluster.nodes.values() if n.raft.engine.is_candidate]):
            await cluster.sleep(0.0002)
        told = standing[0].raft
        told.engine.membership.refill = LAST
        term = told.engine.term
        while told.engine.term == term and cluster.leader() is None:
            await cluster.sleep(0.001)
        assert not told.engine.is_leader

    cluster.tell(story())
