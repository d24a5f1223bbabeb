"""What follows when nodes say that they do not have a batch."""

from __future__ import annotations

from typing import Any

import pytest

from logboom.errors import ProtocolError
from logboom.types import NodeId, PartitionId, PartitionLogIndex, Term
from raftlog.entries.entry import Route
from raftlog.links.lacks import LACKS_MAX, Answers, Lack, pack, unpack

A, B = NodeId("a"), NodeId("b")
ROUTE = Route(PartitionId(3), Term(2), PartitionLogIndex(9), b"d" * 16)


def test_there_is_no_verdict_before_all_have_answered() -> None:
    answers = Answers()
    assert answers.verdict(ROUTE.digest, []) is None
    assert answers.say(A, ROUTE, Lack.ABSENT)
    assert answers.verdict(ROUTE.digest, [A, B]) is None
    assert answers.verdict(ROUTE.digest, [A]) is Lack.ABSENT


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (Lack.ABSENT, Lack.ABSENT, Lack.ABSENT),
        (Lack.ABSENT, Lack.DAMAGED, Lack.DAMAGED),
        (Lack.DAMAGED, Lack.COMPACTED, Lack.COMPACTED),
        (Lack.COMPACTED, Lack.ABSENT, Lack.COMPACTED),
        (Lack.APPLIED, Lack.COMPACTED, Lack.COMPACTED),
        (Lack.APPLIED, Lack.DAMAGED, Lack.APPLIED),
        (Lack.LOST, Lack.ABSENT, Lack.DAMAGED),
        (Lack.UNKNOWN, Lack.ABSENT, None),
        (Lack.UNKNOWN, Lack.COMPACTED, None),
    ],
)
def test_a_snapshot_anywhere_is_a_way_out_and_damage_is_no_absence(a: Lack, b: Lack, verdict: Lack | None) -> None:
    answers = Answers()
    answers.say(A, ROUTE, a)
    answers.say(B, ROUTE, b)
    assert answers.verdict(ROUTE.digest, [A, B]) is verdict


def test_the_newest_answer_counts_until_it_is_forgotten() -> None:
    answers = Answers()
    assert answers.say(A, ROUTE, Lack.DAMAGED)
    assert not answers.say(A, ROUTE, Lack.COMPACTED)
    assert answers.verdict(ROUTE.digest, [A]) is Lack.COMPACTED
    answers.forget(ROUTE.digest)
    assert answers.verdict(ROUTE.digest, [A]) is None


def test_whose_link_broke_has_said_nothing() -> None:
    answers = Answers()
    for node in (A, B):
        answers.say(node, ROUTE, Lack.ABSENT)
    answers.forget_peer(B)
    assert answers.verdict(ROUTE.digest, [A, B]) is None
    answers.say(B, ROUTE, Lack.ABSENT)
    answers.clear()
    assert answers.verdict(ROUTE.digest, [A]) is None


def test_an_answer_of_an_older_term_or_to_an_older_question_is_none() -> None:
    answers = Answers()
    answers.say(A, ROUTE, Lack.ABSENT, term=4, asked=7)
    assert answers.said(ROUTE.digest, term=4, asked=7) == {A: Lack.ABSENT}
    assert answers.said(ROUTE.digest, term=5, asked=7) == {}
    assert answers.said(ROUTE.digest, term=4, asked=8) == {}
    assert answers.verdict(ROUTE.digest, [A], term=5) is None


def test_rows_come_back_as_they_were() -> None:
    rows = [(ROUTE, lack) for lack in Lack]
    assert unpack(pack(rows)) == rows


@pytest.mark.parametrize(
    "rows",
    [None, 7, [[b"x" * 31, "absent"]], [[b"x" * 32, "gone"]], [[b"x" * 32]], [7], [["x" * 32, "absent"]],
     [[b"x" * 32, "absent"]] * (LACKS_MAX + 1), [[b"x" * 32, []]]],
)  # fmt: skip
def test_nonsense_is_refused(rows: Any) -> None:
    with pytest.raises(ProtocolError):
        unpack({"lacks": rows})
