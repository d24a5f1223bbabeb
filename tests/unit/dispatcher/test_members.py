"""What an operator's request for other members is answered with, by whoever is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.sessions import admin, members
from logboom.errors import InvalidRequest, NotLeader
from logboom.types import NodeId
from raftlog.entries.configuration import Configuration, Role, Seat


def backend(*ids: str, admits: bool = True, leads: bool = True) -> Any:
    """A node that knows these voters, and believes to lead if it ``admits``."""
    current = Configuration(tuple(Seat(NodeId(each), f"{each}:1", f"{each}:2", Role.VOTER) for each in ids))
    replaced = None if leads else NotLeader("another leads", leader=None)
    raft = SimpleNamespace(
        admits=admits,
        members=SimpleNamespace(changes=SimpleNamespace(propose=lambda change, _: change(current))),
        read_index=lambda done: done(replaced),
        poke=lambda: None,
    )
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    return SimpleNamespace(node_id=NodeId("n2"), members=current, raft=raft, clock=clock, leader_address=lambda: "n1:2")


async def test_whoever_does_not_lead_refuses_nothing_for_good() -> None:
    """It may not have heard of that member yet."""
    with pytest.raises(NotLeader) as refused:
        await members.act(backend("n1", "n2", admits=False), {"action": "member_remove", "id": "n3"}, 1.0)
    assert refused.value.fields["leader"] == "n1:2"


@pytest.mark.parametrize("action", ["member_remove", "member_promote"])
async def test_nor_does_one_that_was_replaced_and_has_not_heard_of_it(action: str) -> None:
    with pytest.raises(NotLeader):
        await members.act(backend("n1", "n2", leads=False), {"action": action, "id": "n3"}, 1.0)


@pytest.mark.parametrize("action", ["member_remove", "member_promote", "member_update"])
async def test_a_leader_refuses_whom_it_does_not_know(action: str) -> None:
    with pytest.raises(InvalidRequest, match="n3 is not a member"):
        await members.act(backend("n1", "n2"), {"action": action, "id": "n3", "client_address": "h:9"}, 1.0)


@pytest.mark.parametrize("said", [{}, {"peer_address": ""}, {"peer_address": None}, {"client_address": 7}])
async def test_who_moves_nowhere_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="_address"):
        await members.act(backend("n1", "n2"), {"action": "member_update", "id": "n1", **said}, 1.0)


@pytest.mark.parametrize("member", ["n" * 60_000, ["a"] * 10_000, b"\xff" * 60_000, {"event": 1}])
async def test_what_is_refused_is_not_in_the_log_of_any_size(member: Any) -> None:
    with capture_logs() as lines, pytest.raises(InvalidRequest):
        await members.act(backend("n1", "n2"), {"action": "member_remove", "id": member}, 1.0)
    assert lines == []


async def test_the_log_says_who_has_asked() -> None:
    """Found by review: with a certificate each, nobody could say whose it was that removed a member, or a partition."""
    node = backend("n1", "n2")
    node.pause = lambda _: "paused"
    node.workers = {0: None}
    with capture_logs() as lines:
        await admin.act(node, {"action": "pause", "partition": 0}, 1.0, "ada")
    assert [(each["event"], each["action"], each["by"]) for each in lines] == [("admin", "pause", "ada")]
