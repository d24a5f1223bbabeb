"""A leader whom nobody relieves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from logboom.errors import LogboomError
from logboom.types import NodeId
from raftlog.engine import Engine
from raftlog.journal.membership import Membership
from raftlog.members.transfer import Transfer

NODES = [NodeId(f"n{k}") for k in (1, 2, 3)]
LAST = 10_000


class Leader:
    """n1, with followers that hold everything; none of them takes over."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[NodeId] = []
        self.held = dict.fromkeys(NODES[1:], LAST)
        """Up to where each has acknowledged."""
        engine = SimpleNamespace(
            is_leader=True,
            journal=SimpleNamespace(last_index=LAST),
            commit_index=LAST,
            connected_peers=NODES[1:],
            forgetful={},
            quickest=[NODES[1]],
            acknowledged_by=lambda node: self.held[node],
            hand_over=self.asked.append,
        )
        membership = SimpleNamespace(node_id=NODES[0], current=SimpleNamespace(voters=tuple(NODES)))
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        self.transfer = Transfer(
            membership=cast(Membership, membership), engine=cast(Engine, engine), clock=clock, patience_s=0.3
        )
        self.told: list[LogboomError | None] = []

    def try_once(self, to: NodeId | None = None, *, among: tuple[NodeId, ...] = ()) -> None:
        self.transfer.begin(to, self.told.append, among=among)
        self.transfer.tick()
        self.now += 0.3
        self.transfer.tick()
