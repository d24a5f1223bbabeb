"""Raft messages on their way out: what they promise, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from logboom.types import NodeId
from logboom.wire import Kind
from raftlog.engine import messages
from raftlog.outbound import Outbound

PEER = NodeId("n2")


def reply(next_node_idx: int, *, seq: int = 1) -> messages.Message:
    return {
        "type": "next_node_idx", "next_node_idx": next_node_idx, "reset": False, "success": True, "term": 1, "seq": seq,
        "journal": 1,
    }  # fmt: skip


class World:
    """What an ``Outbound`` needs: ``held`` waits for the group that begins next."""

    def __init__(self, *, missing: int | None = None) -> None:
        self.sent: list[messages.Message] = []
        self.acknowledged: list[int] = []
        self.held: list[Callable[[], None]] = []
        self.group: Any = SimpleNamespace(hold=self._hold, stalled=lambda _: False, groups=0)
        links: Any = SimpleNamespace(connected=lambda _: True, send=self._send, flush=lambda _: None)
        self.journal: Any = SimpleNamespace(durable_index=20, durable_term=1, acknowledged=self.acknowledged.append)
        self.outbound = Outbound(links=links, group=self.group, journal=self.journal, stalled_s=1.0)
        self.engine: Any = SimpleNamespace(term=1, quickest=[])
        self.outbound.engine = self.engine
        self.repair: Any = SimpleNamespace(active=missing is not None, first_index=missing)
        self.outbound.repair = self.repair

    def _hold(self, send: Callable[[], None]) -> None:
        self.held.append(send)

    def _send(self, peer: NodeId, kind: Kind, header: Any, body: Any) -> bool:
        self.sent.append(messages.decode(memoryview(body[0])))
        return True

    def synced(self, *, groups: int = 1) -> list[tuple[int, int]]:
        """A group takes what is held, and is synced: which next index, and which round, left with it."""
        held, self.held, self.sent = self.held, [], []
        self.group.groups += groups
        for send in held:
            send()
        return [(each["next_node_idx"], each["seq"]) for each in self.sent]


def test_nothing_is_said_of_a_term_that_the_next_start_might_begin_once_more() -> None:
    """A single voter elects itself without asking: after a crash it would lead that term again, with other entries."""
    it = World()
    append: messages.Message = {"type": "append_entries", "term": 2, "commit_index": 1, "seq": 1}
    assert it.outbound.send(PEER, append)
    assert it.sent == []
    it.journal.durable_term = 2
    for hold in it.held:
        hold()
    assert [each["term"] for each in it.sent] == [2]
    assert it.outbound.send(PEER, append | {"seq": 2})
    assert [each["seq"] for each in it.sent] == [1, 2], "what is synced waits for nothing"


@pytest.mark.parametrize(("missing", "said"), [(None, 9), (12, 9), (9, 9), (5, 5)])
def test_what_is_missing_here_is_not_acknowledged_though_the_journal_has_its_entry(
    missing: int | None, said: int
) -> None:
    """Else a leader counts a copy that is not there, and what it answers for may be lost with the others."""
    it = World(missing=missing)
    assert it.outbound.send(PEER, reply(9))
    assert it.sent == []
    assert (it.synced(), it.acknowledged) == ([(said, 1)], [said - 1])


class TestSeveralForOneGroup:
    def test_the_last_says_it_all(self) -> None:
        it = World()
        for index in (7, 8, 9):
            assert it.outbound.send(PEER, reply(index, seq=index))
        assert (it.synced(), it.acknowledged) == ([(9, 9)], [8])
        assert it.outbound.send(PEER, reply(10, seq=11))
        assert it.synced() == [(10, 11)]

    def test_each_peer_has_its_own(self) -> None:
        it = World()
        it.outbound.send(PEER, reply(7))
        it.outbound.send(NodeId("n3"), reply(9))
        assert it.synced() == [(7, 1), (9, 1)]

    def test_what_comes_during_a_group_waits_for_the_next(self) -> None:
        """The group under way does not sync what came after it began."""
        it = World()
        it.outbound.send(PEER, reply(7))
        under_way, it.held = it.held, []
        it.group.groups += 1
        it.outbound.send(PEER, reply(9, seq=2))
        under_way[0]()
        assert [each["next_node_idx"] for each in it.sent] == [7]
        it.outbound.send(PEER, reply(9, seq=3))
        assert it.synced() == [(9, 3)]

    def test_whoever_has_been_told_is_told_what_comes_after_though_no_group_began(self) -> None:
        """With nothing to write there is none, and what was held leaves all the same."""
        it = World()
        for seq in (1, 2):
            it.outbound.send(PEER, reply(7, seq=seq))
            assert it.synced(groups=0) == [(7, seq)]

    @pytest.mark.parametrize("later", [{"next_node_idx": 6}, {"seq": 1}, {"term": 2}, {"rejoining": bytes(16)}])
    def test_nothing_is_taken_back(self, later: dict[str, Any]) -> None:
        """An older round, or less of the journal, says nothing of what was said before; nor does another term, or one
        whose journal is not the one that was spoken of."""
        it = World()
        it.outbound.send(PEER, reply(7, seq=2))
        it.outbound.send(PEER, reply(7, seq=2) | later)
        it.engine.term = later.get("term", 1)
        assert len(it.synced()) == (1 if "term" in later else 2)

    def test_while_something_is_missing_here_each_says_what_was_so_when_it_was_made(self) -> None:
        it = World(missing=7)
        it.outbound.send(PEER, reply(9, seq=1))
        it.repair.active = False
        it.outbound.send(PEER, reply(9, seq=2))
        assert it.synced() == [(7, 1), (9, 2)]

    def test_nor_does_what_is_said_after_that_go_before_it(self) -> None:
        it = World()
        it.outbound.send(PEER, reply(7, seq=1))
        it.repair.active, it.repair.first_index = True, 5
        it.outbound.send(PEER, reply(9, seq=2))
        it.repair.active = False
        it.outbound.send(PEER, reply(9, seq=3))
        assert it.synced() == [(7, 1), (5, 2), (9, 3)]
