"""State machines by name: the built-in ones and those that users register."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from logboom.errors import ConfigError
from logboom.settings import ApplySettings
from logboom.state_machine import Machine, StateMachine
from logboom.types import MIB, PartitionId
from partitions.machines.guarded import answer, guard, kept
from partitions.machines.kv import KvMachine
from partitions.machines.kv_apply import LOADED_BYTES_MAX
from partitions.machines.log import LogMachine
from ports.disk import Disk
from ports.state_file import StateFile

BUILT_IN: dict[str, type[Machine]] = {"kv": KvMachine, "log": LogMachine}
GROUP = "logboom.state_machines"
NEEDED: Final = ("needs_records", "unsaved_bytes", "position", "meta", "checkpoint", "apply", "dump", "load", "close")
"""Of an open machine: without any of them its node cannot go on. Without the others, reads fail."""
GROUPS_MAX: Final = 4
"""Of those that are built in: so many are applied at a time."""
LOADED_BYTES_MIN: Final = 1 * MIB


def machine_class(name: str) -> type[Machine]:
    """Raises ConfigError, naming what there is."""
    return BUILT_IN[name] if name in BUILT_IN else _registered(name)


def open_machine(
    name: str,
    directory: Path,
    partition_id: PartitionId,
    settings: ApplySettings,
    *,
    disk: Disk,
    open_state_file: Callable[[Path, ApplySettings], StateFile],
) -> Machine:
    """Open one partition's state. Blocking. Machines of users open files themselves, so ``disk`` must be a real one."""
    found = _registered(name) if name not in BUILT_IN else None
    if not disk.exists(directory):
        disk.make_directory(directory)
    if found is not None:
        return guard(name, _whole(name, kept(name, found.open, directory, partition_id, settings)))
    if name == "log":
        return LogMachine(disk, directory / "checkpoint")
    file, looked_at = open_state_file(directory, settings), loaded_bytes(settings)
    return KvMachine(file, rows_min=settings.rows_min, loaded_bytes=looked_at)


def loaded_bytes(settings: ApplySettings) -> int:
    """What a group of ``kv`` may keep of what it has looked at: its share of as much as a node has for effects."""
    return max(LOADED_BYTES_MIN, min(LOADED_BYTES_MAX, settings.unsaved_node_bytes // GROUPS_MAX))


def discard(machine: Machine) -> None:
    """Close one whose state nobody needs: those that are built in save nothing then, hence need no room for it."""
    getattr(machine, "discard", machine.close)()


def _whole(name: str, machine: Machine) -> Machine:
    lacking = [each for each in NEEDED if not answer(name, hasattr, machine, each)]
    if lacking:
        with suppress(Exception):  # it cannot be used, whatever it says
            machine.close()
        _refuse(name, lacking)
    return machine


def _refuse(name: str, lacking: list[str]) -> NoReturn:
    raise ConfigError(
        f"state machine {name!r} has no {' and no '.join(lacking)}: see logboom.state_machine.Machine",
        path="cluster.state_machine",
    )


def _registered(name: str) -> type[StateMachine]:
    from importlib.metadata import entry_points  # a node with built-in machines alone starts sooner

    registered = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in registered:
        known = ", ".join(sorted([*BUILT_IN, *registered]))
        raise ConfigError(f"state machine {name!r} is not known; known are {known}", path="cluster.state_machine")
    found: type[StateMachine] = answer(name, registered[name].load)
    missing = [each for each in ("dump", "load") if not callable(getattr(found, each, None))]
    if missing:
        _refuse(name, missing)
    return found
