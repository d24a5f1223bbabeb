"""To whom leadership is handed over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from logboom.errors import LogboomError, Unavailable
from logboom.types import NodeId
from raftlog.engine import Engine
from raftlog.journal.membership import Membership
from raftlog.members.transfer import Transfer

NODES = [NodeId(f"n{k}") for k in (1, 2, 3)]


class Leader:
    """n1, with followers that hold everything; none of them takes over."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[NodeId] = []
        engine = SimpleNamespace(
            is_leader=True,
            journal=SimpleNamespace(last_index=9),
            commit_index=9,
            connected_peers=NODES[1:],
            forgetful={},
            quickest=[NODES[1]],
            acknowledged_by=lambda _: 9,
            hand_over=self.asked.append,
        )
        membership = SimpleNamespace(node_id=NODES[0], current=SimpleNamespace(voters=tuple(NODES)))
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        self.transfer = Transfer(
            membership=cast(Membership, membership), engine=cast(Engine, engine), clock=clock, patience_s=0.3
        )
        self.told: list[LogboomError | None] = []

    def try_once(self, to: NodeId | None = None) -> None:
        self.transfer.begin(to, self.told.append)
        self.transfer.tick()
        self.now += 0.3
        self.transfer.tick()


def test_whoever_did_not_take_over_is_not_asked_first_again() -> None:
    """One that stands still holds all that an idle leader has: it alone was asked, until the time was up."""
    leader = Leader()
    for _ in range(4):
        leader.try_once()
    assert [type(error) for error in leader.told] == [Unavailable] * 4
    assert leader.asked == [NODES[1], NODES[2], NODES[1], NODES[2]]


def test_whoever_is_named_is_asked_however_often_it_did_not() -> None:
    leader = Leader()
    for _ in range(2):
        leader.try_once(NODES[2])
    assert leader.asked == [NODES[2], NODES[2]]
