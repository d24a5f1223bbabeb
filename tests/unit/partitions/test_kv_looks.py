"""Commands that look at large values, and change few: what a group takes of memory, and how often it reads them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logboom.commands import OPERATORS, Add, Cas, Command, Compare, Delete, Put, Txn, _encoded
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch
from logboom.types import GlobalLogIndex, PartitionLogIndex, Status
from partitions.machines import kv_apply
from partitions.machines.kv import KvMachine
from partitions.machines.kv_apply import apply_blocks
from partitions.machines.kv_file import KvFile
from tests.unit.partitions.kv_world import position


def batch(index: int, commands: list[Command]) -> ApplyBatch:
    records = RecordBlock.from_records(command.record() for command in commands)
    first, reached = PartitionLogIndex(index), GlobalLogIndex(index)
    return ApplyBatch(first, reached, 0, records.count, records.nbytes, bytes(16), records)


LARGE = [b"l%02d" % number for number in range(48)]
VALUE_BYTES = 512 << 10
SMALL = VALUE_BYTES + (6 << 20)
"""What a group takes with ``loaded_bytes`` of 4 MiB: that, and copies of a value on its way."""
LOOKS: dict[str, tuple[Callable[[bytes], Command], Status]] = {
    "Delete": (Delete, Status.OK),
    "Cas": (lambda key: Cas(key, b"other", b"new"), Status.MISMATCH),
    "Add": (lambda key: Add(key, 1), Status.WRONG_TYPE),
    "Txn, compares": (lambda key: Txn([Compare(key, "==", b"other")], [Put(b"new", b"")], []), Status.OTHERWISE),
    "Txn, commands": (lambda key: Txn([], [Put(b"new", b""), Cas(key, b"other", None)], []), Status.MISMATCH),
}


@pytest.mark.parametrize("kind", LOOKS)
@pytest.mark.parametrize("together", [True, False], ids=["one batch", "a batch each"])
def test_commands_that_look_at_large_values_take_no_memory_for_all_of_them(
    tmp_path: Path, kind: str, together: bool
) -> None:
    """All values stayed until the group had ended: a request of a few bytes for each took what the node has."""
    machine = KvMachine(KvFile(tmp_path, ApplySettings()), loaded_bytes=4 << 20)
    for index, key in enumerate(LARGE, 1):
        machine.apply([batch(index, [Put(key, bytes(VALUE_BYTES))])], lambda _, i=index: (position(i), {}))  # type: ignore[misc]
        machine.checkpoint()
    make, status = LOOKS[kind]
    commands, index = [make(key) for key in (*LARGE, *LARGE)], len(LARGE) + 1
    batches = [batch(index, some) for some in ([commands] if together else [[command] for command in commands])]
    tracemalloc.start()
    try:
        results = machine.apply(batches, lambda _: (position(index), {}))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    again = Status.NOT_FOUND if kind == "Delete" else status
    statuses = b"".join(
        each * batch.count if len(each) == 1 else each for each, batch in zip(results, batches, strict=True)
    )
    assert statuses == bytes([status] * len(LARGE) + [again] * len(LARGE))
    assert most < SMALL
    machine.close()


def test_a_transaction_of_many_compares_takes_no_memory_for_all_of_them(tmp_path: Path) -> None:
    machine = KvMachine(KvFile(tmp_path, ApplySettings()), loaded_bytes=4 << 20)
    for index, key in enumerate(LARGE, 1):
        machine.apply([batch(index, [Put(key, bytes(VALUE_BYTES))])], lambda _, i=index: (position(i), {}))  # type: ignore[misc]
        machine.checkpoint()
    index = len(LARGE) + 1
    one = Txn([Compare(key, "!=", b"other") for key in LARGE], [Delete(key) for key in LARGE], [])
    tracemalloc.start()
    try:
        assert machine.apply([batch(index, [one])], lambda _: (position(index), {})) == [bytes([Status.OK])]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < SMALL
    assert machine.get(LARGE)[0] == [None] * len(LARGE)
    machine.close()


FEW = st.sampled_from([b"a", b"b", b"c"])
BYTES = st.text("xy", max_size=5).map(str.encode)
SOME = BYTES | st.sampled_from([(1,), (2,), (1, 2), (1.5,)])
SINGLE = st.one_of(
    st.builds(Put, FEW, BYTES),
    st.builds(Delete, FEW),
    st.builds(Cas, FEW, st.none() | BYTES, st.none() | BYTES),
    st.builds(lambda key, numbers: Add(key, *numbers), FEW, st.sampled_from([(1,), (1, 2), (0.5,)])),
)
TXNS = st.builds(
    Txn,
    st.lists(st.builds(Compare, FEW, st.sampled_from(OPERATORS), SOME), max_size=3),
    st.lists(SINGLE, min_size=1, max_size=3),
    st.lists(SINGLE, max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(FEW, SOME.map(_encoded)),
    st.lists(SINGLE | TXNS, min_size=1, max_size=12),
    st.integers(1, 12),
    st.sampled_from([0, 500, 1 << 20]),
)
def test_beginnings_of_values_do_for_all_that_commands_compare_them_with(
    state: dict[bytes, bytes], commands: list[Command], head: int, bound: int
) -> None:
    one, nothing = batch(1, commands), lambda *_: iter(())
    whole = apply_blocks([one], state.get, nothing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_apply, "HEAD_BYTES", head)
        assert apply_blocks([one], state.get, nothing, loaded_bytes=bound) == whole


@pytest.mark.parametrize("head", range(9))
def test_what_a_value_begins_with_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch, head: int) -> None:
    monkeypatch.setattr(kv_apply, "HEAD_BYTES", head)
    shorter = [b"value"[:length] for length in range(5)]
    commands: list[Command] = [Cas(b"k", value, b"new") for value in shorter + shorter]
    commands += [Txn([Compare(b"k", how, value)], [Put(b"o", b"")]) for how in ("==", "<=") for value in shorter]
    statuses, changed, _ = apply_blocks([batch(1, commands)], {b"k": b"bvalue"}.get, lambda *_: iter(()))
    assert statuses == [bytes([Status.MISMATCH] * 10 + [Status.OTHERWISE] * 10)]
    assert changed == {}


@pytest.mark.parametrize("kind", [kind for kind in LOOKS if kind != "Delete"])
def test_a_value_that_commands_look_at_again_and_again_is_read_once(kind: str) -> None:
    """A request of a few megabytes could have as many values read two hundred thousand times: for minutes."""
    state = dict.fromkeys(LARGE, b"b" + bytes(2 * kv_apply.LOADED_BYTES_MAX // len(LARGE)))
    assert sum(map(len, state.values())) > kv_apply.LOADED_BYTES_MAX
    make, _ = LOOKS[kind]
    loaded = list[bytes]()

    def load(key: bytes) -> bytes | None:
        loaded.append(key)
        return state.get(key)

    commands = [make(key) for _ in range(20) for key in LARGE]
    apply_blocks([batch(1, commands)], load, lambda *_: iter(()))
    assert sorted(loaded) == LARGE


LONG: dict[str, Callable[[bytes, bytes], Command]] = {
    "Cas": lambda key, value: Cas(key, value, b"new"),
    "Txn": lambda key, value: Txn([Compare(key, "==", value)], [Put(b"new", b"")], []),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("more", [-1, 0, 1, 1_000, 100_000])
def test_so_is_one_that_is_compared_with_more_than_is_kept_of_most(kind: str, more: int) -> None:
    """Each comparison with 4 KiB had all of it read: of seven megabytes, two thousand times, for a request of eight."""
    loaded, value = list[bytes](), b"b" + bytes(1 << 20)

    def load(key: bytes) -> bytes | None:
        loaded.append(key)
        return value

    wanted = bytes(kv_apply.HEAD_BYTES + more)
    commands = [LONG[kind](b"k", wanted + bytes(number)) for number in range(20)]
    statuses, _, _ = apply_blocks([batch(1, commands)], load, lambda *_: iter(()))
    assert (statuses, loaded) == ([bytes([Status.MISMATCH if kind == "Cas" else Status.OTHERWISE])], [b"k"])


def test_what_it_is_compared_with_may_grow() -> None:
    """Each time that there is more to keep of it there is twice as much; all of it in the end."""
    loaded, value = list[bytes](), bytes(1 << 20)

    def load(key: bytes) -> bytes | None:
        loaded.append(key)
        return b"b" + value

    commands: list[Command] = [Cas(b"k", bytes(length), b"new") for length in range(0, 1 << 20, 1 << 12)]
    statuses, changed, _ = apply_blocks([batch(1, [*commands, Cas(b"k", value, b"new")])], load, lambda *_: iter(()))
    assert statuses == [bytes([Status.MISMATCH] * len(commands) + [Status.OK])]
    assert changed == {b"k": b"bnew"}
    assert len(loaded) <= 9


def test_what_is_kept_of_one_in_the_place_of_less_does_not_add_up() -> None:
    """What others were kept for: all were read again, as if there were no more room."""
    loaded, value = list[bytes](), b"b" + bytes(1 << 20)

    def load(key: bytes) -> bytes | None:
        loaded.append(key)
        return value

    lengths = (0, 10_000, 30_000, 90_000, 270_000)
    commands = [Cas(b"other", b"", b"new"), *(Cas(b"k", bytes(length), b"new") for length in lengths)]
    again = Cas(b"other", b"", b"new")
    apply_blocks([batch(1, [*commands, again])], load, lambda *_: iter(()), loaded_bytes=600_000)
    assert loaded == [b"other"] + [b"k"] * len(lengths)
