"""In the middle of a run the cluster is stopped, made anew from a backup, and runs on in another history.

Backups are taken all the while, and cut off; so are restores, at any call to the disk. Of what was acknowledged the new
history has what is in the set and nothing else. Somebody starts a node with its directory of before, and clients of
before come back: they are told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from chaos.sim.backing_up import SHELF, BackingUp
from chaos.sim.blocking import PlugPulled, dies_at, offline_world
from chaos.sim.disk import SimDisk
from chaos.sim.host import Host
from chaos.sim.lasting import Lasting
from chaos.sim.loop import SimLoop
from chaos.sim.network import SimNetwork
from chaos.sim.parameters import Parameters
from chaos.sim.programs import Programs
from chaos.sim.recovering import CRASHES, CRASHES_MAX, POWER, Recovered, Recovering
from chaos.sim.seen import Seen
from chaos.sim.state_file import StateFiles
from logboom.errors import LogboomError, WrongNode
from logboom.types import NodeId
from raftlog.links.links import Links
from server.directory.data_dir import BEGUN, MANIFEST, DataDir
from server.directory.manifest import Manifest
from server.offline.restore import restore
from snapshots.meta import SetMeta

CALLS: Final = (1, 400)
"""A restore is killed at one of these, the first ones more often."""
RECOVERS: Final = 0.4
"""Share of the seeds in which one node is left, and no backup is asked for."""
RETURN_S: Final = (1.0, 5.0)
GONE_S: Final = 2.0
"""Nothing that a node has said is on its way after this."""

Fail = Callable[[str, str], None]


class Restoring:
    """Of one run. ``fail(invariant, story)`` ends it."""

    def __init__(
        self,
        parameters: Parameters,
        hosts: Sequence[Host],
        *,
        loop: SimLoop,
        network: SimNetwork,
        rng: random.Random,
        note: Callable[[str], None],
        fail: Fail,
    ) -> None:
        self._parameters = parameters
        self._hosts = hosts
        self._loop = loop
        self._network = network
        self._rng = rng
        self._note = note
        self._fail = fail
        self._programs = Programs(hosts, loop=loop, network=network, rng=rng)
        self.at = rng.uniform(0.3, 0.6) * parameters.seconds
        """When the cluster is stopped."""
        self.lineage = ""
        """Of the history that is the cluster's."""
        self.backing_up = BackingUp(
            self._programs, loop=loop, rng=rng, lineage=lambda: self.lineage, note=note, fail=fail
        )
        self._lasting = Lasting(self._programs, loop=loop, rng=rng, note=note, fail=fail)
        self._recovering = Recovering(parameters, loop=loop, rng=rng, note=note, fail=fail)
        self._disks: dict[str, tuple[SimDisk, StateFiles]] = {}
        """What each host had before."""
        self._ghost: Host | None = None
        """A node that runs with that."""

    def start(self, seen: Seen) -> None:
        """A history begins."""
        self._lasting.start(seen, first=not self.lineage)

    def stop(self) -> None:
        """It ends."""
        self._lasting.stop()

    # -- one that is left

    def recover(self, hosts: Sequence[Host]) -> Recovered | None:
        """One of these, in some of the seeds; it is alone from now on, and the others' directories are of before."""
        if self._rng.random() >= RECOVERS or not hosts:
            return None
        host = self._rng.choice(hosts)
        found = self._recovering.recover(host)
        if found is not None:
            self.lineage = found.lineage
            for other in self._hosts:
                if other is not host:
                    self._disks[other.name] = other.disk, other.state_files
                    other.retire()
        return found

    # -- the restore

    def restore(self, meta: SetMeta) -> None:
        """All nodes, which are down; what they had is kept for whoever starts it by mistake."""
        token = self._rng.choice(["", "again"])
        made = [self._restore_one(host, meta, token) for host in self._hosts]
        self.lineage = made[0]
        if len({*made, ""}) != 2:
            self._fail("OneHistory", f"the nodes are of {made}")

    def _restore_one(self, host: Host, meta: SetMeta, token: str) -> str:
        """Killed again and again; what is left of that is no node, or a whole one. Its lineage."""
        self._disks[host.name] = host.disk, host.state_files
        host.lose_disk()
        self.backing_up.carry_to(host.disk)
        manifest = Manifest.of(NodeId(host.name), host.settings.cluster)
        path, low, high = host.path(), *CALLS
        for crashes in range(CRASHES_MAX + 1):
            dies = self._rng.random() < CRASHES and crashes < CRASHES_MAX
            host.disk.hook = dies_at(int(low * (high / low) ** self._rng.random())) if dies else None
            world = offline_world(host.disk, self._loop, self._rng)
            killed = False
            try:
                restore(SHELF, host.settings, global_index=meta.global_index, token=token, world=world)
            except LogboomError as error:
                self._fail("BackupKept", f"{host.name} cannot be restored from {meta.global_index}: {error!r}")
                return ""
            except PlugPulled:
                killed = True
            finally:
                host.disk.hook = None
            (host.disk.power_loss if self._rng.random() < POWER else host.disk.kill)()
            if host.disk.exists(path / MANIFEST):
                break
            if not killed:
                self._fail("RestoreWhole", f"{host.name}: a restore has said that it is done, and there is no manifest")
                return ""
            self._refused(host, manifest, meta)
        there = DataDir(path, disk=host.disk, manifest=manifest)
        there.close()
        self._note(f"{host.name} is restored from {meta.global_index}: {there.lineage()}")
        return there.lineage()

    def _refused(self, host: Host, manifest: Manifest, meta: SetMeta) -> None:
        """What an interrupted restore leaves is no node, and not restored into. It is removed."""
        disk, path = host.disk, host.path()
        if not disk.exists(path):
            return
        if set(disk.list(path)) - BEGUN:
            world = offline_world(disk, self._loop, self._rng)
            for what, attempt in (
                ("starts", lambda: DataDir(path, disk=disk, manifest=manifest)),
                ("is restored", lambda: restore(SHELF, host.settings, global_index=meta.global_index, world=world)),
            ):
                with suppress(WrongNode):
                    attempt()
                    self._fail("RestoreWhole", f"{host.name} {what} with {disk.list(path)} of an interrupted restore")
        disk.remove_directory(path)
        disk.sync_directory(path.parent)

    # -- afterwards

    async def haunt(self) -> None:
        """Clients of before; then a node is started with what it had before, for a while. Until it is cancelled."""
        await self._lasting.are_told()
        await self.backing_up.another()
        while not self._parameters.disks_lost:  # an empty one is of the history that it hears of first
            await asyncio.sleep(self._rng.uniform(*RETURN_S))
            await self._come_back(self._rng.choice([host for host in self._hosts if host.name in self._disks]))

    async def _come_back(self, host: Host) -> None:
        if not (host.may_run or host.retired):
            return  # damaged
        host.kill(power=False)
        host.may_run = False
        try:
            await asyncio.sleep(GONE_S)
            self._ghost = self._ghost_of(host)
            self._ghost.start()
            self._note(f"{host.name} comes back with what it had before")
            await asyncio.sleep(self._rng.uniform(*RETURN_S))
        finally:
            if self._ghost is not None:
                self._ghost.kill(power=False)
            self._ghost, host.may_run = None, not host.retired
            host.start()

    def _ghost_of(self, host: Host) -> Host:
        ghost = Host(
            host.name,
            loop=self._loop,
            network=self._network,
            rng=random.Random(self._rng.getrandbits(64)),
            settings=host.settings,
            slowest_s=host.slowest_s,
            ended=lambda _, error: self._note(f"{host.name} of before: {error!r}"),
            started=self.started,
        )
        ghost.disk, ghost.state_files = self._disks[host.name]
        ghost.disk.hook = None
        return ghost

    def leave(self) -> None:
        """It is over: nobody asks, or writes, any more."""
        self.backing_up.over = self._lasting.over = True
        self._programs.end_all()

    def started(self, host: Host) -> None:
        """A node of either history: whom it lets in is looked at."""
        node = host.node
        if node is None or not self.lineage:
            return
        links: Links = node.pipeline.raft.links
        introduced = links.introduced

        def let_in(peer: NodeId, header: Mapping[str, Any]) -> None:
            ghost = self._ghost
            if ghost is not None and (ghost is host or peer == ghost.name):
                self._fail("OtherHistory", f"{host.name} lets {peer} in: one of them has its directory of before")
            introduced(peer, header)

        links.introduced = let_in  # type: ignore[method-assign]
