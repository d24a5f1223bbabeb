"""A receipt that says more than is so is found; one that another node gave is not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.receipts import ReceiptWatch, Row
from dispatcher.requests.requests import SubmitReply
from logboom.errors import UnknownOutcome
from logboom.settings import ClusterSettings
from logboom.types import Ack, Level, PartitionId
from raftlog.entries.chosen import AllChosen, Chosen


def told(
    wait: Level | None,
    *,
    answer: Any = None,
    first: int = 0,
    last: int = 3,
    global_index: int = 7,
    admits: bool = True,
    statuses: bytes | None = None,
    duplicate: int = 0,
    linearizable: bool = False,
    chosen: Sequence[Row] = (),
) -> list[str]:
    """What is found wrong with the answer of a node that has committed 3 records, written 2 and applied 1."""
    found, heard = list[str](), list[Any]()
    part = (0, first or last, last, global_index, duplicate, statuses)
    reply = answer or SubmitReply(parts=(part,), commit_index=global_index)
    backend: Any = SimpleNamespace(
        raft=SimpleNamespace(admits=admits),
        parent=SimpleNamespace(global_index=7),
        workers={0: SimpleNamespace(applied_index=1)},
        logs={0: SimpleNamespace(durable_index=2)},
        cluster=ClusterSettings(linearizable=linearizable),
        submitting=SimpleNamespace(submit=lambda request, done, owner: done(reply)),
        forwarding=SimpleNamespace(forward=lambda leader, request, done: True),
    )
    watch = ReceiptWatch({0: [(5, 1), (6, 2), (7, 3)]}, chosen, lambda _, story: found.append(story))
    watch.started(SimpleNamespace(name="n1"), backend)  # type: ignore[arg-type]
    backend.submitting.submit(SimpleNamespace(wait=wait), heard.append, None)
    assert heard == [reply]
    return found


def test_what_is_true() -> None:
    assert told(Level.COMMITTED) == []
    assert told(Level.DURABLE, last=2, global_index=6) == []
    assert told(Level.APPLIED, last=1, global_index=5) == []
    assert told(Level.APPLIED, last=1, global_index=5, statuses=b"\0") == []
    assert told(Level.APPLIED, answer=UnknownOutcome("nobody knows")) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"wait": Level.DURABLE}, "durable is 2"),
        ({"wait": Level.APPLIED}, "applied is 1"),
        ({"wait": Level.COMMITTED, "linearizable": True}, "applied is 1"),
        ({"wait": Level.COMMITTED, "global_index": 6}, "it is"),
        ({"wait": Level.COMMITTED, "last": 4}, "it is None"),
        ({"wait": Level.COMMITTED, "statuses": b"\0"}, "tells results"),
        ({"wait": Level.DURABLE, "last": 2, "global_index": 6, "statuses": b"\0", "duplicate": 1}, "tells results"),
        ({"wait": Level.COMMITTED, "first": 2}, "it is None"),  # not of one batch
    ],
)
def test_what_is_not(how: dict[str, Any], why: str) -> None:
    assert why in told(**how)[0]
    assert told(**how, admits=False) == []


def ordered(at: int, ack: Ack | None = None, *, linearizable: bool | None = None) -> Row:
    """What was set behind so many batches."""
    chosen: AllChosen = {PartitionId(0): Chosen(ack, linearizable)}
    return Row(at, 10 + at, chosen)


@pytest.mark.parametrize(
    ("rows", "wait", "why"),
    [
        ([ordered(6, linearizable=True)], Level.COMMITTED, "applied is 1"),
        ([ordered(7, linearizable=True)], Level.COMMITTED, None),  # behind it
        ([ordered(3, linearizable=True), ordered(6, linearizable=False)], Level.COMMITTED, None),
        ([ordered(6, Ack.DURABLE)], None, "durable is 2"),
        ([ordered(6, Ack.COMMITTED)], None, None),
        ([ordered(6, Ack.COMMITTED)], Level.DURABLE, "durable is 2"),
        ([ordered(7, Ack.COMMITTED)], None, "applied is 1"),
        ([ordered(3, Ack.COMMITTED), ordered(6, Ack.APPLIED)], None, "applied is 1"),
    ],
)
def test_what_was_set_in_front_of_it_counts(rows: list[Row], wait: Level | None, why: str | None) -> None:
    found = told(wait, chosen=rows)
    assert found == [] if why is None else why in found[0]


@pytest.mark.parametrize(("duplicate", "is_told"), [(0, False), (1, True)])
def test_what_comes_again_is_answered_as_its_partitions_say_by_then(duplicate: int, *, is_told: bool) -> None:
    later = ordered(7, linearizable=True)
    found = told(Level.COMMITTED, chosen=[later], duplicate=duplicate, statuses=b"\0")
    assert is_told is not bool(found)


def passed_on(*replies: SubmitReply, asked: tuple[int, ...] = (0,), wait: Level = Level.DURABLE) -> list[str]:
    """What is found wrong with what a node passes on, where a leader has said that 0/2 is durable."""
    found, heard = list[str](), list[Any]()

    def forward(leader: str, request: Any, done: Any) -> bool:
        for reply in replies:
            done(reply)
        return True

    backend: Any = SimpleNamespace(
        submitting=SimpleNamespace(submit=None),
        forwarding=SimpleNamespace(forward=forward, _bytes=0, _open={}, _owed={}),
    )
    watch = ReceiptWatch({}, (), lambda _, story: found.append(story))
    watch.started(SimpleNamespace(name="n2"), backend)  # type: ignore[arg-type]
    watch._said.add((0, 2, Level.DURABLE))
    request = SimpleNamespace(parts=[SimpleNamespace(partition_id=p) for p in asked], wait=wait)
    assert backend.forwarding.forward("n1", request, heard.append)
    assert heard == list(replies)
    return found


SAID = SubmitReply(parts=((0, 1, 2, 6, 0, None),), commit_index=6)


def test_what_a_leader_has_said_is_passed_on() -> None:
    assert passed_on(SAID) == []
    assert passed_on(UnknownOutcome("the link broke")) == []  # type: ignore[arg-type]


def test_what_no_leader_has_said_is_found() -> None:
    assert "no leader" in passed_on(SAID, wait=Level.APPLIED)[0]
    assert "no leader" in passed_on(SAID, asked=(1,))[0]
    assert "second answer" in passed_on(SAID, SAID)[0]


def test_what_is_under_way_is_what_is_counted() -> None:
    found = list[str]()
    watch = ReceiptWatch({}, (), lambda _, story: found.append(story))
    forwarding = SimpleNamespace(_bytes=5, _open={1: SimpleNamespace(nbytes=5)}, _owed={})
    host, backend = SimpleNamespace(name="n2"), SimpleNamespace(forwarding=forwarding)
    watch.check_forwarding(host, backend)  # type: ignore[arg-type]
    assert found == []
    watch.check_forwarding(host, backend, idle=True)  # type: ignore[arg-type]
    forwarding._bytes = 4
    watch.check_forwarding(host, backend)  # type: ignore[arg-type]
    assert len(found) == 2
