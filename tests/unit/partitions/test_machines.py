"""Machines by name, and ``log``'s checkpoint."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.state_file import StateFiles
from logboom.errors import ConfigError, CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, ApplyBatch, Machine, Position
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions import machines
from partitions.machines import machine_class, open_machine
from partitions.machines.guarded import Guarded
from partitions.machines.log import CHECKPOINT_BATCHES, LogMachine
from ports.disk import Buffer
from server.world.disk_os import OsDisk


def position(index: int) -> Position:
    return Position(PartitionLogIndex(index), GlobalLogIndex(index))


def apply(machine: LogMachine, first: int, count: int = 1, *, seen: Callable[[], object] = lambda: None) -> None:
    """``seen`` is called when the producers are looked at."""
    batches = [
        ApplyBatch(PartitionLogIndex(k), GlobalLogIndex(k), 0, 1, 10, k.to_bytes(16, "little"), None)
        for k in range(first, first + count)
    ]
    last = first + count - 1
    meta = Watched({b"p": b"%d" % last, b"gone": None})
    meta.seen = seen
    machine.apply(batches, lambda _: (position(last), meta))


class Watched(dict[bytes, bytes | None]):
    seen: Callable[[], object]

    def items(self) -> Iterator[tuple[bytes, bytes | None]]:  # type: ignore[override]
        yield from super().items()
        self.seen()


class Disk(OsDisk):
    """Calls ``beside`` while it replaces the file."""

    beside: Callable[[], object]

    def replace_file(self, path: Path, *content: Buffer) -> None:
        self.beside()
        super().replace_file(path, *content)


class FullDisk(OsDisk):
    def replace_file(self, path: Path, *content: Buffer) -> None:
        raise OSError(28, "No space left on device")


closed: list[object] = []


class Users:
    """Somebody's own machine."""

    needs_records = False
    unsaved_bytes = 0

    def __init__(self, *given: Any) -> None:
        self.given = given

    def dump(self) -> Any:
        raise NotImplementedError

    position = meta = checkpoint = apply = dump

    def load(self, entries: Any, position: Position) -> None:
        raise NotImplementedError

    def close(self) -> None:
        closed.append(self)

    @classmethod
    def open(cls, directory: Path, partition_id: PartitionId, settings: ApplySettings) -> Users:
        assert directory.is_dir()
        return cls(directory, partition_id, settings)


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="users", load=lambda: Users)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: [entry] if group == machines.GROUP else [])


def opened(name: str, directory: Path) -> Machine:
    files = StateFiles(random.Random(0))
    return open_machine(name, directory, PartitionId(3), ApplySettings(), disk=OsDisk(), open_state_file=files.open)


