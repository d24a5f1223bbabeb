"""What is said of members that are refused again and again, and when they are dialled again."""

from __future__ import annotations

from typing import Any

from logboom.errors import LineageMismatch, WrongNode
from logboom.types import NodeId
from ports.seldom import LINES, Seldom
from raftlog.links.refusals import SAY_AGAIN_S, STRANGER_S, Refusals

N2, N3 = NodeId("n2"), NodeId("n3")
FORMER, STRANGER = WrongNode("it has another disk", former=True), LineageMismatch("it is of another history")


class Node:
    """One, its time, and its log."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.lines: list[str] = []
        self.refusals = Refusals(lambda: self.now, Seldom(lambda: self.now))

    def refuses(self, peer: NodeId | None, error: Any = FORMER) -> int:
        """Lines so far."""
        self.refusals.refused(peer, error, lambda _, **what: self.lines.append(what["error"]))
        return len(self.lines)


def test_the_same_of_the_same_member_is_said_once_a_minute() -> None:
    node = Node()
    assert [node.refuses(N2), node.refuses(N2), node.refuses(N3)] == [1, 1, 2]
    assert node.refuses(N2, STRANGER) == 3, "something else"
    node.now += SAY_AGAIN_S
    assert [node.refuses(N2, STRANGER), node.refuses(N2, STRANGER)] == [4, 4]
    node.refusals.keep({N3})
    assert node.refuses(N2, STRANGER) == 5, "it was none meanwhile"


def test_whoever_is_no_member_is_said_as_often_as_there_is_room() -> None:
    node = Node()
    assert max(node.refuses(None) for _ in range(3 * LINES)) == LINES


def test_when_they_are_dialled_again() -> None:
    node = Node()
    asked = node.refusals
    node.refuses(N2)
    assert (N2 in asked, asked.pause(N2, 0.1), asked.most(N2, 0.2)) == (True, 0.1, STRANGER_S)
    node.refuses(N2, STRANGER)
    assert (N2 in asked, asked.pause(N2, 0.1), asked.most(N2, 0.2)) == (True, STRANGER_S, 0.2)
    node.refuses(N2, WrongNode("it has lost its disk, and was told so"))
    assert (N2 in asked, asked.pause(N2, 0.1), asked.most(N2, 0.2)) == (False, 0.1, 0.2)
    for error in (FORMER, STRANGER):
        node.refuses(N2, error)
        asked.let_in(N2)
        assert N2 not in asked
        node.refuses(N2, error)
        asked.keep({N3})
        assert N2 not in asked
