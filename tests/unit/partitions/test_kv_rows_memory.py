"""Puts in bulk while there is a want of memory: what fails changes nothing, and may be tried again."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logboom.commands import Add, Command, Delete, DeleteRange, Put
from logboom.errors import CorruptData
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines import kv_rows, kv_unsaved
from partitions.machines.kv import KvMachine
from partitions.machines.kv_file import KvFile
from partitions.machines.kv_layers import Emptied, Layer
from partitions.machines.kv_rows import Puts, Rows, Stacked, puts_of
from tests.unit.partitions.kv_world import position

NAMES = [b"%03d" % number for number in range(200)]
FEW = 2
"""Records that are worth it."""


def batch(index: int, commands: Sequence[Command]) -> ApplyBatch:
    block = RecordBlock.from_records([command.record() for command in commands])
    at = PartitionLogIndex(index), GlobalLogIndex(index)
    return ApplyBatch(*at, 0, block.count, block.nbytes, bytes(16), block)


def apply(machine: KvMachine, index: int, commands: Sequence[Command]) -> None:
    machine.apply([batch(index, commands)], lambda _: (position(index), {b"p": b"%d" % index}))


def as_puts(block: Sequence[tuple[bytes, bytes]]) -> Puts:
    found = puts_of([batch(1, [Put(*row) for row in block])], FEW)
    assert found is not None
    return found


@pytest.mark.parametrize("where", [(kv_rows, "_first_place"), (np, "full"), (np, "arange")], ids=lambda each: each[1])
def test_rows_that_find_no_memory_to_grow_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, where: tuple[object, str]
) -> None:
    """Known keys got a second row, and acknowledged values could vanish: either might be what is saved."""
    monkeypatch.setattr(kv_rows, "CAPACITY_MIN", 4)
    monkeypatch.setattr(kv_rows, "CHUNK_ROWS", 7)
    rng, expected, failed = random.Random(2), dict[bytes, bytes](), 0
    rows = Rows(as_puts([(name, b"0000") for name in NAMES[:2]]))
    for turn in range(1, 60):
        block = [(name, b"%04d" % turn) for name in rng.sample(NAMES[: 3 * turn], min(3 * turn, 12))]
        some, room = as_puts(block), len(rows._rows)
        if len(rows) + some.count > room:

            def fails(*_: object, **__: object) -> None:
                raise MemoryError

            with monkeypatch.context() as patch:
                patch.setattr(*where, fails)
                with pytest.raises(MemoryError):
                    rows.put(some)
            failed += 1
            assert len(rows._rows) == room
            assert rows.find(NAMES) == {name: rows.get(name) for name in expected} == expected
        assert rows.put(some)
        expected.update((name, b"b" + value) for name, value in block)
        assert rows.find(NAMES) == expected
        found = [(bytes(row[:3]), bytes(row[3:])) for chunk in rows.chunks() for row in chunk]
        assert found == sorted(expected.items())
    assert failed > 3


def test_to_forget_what_was_not_put_takes_next_to_no_memory() -> None:
    """It follows a want of it."""
    some = as_puts([(b"%03d" % number, b"v") for number in range(FEW)])
    rows = Rows(some, 1 << 18)
    assert rows.put(some)
    tracemalloc.start()
    try:
        rows._forget()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * kv_rows.FORGET_PLACES < len(rows._table) // 2
    assert len(rows.layer()) == FEW


def test_a_group_of_puts_that_finds_no_memory_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is remembered of producers either: a checkpoint in between would say of it that it had been applied."""
    machine, names = KvMachine(KvFile(tmp_path, ApplySettings()), rows_min=FEW), NAMES[:20]
    apply(machine, 1, [Put(name, b"one") for name in names])
    apply(machine, 2, [Put(names[0], b"single")])
    before = machine.unsaved_bytes

    def fails(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Puts, "keys", fails)
        with pytest.raises(MemoryError):
            apply(machine, 3, [Put(name, b"two") for name in names])
    assert machine.unsaved_bytes == before
    assert machine.get(names) == ([b"single", *[b"one"] * 19], position(2))
    machine.checkpoint()
    assert dict(machine.meta()) == {b"p": b"2"}
    apply(machine, 3, [Put(name, b"two") for name in names])
    assert machine.get(names) == ([b"two"] * 20, position(3))
    machine.close()


BESIDE: dict[str, list[Command]] = {
    "puts in bulk": [Put(name, b"two") for name in NAMES[:20]],
    "additions": [Add(b"n%02d" % number, 1) for number in range(20)],
}


