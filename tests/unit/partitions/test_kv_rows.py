"""Puts in bulk above the file of ``kv``: in arrays, and to everybody as if they were not. Against a dictionary."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from logboom.commands import Add, Cas, Delete, DeleteRange, Put
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch, Results, Sealed, Space
from logboom.types import GlobalLogIndex, PartitionLogIndex, Record
from partitions.machines import kv, kv_file, kv_rows
from partitions.machines.kv import KvMachine
from partitions.machines.kv_file import KvFile
from partitions.machines.kv_layers import Layer
from partitions.machines.kv_rows import BLOCK_MIN, ROWS_MIN, Puts, Rows, Stacked, puts_of
from tests.unit.partitions.kv_world import position, read_and_saved_meanwhile

NAMES = [b"%03d" % number for number in range(200)]


FEW = 2
"""Records that are worth it."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for a few is what there is first."""
    monkeypatch.setattr(kv, "LOADS_MAX", 2)
    monkeypatch.setattr(kv_rows, "CAPACITY_MIN", 4)
    for module in (kv_file, kv_rows):
        monkeypatch.setattr(module, "CHUNK_ROWS", 7)


def batch(first: int, records: Sequence[Record], skip: tuple[tuple[int, int], ...] = ()) -> ApplyBatch:
    block = RecordBlock.from_records(records)
    index, reached = PartitionLogIndex(first), GlobalLogIndex(first)
    return ApplyBatch(index, reached, 0, block.count, block.nbytes, bytes(16), block, skip)


def puts(rng: random.Random, names: Sequence[bytes], count: int, width: int = 5) -> list[Record]:
    return [Put(rng.choice(names), rng.randbytes(width)).record() for _ in range(count)]


def apply(machine: KvMachine, index: int, *batches: ApplyBatch) -> Results:
    return machine.apply(batches, lambda _: (position(index), {b"p": b"%d" % index}))


def opened(directory: Path, *, rows_min: int = ROWS_MIN) -> KvMachine:
    directory.mkdir(exist_ok=True)
    return KvMachine(KvFile(directory, ApplySettings()), rows_min=rows_min)


def rows_of(machine: KvMachine) -> Rows | None:
    state = machine._changes.state
    return state.rows if isinstance(state, Stacked) else None


def scanned(machine: KvMachine, start: bytes = b"", end: bytes | None = None, limit: int = 0) -> list[object]:
    return [row for rows, _ in machine.scan(start=start, end=end, limit=limit, chunk=9) for row in rows]


def as_puts(*blocks: Sequence[tuple[bytes, bytes]]) -> Puts:
    batches = [batch(1, [Put(key, value).record() for key, value in block]) for block in blocks]
    found = puts_of(batches, FEW)
    assert found is not None
    return found


def mixed(rng: random.Random) -> list[Record]:
    key, other = rng.sample(NAMES, 2)
    return [
        rng.choice(
            (
                Put(key, rng.randbytes(rng.choice((1, 5)))),
                Delete(key),
                Add(key, 3),
                Cas(key, None, b"fresh"),
                DeleteRange(min(key, other), max(key, other)),
            )
        ).record()
        for _ in range(rng.randrange(1, 5))
    ]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(12))
