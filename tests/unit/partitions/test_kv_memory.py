"""``kv`` above its file: what is applied, what is saved, and what a crash leaves. Against a dictionary."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

from logboom.commands import Add, Command, Delete, Put, Value
from logboom.errors import RecordTooLarge
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, ApplyBatch, Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines import kv, kv_layers
from partitions.machines.kv import CHUNK_BYTES, ENTRY_BYTES, KvMachine
from partitions.machines.kv_file import KvFile
from partitions.machines.kv_unsaved import Unsaved
from ports.state_file import StateFull
from tests.unit.partitions.kv_world import position, read_and_saved_meanwhile

KEYS = [b"k%02d" % k for k in range(40)]


def batch(index: int, commands: list[Command]) -> ApplyBatch:
    records = RecordBlock.from_records(command.record() for command in commands)
    first, reached = PartitionLogIndex(index), GlobalLogIndex(index)
    return ApplyBatch(first, reached, 0, records.count, records.nbytes, bytes(16), records)


class Model:
    """The machine, everything it was given, and what it must hold."""

    def __init__(self, directory: Path, seed: int, **bounds: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.history: list[list[Command]] = []
        self.machine = KvMachine(KvFile(directory, ApplySettings()), **bounds)

    def apply(self, index: int) -> None:
        def seal(_: object) -> tuple[Position, dict[bytes, bytes | None]]:
            return position(index), {b"p": b"%d" % index}

        self.machine.apply([batch(index, self.history[index - 1])], seal)

    def step(self) -> None:
        commands: list[Command] = []
        for _ in range(self.rng.randrange(1, 30)):
            key = self.rng.choice(KEYS)
            kind = self.rng.random()
            commands.append(
                Put(key, self.rng.randbytes(5)) if kind < 0.5 else Delete(key) if kind < 0.8 else Add(key, 3)
            )
        self.history.append(commands)
        self.apply(len(self.history))

    def state(self, steps: int | None = None) -> dict[bytes, Value]:
        state: dict[bytes, Value] = {}
        for command in (c for commands in self.history[:steps] for c in commands):
            if isinstance(command, Put):
                state[command.key] = command.value
            elif isinstance(command, Delete):
                state.pop(command.key, None)
            elif isinstance(command, Add):
                held = state.get(command.key, (0,))
                if isinstance(held, tuple):
                    state[command.key] = (int(held[0]) + 3,)
        return state

    def check(self) -> None:
        expected, at = self.state(), position(len(self.history))
        found, reached = self.machine.get(KEYS)
        assert dict(zip(KEYS, found, strict=True)) == {key: expected.get(key) for key in KEYS}
        assert self.machine.get_at_once(KEYS) == (found, reached)
        start, end = sorted(self.rng.sample(KEYS, 2))
        limit = self.rng.choice((0, 3))
        rows = [row for chunk, _ in self.machine.scan(start=start, end=end, limit=limit, chunk=4) for row in chunk]
        within = sorted((k, v) for k, v in expected.items() if start <= k < end)
        assert rows == (within[:limit] if limit else within)
        assert reached == at == self.machine.position() == self.machine.digest()[1]

    def crash(self) -> int:
        """Only the file is left; returns the index that it is of."""
        self.machine._file.close()
        self.machine = KvMachine(KvFile(self.directory, ApplySettings()))
        return int(self.machine.position().applied_index)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_saved_when_a_crash_leaves_a_prefix_that_can_be_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    model, write = Model(tmp_path, seed), KvFile.write

    def beside(file: KvFile, *what: Any) -> None:
        """Something is applied while it is written, and sometimes that fails, the first time or the second."""
        if model.rng.random() < 0.6:
            model.step()
        if model.rng.random() < 0.4:
            raise model.rng.choice((MemoryError, StateFull))
        write(file, *what)

    for _ in range(80):
        what = model.rng.random()
        if what < 0.6:
            model.step()
        elif what < 0.75:
            model.machine.checkpoint()
            assert model.machine.unsaved_bytes == 0
        elif what < 0.9:
            with monkeypatch.context() as patch, suppress(MemoryError, StateFull):
                patch.setattr(KvFile, "write", beside)
                model.machine.checkpoint()
        else:
            before = model.machine.digest() if model.history else None
            saved = model.crash()
            assert saved <= len(model.history)
            assert dict(model.machine.meta()) == ({b"p": b"%d" % saved} if saved else {})
            for index in range(saved + 1, len(model.history) + 1):
                model.apply(index)
            assert before is None or model.machine.digest() == before
        model.check()
    model.machine.close()


def test_a_clean_stop_saves_everything(tmp_path: Path) -> None:
    model = Model(tmp_path, 1)
    for _ in range(5):
        model.step()
    model.machine.close()
    model.machine.close()
    model.machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    model.check()
    model.machine.close()


def test_a_checkpoint_that_fails_loses_nothing_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(tmp_path, 2)
    for _ in range(5):
        model.step()
    unsaved = model.machine.unsaved_bytes

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(KvFile, "write", full)
        with pytest.raises(OSError, match="No space"):
            model.machine.checkpoint()
    assert model.machine.unsaved_bytes == unsaved
    model.check()

    def full_beside_an_apply(*_: object) -> None:
        model.step()
        full()

    with monkeypatch.context() as patch:
        patch.setattr(KvFile, "write", full_beside_an_apply)
        with pytest.raises(OSError, match="No space"):
            model.machine.checkpoint()
    model.check()
    model.step()
    model.machine.checkpoint()
    assert model.crash() == 7
    model.check()
    model.machine.close()


@pytest.mark.parametrize("puts", [40, 300])
@pytest.mark.parametrize("fails", [1, 2])
def test_what_is_removed_behind_what_there_is_no_room_for_makes_room(tmp_path: Path, puts: int, fails: int) -> None:
    """That was to be saved first, for good: the partition stood still until its node was started again."""
    settings = ApplySettings(kv_map_bytes=1 << 20)
    machine = KvMachine(KvFile(tmp_path, settings), rows_min=30)
    keys = [b"%03d" % number for number in range(300)]

    def apply(index: int, commands: list[Command]) -> None:
        machine.apply([batch(index, commands)], lambda _: (position(index), {b"p": b"%d" % index}))

    apply(1, [Put(b"kept", b"v")])
    machine.checkpoint()
    apply(2, [Put(key, bytes(4_000)) for key in keys])
    for index in range(3, 3 + fails):
        with pytest.raises(StateFull, match="kv_map_bytes"):
            machine.checkpoint()
        apply(index, [Put(b"n%03d" % number, b"x" * 5) for number in range(puts)])
    with pytest.raises(StateFull, match="kv_map_bytes"):
        machine.checkpoint()
    with pytest.raises(StateFull, match="kv_map_bytes"):  # nothing is newer
        machine.checkpoint()
    assert machine.get([b"kept", keys[0], b"n000"])[0] == [b"v", bytes(4_000), b"x" * 5]
    apply(3 + fails, [Delete(key) for key in keys])
    digest = machine.digest()
    machine.checkpoint()
    assert (machine.unsaved_bytes, machine.digest()) == (0, digest)
    apply(4 + fails, [Add(b"sum", 1)])
    digest = machine.digest()
    machine.close()
    machine = KvMachine(KvFile(tmp_path, settings))
    assert machine.digest() == digest == (digest[0], position(4 + fails))
    assert machine.get([b"kept", keys[0], b"n000", b"sum"])[0] == [b"v", None, b"x" * 5, (1,)]
    assert dict(machine.meta()) == {b"p": b"%d" % (4 + fails)}
    machine.close()


def test_what_is_written_often_takes_the_memory_of_its_newest_value(tmp_path: Path) -> None:
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    sizes = []
    for index, length in enumerate((100, 100, 5_000, 10), 1):
        at = position(index)
        machine.apply([batch(index, [Put(b"k%02d" % k, bytes(length)) for k in range(20)])], lambda _, at=at: (at, {}))
        sizes.append(machine.unsaved_bytes)
    assert sizes[1] == sizes[0] > 20 * 100
    assert sizes[2] - sizes[1] == 20 * 4_900
    assert sizes[3] == sizes[0] - 20 * 90
    machine.apply([batch(5, [Delete(KEYS[0]), Put(KEYS[30], b"new")])], lambda _: (position(5), {}))
    assert machine.unsaved_bytes - sizes[3] == len(b"b" + b"new") - len(b"b" + bytes(10)) + len(KEYS[30]) + ENTRY_BYTES
    machine.close()
    assert machine.unsaved_bytes == 0


def test_what_was_never_saved_takes_no_memory_once_nobody_needs_it(tmp_path: Path) -> None:
    """Of a partition that is destroyed: its worker and the machine are garbage that may be looked for much later."""
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    machine.apply([batch(1, [Put(b"k", bytes(10_000))])], lambda _: (position(1), {}))
    machine.discard()
    assert machine.unsaved_bytes == 0


def test_a_reader_sees_one_moment_while_applies_and_checkpoints_go_on(tmp_path: Path) -> None:
    """Two keys that are always equal; whoever reads them in between must never see them differ."""
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    wrong: list[object] = []

    def read() -> None:
        (one, two), at = machine.get([b"a", b"z"])
        rows = [row for chunk, _ in machine.scan(start=b"", end=None, limit=0, chunk=1) for row in chunk]
        if one != two or (one is not None and one != b"%d" % at.applied_index) or len({v for _, v in rows}) > 1:
            wrong.append((one, two, at, rows))

    with read_and_saved_meanwhile(machine, read):
        for index in range(1, 400):
            commands: list[Command] = [Put(b"a", b"%d" % index), Put(b"z", b"%d" % index)]
            machine.apply([batch(index, commands)], lambda _, i=index: (position(i), {}))  # type: ignore[misc]
    assert not wrong
    machine.close()


def test_what_is_being_saved_is_read_though_the_file_has_it_not_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(tmp_path, 3)
    for _ in range(5):
        model.step()
    write, looked = KvFile.write, []

    def look_first(file: KvFile, *what: object) -> None:
        model.check()
        model.step()  # applied on top, while the file is being written
        model.check()
        looked.append(len(model.history))
        write(file, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(KvFile, "write", look_first)
    model.machine.checkpoint()
    assert looked == [6]
    model.check()
    assert model.crash() == 5
    model.machine.close()


@pytest.mark.parametrize("seed", range(8))
def test_scans_of_a_few_give_what_scans_of_all_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """In the file, above it, being saved, and removed again; of each layer one key is looked at first."""
    monkeypatch.setattr(kv_layers, "AHEAD", -1)
    machine, rng = KvMachine(KvFile(tmp_path, ApplySettings())), random.Random(seed)
    write, index, names = KvFile.write, 0, [b"%03d" % number for number in range(60)]

    def step() -> None:
        nonlocal index
        index += 1
        some = rng.sample(names, 20)
        commands = [rng.choice((Put(key, b"%d" % index), Delete(key))) for key in some]
        machine.apply([batch(index, commands)], lambda _: (position(index), {}))

    def check() -> None:
        every = [row for rows, _ in machine.scan(start=b"", end=None, limit=0, chunk=7) for row in rows]
        for _ in range(20):
            start, end, limit = rng.choice(names), rng.choice((None, rng.choice(names))), rng.randrange(1, 9)
            expected = [row for row in every if row[0] >= start and (end is None or row[0] < end)][:limit]
            assert [
                row for rows, _ in machine.scan(start=start, end=end, limit=limit, chunk=2) for row in rows
            ] == expected

    def between(file: KvFile, *what: object) -> None:
        step()
        check()
        write(file, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(KvFile, "write", between)
    for _ in range(6):
        step()
        check()
        machine.checkpoint()
        check()
    monkeypatch.setattr(KvFile, "write", write)
    machine.close()


def test_a_small_scan_takes_no_more_of_what_is_in_memory_than_it_may_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copied, and sorted, all that was not saved yet."""
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    keys = [b"%05d" % number for number in range(20_000)]
    machine.apply([batch(1, [Put(key, b"v") for key in reversed(keys)])], lambda _: (position(1), {}))
    taken, merged = list[int](), kv.merged

    def counted(below: Any, changes: Any, **how: Any) -> Any:
        taken.append(len(changes))
        return merged(below, changes, **how)

    monkeypatch.setattr(kv, "merged", counted)
    for start, end, limit in ((b"", None, 10), (b"10000", b"10010", 0), (b"10000", None, 10)):
        rows = [row for rows, _ in machine.scan(start=start, end=end, limit=limit, chunk=100) for row in rows]
        assert len(rows) == 10
    assert max(taken) <= 100
    machine.close()