@pytest.mark.parametrize("tries", [1, 2])
@pytest.mark.parametrize("beside", BESIDE)
def test_a_checkpoint_that_finds_no_memory_keeps_what_is_applied_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str, tries: int
) -> None:
    """To put it back took memory, too: acknowledged values were gone from this node, on its disk as well."""
    machine, keys = KvMachine(KvFile(tmp_path, ApplySettings()), rows_min=FEW), [b"n00", *NAMES[:20]]
    apply(machine, 1, [Put(name, b"one") for name in NAMES[:20]])
    apply(machine, 2, [Add(b"n00", 5)])
    at = 2
    for _ in range(tries):
        with monkeypatch.context() as patch:

            def applied_meanwhile(*_: object, index: int = at + 1, patch: pytest.MonkeyPatch = patch) -> None:
                apply(machine, index, BESIDE[beside])
                patch.setattr(Stacked, "layer", fails)
                patch.setattr(kv_unsaved, "_merge", fails)
                raise MemoryError

            patch.setattr(KvFile, "write", applied_meanwhile)
            with pytest.raises(MemoryError):
                machine.checkpoint()
        at += 1
    puts = beside == "puts in bulk"
    expected = [(5,) if puts else (5 + tries,), *[b"two" if puts else b"one"] * 20], position(at)
    assert machine.get(keys) == expected
    digest = machine.digest()
    machine.checkpoint()
    assert (machine.get(keys), machine.digest(), machine.unsaved_bytes) == (expected, digest, 0)
    machine.discard()
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    assert (machine.get(keys), machine.digest(), dict(machine.meta())) == (expected, digest, {b"p": b"%d" % at})
    machine.close()


