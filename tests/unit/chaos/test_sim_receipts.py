"""A receipt that says more than is so is found; one that another node gave is not looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.receipts import ReceiptWatch
from dispatcher.requests import SubmitReply
from logboom.errors import UnknownOutcome
from logboom.types import Level


def told(wait: Level, *, answer: Any = None, last: int = 3, global_index: int = 7, admits: bool = True) -> list[str]:
    """What is found wrong with the answer of a node that has committed 3 records, written 2 and applied 1."""
    found, heard = list[str](), list[Any]()
    reply = answer or SubmitReply(parts=((0, 1, last, global_index, 0, None),), commit_index=global_index)
    backend: Any = SimpleNamespace(
        raft=SimpleNamespace(admits=admits),
        parent=SimpleNamespace(global_index=7),
        workers={0: SimpleNamespace(applied_index=1)},
        logs={0: SimpleNamespace(durable_index=2)},
        submitting=SimpleNamespace(submit=lambda request, done, owner: done(reply)),
    )
    watch = ReceiptWatch({(0, 3): (7, b""), (0, 2): (6, b""), (0, 1): (5, b"")}, lambda _, story: found.append(story))
    watch.started(SimpleNamespace(name="n1"), backend)  # type: ignore[arg-type]
    backend.submitting.submit(SimpleNamespace(wait=wait), heard.append, None)
    assert heard == [reply]
    return found


def test_what_is_true() -> None:
    assert told(Level.COMMITTED) == []
    assert told(Level.DURABLE, last=2, global_index=6) == []
    assert told(Level.APPLIED, last=1, global_index=5) == []
    assert told(Level.APPLIED, answer=UnknownOutcome("nobody knows")) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"wait": Level.DURABLE}, "durable is 2"),
        ({"wait": Level.APPLIED}, "applied is 1"),
        ({"wait": Level.COMMITTED, "global_index": 6}, "it is"),
        ({"wait": Level.COMMITTED, "last": 4}, "it is None"),
    ],
)
def test_what_is_not(how: dict[str, Any], why: str) -> None:
    assert why in told(**how)[0]
    assert told(**how, admits=False) == []
