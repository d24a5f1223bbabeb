"""What the nemesis does to disks: slow, full, failing, and files that are changed behind their owners' backs."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from chaos.sim.disk import LOST, DroppedPages, ShortWrite, SimDisk, WriteFate, misdirect
from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from chaos.sim.network import SimNetwork
from chaos.sim.parameters import Parameters
from logboom.errors import CorruptData
from logboom.types import NodeId
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal import Journal
from server.directory.data_dir import MANIFEST
from server.directory.directories import DIRECTORIES, HEARD, decode, decode_heard
from server.directory.manifest import decode as decode_manifest
from server.directory.rejoin import REJOIN
from server.directory.states import STATE

T = TypeVar("T")

TAIL_BYTES: Final = 4096
"""Bit rot comes near the end of a file, where what counts is."""
CUT_SHARE: Final = 0.2
"""Of the damage: everything from there on is gone."""
JOURNAL_HEADER_BYTES: Final = codec.SEGMENT_HEADER.size
ELSEWHERE_SHARE: Final = 0.6
ONCE: Final = 0.5
"""Share of the failing disks of which one call fails, and no more."""
STATES_ALONE: Final = 0.4
"""Share of the full disks that take everything but what is saved of ``kv`` states: else logs are the first to fail."""
LATE_SHARE: Final = 0.6
"""Of the lost disks: as many as there may be lag behind when it happens,"""
LATE_S: Final = (0.5, 2.0)
"""by so long."""
ALONE_S: Final = (1.5, 4.0)
"""So long the others are away then."""
HEARD_S: Final = 10.0
"""What a disk has reported a node has heard by then, though it may have stood still meanwhile."""
SINCE_S, SINCE_LOOKS = (0.5, 3.0), 10
"""How often, and after how long each time, is looked whether others have written down what they have heard since."""
SETS_GONE: Final = 0.5
"""Share of the lost sets that are gone; the others are there, and nothing can be made of them."""
SET_FILES: Final = (".set", ".states")
STATES_STRUCK_MAX: Final = 2
"""Times, each partition's on each host: what is damaged again and again is given up (dispatcher.upkeep.rebuilding)."""
CLUSTER: Final = slice(16, 28)
"""Its hash, in the header of a journal's file."""