class TestByName:
    @pytest.mark.parametrize("name", ["kv", "log"])
    def test_built_in_ones_use_nothing_but_the_ports(self, name: str, tmp_path: Path) -> None:
        machine = opened(name, tmp_path / "p" / "state")
        assert isinstance(machine, machine_class(name))
        assert machine.position() == NOWHERE
        assert list((tmp_path / "p" / "state").iterdir()) == []
        machine.close()

    @pytest.mark.usefixtures("users")
    def test_those_of_users_are_opened_in_a_directory_that_is_there(self, tmp_path: Path) -> None:
        machine = opened("users", tmp_path / "p" / "state")
        assert isinstance(machine, Guarded)
        assert isinstance(machine._machine, Users)
        assert machine_class("users") is Users
        assert machine._machine.given == (tmp_path / "p" / "state", PartitionId(3), ApplySettings())

    @pytest.mark.usefixtures("users")
    @pytest.mark.parametrize("look", [machine_class, lambda name: opened(name, Path("/nowhere/state"))])
    def test_an_unknown_name_says_what_there_is(self, look: Callable[[str], object]) -> None:
        with pytest.raises(ConfigError, match="'kw' is not known; known are kv, log, users"):
            look("kw")
        assert not Path("/nowhere").exists()

    @pytest.mark.usefixtures("users")
    @pytest.mark.parametrize("look", [machine_class, lambda name: opened(name, Path("/nowhere/state"))])
    def test_one_that_no_snapshot_could_carry_is_refused(
        self, look: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(Users, "load")
        with pytest.raises(ConfigError, match="'users' has no load"):
            look("users")
        assert not Path("/nowhere").exists()

    @pytest.mark.usefixtures("users")
    @pytest.mark.parametrize("name", ["needs_records", "unsaved_bytes", "meta", "checkpoint", "apply", "position"])
    def test_one_without_which_no_node_goes_on_is_refused_when_it_is_opened(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without `meta` every node ended where the partition was created, and at each start after that."""
        monkeypatch.delattr(Users, name)
        closed.clear()
        with pytest.raises(ConfigError, match=f"'users' has no {name}: see"):
            opened("users", tmp_path)
        assert len(closed) == 1


class TestLogCheckpoint:
    def test_a_clean_stop_saves_everything(self, tmp_path: Path) -> None:
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        apply(machine, 1, 5)
        digest = machine.digest()
        machine.close()
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        assert (machine.position(), machine.digest(), dict(machine.meta())) == (position(5), digest, {b"p": b"5"})

    def test_a_crash_goes_back_to_the_last_one_and_can_be_gone_on_from(self, tmp_path: Path) -> None:
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        apply(machine, 1, CHECKPOINT_BATCHES)
        apply(machine, CHECKPOINT_BATCHES + 1, 10)
        again = LogMachine(OsDisk(), tmp_path / "checkpoint")
        assert again.position() == position(CHECKPOINT_BATCHES)
        apply(again, CHECKPOINT_BATCHES + 1, 10)
        assert again.digest() == machine.digest()

    def test_producers_that_share_a_batch_take_as_long_to_replay_as_batches_of_their_own(self, tmp_path: Path) -> None:
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        meta: dict[bytes, bytes | None] = {b"%d" % k: b"" for k in range(CHECKPOINT_BATCHES // 4)}
        for index in range(1, 6):
            batch = ApplyBatch(PartitionLogIndex(index), GlobalLogIndex(index), 0, 1, 10, bytes(16), None)
            machine.apply([batch], lambda _, index=index: (position(index), meta))
        assert LogMachine(OsDisk(), tmp_path / "checkpoint").position() == position(4)

    def test_an_apply_that_would_save_is_not_for_the_loop(self, tmp_path: Path) -> None:
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        apply(machine, 1, CHECKPOINT_BATCHES - 1)
        assert machine.applies_in_memory
        apply(machine, CHECKPOINT_BATCHES)
        assert not machine.applies_in_memory
        machine.checkpoint()
        assert machine.applies_in_memory

    def test_what_takes_indices_and_has_no_effect_is_saved_too(self, tmp_path: Path) -> None:
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        apply(machine, 1)
        machine.checkpoint()
        machine.apply([], lambda _: (position(5), {}))  # a void, or batches that were refused
        machine.checkpoint()
        assert LogMachine(OsDisk(), tmp_path / "checkpoint").position() == position(5)

    def test_who_is_forgotten_is_forgotten_by_what_is_saved_too(self, tmp_path: Path) -> None:
        """A node that knows a producer after its start, and others do not, refuses and skips what they apply."""
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        machine.apply([], lambda _: (position(1), {b"p": b"1", b"q": b"1"}))
        machine.apply([], lambda _: (position(2), {b"p": None, b"q": b"2"}))
        machine.close()
        assert dict(LogMachine(OsDisk(), tmp_path / "checkpoint").meta()) == {b"q": b"2"}

    def test_one_that_fails_leaves_the_one_before_and_is_tried_again(self, tmp_path: Path) -> None:
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        apply(machine, 1)
        machine.checkpoint()
        machine = LogMachine(FullDisk(), tmp_path / "checkpoint")
        apply(machine, 2)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                machine.checkpoint()
        assert LogMachine(OsDisk(), tmp_path / "checkpoint").position() == position(1)

    def test_one_that_fails_within_apply_leaves_a_group_that_was_not_applied(self, tmp_path: Path) -> None:
        disk, whole = Disk(), LogMachine(OsDisk(), tmp_path / "whole")
        machine = LogMachine(disk, tmp_path / "checkpoint")

        def full() -> None:
            raise OSError(28, "No space left on device")

        disk.beside = full
        refused = 0
        for machine_of in (machine, whole):
            for first in range(1, 3 * CHECKPOINT_BATCHES, CHECKPOINT_BATCHES // 2):
                before = machine_of.digest()
                try:
                    apply(machine_of, first, CHECKPOINT_BATCHES // 2)
                except OSError:  # a retry, as the worker's
                    refused += 1
                    assert machine_of.digest() == before
                    disk.beside = lambda: None
                    apply(machine_of, first, CHECKPOINT_BATCHES // 2)
                    disk.beside = full
        assert refused > 1
        assert machine.digest() == whole.digest()

    def test_damage_is_reported_not_served(self, tmp_path: Path) -> None:
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        apply(machine, 1)
        machine.close()
        raw = bytearray((tmp_path / "checkpoint").read_bytes())
        raw[3] ^= 1
        (tmp_path / "checkpoint").write_bytes(raw)
        with pytest.raises(CorruptData, match=str(tmp_path / "checkpoint")):
            LogMachine(OsDisk(), tmp_path / "checkpoint")


class TestLogCheckpointBesideApply:
    """``checkpoint`` runs on another thread, whenever it is wanted."""

    def test_it_is_of_one_moment(self, tmp_path: Path) -> None:
        machine = LogMachine(OsDisk(), tmp_path / "checkpoint")
        apply(machine, 1)
        saving = threading.Thread(target=machine.checkpoint)

        def save() -> None:
            saving.start()
            saving.join(0.2)  # it waits for the end of what it is in the midst of

        apply(machine, 2, seen=save)
        saving.join()
        found = LogMachine(OsDisk(), tmp_path / "checkpoint")
        assert (found.position(), found.digest(), dict(found.meta())) == (position(2), machine.digest(), {b"p": b"2"})

    def test_there_is_one_at_a_time_and_the_newest_stays(self, tmp_path: Path) -> None:
        disk, inside, two = Disk(), [0], threading.Event()

        def beside() -> None:
            inside[0] += 1
            if inside[0] > 1:
                two.set()
            two.wait(0.2)
            inside[0] -= 1

        disk.beside = beside
        machine = LogMachine(disk, tmp_path / "checkpoint")
        apply(machine, 1)
        saving = [threading.Thread(target=machine.checkpoint) for _ in range(2)]
        saving[0].start()
        apply(machine, 2, CHECKPOINT_BATCHES)
        apply(machine, CHECKPOINT_BATCHES + 2)  # saves
        saving[1].start()
        for thread in saving:
            thread.join()
        assert not two.is_set()
        assert LogMachine(OsDisk(), tmp_path / "checkpoint").digest() == machine.digest()

    def test_what_is_applied_meanwhile_is_left_for_the_next(self, tmp_path: Path) -> None:
        disk = Disk()
        machine = LogMachine(disk, tmp_path / "checkpoint")
        apply(machine, 1)
        disk.beside = lambda: apply(machine, 2)
        machine.checkpoint()
        disk.beside = lambda: None
        machine.close()
        assert LogMachine(OsDisk(), tmp_path / "checkpoint").position() == position(2)
