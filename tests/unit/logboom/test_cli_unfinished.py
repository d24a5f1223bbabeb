"""What a command did not come to is no success, and what was refused is no wrong usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session
from tests.unit.logboom.test_cli import run


def members(*rows: tuple[str, str], removed: tuple[str, ...] = ()) -> Any:
    """What a leader answers of members: ids and roles."""

    def answer(session: Session, frame: Frame) -> None:
        each = {"peer_address": "h:1", "client_address": "h:2", "connected": True, "raft_index": 9}
        about = {
            "node": "n1", "leader": "n1", "term": 1, "index": 5, "committed": True, "raft_index": 9,
            "removed": list(removed),
            "members": [{"id": name, "role": role, **each} for name, role in rows],
        }  # fmt: skip
        session.send(frame, Kind.ADMIN_REPLY, {"members": about})

    return answer


@pytest.mark.parametrize("args", [("add", "n4=h:1@h:2"), ("promote", "n4")])
def test_a_member_that_does_not_vote_yet_is_no_success(node: FakeNode, capsys: Any, args: tuple[str, ...]) -> None:
    """`members add n4=... && members remove n2` is two voters of three otherwise."""
    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n4", "joining"))
    status, out, err = run(capsys, "members", *args, "--timeout", "300ms", "-o", "json")
    assert status == 1
    assert [row["role"] for row in json.loads(out)] == ["voter", "joining"]
    assert "n4 is taken in and has not caught up yet" in err
    status, _, err = run(capsys, "members", *args, "--timeout", "300ms", "--no-wait")
    assert (status, err) == (0, "")


def test_one_that_is_removed_while_it_is_waited_for_is_no_success_either(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.ADMIN] = members(("n1", "voter"), removed=("n4",))
    status, _, err = run(capsys, "members", "add", "n4=h:1@h:2")
    assert status == 1
    assert "n4 was removed meanwhile" in err


def test_a_member_that_votes_is(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n4", "voter"))
    assert run(capsys, "members", "add", "n4=h:1@h:2")[0] == 0
