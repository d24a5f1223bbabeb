"""What a follower asks the leader for: see raftlog.repair.needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from logboom.types import NodeId
from raftlog.repair.needs import NEED_AGAIN_S, Needs


def test_a_new_leader_is_asked_at_once_for_what_the_one_before_was_asked_for() -> None:
    """It was taken for the same question, and the new one went on no sooner than a quarter of a second later."""
    sent, now = list[tuple[str, Any]](), [0.0]
    links = SimpleNamespace(send=lambda peer, _, header: sent.append((peer, header["raft_index"])))
    needs = Needs(
        journal=cast(Any, None),
        engine=cast(Any, None),
        feeds=cast(Any, None),
        links=cast(Any, links),
        clock=cast(Any, SimpleNamespace(monotonic=lambda: now[0])),
    )
    before, after = NodeId("n1"), NodeId("n2")
    for leader in (before, before, after, after):
        needs.ask(leader, 7)
    assert sent == [(before, 7), (after, 7)]
    now[0] += NEED_AGAIN_S
    needs.ask(after, 7)
    assert len(sent) == 3
