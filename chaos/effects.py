"""How many records of ``log`` partitions took effect: what nodes have saved that were stopped in order.

A log shows each record as often as it was ordered. That one which was sent again counts once, its state alone says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from logboom.state_machine import Position, Space
from partitions.machines.log import LogMachine
from server.world.disk_os import OsDisk

RECORDS: Final = b"records"


class Effect(NamedTuple):
    """Of one partition on one node."""

    position: Position
    records: int


def saved_effects(data_dirs: Mapping[str, Path], partitions: Iterable[int]) -> dict[int, dict[str, Effect]]:
    """By partition and node. Raises CorruptData."""
    return {p: {node: _saved(directory, p) for node, directory in data_dirs.items()} for p in partitions}


def _saved(directory: Path, partition: int) -> Effect:
    path = directory / "partitions" / str(partition) / "state" / "checkpoint"
    with LogMachine(OsDisk(), path).dump() as dump:
        state = {key: value for space, key, value in dump.entries() if space is Space.STATE}
        return Effect(dump.position, int.from_bytes(state[RECORDS], "little"))
