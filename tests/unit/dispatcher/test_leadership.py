"""Another leader is noticed once; nobody leading is told, and no change of leaders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from dispatcher.pipeline.leadership import Leadership
from raftlog.engine import Engine


def test_changes_are_told_once() -> None:
    leadership = Leadership()
    seen = [("n1", 1), ("n1", 1), (None, 1), (None, 2), ("n2", 2), ("n2", 3), ("n2", 3)]
    with capture_logs() as logs:
        for leader, term in seen:
            leadership.notice(cast(Engine, SimpleNamespace(leader=leader, term=term)))
    told: list[Any] = [(row["leader"], row["term"]) for row in logs]
    assert told == [("n1", 1), (None, 1), ("n2", 2), ("n2", 3)]
    assert leadership.changes == 3


def test_one_who_was_silent_for_a_while_and_leads_on_is_no_other() -> None:
    leadership = Leadership()
    for leader in ("n1", None, "n1", None, "n1"):
        leadership.notice(cast(Engine, SimpleNamespace(leader=leader, term=1)))
    assert leadership.changes == 1
