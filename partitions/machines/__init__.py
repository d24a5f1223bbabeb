"""State machines by name: the built-in ones and those that users register."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from logboom.errors import ConfigError
from logboom.settings import ApplySettings
from logboom.state_machine import StateMachine
from logboom.types import PartitionId
from partitions.machines.kv import KvMachine
from partitions.machines.log import LogMachine

BUILT_IN: dict[str, type[StateMachine]] = {"kv": KvMachine, "log": LogMachine}
GROUP = "logboom.state_machines"


def machine_class(name: str) -> type[StateMachine]:
    """Raises ConfigError, naming what there is."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    registered = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in registered:
        known = ", ".join(sorted([*BUILT_IN, *registered]))
        raise ConfigError(f"state machine {name!r} is not known; known are {known}", path="cluster.state_machine")
    found: type[StateMachine] = registered[name].load()
    return found


def open_machine(name: str, directory: Path, partition_id: PartitionId, settings: ApplySettings) -> StateMachine:
    """Open one partition's state. Blocking."""
    directory.mkdir(parents=True, exist_ok=True)
    return machine_class(name).open(directory, partition_id, settings)
