"""States out of machines and into others: what a dump holds, and what a load that is cut short leaves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.sim.state_file import StateFiles
from logboom.commands import Add, Command, Delete, Put
from logboom.errors import CorruptData
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, ApplyBatch, Entry, Machine, Position, Space, in_order
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines import kv
from partitions.machines.kv import KvMachine
from partitions.machines.kv_file import KvFile
from partitions.machines.log import LogMachine
from ports.invariant import InvariantViolated
from server.world.disk_os import OsDisk

STATE, META = Space.STATE, Space.META
KEYS = [b"k%02d" % k for k in range(30)]
Open = Callable[[Path], Machine]
D = Path("/state")


def position(index: int) -> Position:
    return Position(PartitionLogIndex(index), GlobalLogIndex(3 * index))


def history(seed: int, length: int = 40) -> list[list[Command]]:
    rng = random.Random(seed)
    return [
        [
            rng.choice((Put(key, rng.randbytes(4)), Put(key, b""), Delete(key), Add(key, 2), Add(key, 0.5, -1)))
            for key in rng.choices(KEYS, k=8)
        ]
        for _ in range(length)
    ]


def apply(machine: Machine, commands: list[list[Command]], first: int = 1) -> None:
    """Batch by batch; each writes a meta entry, and takes one away."""
    for index, each in enumerate(commands, first):
        records = RecordBlock.from_records(command.record() for command in each)
        at, digest = position(index), index.to_bytes(16, "little")
        batch = ApplyBatch(*at, 0, records.count, records.nbytes, digest, records)
        meta: dict[bytes, bytes | None] = {b"p%d" % (index % 7): b"%d" % index, b"p%d" % (index % 5): None}
        machine.apply([batch], lambda _, at=at, meta=meta: (at, meta))  # type: ignore[misc]


def dumped(machine: Machine) -> tuple[list[Entry], Position]:
    with machine.dump() as dump:
        return list(dump.entries()), dump.position


def kv_on_lmdb(directory: Path) -> KvMachine:
    directory.mkdir(exist_ok=True)
    return KvMachine(KvFile(directory, ApplySettings()))


def log_on_disk(directory: Path) -> LogMachine:
    directory.mkdir(exist_ok=True)
    return LogMachine(OsDisk(), directory / "checkpoint")


@pytest.fixture(params=[kv_on_lmdb, log_on_disk])
def open_machine(request: pytest.FixtureRequest) -> Open:
    opened: Open = request.param
    return opened


class TestEveryMachine:
    @pytest.mark.parametrize("seed", range(4))
    def test_what_was_applied_decides_and_not_when_it_was_saved(
        self, open_machine: Open, tmp_path: Path, seed: int
    ) -> None:
        rng, commands = random.Random(seed), history(seed)
        one, other = open_machine(tmp_path / "one"), open_machine(tmp_path / "other")
        apply(one, commands)
        for index, each in enumerate(commands, 1):
            apply(other, [each], index)
            if rng.random() < 0.3:
                other.checkpoint()
            if rng.random() < 0.1:
                other.close()
                other = open_machine(tmp_path / "other")
        assert dumped(one) == dumped(other)
        one.close()
        other.close()

    @pytest.mark.parametrize("seed", range(4))
    def test_a_machine_that_was_loaded_is_the_one_that_was_dumped(
        self, open_machine: Open, tmp_path: Path, seed: int
    ) -> None:
        one, other, commands = open_machine(tmp_path / "one"), open_machine(tmp_path / "other"), history(seed)
        apply(one, commands[:30])
        with one.dump() as dump:
            other.load(dump.entries(), dump.position)
        for _ in range(2):
            assert (dumped(other), other.digest()) == (dumped(one), one.digest())
            assert other.position() == position(30)
            assert sorted(other.meta()) == [entry[1:] for entry in dumped(one)[0] if entry[0] is META]
            other.close()
            other = open_machine(tmp_path / "other")
        for machine in (one, other):
            apply(machine, commands[30:], 31)
        assert dumped(other) == dumped(one)
        one.close()
        other.close()

    def test_entries_are_in_order_and_of_both_spaces(self, open_machine: Open, tmp_path: Path) -> None:
        machine = open_machine(tmp_path)
        apply(machine, history(1, 20))
        machine.checkpoint()
        apply(machine, history(2, 5), 21)
        entries, at = dumped(machine)
        assert entries == sorted(entries)
        assert {space for space, _, _ in entries} == {STATE, META}
        assert at == machine.position() == position(25)
        machine.close()

    def test_an_empty_one_can_be_dumped_and_loaded(self, open_machine: Open, tmp_path: Path) -> None:
        one, other = open_machine(tmp_path / "one"), open_machine(tmp_path / "other")
        with one.dump() as dump:
            assert dump.position == NOWHERE
            other.load(dump.entries(), dump.position)
        assert (other.digest(), other.position()) == (one.digest(), NOWHERE)
        one.close()
        other.close()

    def test_a_dump_shows_its_moment_whatever_comes_after(self, open_machine: Open, tmp_path: Path) -> None:
        machine, commands = open_machine(tmp_path), history(3)
        apply(machine, commands[:10])
        machine.checkpoint()
        apply(machine, commands[10:20], 11)
        expected, at = dumped(machine)
        dump = machine.dump()
        entries = dump.entries()
        found = [next(entries)]
        apply(machine, commands[20:30], 21)
        machine.checkpoint()
        apply(machine, commands[30:], 31)
        thread = threading.Thread(target=lambda: found.extend(entries))
        thread.start()
        thread.join()
        assert (found, dump.position) == (expected, at)
        dump.close()
        dump.close()
        machine.close()

    def test_a_state_is_not_loaded_over_another(self, open_machine: Open, tmp_path: Path) -> None:
        machine = open_machine(tmp_path)
        apply(machine, history(1, 2))
        with pytest.raises(InvariantViolated):
            machine.load(iter(()), position(9))
        machine.close()


GOOD: list[Entry] = [(STATE, b"a", b"b1"), (STATE, b"b", b"b2"), (META, b"a", b"m")]
LOG: list[Entry] = [(STATE, b"bytes", bytes(8)), (STATE, b"digest", bytes(16)), (STATE, b"records", bytes(8))]


class TestRefusals:
    @pytest.mark.parametrize(
        "entries",
        [
            [GOOD[1], GOOD[0]],
            [GOOD[0], GOOD[0]],
            [GOOD[2], GOOD[0]],
            [(STATE, b"", b"b")],
            [(META, b"", b"m")],
            [(STATE, b"k" * 512, b"b")],
            [(STATE, b"k", b"")],
            [(STATE, b"k", b"q1234567")],
            [(STATE, b"k", b"x" + bytes(8))],
        ],
    )
    def test_what_is_no_dump_of_kv(self, entries: list[Entry]) -> None:
        files = StateFiles(random.Random(0))
        machine = KvMachine(files.open(D, ApplySettings()))
        with pytest.raises(CorruptData):
            machine.load(iter(entries), position(1))
        machine.close()
        assert files.open(D, ApplySettings()).position() == NOWHERE

    @pytest.mark.parametrize(
        "entries",
        [
            [],
            LOG[:2],
            [*LOG, (STATE, b"x", b"")],
            [LOG[0], (STATE, b"digest", bytes(15)), LOG[2]],
            [(STATE, b"bytes", b"\xff" * 8), *LOG[1:]],
            [LOG[1], LOG[0], LOG[2]],
            GOOD,
        ],
    )
    def test_what_is_no_dump_of_a_log(self, entries: list[Entry], tmp_path: Path) -> None:
        machine = log_on_disk(tmp_path)
        with pytest.raises(CorruptData):
            machine.load(iter(entries), position(1))
        machine.close()
        assert log_on_disk(tmp_path).position() == NOWHERE

    def test_in_order_passes_on_what_is(self) -> None:
        assert list(in_order(GOOD)) == GOOD


class TestKvLoad:
    def entries(self) -> Iterator[Entry]:
        yield from ((STATE, b"k%05d" % k, b"b" + bytes(10)) for k in range(200))
        yield from ((META, b"m%05d" % k, b"") for k in range(100))

    @pytest.fixture(autouse=True)
    def _small_transactions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kv, "LOAD_BYTES", 20 * kv.ENTRY_BYTES)

    @pytest.mark.parametrize("power", [False, True])
    def test_one_that_a_crash_cuts_short_is_nowhere_and_is_loaded_again(self, power: bool) -> None:
        """The crash comes before each of its transactions."""
        whole, places = list(self.entries()), set()
        for stop in range(100):
            files = StateFiles(random.Random(stop))
            machine = KvMachine(files.open(D, ApplySettings()))
            left = [stop]

            def fault(*_: object, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(5, "the process ends here")

            files.fault = fault
            try:
                machine.load(iter(whole), position(4))
            except OSError:
                files.fault = None
                files.crash(power=power)
            else:
                assert stop > 10
                break
            machine = KvMachine(files.open(D, ApplySettings()))
            places.add(machine.position())
            if machine.position() == NOWHERE:
                other = [entry for entry in whole if entry[1] != b"k00000"]
                machine.load(iter(other), position(4))
                assert dumped(machine) == (other, position(4)), "what an attempt left is gone"
            else:
                assert dumped(machine) == (whole, position(4))
        assert places == {NOWHERE, position(4)}

    def test_on_return_no_power_loss_undoes_it(self) -> None:
        for seed in range(20):
            files = StateFiles(random.Random(seed))
            KvMachine(files.open(D, ApplySettings())).load(self.entries(), position(4))
            files.crash(power=True)
            machine = KvMachine(files.open(D, ApplySettings()))
            assert dumped(machine) == (list(self.entries()), position(4))

    def test_one_whose_entries_end_in_an_error_is_nowhere(self, tmp_path: Path) -> None:
        def damaged() -> Iterator[Entry]:
            yield from self.entries()
            raise CorruptData("a damaged frame")

        machine = kv_on_lmdb(tmp_path)
        with pytest.raises(CorruptData, match="a damaged frame"):
            machine.load(damaged(), position(4))
        machine.close()
        machine = kv_on_lmdb(tmp_path)
        assert machine.position() == NOWHERE
        machine.load(self.entries(), position(4))
        assert dumped(machine) == (list(self.entries()), position(4))
        machine.close()


def test_a_dump_taken_while_the_file_is_written_has_all_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, plain, commands = kv_on_lmdb(tmp_path / "one"), kv_on_lmdb(tmp_path / "plain"), history(5, 30)
    apply(plain, commands)
    apply(machine, commands[:10])
    machine.checkpoint()
    apply(machine, commands[10:20], 11)
    write, found = KvFile.write, []

    def look_first(file: KvFile, *what: object) -> None:
        apply(machine, commands[20:], 21)
        found.append(dumped(machine))
        write(file, *what)  # type: ignore[arg-type]
        found.append(dumped(machine))

    monkeypatch.setattr(KvFile, "write", look_first)
    machine.checkpoint()
    monkeypatch.undo()
    assert found == [dumped(plain)] * 2
    machine.close()
    plain.close()


def test_what_the_file_frees_is_used_again_once_a_dump_is_closed(tmp_path: Path) -> None:
    """By whoever still has the dump, too."""
    sizes = []
    for closed in (True, False):
        directory = tmp_path / str(closed)
        directory.mkdir()
        machine = KvMachine(KvFile(directory, ApplySettings()))
        apply(machine, [[Put(key, bytes(2_000)) for key in KEYS]])
        machine.checkpoint()
        dump = machine.dump()
        assert next(dump.entries())
        if closed:
            dump.close()
            dump.close()  # once more does no harm
        for index in range(2, 30):
            apply(machine, [[Put(key, bytes(2_000)) for key in KEYS]], index)
            machine.checkpoint()
        sizes.append((directory / "data.mdb").stat().st_size)
        dump.close()
        machine.close()
    assert 4 * sizes[0] < sizes[1]
