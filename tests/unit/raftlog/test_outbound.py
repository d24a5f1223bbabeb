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


def reply(next_node_idx: int) -> messages.Message:
    return {
        "type": "next_node_idx", "next_node_idx": next_node_idx, "reset": False, "success": True, "term": 1, "seq": 1,
        "journal": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("missing", "said"), [(None, 9), (12, 9), (9, 9), (5, 5)])
def test_what_is_missing_here_is_not_acknowledged_though_the_journal_has_its_entry(
    missing: int | None, said: int
) -> None:
    """Else a leader counts a copy that is not there, and what it answers for may be lost with the others."""
    sent, held, acknowledged = list[messages.Message](), list[Callable[[], None]](), list[int]()

    def send(peer: NodeId, kind: Kind, header: Any, body: Any) -> bool:
        sent.append(messages.decode(memoryview(body[0])))
        return True

    group: Any = SimpleNamespace(hold=held.append, stalled=lambda _: False)
    links: Any = SimpleNamespace(connected=lambda _: True, send=send, flush=lambda _: None)
    journal: Any = SimpleNamespace(durable_index=8, acknowledged=acknowledged.append)
    it = Outbound(links=links, group=group, journal=journal, stalled_s=1.0)
    it.engine = SimpleNamespace(term=1, quickest=[])  # type: ignore[assignment]
    it.repair = SimpleNamespace(active=missing is not None, first_index=missing)  # type: ignore[assignment]
    assert it.send(PEER, reply(9))
    assert sent == []
    held.pop()()
    assert (sent[0]["next_node_idx"], acknowledged) == (said, [said - 1])
