"""Who waits to be admitted and is refused too early is found, but for those who would be answered too late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.turned_away import look_at_waiting
from logboom.errors import LogboomError, NotLeader, Overloaded
from logboom.settings import ClusterSettings
from logboom.types import Level


def refused(
    wait: Level | None, *, now: float = 4.0, linearizable: bool = False, error: LogboomError | None = None
) -> list[str]:
    """What is found wrong with a refusal of one who waits until 5."""
    found, heard = list[str](), list[LogboomError]()
    waiting = SimpleNamespace(until=5.0, parts=[(0, 1, 10)], failed=heard.append)
    backend: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: now),
        cluster=ClusterSettings(linearizable=linearizable),
        parent=SimpleNamespace(chosen={}),
        submitting=SimpleNamespace(submit=lambda *_: waiting),
    )
    look_at_waiting(SimpleNamespace(name="n1"), backend, lambda *each: found.extend(each))  # type: ignore[arg-type]
    assert backend.submitting.submit(SimpleNamespace(wait=wait), lambda _: None, None) is waiting
    told = error or Overloaded("full", limit="node_ops")
    waiting.failed(told)
    assert heard == [told]
    return found


@pytest.mark.parametrize("wait", [Level.COMMITTED, Level.DURABLE])
def test_who_has_time_left(wait: Level) -> None:
    invariant, story = refused(wait)
    assert (invariant, "1.000 s more" in story) == ("RefusedInTime", True)


def test_what_is_right() -> None:
    assert refused(Level.COMMITTED, now=5.0) == []
    assert refused(Level.APPLIED) == []
    assert refused(None) == []  # as the settings say
    assert refused(Level.COMMITTED, linearizable=True) == []
    assert refused(Level.COMMITTED, error=NotLeader("ask another")) == []


def test_who_does_not_wait_is_not_looked_at() -> None:
    backend: Any = SimpleNamespace(submitting=SimpleNamespace(submit=lambda *_: None))
    look_at_waiting(SimpleNamespace(name="n1"), backend, lambda *_: pytest.fail("nobody was refused"))  # type: ignore[arg-type]
    assert backend.submitting.submit(SimpleNamespace(wait=None), lambda _: None, None) is None