def test_chunks_of_a_scan_are_bounded_by_bytes_too(tmp_path: Path) -> None:
    """Found by trying: a thousand values of 20 KiB were more than a node queues for one client, which was cut."""
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    value, keys = bytes(20 << 10), [b"%04d" % number for number in range(50)]
    machine.apply([batch(1, [Put(key, value) for key in keys])], lambda _: (position(1), {}))
    rows = [rows for rows, _ in machine.scan(start=b"", end=None, limit=0, chunk=1000)]
    assert [key for chunk in rows for key, _ in chunk] == keys
    assert all(sum(len(key) + len(value) for key, value in chunk) <= CHUNK_BYTES + len(value) for chunk in rows)
    machine.close()


class Between(KvMachine):
    """Somebody else has a turn when this thread is about to look at what is being saved."""

    turn: Callable[[], object] | None = None

    @property  # type: ignore[override]
    def _saving(self) -> Unsaved:
        if self.turn is not None and threading.current_thread() is threading.main_thread():
            turn, self.turn = self.turn, None
            turn()
        found: Unsaved = self.__dict__["saving"]
        return found

    @_saving.setter
    def _saving(self, value: Unsaved) -> None:
        self.__dict__["saving"] = value


def test_what_a_failing_checkpoint_leaves_is_never_hidden_from_apply(tmp_path: Path) -> None:
    """Between two looks it could be put back: a sum began anew, on this node alone."""
    machine = Between(KvFile(tmp_path, ApplySettings()))
    machine.apply([batch(1, [Add(b"n", 1)])], lambda _: (position(1), {}))
    begun, go_on = threading.Event(), threading.Event()

    def fails(*_: object) -> None:
        begun.set()
        go_on.wait(10)
        raise RuntimeError("MDB_MAP_FULL")

    def checkpoint() -> None:
        with pytest.raises(RuntimeError, match="MAP_FULL"):
            machine.checkpoint()

    machine._file.write = fails  # type: ignore[method-assign,assignment]
    saving = threading.Thread(target=checkpoint)
    saving.start()
    begun.wait(10)

    def ends() -> None:
        go_on.set()
        saving.join(0.2)  # it cannot, while this thread looks

    machine.turn = ends
    machine.apply([batch(2, [Add(b"n", 1)])], lambda _: (position(2), {}))
    saving.join(10)
    assert machine.get([b"n"])[0] == [(2,)]


