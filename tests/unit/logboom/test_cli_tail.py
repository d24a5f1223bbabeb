"""``logboom tail``: commands of partitions that the node which was met first has not heard of yet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logboom.cli import read
from logboom.commands import Put
from logboom.errors import NotLeader, PermissionDenied
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, Session, fails, records


def heard(session: Session, frame: Frame) -> None:
    """By now the node knows of all."""
    session.node.partitions = 4
    for index in (1, 2):
        records(session, frame, index, index, [Put(b"k", b"v").record().payload])
    session.send(frame, Kind.END, {"next_index": 3})


@pytest.mark.parametrize("where", [[], ["--node", "n1"]])
def test_commands_of_a_new_partition_are_shown_as_such(node: FakeNode, capsys: Any, where: list[str]) -> None:
    node.partitions = 1
    node.answers[Kind.TAIL] = heard
    status, out, err = run(capsys, "tail", "-p", "3", "-o", "jsonl", *where)
    assert (status, err) == (0, "")
    assert [(row["op"], row["value"]) for row in map(json.loads, out.splitlines())] == [("put", "v")] * 2
    assert len(node.of(Kind.ADMIN)) == 1


def test_where_nobody_says_what_it_is_records_are_shown_as_they_are(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "AGAIN_S", 0.05)
    node.partitions = 1
    node.answers[Kind.TAIL] = heard
    node.answers[Kind.ADMIN] = fails(NotLeader("nobody leads", leader=None))
    status, out, _ = run(capsys, "tail", "-p", "3", "-o", "jsonl")
    assert status == 0
    assert [row["payload"] for row in map(json.loads, out.splitlines())] == ["\1v"] * 2


@pytest.mark.parametrize(("later", "shown"), [(0.0, [None, "put"]), (60.0, [None, None])])
def test_after_an_error_they_are_asked_again_later(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch, later: float, shown: list[str | None]
) -> None:
    """One election at the wrong moment, and `tail --follow` showed payloads as long as it ran."""
    monkeypatch.setattr(read, "LATER_S", later)
    node.partitions = 1
    node.answers[Kind.TAIL] = heard
    node.once(Kind.ADMIN, fails(PermissionDenied("not now")))
    status, out, _ = run(capsys, "tail", "-p", "3", "-o", "jsonl")
    assert status == 0
    assert [row.get("op") for row in map(json.loads, out.splitlines())] == shown
    assert len(node.of(Kind.ADMIN)) == (1 if later else 2)


def test_what_is_to_be_raw_is_not_asked_about(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.TAIL] = heard
    assert run(capsys, "tail", "-p", "9", "--raw", "-o", "jsonl")[0] == 0
    assert not node.of(Kind.ADMIN)