def test_rows_are_nothing_that_anybody_can_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same commands to a machine with and to one without, with all that can come in between."""
    rng = random.Random(seed)
    mine, plain = opened(tmp_path / "mine", rows_min=FEW), opened(tmp_path / "plain", rows_min=0)
    used = 0

    def step(index: int) -> None:
        nonlocal used
        names = rng.choice((*[NAMES, NAMES[:20]] * 9, [name + b"-longer" for name in NAMES]))
        some = [puts(rng, names, rng.randrange(2, 40), rng.choice((*[5] * 20, 1))) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.1:
            some.append(mixed(rng))
        batches = [batch(index, records, ((0, 1),) if rng.random() < 0.02 else ()) for records in some]
        assert apply(mine, index, *batches) == apply(plain, index, *batches)
        used += rows_of(mine) is not None

    def check() -> None:
        keys = rng.sample([*NAMES, *(name + b"-longer" for name in NAMES)], rng.choice((1, 40)))
        assert mine.get(keys) == plain.get(keys) == mine.get_at_once(keys)
        if rng.random() < 0.2:
            start, end, limit = rng.choice(NAMES), rng.choice((None, rng.choice(NAMES))), rng.randrange(3)
            assert scanned(mine, start, end, limit) == scanned(plain, start, end, limit)
        if rng.random() < 0.1:
            with mine.dump() as one, plain.dump() as other:
                assert list(one.entries()) == list(other.entries())

    write = KvFile.write

    def busy(file: KvFile, *what: object) -> None:
        if file is mine._file:
            check()
            step(next(indices))  # applied on top, while the file is being written
            check()
            if rng.random() < 0.3:
                raise RuntimeError("MDB_MAP_FULL")
        write(file, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(KvFile, "write", busy)
    indices = iter(range(1, 1_000))
    for index in indices:
        step(index)
        check()
        if rng.random() < 0.2:
            try:
                mine.checkpoint()
            except RuntimeError:
                assert mine.digest() == plain.digest()
        if index > 60:
            break
    assert used
    assert mine.digest() == plain.digest()
    monkeypatch.setattr(KvFile, "write", write)
    for machine in (mine, plain):
        machine.close()
    one, other = opened(tmp_path / "mine"), opened(tmp_path / "plain")
    assert one.digest() == other.digest()
    assert dict(one.meta()) == dict(other.meta())
    for machine in (one, other):
        machine.close()


def test_bulk_puts_become_rows_and_what_is_read_is_what_was_put_last(tmp_path: Path) -> None:
    rng, machine, expected = random.Random(1), opened(tmp_path), dict[bytes, bytes]()
    names = [b"k%015d" % number for number in range(3_000)]
    for index in range(1, 9):
        blocks = [[(rng.choice(names), rng.randbytes(256)) for _ in range(1_000)] for _ in range(2)]
        apply(machine, index, *(batch(index, [Put(*row).record() for row in rows]) for rows in blocks))
        expected.update(row for rows in blocks for row in rows)
        rows = rows_of(machine)
        assert rows is not None
        assert 0 < len(rows) <= len(names)
        if index == 4:
            machine.checkpoint()
    assert machine.get(names)[0] == [expected.get(name) for name in names]
    assert [machine.get([name])[0] for name in names[:50]] == [[expected.get(name)] for name in names[:50]]
    assert scanned(machine) == sorted(expected.items())
    machine.close()
    again = opened(tmp_path)
    assert again.position() == position(8)
    assert scanned(again) == sorted(expected.items())
    again.close()


def test_single_commands_in_between_do_not_end_it(tmp_path: Path) -> None:
    machine, names = opened(tmp_path), [b"%04d" % number for number in range(2 * ROWS_MIN)]
    expected = dict.fromkeys(names, b"one")
    apply(machine, 1, batch(1, [Put(name, b"one").record() for name in names]))
    apply(machine, 2, batch(2, [Put(names[0], b"single").record(), Delete(names[1]).record()]))
    apply(machine, 3, batch(3, [Put(b"elsewhere", b"single").record(), Delete(names[-1]).record()]))
    sizes = [machine.unsaved_bytes]
    apply(machine, 4, batch(4, [Put(name, b"two").record() for name in names[:ROWS_MIN]]))
    sizes.append(machine.unsaved_bytes)
    assert rows_of(machine) is not None
    expected |= dict.fromkeys(names[:ROWS_MIN], b"two") | {b"elsewhere": b"single"}
    del expected[names[-1]]
    assert sizes[0] - sizes[1] == 2 * (len(names[0]) + kv.ENTRY_BYTES) + len(b"b" + b"single")
    assert dict(zip(names, machine.get(names)[0], strict=True)) == {name: expected.get(name) for name in names}
    machine.checkpoint()
    assert scanned(machine) == sorted(expected.items())
    apply(machine, 5, batch(5, [Put(name, b"none").record() for name in names[-ROWS_MIN:]]))
    apply(machine, 6, batch(6, [Put(name, b"three").record() for name in names[-ROWS_MIN:]]))
    apply(machine, 7, batch(7, [Put(b"+" + name, b"1").record() for name in names]))  # longer: above
    apply(machine, 8, batch(8, [Delete(names[-2]).record()]))
    expected |= {**dict.fromkeys(names[-ROWS_MIN:], b"three"), **{b"+" + name: b"1" for name in names}}
    del expected[names[-2]]
    assert scanned(machine) == sorted(expected.items())
    machine.close()


@pytest.mark.parametrize("key_bytes", [1, 7, 8, 9, 16, 64])
def test_keys_of_any_length_come_out_in_their_order(key_bytes: int) -> None:
    rng = random.Random(key_bytes)
    blocks = [[(rng.randbytes(key_bytes), rng.randbytes(3)) for _ in range(ROWS_MIN)] for _ in range(9)]
    blocks.append([(bytes(key_bytes), b"low"), (b"\xff" * key_bytes, b"top")] * ROWS_MIN)
    rows, expected = Rows(as_puts(blocks[0])), dict[bytes, bytes]()
    for block in blocks:
        assert rows.put(as_puts(block))
        expected.update((key, b"b" + value) for key, value in block)
    found = [(bytes(row[:key_bytes]), bytes(row[key_bytes:])) for chunk in rows.chunks() for row in chunk]
    assert found == sorted(expected.items())
    assert rows.layer() == expected
    assert {key: rows.get(key) for key in expected} == rows.find(list(expected)) == expected
    assert rows.find([rng.randbytes(65)] * 20) == {}
    assert rows.get(b"") is None


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("steps", [9, 12], ids=["none had a place", "some had a place"])
def test_keys_that_collide_are_refused_in_time_and_change_nothing(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Whoever knows how places are chosen could else have a group take minutes."""
    monkeypatch.setattr(kv_rows, "MIXER", 0)
    monkeypatch.setattr(kv_rows, "STEPS_MAX", steps)
    some, others = [[(name, b"v%d" % turn) for name in names] for turn, names in enumerate((NAMES[:8], NAMES[4:20]))]
    rows = Rows(as_puts(some))
    assert rows.put(as_puts(some))
    before = rows.layer(), rows.nbytes
    assert not rows.put(as_puts(others))
    assert (rows.layer(), rows.nbytes) == before
    assert rows.get(NAMES[15]) is None
    assert rows.find(NAMES) == before[0]
    assert rows.put(as_puts([(name, b"v2") for name in NAMES[:8]]))
    assert rows.find(NAMES) == dict.fromkeys(NAMES[:8], b"bv2")


