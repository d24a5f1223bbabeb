"""Two files that are replaced as a whole: a manifest and a LogMachine's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import WrongNode
from logboom.state_machine import ApplyBatch, Position
from logboom.types import DurabilityMode, GlobalLogIndex, PartitionLogIndex
from partitions.machines.log import LogMachine
from server.directory.data_dir import MANIFEST, DataDir
from server.directory.manifest import Manifest, PartitionKinds
from tests.storage.world import World


class ManifestWorld(World):
    """A directory is claimed once, and then belongs to that node whatever happens. Its partitions grow."""

    directory = Path("/n/var/data")

    def __init__(self, disk: SimDisk, seed: int) -> None:
        super().__init__(disk, seed)
        self.partitions = 0
        """As many as it was last told to have, and had done so."""

    def open(self) -> None:
        self.data = self._open(self.disk, "n1")
        self.partitions = max(self.partitions, 1)
        assert self.data.manifest in map(manifest, (self.partitions, self.partitions + 1)), (
            "a manifest that nobody wrote"
        )
        self.partitions = self.data.manifest.partitions[0].count
        self.mark()

    def step(self) -> None:
        """What a node does next: something of its own in there; one partition more; a restart."""
        self.disk.make_directory(self.data.journal)
        self.disk.open(self.data.journal / "1.journal", create=True).close()
        self.disk.sync_directory(self.data.journal)
        self.data.adopt(manifest(self.partitions + 1))
        self.partitions += 1
        self.mark()
        if self.rng.random() < 0.5:
            self.data.close()
        else:
            self.disk.kill()
        self.open()

    def _open(self, disk: SimDisk, node: str) -> DataDir:
        return DataDir(self.directory, disk=disk, manifest=manifest(1, node))

    def promise(self) -> int:
        return self.partitions

    def verify(self, disk: SimDisk, promise: int, *, again: bool = False) -> Any:
        if promise:
            with pytest.raises(WrongNode):
                self._open(disk, "n2")
        data = self._open(disk, "n1")
        assert data.manifest in map(manifest, (max(promise, 1), promise + 1)), "neither the last manifest nor the next"
        data.close()
        return disk.read_file(self.directory / MANIFEST)


def manifest(partitions: int, node: str = "n1") -> Manifest:
    """Of a cluster with one node."""
    kinds = (PartitionKinds(partitions, "kv", DurabilityMode.WRITE_AHEAD),)
    return Manifest(node=node, cluster="c", members=(node,), partitions=kinds)


class MachineWorld(World):
    """A checkpoint is there whole, or the one before it."""

    path = Path("/n/state/checkpoint")

    def __init__(self, disk: SimDisk, seed: int) -> None:
        super().__init__(disk, seed)
        self.saved: list[Any] = []
        self.least = 0
        self.applied = 0

    def open(self) -> None:
        self.disk.make_directory(self.path.parent)
        self.machine = LogMachine(self.disk, self.path)
        found = content(self.machine)
        if not self.saved:
            self.saved.append(found)
        assert found in self.saved[self.least :], "a checkpoint that nobody wrote"
        del self.saved[self.saved.index(found) + 1 :]
        self.applied = self.machine.position()[0]
        self.mark()

    def step(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            self._apply()
        self.saved.append(content(self.machine))
        self.machine.checkpoint()
        self.least = len(self.saved) - 1
        self.mark()
        if self.rng.random() < 0.1:
            self.disk.kill()
            self.open()

    def _apply(self) -> None:
        self.applied += 1
        at = Position(PartitionLogIndex(self.applied), GlobalLogIndex(2 * self.applied))
        batch = ApplyBatch(at[0], at[1], 0, 1, self.rng.randrange(1000), self.rng.randbytes(16), None)
        meta = {self.rng.randbytes(16): self.rng.randbytes(self.rng.choice((5, 300)))}
        self.machine.apply([batch], lambda _: (at, meta))

    def promise(self) -> int:
        return self.least

    def verify(self, disk: SimDisk, promise: int, *, again: bool = False) -> Any:
        disk.make_directory(self.path.parent)
        found = content(LogMachine(disk, self.path))
        assert found in (self.saved or [found])[promise:], "neither the last checkpoint nor a later one"
        return found


def content(machine: LogMachine) -> Any:
    return machine.position(), machine.digest(), sorted(machine.meta())