def test_what_a_checkpoint_could_not_save_is_saved_in_front_of_what_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each under its own position: a crash in between finds one of the two, whole."""
    machine, write = KvMachine(KvFile(tmp_path, ApplySettings()), rows_min=FEW), KvFile.write
    apply(machine, 1, [Add(b"n", 1), Put(b"gone", b"v")])
    with monkeypatch.context() as patch:
        patch.setattr(KvFile, "write", fails)
        with pytest.raises(MemoryError):
            machine.checkpoint()
    apply(machine, 2, [Add(b"n", 1), Delete(b"gone")])
    apply(machine, 3, [Put(name, b"v") for name in NAMES[:20]])
    written = list[int]()

    def once(file: KvFile, *what: Any) -> None:
        if written:
            raise MemoryError
        write(file, *what)
        written.append(what[-1].applied_index)
        apply(machine, 4, [Add(b"n", 1)])

    with monkeypatch.context() as patch:
        patch.setattr(KvFile, "write", once)
        with pytest.raises(MemoryError):
            machine.checkpoint()
    assert written == [1]
    assert machine.get([b"n", b"gone", NAMES[0]]) == ([(3,), None, b"v"], position(4))
    machine._file.close()  # a crash
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    assert machine.get([b"n", b"gone", NAMES[0]]) == ([(1,), b"v", None], position(1))
    assert dict(machine.meta()) == {b"p": b"1"}
    machine.close()


HALVES: dict[str, list[Command]] = {
    "a state's": [Add(b"n%02d" % number, 1) for number in range(20)],
    "a meta's": [Add(b"n%02d" % number, 1) for number in range(20)],
    "puts in bulk": [Put(name, b"two") for name in NAMES[:20]],
}


@pytest.mark.parametrize("half", HALVES)
def test_a_group_of_which_a_part_is_there_is_neither_shown_nor_saved_nor_applied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    """What was added counted twice, on this node alone: the part of it that had found memory."""
    machine, merge, calls = KvMachine(KvFile(tmp_path, ApplySettings()), rows_min=FEW), kv_unsaved._merge, count(1)
    apply(machine, 1, [Add(b"n%02d" % number, 1) for number in range(20)])
    machine.checkpoint()
    apply(machine, 2, [Add(b"n00", 1)])

    def some(layer: Layer, changed: Layer, known: list[bytes | None]) -> int:
        if half == "a meta's" and next(calls) == 1:
            return merge(layer, changed, known)
        layer.update(islice(changed.items(), len(changed) // 2))
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(kv_unsaved, "_merge", some)
        patch.setattr(kv_unsaved, "_take_back", fails)
        with pytest.raises(CorruptData, match="in part"):
            apply(machine, 3, HALVES[half])
    assert machine.position() == position(2)
    for use in (
        lambda: apply(machine, 3, HALVES[half]),
        lambda: machine.get([b"n00"]),
        lambda: machine.get_at_once([b"n00"]),
        lambda: list(machine.scan(start=b"", end=None, limit=0, chunk=10)),
        machine.digest,
        machine.dump,
        machine.checkpoint,
    ):
        with pytest.raises(CorruptData, match="in part"):
            use()
    machine.close()
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    assert machine.get([b"n00", b"n19", NAMES[0]]) == ([(1,), (1,), None], position(1))
    assert dict(machine.meta()) == {b"p": b"1"}
    machine.close()


COUNTERS = [b"n%02d" % number for number in range(20)]
FIRST: list[Command] = [Put(name, b"one") for name in NAMES[:20]]
THEN: list[Command] = [Add(COUNTERS[0], 5), Add(COUNTERS[9], 5), Delete(NAMES[4]), Put(NAMES[9], b"nine")]
MIXED: list[Command] = [
    *(Add(key, 1) for key in COUNTERS),
    *(Delete(name) for name in NAMES[8:12]),
    *(Put(name, b"two") for name in NAMES[2:6]),
]
MANY: list[Command] = [Put(name, b"two") for name in NAMES[10:40]]
META: Layer = {b"a": b"3", b"p": b"3", b"z": b"3"}


def seen(machine: KvMachine) -> object:
    return (
        machine.get([*NAMES, *COUNTERS]),
        dict(machine._changes.meta),
        machine.unsaved_bytes,
        [*dict(machine._changes.state).items()],
    )


@pytest.mark.parametrize("share", [0, 1, 2])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("third", "fails_at"),
    [(MIXED, "state"), (MIXED, "meta"), (MANY, "meta"), (MANY, "rows"), (MANY, "in place of rows")],
)
def test_a_group_for_a_part_of_which_there_is_memory_is_taken_back_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, third: list[Command], fails_at: str, settled: bool, share: int
) -> None:
    """Its state was damaged though its file was sound: to make that anew takes more memory than there was."""
    machine, merge, calls = KvMachine(KvFile(tmp_path, ApplySettings()), rows_min=FEW), kv_unsaved._merge, count(1)
    apply(machine, 1, FIRST)
    apply(machine, 2, THEN)
    if settled:
        list(machine.scan(start=b"", end=None, limit=0, chunk=9))
    before = seen(machine)
    nth = 2 if fails_at == "in place of rows" or (fails_at == "meta" and third is MIXED) else 1

    def some(layer: Layer, changed: Layer, known: list[bytes | None]) -> int:
        if next(calls) != nth:
            return merge(layer, changed, known)
        layer.update(islice(changed.items(), share * len(changed) // 2))
        raise MemoryError

    with monkeypatch.context() as patch:
        if fails_at == "rows":
            patch.setattr(Rows, "put", fails)
        else:
            patch.setattr(kv_unsaved, "_merge", some)
        if fails_at == "in place of rows":
            patch.setattr(Rows, "put", lambda *_: False)
        with pytest.raises(MemoryError):
            machine.apply([batch(3, third)], lambda _: (position(3), META))
    assert machine.position() == position(2)
    assert seen(machine) == before

    apply(machine, 3, third)
    (tmp_path / "expected").mkdir()
    expected = KvMachine(KvFile(tmp_path / "expected", ApplySettings()), rows_min=FEW)
    for index, commands in enumerate((FIRST, THEN, third), 1):
        apply(expected, index, commands)
    for each in (machine, expected):
        each.checkpoint()
    assert machine.digest() == expected.digest()
    assert [*machine.scan(start=b"", end=None, limit=0, chunk=9)] == [
        *expected.scan(start=b"", end=None, limit=0, chunk=9)
    ]
    assert dict(machine.meta()) == {b"p": b"3"}
    machine.close()
    expected.close()


def fails(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("where", ["add", "filled", "_put"])
def test_what_only_spares_time_may_find_no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str) -> None:
    """The group had been applied: it counted as one that raised and had moved on, and the state as damaged."""

    def fails(*_: object) -> None:
        raise MemoryError

    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    apply(machine, 1, [Put(b"a", b"1"), Put(b"b", b"2")])
    apply(machine, 2, [DeleteRange(b"a", b"c")])
    with monkeypatch.context() as patch:
        patch.setattr(Emptied, where, fails)
        apply(machine, 3, [Put(b"b", b"3"), DeleteRange(b"x", b"z")])
    assert machine.position().applied_index == 3
    apply(machine, 4, [DeleteRange(b"a", b"c")])
    assert list(machine.get([b"a", b"b"])[0]) == [None, None]
    machine.close()