@pytest.mark.usefixtures("small")
def test_a_machine_takes_what_collides_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_rows, "MIXER", 0)
    monkeypatch.setattr(kv_rows, "STEPS_MAX", 9)
    machine = opened(tmp_path, rows_min=FEW)
    for index, names in enumerate((NAMES[:8], NAMES[4:40], NAMES[:6]), 1):
        apply(machine, index, batch(index, [Put(name, b"%d" % index).record() for name in names]))
    newest = [b"3"] * 6 + [b"2"] * 34
    assert machine.get(NAMES[:40])[0] == newest
    machine.close()
    again = opened(tmp_path)
    assert again.get(NAMES[:40])[0] == newest
    again.close()


def test_rows_of_the_same_width_are_no_rows_of_each_other(tmp_path: Path) -> None:
    """What one has more of key the other has more of value."""
    machine = opened(tmp_path, rows_min=FEW)
    for index, (name, value) in enumerate(((b"%03d", b"vwxyz"), (b"%05d", b"xyz"), (b"%03d", b"VWXYZ")), 1):
        apply(machine, index, batch(index, [Put(name % number, value).record() for number in range(9 + index)]))
    assert scanned(machine) == sorted(
        [(b"%05d" % number, b"xyz") for number in range(11)] + [(b"%03d" % number, b"VWXYZ") for number in range(12)]
    )
    machine.close()


