"""Commands over several keys, against a dictionary; whatever is saved, and however batches are grouped."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logboom.commands import (
    DELETE_BYTES_MAX,
    DELETE_KEYS_MAX,
    DELETE_LEAST,
    INT64_MAX,
    INT64_MIN,
    Add,
    Cas,
    Command,
    Compare,
    Delete,
    DeletePrefix,
    DeleteRange,
    Put,
    Txn,
    Value,
    from_record,
)
from logboom.errors import InvalidRequest
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch, Position
from logboom.types import GlobalLogIndex, PartitionLogIndex, Record, Status, WideRecord
from partitions.machines import kv_apply
from partitions.machines.kv import KvMachine
from partitions.machines.kv_file import KvFile

State = dict[bytes, Value]

KEYS = st.sampled_from([b"a", b"aa", b"ab", b"b", b"\xff", b"\xff\xff"])
VALUES = st.binary(max_size=2)
NUMBERS = st.sampled_from([INT64_MAX, INT64_MIN, -1, 0, 1, 2])
SIMPLE = st.one_of(
    st.builds(Put, KEYS, VALUES),
    st.builds(Delete, KEYS),
    st.builds(Cas, KEYS, st.none() | VALUES, st.none() | VALUES),
    st.builds(Add, KEYS, NUMBERS),
    st.builds(Add, KEYS, st.sampled_from([0.5, -0.0, 0.0, math.nan, 1e308])),
)
COMPARES = st.one_of(
    st.builds(Compare, KEYS, st.sampled_from(["==", "!="]), st.none()),
    st.builds(Compare, KEYS, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), VALUES | NUMBERS | st.just(0.0)),
)
TXNS = st.builds(
    Txn,
    st.lists(COMPARES, max_size=3),
    st.lists(SIMPLE, min_size=1, max_size=4),
    st.lists(SIMPLE, max_size=4),
)
RANGES = st.one_of(st.builds(DeletePrefix, KEYS), st.builds(DeleteRange, KEYS))
COMMANDS = st.one_of(SIMPLE, TXNS, TXNS, RANGES)


# -- what they do, said once more


def holds(state: State, compare: Compare) -> bool:
    found, wanted = state.get(compare.key), compare.value
    wanted = wanted if wanted is None or isinstance(wanted, bytes | tuple) else (wanted,)
    if found is None or wanted is None:
        return compare.operator == ("==" if found is wanted else "!=")
    kinds = [(type(v), type(v[0]), len(v)) if isinstance(v, tuple) else (bytes, bytes, 0) for v in (found, wanted)]
    if kinds[0] != kinds[1]:
        return compare.operator == "!="
    one: Any = [*found]
    other: Any = [*wanted]
    if isinstance(found, tuple):  # so that the same object that is not a number is not equal to itself
        one, other = [[n * 1 for n in each] for each in (one, other)]
    return bool(
        {
            "==": one == other,
            "!=": one != other,
            "<": one < other,
            "<=": one <= other,
            ">": one > other,
            ">=": one >= other,
        }[compare.operator]
    )


def simple(state: State, command: Command) -> Status:
    if isinstance(command, Put):
        state[command.key] = command.value
    elif isinstance(command, Delete):
        return Status.OK if state.pop(command.key, None) is not None else Status.NOT_FOUND
    elif isinstance(command, Cas):
        if state.get(command.key) != command.expected:
            return Status.MISMATCH
        state.pop(command.key, None)
        if command.value is not None:
            state[command.key] = command.value
    elif isinstance(command, Add):
        before, number = state.get(command.key), command.numbers[0]
        if before is None:
            state[command.key] = (number,)  # type: ignore[assignment]
            return Status.OK
        if isinstance(before, bytes) or type(before[0]) is not type(number):
            return Status.WRONG_TYPE
        added = before[0] + number
        if isinstance(added, int) and not INT64_MIN <= added <= INT64_MAX:
            return Status.OVERFLOW
        if isinstance(added, float) and math.isfinite(number) and not math.isfinite(added):
            return Status.OVERFLOW
        state[command.key] = (added,)  # type: ignore[assignment]
    return Status.OK


def done(state: State, command: Command) -> Status:
    """By the model, in place."""
    if isinstance(command, Txn):
        held = all(holds(state, compare) for compare in command.compares)
        after = dict(state)
        for each in command.then if held else command.otherwise:
            status = simple(after, each)
            if status not in (Status.OK, Status.NOT_FOUND):
                return status
        state.clear()
        state.update(after)
        return Status.OK if held else Status.OTHERWISE
    if isinstance(command, DeletePrefix | DeleteRange):
        first = command.prefix if isinstance(command, DeletePrefix) else command.start
        gone = [k for k in state if (k.startswith(first) if isinstance(command, DeletePrefix) else k >= first)]
        for key in gone:
            del state[key]
        return Status.OK if gone else Status.NOT_FOUND
    return simple(state, command)


# -- the machine


def batch(index: int, commands: Sequence[Command], *, wide: bool = True) -> ApplyBatch:
    records = RecordBlock.from_records(command.record() for command in commands).as_wide(wide=wide)
    at = PartitionLogIndex(index), GlobalLogIndex(index)
    return ApplyBatch(*at, 0, records.count, records.nbytes, bytes(16), records)


def sealing(index: int) -> Any:
    return lambda _: (Position(PartitionLogIndex(index), GlobalLogIndex(index)), {})


def spread(statuses: bytes, count: int) -> list[Status]:
    return [Status(status) for status in (statuses if len(statuses) == count else statuses * count)]


def raw(value: Value) -> bytes:
    """Bit for bit: what is not a number is not equal to itself."""
    if isinstance(value, bytes):
        return b"b" + value
    kind = "d" if isinstance(value[0], float) else "q"
    return kind.encode() + struct.pack(f"<{len(value)}{kind}", *value)


def everything(machine: KvMachine) -> dict[bytes, bytes]:
    return {k: raw(v) for rows, _ in machine.scan(start=b"", end=None, limit=0, chunk=100) for k, v in rows}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(COMMANDS, min_size=1, max_size=6), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6)
)
def test_they_do_what_they_do_to_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Command]], saved: list[bool]
) -> None:
    machine = KvMachine(KvFile(tmp_path_factory.mktemp("kv"), ApplySettings()))
    state: State = {}
    try:
        for index, (commands, save) in enumerate(zip(groups, saved, strict=False), 1):
            expected = [done(state, command) for command in commands]
            (statuses,) = machine.apply([batch(index, commands)], sealing(index))
            assert spread(statuses, len(commands)) == expected
            assert everything(machine) == {key: raw(value) for key, value in state.items()}
            if save:
                machine.checkpoint()
        with machine.dump() as dump:
            dumped = {key: value for space, key, value in dump.entries() if not space}
        assert dumped == everything(machine)
    finally:
        machine.discard()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(COMMANDS, min_size=1, max_size=4), min_size=2, max_size=6))
def test_how_batches_are_grouped_and_saved_means_nothing(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Command]]
) -> None:
    machines = [KvMachine(KvFile(tmp_path_factory.mktemp("kv"), ApplySettings())) for _ in range(2)]
    batches = [batch(index, commands) for index, commands in enumerate(groups, 1)]
    together = machines[0].apply(batches, sealing(len(batches)))
    alone = []
    for index, each in enumerate(batches, 1):
        alone += machines[1].apply([each], sealing(index))
        machines[1].checkpoint()
    assert together == alone
    assert machines[0].digest() == machines[1].digest()
    for machine in machines:
        machine.discard()


# -- one thing each


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    yield machine
    machine.discard()


class Applied:
    def __init__(self, machine: KvMachine) -> None:
        self.machine = machine
        self.index = 0

    def __call__(self, *commands: Command, wide: bool = True) -> list[Status]:
        self.index += 1
        (statuses,) = self.machine.apply([batch(self.index, commands, wide=wide)], sealing(self.index))
        return spread(statuses, len(commands))


def test_a_transfer_is_done_as_a_whole_or_not_at_all(machine: KvMachine) -> None:
    apply = Applied(machine)
    apply(Add(b"ann", 100), Put(b"bob", b"no number"))
    spoilt = Txn([Compare(b"ann", ">=", 30)], [Add(b"ann", -30), Add(b"bob", 30)])
    assert apply(spoilt) == [Status.WRONG_TYPE]
    assert machine.get([b"ann", b"bob"])[0] == [(100,), b"no number"]
    transfer = Txn([Compare(b"ann", ">=", 60)], [Add(b"ann", -60), Add(b"cid", 60)], [Put(b"log", b"refused")])
    assert apply(transfer, transfer) == [Status.OK, Status.OTHERWISE]
    assert machine.get([b"ann", b"cid", b"log"])[0] == [(40,), (60,), b"refused"]


def test_in_a_batch_that_does_not_say_so_they_are_no_commands(machine: KvMachine) -> None:
    """As for releases that did not know them: a log that was written then is applied again as it was."""
    apply = Applied(machine)
    apply(Put(b"k", b"v"))
    assert apply(Txn([], [Delete(b"k")]), DeletePrefix(b"k"), wide=False) == [Status.INVALID] * 2
    assert machine.get([b"k"])[0] == [b"v"]


def test_of_a_repeated_request_what_was_applied_before_is_skipped(machine: KvMachine) -> None:
    first = batch(1, [Add(b"n", 1), Txn([], [Add(b"n", 10)]), Txn([], [Add(b"n", 100)])])
    skipping = ApplyBatch(
        first.first_index, first.global_index, 0, first.count, first.nbytes, first.digest, first.records, ((0, 2),)
    )
    machine.apply([skipping], sealing(1))
    assert machine.get([b"n"])[0] == [(100,)]


def test_a_range_is_removed_some_at_a_time(machine: KvMachine) -> None:
    apply = Applied(machine)
    count = 2 * DELETE_KEYS_MAX + 5
    for first in range(0, count, 500):
        apply(*(Put(b"k%05d" % n, b"v") for n in range(first, min(count, first + 500))), wide=False)
    apply(Put(b"j", b"v"), Put(b"l", b"v"))
    machine.checkpoint()
    assert apply(DeletePrefix(b"k")) == [Status.MORE]
    assert len(everything(machine)) == count + 2 - DELETE_KEYS_MAX
    assert b"k%05d" % DELETE_KEYS_MAX in everything(machine)  # the least went first
    assert apply(DeletePrefix(b"k")) == [Status.MORE]
    assert apply(DeletePrefix(b"k")) == [Status.OK]
    assert apply(DeletePrefix(b"k")) == [Status.NOT_FOUND]
    assert sorted(everything(machine)) == [b"j", b"l"]


def test_a_batch_removes_so_many_however_many_commands_it_has(machine: KvMachine) -> None:
    apply = Applied(machine)
    most = DELETE_KEYS_MAX // DELETE_LEAST
    apply(*(Put(b"%03d" % n, b"v") for n in range(most + 2)), wide=False)
    statuses = apply(*(DeletePrefix(b"%03d" % n) for n in range(most + 2)))
    assert statuses == [Status.OK] * most + [Status.MORE] * 2
    assert sorted(everything(machine)) == [b"%03d" % n for n in (most, most + 1)]


def test_large_values_count_by_their_size(machine: KvMachine) -> None:
    apply = Applied(machine)
    for n in range(7):
        apply(Put(b"%d" % n, bytes(DELETE_BYTES_MAX // 4)))
    assert apply(DeleteRange(b"\0")) == [Status.MORE]
    assert sorted(everything(machine)) == [b"4", b"5", b"6"]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x05",
        b"\x05\0\0\0",
        b"\x05\x81\0\0" + b"\0\x01\0\0\0\0\0k" * 129,
        b"\x05\x01\0\0" + b"\x06\x01\0\0\0\0\0k",  # no such operator
        b"\x05\x01\0\0" + b"\x02\x01\0\0\0\0\0k",  # less than nothing
        b"\x05\x01\0\0" + b"\0\0\0\0\0\0\0",  # no key
        b"\x05\x01\0\0" + b"\0\0\x02\0\0\0\0" + bytes(512),  # one that no file takes
        b"\x05\x01\0\0" + b"\0\x01\0\x03\0\0\0kq12",  # no number
        b"\x05\x01\0\0" + b"\0\x01\0\x03\0\0\0kx12",
        b"\x05\0\x01\0" + b"\x01\0\x02\0\0\0k\x01",  # shorter than it says
        b"\x05\0\x01\0" + b"\x01\0\x01\0\0\0k\x01!",  # longer
        b"\x05\0\x01\0" + b"\x01\0\0\0\0\0k",  # no command
        b"\x05\0\x01\0" + b"\x01\0\x01\0\0\0k\x06",  # one over several keys
        b"\x05\0\x01\0" + b"\x01\0\x02\0\0\0k\x04q",
        b"\x06k",
        b"\x06j",
        b"\x07",
    ],
)
def test_what_cannot_be_read_does_nothing(machine: KvMachine, payload: bytes) -> None:
    apply = Applied(machine)
    apply(Put(b"k", b"v"))
    records = RecordBlock.from_records([WideRecord(payload, b"k")])
    at = PartitionLogIndex(2), GlobalLogIndex(2)
    (statuses,) = machine.apply([ApplyBatch(*at, 0, 1, records.nbytes, bytes(16), records)], sealing(2))
    assert statuses == bytes((Status.INVALID,))
    assert everything(machine) == {b"k": b"bv"}
    machine.checkpoint()


def test_a_record_of_the_log_is_the_command_that_it_was(machine: KvMachine) -> None:
    txn = Txn((Compare(b"a", "!=", None),), (Put(b"b", b"1"), Cas(b"d", None, b"x")), (Delete(b"c"), Add(b"n", 1, 2)))
    for command in (txn, DeleteRange(b"a", b"b"), DeleteRange(b"a"), *txn.then, *txn.otherwise):
        record = command.record()
        assert from_record(record) == command
    for command in (txn, DeleteRange(b"a")):  # sent as bytes it does nothing
        with pytest.raises(InvalidRequest, match="no command of kv"):
            from_record(Record(command.record().payload, b"a"))


QUIET, SIGNALS, INFINITE, ONE = 0x7FF8_0000_0000_0001, 0xFFF0_0000_0000_0002, 0x7FF0 << 48, 0x3FF0 << 48


@pytest.mark.parametrize(
    ("total", "left", "right", "same"),
    [
        (0x7FF8 << 48, INFINITE, INFINITE | 1 << 63, 0xFFF8 << 48),  # as ARM says it
        (0xFFF8 << 48, INFINITE, INFINITE | 1 << 63, 0xFFF8 << 48),  # as x86 does
        (SIGNALS | 1 << 51, QUIET, SIGNALS, QUIET),  # ARM takes the one that signals
        (QUIET, ONE, QUIET, QUIET),
        (SIGNALS | 1 << 51, SIGNALS, ONE, SIGNALS | 1 << 51),
        (INFINITE, INFINITE, ONE, INFINITE),
        (ONE, ONE, 0, ONE),
    ],
)
def test_what_is_no_number_has_the_same_bits_on_every_processor(total: int, left: int, right: int, same: int) -> None:
    """Else the states of nodes that are not of one kind differ for good (I6)."""
    sums, lefts, rights, wanted = (struct.pack("<2Q", each, ONE) for each in (total, left, right, same))
    assert kv_apply._same_nans(sums, lefts, rights) == wanted


def test_so_has_what_an_add_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_apply, "NAN_OF_INFINITIES", QUIET)  # which no processor says
    before = b"d" + struct.pack("<2d", math.inf, 1.0)
    view = kv_apply._View(lambda *_: before, lambda _: True, lambda *_: iter(()))
    assert kv_apply._add(b"k", b"d" + struct.pack("<2d", -math.inf, 1.0), view) == Status.OK
    assert view.get(b"k", 0) == b"d" + struct.pack("<Qd", QUIET, 2.0)