def test_values_of_one_get_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "GET_BYTES_MAX", 100)
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    rows: list[Command] = [Put(b"k%d" % k, bytes(40)) for k in range(9)]
    machine.apply([batch(1, rows)], lambda _: (position(1), {}))
    assert len(machine.get([b"k1", b"k2"])[0]) == 2
    with pytest.raises(RecordTooLarge, match="ask for fewer keys"):
        machine.get([b"k%d" % k for k in range(9)])


def test_a_read_that_would_have_to_wait_says_so_and_holds_nothing(tmp_path: Path) -> None:
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    with machine._lock:
        assert machine.get_at_once([b"k"]) is None
    for _ in range(1_000):  # views: as many as the file has places for, and more
        assert machine.get_at_once([b"k"]) == ([None], NOWHERE)
    machine.close()


def test_memory_that_lmdb_lacks_is_memory_that_is_lacking(tmp_path: Path) -> None:
    """Of which a partition waits for more; of an error of LMDB's it was paused, until somebody resumed it."""
    file = KvFile(tmp_path, ApplySettings())

    def fails(**_: Any) -> None:
        raise lmdb.MemoryError("Cannot allocate memory")

    env, file._env = file._env, SimpleNamespace(begin=fails)  # type: ignore[assignment]
    with pytest.raises(MemoryError, match="Cannot allocate"):
        file.view()
    file._env = env
    file.close()


@pytest.mark.parametrize("bound", [0, 300])
def test_what_is_loaded_again_is_the_same(tmp_path: Path, bound: int) -> None:
    model = Model(tmp_path, 4, loaded_bytes=bound)
    for _ in range(20):
        model.step()
        model.check()
        if model.rng.random() < 0.3:
            model.machine.checkpoint()
    model.machine.close()
