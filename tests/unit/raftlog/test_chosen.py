"""What the log says of how writes to a partition are answered: in entries, in the parent state, and as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.errors import CorruptData
from logboom.settings import ClusterSettings, PartitionSettings
from logboom.types import KV_TXN, PARTITION_SETTINGS, Ack, DurabilityMode, PartitionId
from raftlog.entries.agreed import agreeing
from raftlog.entries.chosen import (
    NOTHING,
    Choice,
    Chosen,
    acknowledgement,
    decode_chosen,
    encode_chosen,
    is_linearizable,
)
from raftlog.entries.entry import pack_control, unpack_control
from raftlog.entries.lifecycle import Change, Lifecycle, PartitionKind
from raftlog.entries.parent_state import BEFORE_CHOSEN, BEFORE_VOIDS, VERSION, ParentState

TOKEN = bytes(range(16))
KV = PartitionKind("kv", DurabilityMode.WRITE_AHEAD)
A, B, C = map(PartitionId, range(3))
SOME = st.builds(Chosen, st.sampled_from([None, *Ack]), st.sampled_from([None, False, True]))


def agreed() -> ParentState:
    found = ParentState()
    found.control(2, 1, agreeing([PARTITION_SETTINGS]))
    return found


def choice(partition: int, ack: Ack | None = None, *, linearizable: bool | None = None, begun: int = 2) -> Choice:
    return Choice(PartitionId(partition), begun, Chosen(ack, linearizable), TOKEN)


def came_back(entry: Choice) -> Choice:
    fields = unpack_control(pack_control(entry.fields()))
    assert fields is not None
    return Choice.parse(fields)


@given(SOME.filter(lambda chosen: chosen != NOTHING))
def test_an_entry_comes_back_and_says_only_what_is_set(chosen: Chosen) -> None:
    entry = Choice(B, 2, chosen, TOKEN)
    assert came_back(entry) == entry
    assert ("ack" in entry.fields(), "linearizable" in entry.fields()) == tuple(each is not None for each in chosen)
    created = Change(C, 2, KV, TOKEN, chosen)
    assert Change.parse(created.fields()) == created


def test_a_creation_that_leaves_it_to_the_settings_is_as_it_was_before() -> None:
    assert Change(C, 2, KV, TOKEN).fields().keys() == {"do", "partition", "begun", "state_machine", "mode", "token"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": -1},
        {"partition": 1 << 32},
        {"partition": "1"},
        {"partition": True},
        {"begun": 0},
        {"begun": None},
        {"token": b"short"},
        {"token": None},
        {"ack": "snapshotted"},
        {"ack": 3},
        {"linearizable": 1},
        {"ack": None, "linearizable": None},
    ],
)
def test_an_entry_that_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(CorruptData):
        Choice.parse({**choice(A, Ack.DURABLE).fields(), **wrong})


def test_what_is_said_later_counts_and_the_rest_stays() -> None:
    state = agreed()
    assert not state.choose(choice(A, Ack.COMMITTED))
    assert not state.choose(choice(A, linearizable=True))
    assert state.chosen == {A: Chosen(Ack.COMMITTED, linearizable=True)}
    assert not state.choose(choice(A, Ack.DURABLE, linearizable=False))
    assert state.chosen == {A: Chosen(Ack.DURABLE, linearizable=False)}


def test_a_copy_is_as_of_its_place() -> None:
    """A snapshot's parent state is of its cut, whatever comes while it is taken."""
    state = agreed()
    state.choose(choice(A, Ack.COMMITTED))
    copy = state.copy()
    raw = copy.encode()
    state.choose(choice(A, Ack.DURABLE))
    state.choose(choice(B, Ack.DURABLE))
    assert copy.encode() == raw


def test_it_is_set_for_as_long_as_the_partition_lives() -> None:
    state = agreed()
    assert not state.choose(choice(B, Ack.COMMITTED))
    assert not state.change(Change(C, 2, KV, TOKEN, Chosen(Ack.DURABLE)))
    assert not state.choose(choice(C, linearizable=True))
    assert state.chosen == {B: Chosen(Ack.COMMITTED), C: Chosen(Ack.DURABLE, linearizable=True)}
    for partition in (B, C):
        assert not state.change(Change(partition, 2))
    assert state.chosen == {}
    assert state.encode()[0] == BEFORE_CHOSEN


