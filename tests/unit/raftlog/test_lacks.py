"""What follows when nodes say that they do not have a batch."""

from __future__ import annotations

from typing import Any

import pytest

from logboom.errors import ProtocolError
from logboom.types import NodeId, PartitionId, PartitionLogIndex, Term
from raftlog.entry import Route
from raftlog.lacks import LACKS_MAX, Answers, Lack, pack, unpack

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
    ],
)
def test_a_snapshot_anywhere_is_a_way_out_and_damage_is_no_absence(a: Lack, b: Lack, verdict: Lack) -> None:
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