@pytest.mark.usefixtures("small")
def test_a_put_that_is_interrupted_has_not_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(as_puts([(NAMES[0], b"v"), (NAMES[1], b"v")]))
    assert rows.put(as_puts([(NAMES[0], b"v"), (NAMES[1], b"v")]))
    before = rows.layer()

    def fails(*_: object) -> None:
        raise MemoryError

    for name in ("_close_ranks", "_write"):
        with monkeypatch.context() as patch:
            patch.setattr(Rows, name, fails)
            with pytest.raises(MemoryError):
                rows.put(as_puts([(name, b"w") for name in NAMES[:30]]))
        assert rows.layer() == before
        assert rows.find(NAMES[:30]) == before
    assert rows.put(as_puts([(name, b"w") for name in NAMES[:30]]))
    assert rows.layer() == dict.fromkeys(NAMES[:30], b"bw")


def test_a_dump_is_of_its_moment_and_makes_no_objects_of_rows_until_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is applied while a state is captured."""
    machine, names = opened(tmp_path), [b"%04d" % number for number in range(ROWS_MIN)]
    write, dumped = KvFile.write, list[list[object]]()
    expected = {**dict.fromkeys(names, b"bone"), names[0]: b"bsingle"}
    del expected[names[1]]
    apply(machine, 1, batch(1, [Put(name, b"one").record() for name in names]))
    apply(machine, 2, batch(2, [Put(names[0], b"single").record(), Delete(names[1]).record()]))

    def dump_twice(file: KvFile, *what: object) -> None:
        apply(machine, 3, batch(3, [Put(name, b"two").record() for name in names[:ROWS_MIN]]))
        for value in (b"three", b"four-", b"fives"):
            with monkeypatch.context() as patch:
                patch.setattr(Rows, "layer", None)
                dump = machine.dump()
                apply(machine, 4, batch(4, [Put(name, value).record() for name in names]))
            with dump:
                dumped.append([row for space, *row in dump.entries() if space is Space.STATE])
        write(file, *what)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "layer", None)
        first = machine.dump()
    monkeypatch.setattr(KvFile, "write", dump_twice)
    machine.checkpoint()
    monkeypatch.setattr(KvFile, "write", write)
    with first:
        rows = {key: value for space, key, value in first.entries() if space is Space.STATE}
    assert rows == expected
    assert dumped == [[[name, b"b" + value] for name in names] for value in (b"two", b"three", b"four-")]
    assert machine.get(names)[0] == [b"fives"] * len(names)
    machine.checkpoint()
    apply(machine, 5, batch(5, [Put(name, b"again").record() for name in names]))
    assert rows_of(machine) is not None  # until it is saved, no longer
    machine.close()


def test_rows_and_what_is_above_them_are_one_mapping_to_whoever_writes_it() -> None:
    rows = Rows(as_puts([(b"%03d" % number, b"old") for number in range(ROWS_MIN)]))
    assert rows.put(as_puts([(b"%03d" % number, b"old") for number in range(ROWS_MIN)]))
    newer: Layer = {b"001": b"bnew", b"002": None, b"other": b"bnew"}
    both = Stacked(rows, newer)
    expected = dict[bytes, bytes | None](rows.layer()) | newer
    assert dict(both) == expected
    assert len(both) == len(expected) == ROWS_MIN + 1
    with pytest.raises(KeyError):
        both[b"none"]


def test_rows_take_at_least_the_memory_of_their_arrays() -> None:
    """As they are counted: what is not saved is bounded by that."""
    for width in (4, 12, 64):
        some = [(b"%0*d" % (width, number), b"v") for number in range(kv_rows.CAPACITY_MIN)]
        rows = Rows(as_puts(some))
        assert rows.put(as_puts(some))
        arrays = (rows._rows, rows._words, rows._newest, rows._table)
        assert rows.nbytes >= sum(array.nbytes for array in arrays)


def test_what_is_put_again_and_again_takes_the_memory_of_one_row(tmp_path: Path) -> None:
    machine = opened(tmp_path)
    names = [b"k%03d" % number for number in range(ROWS_MIN)]
    sizes = []
    for index in range(1, 5):
        apply(machine, index, batch(index, [Put(name, b"%099d" % index).record() for name in names]))
        sizes.append(machine.unsaved_bytes)
    assert len(set(sizes)) == 1
    assert sizes[0] > ROWS_MIN * 104
    scanned(machine)  # as a dictionary, which takes more
    assert machine.unsaved_bytes > sizes[0]
    machine.checkpoint()
    assert machine.unsaved_bytes == 0
    machine.close()


def test_nothing_is_put_if_what_goes_with_it_cannot_be_had(tmp_path: Path) -> None:
    machine = opened(tmp_path)

    def seal(_: Results) -> Sealed:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        machine.apply([batch(1, [Put(b"%03d" % n, b"v").record() for n in range(ROWS_MIN)])], seal)
    assert machine.get([b"001"])[0] == [None]
    assert machine.unsaved_bytes == 0
    machine.close()


def other_than_rows() -> Iterator[tuple[str, list[ApplyBatch]]]:
    some = [Put(b"%03d" % number, b"value").record() for number in range(ROWS_MIN)]
    yield "few", [batch(1, some[1:])]
    yield "small batches", [batch(1 + at, some[at : at + BLOCK_MIN - 1]) for at in range(0, len(some), BLOCK_MIN - 1)]
    yield "skipped", [batch(1, some, ((3, 5),))]
    yield "no key", [batch(1, [*some, Record(some[0].payload)])]
    yield "none with a key", [batch(1, [Record(each.payload) for each in some])]
    yield "something else", [batch(1, some), batch(2, [Delete(b"123").record()])]
    yield "lengths of keys", [batch(1, [*some, Put(b"1234", b"value").record()])]
    yield "lengths of values", [batch(1, some), batch(2, [Put(b"123", b"values").record()])]
    yield "empty payloads", [batch(1, [Record(b"", b"key")] * ROWS_MIN)]
    yield "long keys", [batch(1, [Put(bytes([1] * 65), b"v").record()] * ROWS_MIN)]
    yield "large values", [batch(1, [Put(b"k", bytes(5_000)).record()] * ROWS_MIN)]


@pytest.mark.parametrize(("why", "batches"), list(other_than_rows()))
def test_what_is_no_row(why: str, batches: list[ApplyBatch]) -> None:
    assert puts_of(batches) is None, why


def test_readers_see_all_of_a_group_or_nothing_of_it(tmp_path: Path) -> None:
    machine, wrong = opened(tmp_path), list[object]()
    names = [b"%04d" % number for number in range(2 * ROWS_MIN)]

    def read() -> None:
        found, at = machine.get(names)
        if {*found} != ({b"%04d" % at.applied_index} if at.applied_index else {None}):
            wrong.append((found, at))

    with read_and_saved_meanwhile(machine, read):
        for index in range(1, 150):
            apply(machine, index, batch(index, [Put(name, b"%04d" % index).record() for name in names]))
    assert not wrong
    machine.close()


def test_of_two_for_one_row_the_last_counts_wherever_they_are() -> None:
    """What an assignment to an index that comes twice leaves is nobody's promise."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        numbers = rng.integers(0, 9, 1_000).tolist()
        block = [(b"%d" % number, b"%04d" % turn) for turn, number in enumerate(numbers)]
        rows, expected = Rows(as_puts(block)), Layer()
        assert rows.put(as_puts(block[:500], block[500:]))
        expected.update((key, b"b" + value) for key, value in block)
        assert rows.layer() == expected
