"""How many partitions each node can hold: what nodes tell each other, and whom a leader goes by."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.pipeline.capacity import LOOK_S, PLENTY, Capacity
from logboom.errors import InvalidRequest, ProtocolError
from logboom.types import NodeId
from logboom.wire import Kind

N2, N3 = NodeId("n2"), NodeId("n3")


class World:
    """A node with ``living`` partitions and files for ``room`` more; links that take what they are given, or not."""

    def __init__(self) -> None:
        self.living, self.room = 8, 100
        self.sent: list[tuple[NodeId, Any]] = []
        self.full = False
        self.capacity = Capacity(links=lambda: self, room=lambda: self.room, living=lambda: self.living)

    def send(self, peer: NodeId, kind: Kind, header: dict[str, object]) -> bool:
        if self.full:
            return False
        assert (kind, header["durable"]) == (Kind.PROGRESS, [])
        self.sent.append((peer, header["holds"]))
        return True

    def told(self, now: float) -> list[tuple[NodeId, Any]]:
        self.sent.clear()
        self.capacity.tell(now)
        return self.sent


def test_others_are_told_over_a_new_link_and_when_it_changes() -> None:
    world = World()
    world.capacity.peer_up(N2)
    assert world.told(10.0) == [(N2, 108)]
    world.living, world.room = 9, 99
    assert world.told(11.0) == [], "it holds as many as before"
    world.room = 80
    assert world.told(11.0 + LOOK_S / 2) == [], "it is not looked at all the time"
    world.full = True
    assert world.told(13.0) == []
    world.full = False
    world.capacity.peer_up(N3)
    assert world.told(13.01) == [(N2, 89), (N3, 89)]
    world.capacity.peer_down(N3, member=True)
    world.room = PLENTY
    assert world.told(15.0) == [(N2, None)]


def test_a_leader_goes_by_what_each_has_said_also_while_it_is_away() -> None:
    capacity = World().capacity
    capacity.check([N2, N3], 10_000)
    for peer in (N2, N3):
        capacity.peer_up(peer)
    capacity.heard(N2, {"durable": [], "holds": None})
    capacity.heard(N3, {"durable": [], "holds": 20})
    capacity.heard(N3, {"durable": []})
    capacity.check([N2, N3], 20)
    with pytest.raises(InvalidRequest, match=r"partition on n3: .* 20 at most, and there would be 21"):
        capacity.check([N2, N3], 21)
    capacity.peer_down(N3, member=True)
    with pytest.raises(InvalidRequest, match="n3"):
        capacity.check([N2, N3], 21)
    capacity.check([N2], 21)
    capacity.peer_up(N3)
    capacity.check([N2, N3], 21)


def test_who_is_no_member_any_more_is_forgotten() -> None:
    capacity = World().capacity
    for peer in (N2, N3):
        capacity.peer_up(peer)
        capacity.heard(peer, {"holds": 1})
    capacity.peer_down(N2, member=False)
    capacity.members_changed([N2])
    assert set(capacity._said) == {N3}, "its link may be there before it is a member"
    capacity.peer_down(N3, member=True)
    capacity.members_changed([N2])
    assert not capacity._said


@pytest.mark.parametrize("holds", [-1, True, "7", 1.5, [1]])
def test_what_is_no_number_of_partitions_is_refused(holds: object) -> None:
    with pytest.raises(ProtocolError, match="holds"):
        World().capacity.heard(N2, {"durable": [], "holds": holds})