class DiskFaults:
    """A part of ``Nemesis``, which has all of this."""

    _parameters: Parameters
    _loop: SimLoop
    _network: SimNetwork
    _all: Sequence[Host]
    _note: Callable[[str], None]
    faulty: dict[str, tuple[int, float]]
    damaged: set[str]
    rotten: set[str]
    forgetful: set[str]
    may_forget: set[str]
    states_rotten: set[str]
    states_struck: Counter[tuple[str, int]]
    disk_lost: Callable[[Host], None]
    struck: Callable[[str], None]
    over: bool

    @abstractmethod
    def _victim(self, rng: random.Random) -> Host | None: ...

    @abstractmethod
    def _others(self, host: Host) -> list[Host]: ...

    @abstractmethod
    def _power_may_fail(self, host: Host) -> bool: ...

    @abstractmethod
    def _restart(self, host: Host) -> None: ...

    @abstractmethod
    async def _down(self, hosts: Sequence[Host], duration: float, *, power: bool) -> None: ...

    async def _slow_disk(self, host: Host, duration: float, rng: random.Random) -> None:
        if host.sync_offload is not None:
            host.sync_offload.slowest_s = rng.choice([0.05, 0.2])
        await asyncio.sleep(duration)
        if host.sync_offload is not None:
            host.sync_offload.slowest_s = self._parameters.slowest_s

    async def _stall_disk(self, host: Host, duration: float, rng: random.Random) -> None:
        if host.sync_offload is not None:
            host.sync_offload.stalled_until = self._loop.now + duration

    async def _eio(self, host: Host, duration: float, rng: random.Random) -> None:
        left = rng.choice([1, 2, 4, 8, 20])
        fate = rng.choice(["nothing", "short", "dropped"])
        if fate == "dropped" and not self._power_may_fail(host):
            fate = "nothing"
        once = rng.random() < ONCE  # whoever tries it again finds that it works

        def hook(operation: str, path: Path, size: int) -> None:
            nonlocal left
            left -= 1
            if left > 0 or (once and left < 0):
                return
            self._reports(host)
            if fate == "short" and operation == "write":
                raise ShortWrite(rng.randrange(size + 1))
            if fate == "dropped" and operation == "sync":
                raise DroppedPages
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        await self._hooked(host, hook, duration)

    async def _disk_full(self, host: Host, duration: float, rng: random.Random) -> None:
        states_alone = rng.random() < STATES_ALONE

        def hook(operation: str, path: Path, _size: int) -> None:
            if operation in ("write", "allocate", "create") and (path.name == STATE or not states_alone):
                self._reports(host)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        await self._hooked(host, hook, duration)

    def _reports(self, host: Host) -> None:
        self.faulty[host.name] = host.starts, self._loop.now

    def may_stop_itself(self, host: Host) -> bool:
        """Its disk has reported an error to the process that runs there, a moment ago: none that came later knows."""
        life, at = self.faulty.get(host.name, (0, 0.0))
        return life == host.starts and self._loop.now <= at + HEARD_S

    async def _hooked(self, host: Host, hook: Callable[[str, Path, int], None], duration: float) -> None:
        def saving(operation: str, path: Path) -> None:
            try:
                hook(operation, path, 0)
            except ShortWrite:  # a transaction is all or nothing
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path)) from None

        host.disk.hook, host.state_files.fault = hook, saving
        await asyncio.sleep(duration)
        if host.disk.hook is hook:
            host.disk.hook = None
        if host.state_files.fault is saving:
            host.state_files.fault = None

    def _rots(self, victim: Host) -> None:
        self.damaged.add(victim.name)
        self.rotten.add(victim.name)
        self.struck(victim.name)

    def _forgets(self, victim: Host) -> None:
        self.forgetful.add(victim.name)
        self.may_forget.add(victim.name)
        self.struck(victim.name)

    async def _rot(self, host: Host, duration: float, rng: random.Random) -> None:
        """Bytes of partition logs change while a victim is down; it finds them when it starts."""
        victim = self._victim(rng)
        if victim is None:
            return
        victim.kill(power=False)
        for partition in range(self._parameters.settings.cluster.partitions):
            names = [p for p in victim.disk.paths() if p.parent == victim.path("partitions", str(partition))]
            logs = sorted(p for p in names if p.suffix == ".log")
            indices = [p for p in names if p.suffix == ".idx"]
            for path in [*logs[-1:], *indices]:
                content = victim.disk.stable(path).rstrip(b"\0")
                if len(content) > 64 and rng.random() < 0.7:
                    self._rots(victim)
                    offset = rng.randrange(max(64, len(content) - TAIL_BYTES), len(content))
                    if rng.random() < CUT_SHARE:
                        victim.disk.cut(path, offset)
                    else:
                        victim.disk.flip(path, offset, 1 << rng.randrange(8))
                    self._note(f"  {path} at {offset} of {len(content)}")
        await asyncio.sleep(duration)
        self._restart(victim)

    async def _rot_state(self, host: Host, duration: float, rng: random.Random) -> None:
        """A value that a victim has saved changes while it runs, or is down: whoever reads it next finds it."""
        victim = self._victim(rng)
        if victim is None:
            return
        for partition in rng.sample(self._parameters.kv_partitions, len(self._parameters.kv_partitions)):
            place = victim.name, partition
            if self.states_struck[place] >= STATES_STRUCK_MAX:
                continue
            key = victim.state_files.rot(victim.path("partitions", str(partition), "state"), rng)
            if key is not None:
                self.states_struck[place] += 1
                self.states_rotten.add(victim.name)
                self._note(f"  {victim.name}, partition {partition}: {key!r}")
                return

    async def _lose_sets(self, host: Host, duration: float, rng: random.Random) -> None:
        """A victim comes back without its snapshot sets, or with what cannot be used of them."""
        victim = self._victim(rng)
        if victim is None:
            return
        victim.kill(power=False)
        gone = rng.random() < SETS_GONE
        self._note(f"  {victim.name}: {lose_sets(victim, gone=gone)} are {'gone' if gone else 'damaged'}")
        await asyncio.sleep(duration)
        self._restart(victim)

    async def _rot_journal(self, host: Host, duration: float, rng: random.Random) -> None:
        """A victim's journal, before its last group: what is behind it proves the damage: the node has to rejoin."""
        victim = self._victim(rng)
        if victim is None:
            return
        victim.kill(power=False)
        directory = victim.path("journal")
        files = [p for p in victim.disk.paths() if p.parent == directory]
        segments = [p for p in files if p.suffix == ".journal"]
        for path in rng.sample(segments, min(1, len(segments))):
            content = victim.disk.stable(path)
            end = _proven(content)
            if end > JOURNAL_HEADER_BYTES:
                self._forgets(victim)
                offset = rng.randrange(JOURNAL_HEADER_BYTES, end)
                victim.disk.flip(path, offset, 1 << rng.randrange(8))
                self._note(f"  {path} at {offset} of {end}")
        if rng.random() < ELSEWHERE_SHARE:
            self._rot_elsewhere(victim, files, segments, rng)
        await asyncio.sleep(duration)
        self._restart(victim)

    def _rot_elsewhere(self, victim: Host, files: Sequence[Path], segments: Sequence[Path], rng: random.Random) -> None:
        """Its base, a file's first bytes (but for the version: that is another release's), or a whole file."""
        where = rng.choice(["base", "header", "gone", "emptied"])
        chosen = [p for p in files if p.name == "base"] if where == "base" else list(segments)
        if where == "header":
            del chosen[-1:]  # the last one's, damaged in a part, may have been being made
        for path in rng.sample(chosen, min(1, len(chosen))):
            self._forgets(victim)
            self._note(f"  {path}: {where}")
            if where == "gone":
                hook, victim.disk.hook = victim.disk.hook, None
                victim.disk.remove(path)
                victim.disk.sync_directory(path.parent)
                victim.disk.hook = hook
            elif where == "emptied":
                victim.disk.cut(path, 0)
            else:
                size = len(victim.disk.stable(path)) if where == "base" else JOURNAL_HEADER_BYTES
                victim.disk.flip(path, rng.choice([*range(6), *range(8, size)]), 1 << rng.randrange(8))

    async def _lose_disk(self, host: Host, duration: float, rng: random.Random) -> None:
        """A victim comes back with an empty disk. One whom nobody has met could not be told from a new one.

        With luck it is a majority together with those who lag, while whoever has what they lack is away.
        """
        victim = self._victim(rng)
        if victim is None or not all(_has_met(other, victim) for other in self._others(victim)):
            return
        await self._change_disk(victim, victim.lose_disk, duration, rng, rotten=False)

    async def _put_back(self, host: Host, duration: float, rng: random.Random) -> None:
        """A victim's disk becomes what it was, if all others have heard since how far its journal has come.

        What nobody has heard of nobody could tell from what is so.
        """
        victim = self._victim(rng)
        then = None if victim is None or victim.disk.hook is not None else _identity(victim)
        if victim is None or then is None:
            return
        copy, rotten = victim.copy(random.Random(rng.getrandbits(64))), victim.name in self.rotten
        reached = _reached(victim, copy[0])
        if reached is None:
            return
        for _ in range(SINCE_LOOKS):
            await asyncio.sleep(rng.uniform(*SINCE_S))
            if self.over or _identity(victim) != then:
                return
            if all(_heard(other, victim, then[1]) > reached for other in self._others(victim)):
                break
        else:
            return
        self._note(f"  {victim.name} is put back to record {reached} of its journal")
        # Not one that has begun anew since: what is from before that is told so for good.
        await self._change_disk(
            victim,
            lambda: victim.put_back(copy),
            duration,
            rng,
            rotten=rotten,
            still=lambda: _identity(victim) == then,
        )

    async def _change_disk(
        self,
        victim: Host,
        change: Callable[[], None],
        duration: float,
        rng: random.Random,
        *,
        rotten: bool,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        """With luck the victim is a majority together with those who lag, while whoever has what they lack is away.

        ``rotten``: what it has then may be damaged. ``still``: the change makes sense yet, when it comes to that.
        """
        others = self._others(victim)
        late = rng.sample(others, len(others) // 2) if rng.random() < LATE_SHARE else []
        lines = [
            line for a in late for b in self._all if b not in late for line in ((a.name, b.name), (b.name, a.name))
        ]
        for line in lines:
            self._network.cut(*line)
        await asyncio.sleep(rng.uniform(*LATE_S) if late else 0.0)
        if self.over or not still():  # who were killed now would not be started again
            for line in lines:
                self._network.heal(*line)
            return
        self.change_at_once(victim, change, rotten=rotten)
        away = [h for h in others if h not in late] if late else []
        for each in away:
            each.kill(power=False)
        for line in lines:
            self._network.heal(*line)
        await asyncio.sleep(duration * (0.1 if late else 1.0))
        self._restart(victim)
        await asyncio.sleep(rng.uniform(*ALONE_S) if late else 0.0)
        for each in away:
            self._restart(each)

    def change_at_once(self, victim: Host, change: Callable[[], None], *, rotten: bool = False) -> None:
        """It is down then."""
        self.damaged.add(victim.name)
        self._forgets(victim)
        change()
        if not rotten:
            self.rotten.discard(victim.name)
        self.disk_lost(victim)

    async def _misdirect(self, host: Host, duration: float, rng: random.Random) -> None:
        """A victim's disk loses or misplaces one write of a partition log, and says nothing; then its power fails."""
        victim = self._victim(rng)
        if victim is None:
            return
        lost = rng.random() < 0.5
        done = False

        def fault(path: Path, offset: int, _size: int) -> WriteFate | None:
            nonlocal done
            if done or path.suffix != ".log":
                return None
            done = True
            self._rots(victim)
            return LOST if lost else misdirect(offset + 4096)

        victim.disk.write_fault = fault
        await asyncio.sleep(max(duration, 0.3))
        if victim.disk.write_fault is fault:
            victim.disk.write_fault = None
        await self._down([victim], duration, power=True)


def lose_sets(host: Host, *, gone: bool) -> list[str]:
    """Of one that is down; the files. ``gone``: they are not there any more; else nothing can be made of them."""
    directory = host.path("snapshots")
    paths = [path for path in host.disk.paths() if path.parent == directory and path.suffix in SET_FILES]
    hook, host.disk.hook = host.disk.hook, None
    for path in paths:
        if gone:
            host.disk.remove(path)
        elif path.suffix == ".set":
            host.disk.cut(path, 0)
    if gone and paths:
        host.disk.sync_directory(directory)
    host.disk.hook = hook
    return [path.name for path in paths]


def _decoded(host: Host, name: str, read: Callable[..., T]) -> T | None:
    """A file of its data directory, as it would be after a power loss."""
    path = host.path(name)
    raw = host.disk.stable(path) if path in host.disk.paths() else b""
    return read(raw, path=str(path)) if raw else None


def _identity(host: Host) -> tuple[str | None, bytes] | None:
    """Its lineage, and its directory's id; None: it has none yet, or has forgotten."""
    manifest, directories = _decoded(host, MANIFEST, decode_manifest), _decoded(host, DIRECTORIES, decode)
    if manifest is None or directories is None or host.path(REJOIN) in host.disk.paths():
        return None
    return manifest.lineage, directories[0]


def _reached(host: Host, disk: SimDisk) -> int | None:
    """How far the journal on a copy of its disk is; None: it is damaged."""
    try:
        journal = Journal.open(
            disk=disk.twin(),
            directory=host.path("journal"),
            cluster_id=host.settings.cluster.id,
            random_bytes=random.Random(0).randbytes,
        )
    except CorruptData:
        return None
    return journal.found_sequence


def _heard(host: Host, other: Host, directory: bytes) -> int:
    """How far it knows the other one's journal to have been, whatever befalls it."""
    mark = (_decoded(host, HEARD, decode_heard) or {}).get(NodeId(other.name))
    return mark.sequence if mark is not None and mark.directory == directory else -1


def _has_met(host: Host, other: Host) -> bool:
    """It knows which disk the other one has, whatever befalls it."""
    files = [(each, each.path(DIRECTORIES)) for each in (host, other)]
    if not all(path in each.disk.paths() and each.disk.stable(path) for each, path in files):
        return False
    (_, met), (own, _) = (decode(each.disk.stable(path), path=str(path)) for each, path in files)
    return met.get(NodeId(other.name)) == own


def _proven(raw: bytes) -> int:
    """Up to here a journal's file is known to have been synced: damage behind it may look like a torn tail."""
    try:
        header = codec.check_segment_header(raw, cluster=raw[CLUSTER], path="")
    except CorruptData:
        return 0
    records, _ = codec.scan(memoryview(raw), header)
    return max((each.end for each in records if each.sequence <= records[-1].synced), default=0)
