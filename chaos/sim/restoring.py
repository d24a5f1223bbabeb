"""In the middle of a run the cluster is stopped, made anew from a backup, and runs on in another history.

Backups are taken all the while, and cut off; so are restores, at any call to the disk. Of what was acknowledged the new
history has what is in the set and nothing else. Somebody starts a node with its directory of before, and clients of
before come back: they are told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from chaos.history import Operation
from chaos.sim.blocking import BlockingClient, PlugPulled, dies_at, offline_world
from chaos.sim.clients import Seen
from chaos.sim.disk import SimDisk
from chaos.sim.host import Host
from chaos.sim.loop import Process, SimLoop
from chaos.sim.network import SimNetwork
from chaos.sim.parameters import Parameters
from chaos.sim.recovering import CRASHES, CRASHES_MAX, POWER, Recovered, Recovering
from chaos.sim.state_file import StateFiles
from logboom import Add, Client
from logboom.errors import LineageMismatch, LogboomError, WrongNode
from logboom.types import GlobalLogIndex, NodeId, Token
from raftlog.links.links import Links
from server.directory.data_dir import BEGUN, MANIFEST, DataDir
from server.directory.manifest import Manifest
from server.offline.backup import backup
from server.offline.backup_dir import INDEX, BackupDir
from server.offline.restore import restore
from snapshots.meta import SetMeta

SHELF: Final = Path("/backup")
OPERATOR: Final = "operator"
ASKED_S: Final = 4.0
PAUSE_S: Final = 4.0
"""Between two backups, about."""
CUT_OFF: Final = 0.4
"""Share of the backups that are killed, within this many seconds."""
CUT_OFF_S: Final = 0.4
CALLS: Final = (1, 400)
"""A restore is killed at one of these, the first ones more often."""
RECOVERS: Final = 0.4
"""Share of the seeds in which one node is left, and no backup is asked for."""
RETURN_S: Final = (1.0, 5.0)
GONE_S: Final = 2.0
"""Nothing that a node has said is on its way after this."""
AGAIN_S: Final = 0.2
PRODUCER: Final = b"from before, too"
PRODUCER_S: Final = 1.0
PARTITION: Final = 0
"""Which is always there, with keys."""

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
        self.at = rng.uniform(0.3, 0.6) * parameters.seconds
        """When the cluster is stopped."""
        self.sets: list[int] = []
        """What backups have said is complete."""
        self.lineage = ""
        """Of the history that is the cluster's."""
        self._shelf = SimDisk(random.Random(rng.getrandbits(64)))
        self._processes: dict[str, Process] = {}
        self._recovering = Recovering(parameters, loop=loop, rng=rng, note=note, fail=fail)
        self._disks: dict[str, tuple[SimDisk, StateFiles]] = {}
        """What each host had before."""
        self._ghost: Host | None = None
        """A node that runs with that."""
        self._refused_backup = self.over = False
        self.told = self.crashes = self.returns = 0
        self._produced: list[Operation] = []
        """By sequence number, whatever history it was in."""
        self._token: Token | None = None
        self._client: Client | None = None
        """Of before."""

    # -- processes of its own

    def _spawn(self, name: str, work: Callable[[], Any]) -> Process:
        process = self._processes[name] = self._loop.process(name)
        self._loop.run_as(process, work)
        return process

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            self._loop.kill(process)
            self._network.process_ended(process, silently=False)

    def _new_client(self) -> Client:
        addresses = [host.member.client_address for host in self._hosts]
        return Client(addresses, rng=random.Random(self._rng.getrandbits(64)), timeout=ASKED_S)

    # -- backups

    async def back_up(self) -> None:
        """Again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            await self._back_up_once(cut_off=self._rng.random() < CUT_OFF)

    async def at_least_one(self) -> None:
        """Set that is complete."""
        while not self.sets:
            await self._back_up_once(cut_off=False)
            await asyncio.sleep(0.1)

    async def _back_up_once(self, *, cut_off: bool) -> None:
        ended: asyncio.Future[None] = self._loop.create_future()
        resume = self._rng.random() < 0.5

        def work() -> None:
            try:
                self._back_up(resume=resume)
            except LogboomError as error:
                self._note(f"backup: {error!r}")
                self._refused_backup = isinstance(error, WrongNode)
                if self._refused_backup and not self.lineage:
                    self._fail("BackupsMix", f"a backup of the history that the directory is of: {error}")
            if not ended.done():
                self._loop.run_as(None, lambda: None if ended.done() else ended.set_result(None))

        process = self._spawn(OPERATOR, work)
        try:
            await asyncio.wait([ended], timeout=self._rng.uniform(0.0, CUT_OFF_S) if cut_off else None)
        finally:
            if process.alive:
                self._end(OPERATOR)
                if not ended.done() and self._rng.random() < 0.5:
                    self._shelf.power_loss()
                else:
                    self._shelf.kill()

    async def _back_up_another(self) -> None:
        """What is of another history does not belong there."""
        sets, before = list(self.sets), self._shelf.image().files
        while not self.over and not self._refused_backup:
            await self._back_up_once(cut_off=False)
            await asyncio.sleep(AGAIN_S)
        if self.sets != sets or self._shelf.image().files != before:
            self._fail("BackupsMix", f"{self.sets[len(sets) :]} of {self.lineage!r} beside {sets}")

    def _back_up(self, *, resume: bool) -> None:
        client: Any = BlockingClient(self._new_client(), self._loop)
        world = offline_world(self._shelf, self._loop, self._rng)
        done = backup(client, SHELF, resume=resume, timeout=ASKED_S, world=world)
        client.close()
        self._note(f"backup: {done}")
        self.sets.append(done.global_index)
        if self.lineage:
            self._fail("BackupsMix", f"{done} of {self.lineage!r} beside sets of another history")
        self.check_shelf()

    def check_shelf(self) -> None:
        """Sets and list are of one history, and what a backup has said is there is."""
        contents, store = (shelf := BackupDir(self._shelf, SHELF)).contents, shelf.store
        listed = [] if contents is None else [each.global_index for each in contents.sets]
        if contents is None or not set(self.sets) <= set(listed) or contents.lineage != self.lineage:
            self._fail("BackupKept", f"{INDEX} has {listed} of {contents and contents.lineage!r}, not {self.sets}")
        for meta in store.sets():
            if meta.lineage != self.lineage:
                self._fail("BackupsMix", f"set {meta.global_index} is of {meta.lineage!r}, not {self.lineage!r}")

    # -- who is there in both histories

    def start(self, seen: Seen) -> None:
        """A history begins: one who writes goes through all that it has ever written; one will be of before."""
        self._spawn("producer", lambda: self._loop.create_task(self._produce(seen, self._new_client())))
        if not self.lineage:
            self._spawn("before", lambda: self._loop.create_task(self._meet()))

    def stop(self) -> None:
        """It ends: who wrote is gone, who was there before stays."""
        self._end("producer")

    async def _produce(self, seen: Seen, client: Client) -> None:
        """Under numbers of its own: what the history has takes no effect again, what it lacks does."""
        sequence, rng = 0, random.Random(self._rng.getrandbits(64))
        while True:
            await asyncio.sleep(rng.expovariate(1 / PRODUCER_S) if sequence == len(self._produced) else 0.01)
            name = f"p{sequence}"
            if sequence == len(self._produced):
                self._produced.append(seen.history.invoke(0, "add", name, 1, PARTITION))
            op, command = self._produced[sequence], Add(name.encode(), 1)
            try:
                receipt = await client.submit(PARTITION, command, producer_id=PRODUCER, sequence=sequence)
            except LogboomError as error:
                self._note(f"producer: {error!r}")
                await asyncio.sleep(AGAIN_S)
                continue
            seen.history.end(op, "ok", index=receipt.first_index, global_index=receipt.global_index)
            sequence += 1

    async def _meet(self) -> None:
        client = self._client = self._new_client()
        while self._token is None:
            try:
                await client.get(PARTITION, b"p0")
                self._token = await client.token()
            except LogboomError:
                await asyncio.sleep(AGAIN_S)

    async def _tell(self) -> None:
        """A client of before, and one that has a token of before: they are told, and nothing else."""
        client, token, stranger = self._client, self._token, self._new_client()
        if client is None or token is None:
            return
        asked: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            ("a client of before writes", lambda: client.submit(PARTITION, Add(b"ghost", 1), timeout=ASKED_S)),
            ("a token of before is waited for", lambda: stranger.barrier(token, partitions=[PARTITION])),
            ("a token of before is read at", lambda: stranger.get(PARTITION, b"p0", at_least=token)),
        ]
        for what, ask in asked:
            while not self.over:
                try:
                    answer = await ask()
                except LineageMismatch:
                    self.told += 1
                    break
                except LogboomError as error:
                    self._note(f"{what}: {error!r}")
                    await asyncio.sleep(AGAIN_S)
                else:
                    self._fail("OtherHistory", f"{what}: {answer}")
                    return

    # -- one that is left

    def recover(self, hosts: Sequence[Host]) -> Recovered | None:
        """One of these, in some of the seeds; it is alone from now on, and the others' directories are of before."""
        if self._rng.random() >= RECOVERS or not hosts:
            return None
        host = self._rng.choice(hosts)
        found = self._recovering.recover(host)
        if found is not None:
            self.lineage, self.crashes = found.lineage, found.crashes
            for other in self._hosts:
                if other is not host:
                    self._disks[other.name] = other.disk, other.state_files
                    other.retire()
        return found

    # -- the restore

    def choose(self) -> SetMeta:
        """With which set the other history begins: any that is listed."""
        self.check_shelf()
        shelf = BackupDir(self._shelf, SHELF)
        listed = shelf.contents.sets if shelf.contents is not None else ()
        return shelf.store.get(GlobalLogIndex(self._rng.choice([each.global_index for each in listed])))

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
        self._carry_to(host.disk)
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
                self.crashes, killed = self.crashes + 1, True
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

    def _carry_to(self, disk: SimDisk) -> None:
        """The backup, to the machine where it is needed."""
        image = self._shelf.image()
        disk.make_directories(Path(name) for name in image.directories)
        for name, (content, size) in image.files.items():
            file = disk.open(Path(name), create=True)
            file.write([content], offset=0)
            file.truncate(size)
            file.sync()
            file.close()
        for name in image.directories:
            disk.sync_directory(Path(name))

    # -- afterwards

    async def haunt(self) -> None:
        """Clients of before; then a node is started with what it had before, for a while. Until it is cancelled."""
        telling: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def tell() -> None:
            await self._tell()
            self._loop.run_as(None, lambda: None if telling.done() else telling.set_result(None))

        self._spawn("told", lambda: self._loop.create_task(tell()))
        await asyncio.wait([telling])
        await self._back_up_another()
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
            self.returns += 1
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
        self.over = True
        for name in list(self._processes):
            self._end(name)

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
