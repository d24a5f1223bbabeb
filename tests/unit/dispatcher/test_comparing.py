"""Sets at the same index are compared: who hears of which, and what is said of those that differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from dispatcher.upkeep.comparing import FIELD, ROWS_MAX, Comparing, Difference
from logboom.errors import ProtocolError
from logboom.types import GlobalLogIndex, NodeId, PartitionId
from logboom.wire import Kind

N1, N2, N3 = (NodeId(f"n{k}") for k in (1, 2, 3))


def meta(index: int, **states: str) -> Any:
    """A set in which partition 0, 1, … has a state of that name."""
    rows = [SimpleNamespace(partition_id=k, digest=each.encode().ljust(16)) for k, each in enumerate(states.values())]
    whole = "".join(states.values()).encode().ljust(16)[:16]
    return SimpleNamespace(global_index=index, states_digest=whole, partitions=rows)


class Node:
    """One, whose links take frames or do not."""

    def __init__(self) -> None:
        self.sets: list[Any] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.full = False
        self.comparing = Comparing(links=lambda: cast(Any, self), sets=lambda: self.sets)

    def send(self, peer: NodeId, kind: Kind, header: dict[str, Any]) -> bool:
        assert kind is Kind.PROGRESS
        assert header["durable"] == []
        if not self.full:
            self.sent.append((peer, header))
        return not self.full

    def take(self, index: int, **states: str) -> None:
        self.sets = [*self.sets, meta(index, **states)][-2:]
        self.comparing.taken(GlobalLogIndex(index))

    def keep(self, index: int, **states: str) -> None:
        """Another node's."""
        self.sets = [*self.sets, meta(index, **states)][-2:]
        self.comparing.kept(GlobalLogIndex(index))

    def hear(self, peer: NodeId, index: int, **states: str) -> None:
        other = Node()
        other.comparing.peer_up(N1)
        other.take(index, **states)
        self.comparing.heard(peer, other.sent[-1][1])


def differ(node: Node) -> list[Difference]:
    return node.comparing.differences


def test_everybody_hears_of_each_set_and_over_a_new_link_of_the_newest() -> None:
    node = Node()
    node.comparing.peer_up(N2)
    assert node.sent == []
    node.take(7, a="x", b="y")
    node.comparing.peer_up(N3)
    assert [peer for peer, _ in node.sent] == [N2, N3]
    assert node.sent[0][1][FIELD] == [7, b"xy".ljust(16), [[0, b"x".ljust(16)], [1, b"y".ljust(16)]]]
    node.comparing.peer_down(N2)
    node.full = True
    node.take(9, a="x")
    node.full = False
    node.comparing.tell()
    node.comparing.tell()
    assert [(peer, header[FIELD][0]) for peer, header in node.sent[2:]] == [(N3, 9)]


@pytest.mark.parametrize("first", ["own", "theirs"])
def test_states_that_differ_are_named_whoever_is_first(first: str) -> None:
    node = Node()
    with capture_logs() as logs:
        if first == "own":
            node.take(7, a="x", b="y", c="z")
        node.hear(N2, 7, a="x", b="Y", c="z")
        node.hear(N3, 7, a="x", b="y", c="z")
        if first == "theirs":
            assert differ(node) == []
            node.take(7, a="x", b="y", c="z")
        node.comparing.taken(GlobalLogIndex(7))
    assert differ(node) == [Difference(PartitionId(1), N2, GlobalLogIndex(7))]
    assert [(each["event"], each["peer"], each["partitions"]) for each in logs] == [("states_differ", N2, [1])]


def test_those_of_one_index_say_nothing_of_another() -> None:
    node = Node()
    node.take(7, a="x")
    node.hear(N2, 8, a="X")
    assert differ(node) == []
    node.take(8, a="y")
    assert [each.global_index for each in differ(node)] == [8]


