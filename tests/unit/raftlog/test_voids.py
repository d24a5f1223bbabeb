"""What was declared void: as fields, as bytes, in the parent state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logboom.errors import CorruptData
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from raftlog.entries.entry import Route, pack_control
from raftlog.entries.parent_state import BEFORE_AGREED, BEFORE_VOIDS, ParentState
from raftlog.entries.voids import KEPT_MAX, Void, Voids, voided_in

P = PartitionId(3)


def void(last: int = 9, *, applied: bool = False, digest: bytes = b"d" * 16, raft_index: int = 7) -> Void:
    return Void(P, PartitionLogIndex(last - 1), PartitionLogIndex(last), digest, GlobalLogIndex(2), raft_index, applied)


def state() -> ParentState:
    found = ParentState()
    found.apply(
        5, [Route(P, Term(1), PartitionLogIndex(7), b"a" * 16), Route(P, Term(1), PartitionLogIndex(9), b"d" * 16)]
    )
    return found


def test_fields_come_back_as_they_were() -> None:
    assert Void.parse(void(applied=True).fields(), raft_index=7) == void(applied=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("partition", -1), ("partition", 1 << 32), ("first_index", 0), ("first_index", 10), ("last_index", None),
     ("digest", b"x"), ("digest", "d" * 16), ("global_index", 0),
     ("global_index", True), ("applied", 1), ("applied", None)],
)  # fmt: skip
def test_nonsense_is_refused(name: str, value: object) -> None:
    with pytest.raises(CorruptData):
        Void.parse({**void().fields(), name: value})


def test_the_parent_state_keeps_it_and_says_so_in_its_bytes() -> None:
    parent = state()
    parent.control(7)
    before = parent.encode()
    assert before[0] == BEFORE_VOIDS
    assert not parent.void(void())
    raw = parent.encode()
    assert raw[0] == BEFORE_AGREED
    assert ParentState.decode(raw) == parent
    assert ParentState.decode(raw).voids.of(P) == [void()]
    assert parent.copy() == parent
    for length in range(1, len(raw)):
        with pytest.raises(CorruptData):
            ParentState.decode(raw[:length])


@pytest.mark.parametrize(
    "wrong",
    [void(last=11), void()._replace(partition_id=PartitionId(4)), void()._replace(global_index=GlobalLogIndex(3))],
)
def test_what_was_never_ordered_cannot_be_void(wrong: Void) -> None:
    parent = state()
    assert parent.void(wrong)
    assert parent.voids == Voids()


def test_once_nobody_has_it_applied_that_is_the_last_word() -> None:
    with_effect, without = void(applied=True), void(raft_index=8)
    voids = Voids().after(with_effect)
    assert voids.after(with_effect) is voids
    later = voids.after(without)
    assert (later.count, later.find(P, 9, b"d" * 16)) == (2, without)
    assert later.after(with_effect) is later
    assert later.after(without) is later


def test_a_set_is_needed_that_has_what_was_applied_of_partitions_that_live() -> None:
    parent = state()
    assert needed(parent) == 0
    parent.voids = parent.voids.after(void()._replace(global_index=GlobalLogIndex(90)))
    assert needed(parent) == 0, "all step over it"
    for last, at in ((4, 50), (5, 70), (6, 60)):
        parent.voids = parent.voids.after(void(last, applied=True)._replace(global_index=GlobalLogIndex(at)))
    assert needed(parent) == 70
    parent.voids = parent.voids.after(void(5, raft_index=8)._replace(global_index=GlobalLogIndex(70)))
    assert needed(parent) == 60, "nobody has it any more"
    assert needed(parent, partitions=P) == 0, "there is no such partition"


def needed(parent: ParentState, *, partitions: int = 4) -> int:
    """From where on a set stands for all."""
    return next(index for index in range(100) if not parent.needed_behind(GlobalLogIndex(index), partitions))


def test_where_a_set_stands_for_all_nothing_else_is_looked_at() -> None:
    """Found by reading: it is asked at every tick, and looked through a thousand."""
    looked_at = list[PartitionId]()
    voids = Voids().after(void(applied=True)._replace(global_index=GlobalLogIndex(70)))
    lives = lambda partition_id: not looked_at.append(partition_id)  # type: ignore[func-returns-value] # noqa: E731
    assert not voids.needed_behind(GlobalLogIndex(70), lives)
    assert looked_at == []
    assert voids.needed_behind(GlobalLogIndex(69), lives)
    assert looked_at == [P]


def test_the_newest_are_kept_and_all_are_counted() -> None:
    voids = Voids()
    for last in range(2, KEPT_MAX + 12):
        voids = voids.after(void(last))
    assert (voids.count, len(voids.kept)) == (KEPT_MAX + 10, KEPT_MAX)
    assert voids.find(P, 11, b"d" * 16) is None
    assert Voids.decode(voids.encode()) == (voids, len(voids.encode()))
    with pytest.raises(CorruptData):
        Voids.decode(replace(voids, count=3).encode())


def test_a_journal_says_what_it_has_declared_void() -> None:
    assert voided_in([b"\x01", pack_control({"do": "cut"}), pack_control(void().fields())]) == {
        b"d" * 16: void(raft_index=0)
    }