def test_what_does_not_fit_has_no_effect() -> None:
    state = agreed()
    state.change(Change(B, 2))
    before = state.encode()
    assert state.choose(choice(B, Ack.DURABLE)) == "partition 1 does not exist"
    assert state.choose(choice(C, Ack.DURABLE)) == "partition 2 does not exist"
    assert "began with 2" in state.choose(choice(A, Ack.DURABLE, begun=3))
    assert state.encode() == before


def test_nothing_is_set_before_all_have_agreed_to_know_it() -> None:
    state = ParentState()
    state.control(2, 1, agreeing([KV_TXN]))
    before = state.encode()
    assert PARTITION_SETTINGS in state.choose(choice(A, Ack.DURABLE))
    assert PARTITION_SETTINGS in state.change(Change(B, 1, KV, TOKEN, Chosen(Ack.DURABLE)))
    assert state.encode() == before


def test_the_first_one_fixes_what_the_cluster_began_with() -> None:
    """Else settings of fewer partitions could follow, without one that was set."""
    state = agreed()
    state.choose(choice(B, Ack.DURABLE, begun=3))
    assert (state.lifecycle.begun, state.lifecycle.next_id) == (3, 3)
    assert "began with 3" in state.change(Change(B, 2))
    assert not state.change(Change(PartitionId(3), 3, KV, TOKEN))


def test_the_parent_state_says_it_once_there_is_something_to_say() -> None:
    """Until then a release of before reads what is written."""
    assert ParentState().encode()[0] == BEFORE_VOIDS
    state = agreed()
    assert state.encode()[0] == BEFORE_CHOSEN
    state.choose(choice(A, Ack.COMMITTED))
    state.choose(choice(B, linearizable=True))
    raw = state.encode()
    assert raw[0] == VERSION
    assert ParentState.decode(raw) == state == state.copy()
    for length in range(1, len(raw)):
        with pytest.raises(CorruptData):
            ParentState.decode(raw[:length])


def test_a_parent_state_with_settings_that_cannot_be() -> None:
    said, of_two = agreed().agreed, Lifecycle().fixed(2)
    unsaid = ParentState(agreed=frozenset((KV_TXN,)), lifecycle=of_two, chosen={A: Chosen(Ack.DURABLE)})
    nobodys = ParentState(agreed=said, lifecycle=of_two, chosen={C: Chosen(Ack.DURABLE)})
    unfixed = ParentState(agreed=said, chosen={A: Chosen(Ack.DURABLE)})
    for state in (unsaid, nobodys, unfixed):
        with pytest.raises(CorruptData, match="settings of partitions that cannot be"):
            ParentState.decode(state.encode())


@given(st.dictionaries(st.integers(0, (1 << 32) - 1).map(PartitionId), SOME.filter(lambda c: c != NOTHING), min_size=1))
def test_bytes_come_back(chosen: dict[PartitionId, Chosen]) -> None:
    raw = encode_chosen(chosen)
    assert decode_chosen(raw + b"more") == (chosen, len(raw))
    with pytest.raises(CorruptData):
        decode_chosen(raw[:-1])


ROW = b"\1\0\0\0"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\0",
        b"\1\0\0\0" + ROW + b"\4\0",
        b"\1\0\0\0" + ROW + b"\0\3",
        b"\1\0\0\0" + ROW + b"\0\0",
        b"\2\0\0\0" + 2 * (ROW + b"\1\1"),
        b"\xff\xff\xff\xff" + ROW + b"\1\1",
    ],
)
def test_bytes_that_are_none(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_chosen(raw)


def test_what_the_log_has_not_said_is_as_in_the_settings() -> None:
    cluster = ClusterSettings(ack=Ack.DURABLE, overrides={"1": PartitionSettings(ack=Ack.COMMITTED, linearizable=True)})
    assert acknowledgement(cluster, {}, A) == acknowledgement(cluster, {A: NOTHING}, A) == (Ack.DURABLE, False)
    assert acknowledgement(cluster, {}, B) == (Ack.COMMITTED, True)
    assert acknowledgement(cluster, {B: Chosen(Ack.APPLIED)}, B) == (Ack.APPLIED, True)
    assert acknowledgement(cluster, {B: Chosen(linearizable=False)}, B) == (Ack.COMMITTED, False)
    assert acknowledgement(cluster, {C: Chosen(Ack.APPLIED, linearizable=True)}, C) == (Ack.APPLIED, True)
    assert [is_linearizable(cluster, {A: Chosen(linearizable=True)}, p) for p in (A, B, C)] == [True, True, False]