def test_the_newest_that_both_have_counts_and_they_may_agree_again() -> None:
    node = Node()
    node.take(7, a="x", b="y")
    node.hear(N2, 7, a="x", b="Y")
    node.take(8, a="x", b="z")
    assert [each.global_index for each in differ(node)] == [7]
    with capture_logs() as logs:
        node.hear(N2, 8, a="x", b="z")
    assert differ(node) == []
    assert [each["event"] for each in logs] == ["states_agree_again"]


def test_of_whoever_is_no_member_any_more_nothing_is_said() -> None:
    node = Node()
    node.take(7, a="x")
    node.hear(N2, 7, a="X")
    node.comparing.members_changed([N1, N3])
    assert differ(node) == []
    node.comparing.taken(GlobalLogIndex(7))
    assert differ(node) == []


def test_of_very_many_partitions_it_is_not_said_which() -> None:
    node, states = Node(), {f"p{k}": "x" for k in range(ROWS_MAX + 1)}
    node.comparing.peer_up(N2)
    node.take(7, **states)
    assert node.sent[-1][1][FIELD][2] == []
    node.hear(N2, 7, **{**states, "p0": "y"})
    assert differ(node) == [Difference(None, N2, GlobalLogIndex(7))]


@pytest.mark.parametrize(
    "said",
    [None, [], [7, bytes(16)], ["7", bytes(16), []], [7, bytes(15), []], [7, bytes(16), [[0]]], [7, bytes(16), 5]],
)
def test_what_says_nothing_is_no_frame_of_a_node(said: Any) -> None:
    node = Node()
    with pytest.raises(ProtocolError, match="bad field set"):
        node.comparing.heard(N2, {"durable": [], FIELD: said})
    node.comparing.heard(N2, {"durable": []})


@pytest.mark.parametrize(("theirs", "differing"), [({"a": "x"}, []), ({"a": "X"}, [0])])
def test_cuts_at_one_index_may_have_other_partitions(theirs: dict[str, str], differing: list[int]) -> None:
    """Found by review: of two snapshots each node had another one, and a partition was created in between."""
    for mine, other in ({"a": "x", "b": "new"}, theirs), (theirs, {"a": "x", "b": "new"}):
        node = Node()
        node.take(7, **mine)
        with capture_logs() as logs:
            node.hear(N2, 7, **other)
        assert [each.partition_id for each in differ(node)] == differing
        assert len(logs) == len(differing)


def test_whoever_keeps_another_s_set_says_nothing_of_it_and_what_was_found_stays() -> None:
    """All agreed again, it was said, and it went on answering with the wrong state."""
    node, other = Node(), Node()
    node.comparing.peer_up(N1)
    node.take(7, a="X")
    other.take(7, a="x")
    node.hear(N1, 7, a="x")
    other.comparing.heard(N3, node.sent[-1][1])
    with capture_logs() as logs:
        node.hear(N1, 8, a="x")
        node.keep(8, a="x")
        node.comparing.peer_up(N2)
        node.hear(N1, 8, a="x")
    assert ([header[FIELD][0] for _, header in node.sent], logs) == ([7, 7], [])
    assert [each.node for each in differ(node)] == [N1]
    assert [each.node for each in differ(other)] == [N3]
    node.take(9, a="x")
    node.hear(N1, 9, a="x")
    assert [header[FIELD][0] for _, header in node.sent[2:]] == [9, 9]
    assert differ(node) == []


def test_one_that_came_while_it_took_its_own_is_its_own() -> None:
    node = Node()
    node.comparing.peer_up(N1)
    node.keep(7, a="x")
    node.comparing.taken(GlobalLogIndex(7))
    assert [header[FIELD][0] for _, header in node.sent] == [7]


def test_of_one_of_before_its_start_a_node_tells_nobody_and_says_only_that_it_differs() -> None:
    """It may be another's that was kept."""
    for states, at in ({"a": "x"}, 7), ({"a": "X"}, 8):
        node = Node()
        node.sets = [meta(7, a="x"), meta(8, **states)]
        node.comparing.peer_up(N1)
        node.hear(N1, 7, a="X")
        node.hear(N1, 8, a="x")
        assert ([each.node for each in differ(node)], node.sent) == ([N1], [])
        assert [each.global_index for each in differ(node)] == [at]
