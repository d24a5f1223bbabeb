"""Which partitions there are, as the parent log says: the rules, and the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.errors import CorruptData
from logboom.types import DurabilityMode, GlobalLogIndex, PartitionId, PartitionLogIndex
from ports.invariant import InvariantViolated
from raftlog.entries.lifecycle import HEAD, Change, Lifecycle, PartitionKind
from raftlog.entries.parent_state import ParentState, Tail

KV, LOG = PartitionKind("kv", DurabilityMode.WRITE_AHEAD), PartitionKind("log", DurabilityMode.WRITE_BEHIND)


def create(partition: int, *, begun: int = 2, kind: PartitionKind = KV, token: int | None = None) -> Change:
    named = (partition if token is None else token).to_bytes(16, "big")
    return Change(PartitionId(partition), begun, kind, named)


def destroy(partition: int, *, begun: int = 2) -> Change:
    return Change(PartitionId(partition), begun)


def after(*changes: Change) -> Lifecycle:
    found = Lifecycle()
    for change in changes:
        found = found.after(change)
    return found


def test_ids_follow_those_of_the_beginning_and_are_not_used_again() -> None:
    found = after(create(2), create(3, kind=LOG), destroy(3), create(4), destroy(0))
    assert found.ids(2) == [1, 2, 4]
    assert [found.is_gone(p) for p in range(6)] == [True, False, False, True, False, False]
    assert [found.lives(PartitionId(p), 2) for p in range(6)] == [False, True, True, False, True, False]
    assert "not the next" in found.refuses(create(3, token=77))
    assert found.refuses(create(5)) == ""


def test_nothing_said_is_what_the_settings_say() -> None:
    assert Lifecycle().ids(3) == [0, 1, 2]
    assert not Lifecycle().is_gone(7)
    assert Lifecycle().refuses(create(3, begun=3)) == Lifecycle().refuses(destroy(2, begun=3)) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (create(3, begun=3), "began with 2"),
        (destroy(1, begun=3), "began with 2"),
        (create(4), "not the next"),
        (create(3, token=2), "created before"),
        (destroy(0), "does not exist"),
        (destroy(3), "does not exist"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change: Change, why: str) -> None:
    state = ParentState(lifecycle=after(create(2), destroy(0)))
    before = state.encode()
    assert why in state.change(change)
    assert state.encode() == before
    with pytest.raises(InvariantViolated):
        state.lifecycle.after(change)


def test_one_partition_is_always_left() -> None:
    assert "last" in after(destroy(0)).refuses(destroy(1))
    assert after(destroy(0), create(2)).refuses(destroy(1)) == ""


def test_a_destroyed_partition_leaves_no_tail() -> None:
    tail = Tail(PartitionLogIndex(4), bytes(16), GlobalLogIndex(1))
    state = ParentState(GlobalLogIndex(2), 5, {PartitionId(0): tail, PartitionId(1): tail})
    assert state.change(destroy(0)) == ""
    assert list(state.tails) == [1]
    assert ParentState.decode(state.encode()) == state
    state.tails[PartitionId(0)] = tail
    with pytest.raises(CorruptData):
        ParentState.decode(state.encode())


def test_fields_come_back() -> None:
    for change in (create(9, kind=LOG), destroy(3)):
        assert Change.parse(change.fields()) == change


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partition", -1),
        ("partition", True),
        ("begun", 0),
        ("state_machine", ""),
        ("state_machine", "x" * 256),
        ("mode", "sometimes"),
        ("mode", 3),
        ("token", b"short"),
    ],
)
def test_fields_that_no_leader_writes_are_damage(field: str, value: object) -> None:
    with pytest.raises(CorruptData):
        Change.parse({**create(9).fields(), field: value})


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from((KV, LOG))), max_size=20))
def test_every_history_comes_back_and_is_told_by_its_bytes(steps: list[tuple[bool, int, PartitionKind]]) -> None:
    found, again = Lifecycle(), Lifecycle()
    for number, (creates, partition, kind) in enumerate(steps):
        change = (
            create(max(found.next_id, 3), begun=3, kind=kind, token=number) if creates else destroy(partition, begun=3)
        )
        if not found.refuses(change):
            found = found.after(change)
            again = Lifecycle.decode(again.after(change).encode())[0]
    raw = found.encode()
    assert Lifecycle.decode(raw + b"more") == (found, len(raw))
    assert again == found
    for cut in range(len(raw)):
        with pytest.raises(CorruptData):
            Lifecycle.decode(raw[:cut])


@pytest.mark.parametrize(
    "raw",
    [
        HEAD.pack(0, 3, 0, 0),
        HEAD.pack(3, 2, 0, 0),
        HEAD.pack(1, 1, 0, 1) + bytes(4),
        HEAD.pack(200_000, 200_000, 0, 0),
        HEAD.pack(2, 2, 0, 1) + (5).to_bytes(4, "little"),
    ],
)
def test_nonsense_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        Lifecycle.decode(raw)
