"""The faults: what each kind does to the simulated world, and how it is undone."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from chaos.sim.disk import LOST, DroppedPages, ShortWrite, WriteFate, misdirect
from chaos.sim.host import Host
from chaos.sim.loop import ProcessDied, SimLoop
from chaos.sim.network import SimNetwork
from chaos.sim.parameters import FOLLOWER, LEADER, Fault, Parameters

RESTART_S: Final = (0.05, 2.0)
SKEW_MS: Final = 3_600_000
TAIL_BYTES: Final = 4096
"""Bit rot comes near the end of a file, where what counts is."""
CUT_SHARE: Final = 0.2
"""Of the damage: everything from there on is gone."""
HALF_BACK_S, HALF_BACK_LOOKS = 3.0, 100
JOURNAL_TAIL_BYTES: Final = 4096
"""Damage to the last group alone looks like a torn tail."""


class Nemesis:
    """Plays a schedule. ``note`` gets a line per fault."""

    def __init__(
        self,
        parameters: Parameters,
        hosts: Sequence[Host],
        network: SimNetwork,
        loop: SimLoop,
        *,
        note: Callable[[str], None],
        replace_client: Callable[[int], None],
    ) -> None:
        self._parameters = parameters
        self._hosts = hosts
        self._network = network
        self._loop = loop
        self._note = note
        self._replace_client = replace_client
        self.injected: Counter[str] = Counter()
        self.faulty: set[str] = set()
        """Hosts whose disk has reported an error: their node may stop itself."""
        self.damaged: set[str] = set()
        """Hosts whose files were damaged behind their back."""
        self.over = False

    async def play(self, faults: Sequence[Fault]) -> None:
        """All faults, each beginning at its time, whatever the others do."""
        started = self._loop.now
        for fault in faults:
            await asyncio.sleep(max(0.0, started + fault.at - self._loop.now))
            asyncio.ensure_future(self._inject(fault)).add_done_callback(self._injected)

    def _injected(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "a fault failed", "exception": task.exception()})

    async def _inject(self, fault: Fault) -> None:
        rng = random.Random(fault.dice)
        host = self._target(fault.node, rng)
        act = getattr(self, f"_{fault.kind}")
        self.injected[fault.kind] += 1
        self._note(f"fault {fault.kind} on {host.name} for {fault.duration:.2f} s")
        await act(host, fault.duration, rng)

    def _target(self, node: int, rng: random.Random) -> Host:
        hosts = self._hosts
        if node not in (LEADER, FOLLOWER):
            return hosts[node]
        leading = [h for h in hosts if h.node is not None and h.node.pipeline.raft.engine.is_leader]
        if node == LEADER and leading:
            return leading[-1]
        return rng.choice([h for h in hosts if h not in leading] or list(hosts))

    def _others(self, host: Host) -> list[Host]:
        return [h for h in self._hosts if h is not host]

    def _victims(self) -> list[Host]:
        return [self._hosts[k] for k in sorted(self._parameters.victims)]

    def _power_may_fail(self, host: Host) -> bool:
        """Write-behind promises nothing if a majority loses power: then only the victims do."""
        return not self._parameters.write_behind or host in self._victims()

    # -- processes and power

    async def _down(self, hosts: Sequence[Host], duration: float, *, power: bool) -> None:
        if self.over:
            return  # a fault that outlasts the faults: nobody would start them again
        for host in hosts:
            host.kill(power=power)
        await asyncio.sleep(duration)
        for host in hosts:
            self._restart(host)

    def _restart(self, host: Host) -> None:
        if not self.over:
            host.start()

    async def _kill(self, host: Host, duration: float, rng: random.Random) -> None:
        await self._down([host], duration, power=False)

    async def _kill_all(self, host: Host, duration: float, rng: random.Random) -> None:
        await self._down(self._hosts, duration, power=False)

    async def _power(self, host: Host, duration: float, rng: random.Random) -> None:
        await self._down([host], duration, power=self._power_may_fail(host))

    async def _power_all(self, host: Host, duration: float, rng: random.Random) -> None:
        await self._down(self._hosts, duration, power=True)

    async def _die_at_call(self, host: Host, duration: float, rng: random.Random) -> None:
        """Between two system calls, wherever that is."""
        left = rng.choice([1, 2, 3, 5, 10, 30])
        power = rng.random() < 0.7 and self._power_may_fail(host)
        died = self._loop.create_future()

        def hook(operation: str, _path: Path, _size: int) -> None:
            nonlocal left
            left -= operation != "read"
            if left <= 0 and self._loop.current is host.process:
                host.disk.hook = None
                host.kill(power=power)
                if not died.done():  # in our own name: what a dead process does wakes nobody
                    self._loop.run_as(None, died.set_result, None)
                raise ProcessDied

        host.disk.hook = hook
        await asyncio.wait([died], timeout=5.0)
        if host.disk.hook is hook:
            host.disk.hook = None
        await asyncio.sleep(duration)
        self._restart(host)

    async def _stop(self, host: Host, duration: float, rng: random.Random) -> None:
        process = host.process
        if process is not None and process.alive and not process.stopped:
            self._loop.stop_process(process)
            await asyncio.sleep(duration)
            self._loop.continue_process(process)

    # -- network

    async def _cut(self, lines: Sequence[tuple[str, str]], duration: float, rng: random.Random) -> None:
        """What is cut at once comes back one after the other: for a moment everybody sees something else."""
        for src, dst in lines:
            self._network.cut(src, dst)
        await asyncio.sleep(duration)
        lag = rng.choice([0.0, 0.0, 0.1, 0.4])
        for src, dst in rng.sample(lines, len(lines)):
            self._network.heal(src, dst)
            await asyncio.sleep(rng.random() * lag)

    async def _cut_pair(self, host: Host, duration: float, rng: random.Random) -> None:
        other = rng.choice(self._others(host))
        await self._cut([(host.name, other.name), (other.name, host.name)], duration, rng)

    async def _isolate(self, host: Host, duration: float, rng: random.Random) -> None:
        lines = [(a, b) for other in self._others(host) for a, b in _both(host, other)]
        await self._cut(lines, duration, rng)

    async def _one_way(self, host: Host, duration: float, rng: random.Random) -> None:
        out = rng.random() < 0.5
        others = [h for h in self._others(host) if rng.random() < 0.7]
        await self._cut([(host.name, o.name) if out else (o.name, host.name) for o in others], duration, rng)

    async def _ring(self, host: Host, duration: float, rng: random.Random) -> None:
        """Everybody reaches only its neighbours; with three nodes: two who do not reach each other."""
        order = list(self._hosts)
        rng.shuffle(order)
        size = len(order)
        pairs = [
            (a, b)
            for i, a in enumerate(order)
            for j, b in enumerate(order)
            if i < j and (j - i not in (1, size - 1) or (size == 3 and (i, j) == (0, 2)))
        ]
        await self._cut([line for a, b in pairs for line in _both(a, b)], duration, rng)

    async def _left_behind(self, host: Host, duration: float, rng: random.Random) -> None:
        """One hears nothing for a while. When it is back the leader goes: whoever leads next needs its vote."""
        behind = rng.choice([h for h in self._others(host) if not _leads(h)] or self._others(host))
        lines = [line for other in self._others(behind) for line in _both(behind, other)]
        gone = asyncio.ensure_future(self._cut(lines, duration, rng))
        await asyncio.sleep(duration * rng.uniform(0.7, 1.0))
        leader = self._target(LEADER, rng)
        if leader is not behind:
            power = rng.random() < 0.5 and self._power_may_fail(leader)
            await self._down([leader], rng.uniform(*RESTART_S), power=power)
        await gone

    async def _half_back(self, host: Host, duration: float, rng: random.Random) -> None:
        """A leader is alone until there is another; then it reaches everybody but the new one."""
        old = self._target(LEADER, rng)
        others = self._others(old)
        for other in others:
            for src, dst in _both(old, other):
                self._network.cut(src, dst)
        for _ in range(HALF_BACK_LOOKS):
            await asyncio.sleep(HALF_BACK_S / HALF_BACK_LOOKS)
            if any(map(_leads, others)):
                break
        for other in sorted(others, key=_leads):
            if _leads(other):
                await asyncio.sleep(duration)
            for src, dst in _both(old, other):
                self._network.heal(src, dst)

    async def _slow_link(self, host: Host, duration: float, rng: random.Random) -> None:
        lines = [line for other in self._others(host) for line in _both(host, other) if rng.random() < 0.7]
        for line in lines:
            self._network.slow[line] = rng.choice([0.02, 0.1, 0.5])
        await asyncio.sleep(duration)
        for line in lines:
            self._network.slow.pop(line, None)

    async def _lossy_link(self, host: Host, duration: float, rng: random.Random) -> None:
        lines = [line for other in self._others(host) for line in _both(host, other)]
        for line in lines:
            self._network.lossy[line] = rng.choice([0.02, 0.1, 0.3])
        await asyncio.sleep(duration)
        for line in lines:
            self._network.lossy.pop(line, None)

    async def _reset(self, host: Host, duration: float, rng: random.Random) -> None:
        names = [h.name for h in self._others(host)] + [f"c{k}" for k in range(1, self._parameters.clients + 1)]
        for name in names:
            if rng.random() < 0.6:
                self._network.reset(host.name, name, both_know=rng.random() < 0.5)

    # -- disks

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

        def hook(operation: str, path: Path, size: int) -> None:
            nonlocal left
            left -= 1
            if left > 0:
                return
            self.faulty.add(host.name)
            if fate == "short" and operation == "write":
                raise ShortWrite(rng.randrange(size + 1))
            if fate == "dropped" and operation == "sync":
                raise DroppedPages
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        await self._hooked(host, hook, duration)

    async def _disk_full(self, host: Host, duration: float, rng: random.Random) -> None:
        def hook(operation: str, path: Path, _size: int) -> None:
            if operation in ("write", "allocate", "create"):
                self.faulty.add(host.name)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        await self._hooked(host, hook, duration)

    async def _hooked(self, host: Host, hook: Callable[[str, Path, int], None], duration: float) -> None:
        host.disk.hook = hook
        await asyncio.sleep(duration)
        if host.disk.hook is hook:
            host.disk.hook = None

    async def _rot(self, host: Host, duration: float, rng: random.Random) -> None:
        """Bytes of partition logs change while a victim is down; it finds them when it starts."""
        victim = rng.choice(self._victims())
        victim.kill(power=False)
        for partition in range(self._parameters.settings.cluster.partitions):
            names = [p for p in victim.disk.paths() if p.parent == victim.path("partitions", str(partition))]
            logs = sorted(p for p in names if p.suffix == ".log")
            indices = [p for p in names if p.suffix == ".idx"]
            for path in [*logs[-1:], *indices]:
                content = victim.disk.stable(path).rstrip(b"\0")
                if len(content) > 64 and rng.random() < 0.7:
                    self.damaged.add(victim.name)
                    offset = rng.randrange(max(64, len(content) - TAIL_BYTES), len(content))
                    if rng.random() < CUT_SHARE:
                        victim.disk.cut(path, offset)
                    else:
                        victim.disk.flip(path, offset, 1 << rng.randrange(8))
                    self._note(f"  {path} at {offset} of {len(content)}")
        await asyncio.sleep(duration)
        self._restart(victim)

    async def _rot_journal(self, host: Host, duration: float, rng: random.Random) -> None:
        """A victim's journal, far from its end: what is behind it proves the damage, and the node must not start."""
        victim = rng.choice(self._victims())
        victim.kill(power=False)
        directory = victim.path("journal")
        for path in rng.sample([p for p in victim.disk.paths() if p.parent == directory and p.suffix == ".journal"], 1):
            content = victim.disk.stable(path).rstrip(b"\0")
            if len(content) > 2 * JOURNAL_TAIL_BYTES:
                self.damaged.add(victim.name)
                offset = rng.randrange(64, len(content) - JOURNAL_TAIL_BYTES)
                victim.disk.flip(path, offset, 1 << rng.randrange(8))
                self._note(f"  {path} at {offset} of {len(content)}")
        await asyncio.sleep(duration)
        self._restart(victim)

    async def _misdirect(self, host: Host, duration: float, rng: random.Random) -> None:
        """A victim's disk loses or misplaces one write of a partition log, and says nothing; then its power fails."""
        victim = rng.choice(self._victims())
        lost = rng.random() < 0.5
        done = False

        def fault(path: Path, offset: int, _size: int) -> WriteFate | None:
            nonlocal done
            if done or path.suffix != ".log":
                return None
            done = True
            self.damaged.add(victim.name)
            return LOST if lost else misdirect(offset + 4096)

        victim.disk.write_fault = fault
        await asyncio.sleep(max(duration, 0.3))
        if victim.disk.write_fault is fault:
            victim.disk.write_fault = None
        await self._down([victim], duration, power=True)

    # -- the rest

    async def _clock_jump(self, host: Host, duration: float, rng: random.Random) -> None:
        host.clock.skew_ms = rng.randint(-SKEW_MS, SKEW_MS)

    async def _client_dies(self, host: Host, duration: float, rng: random.Random) -> None:
        self._replace_client(rng.randrange(self._parameters.clients))

    async def _pause_partition(self, host: Host, duration: float, rng: random.Random) -> None:
        node = host.node
        if node is None:
            return
        worker = rng.choice(list(node.pipeline.workers.values()))
        worker.pause()
        await asyncio.sleep(duration)
        if host.node is node:
            self._loop.run_as(host.process, worker.resume)

    # -- the end

    def heal(self) -> None:
        """Everything that was broken works again."""
        self.over = True
        self._network.cuts.clear()
        self._network.slow.clear()
        self._network.lossy.clear()
        self._network.heal()
        for host in self._hosts:
            host.disk.hook = None
            host.disk.write_fault = None
            if host.process is not None and host.process.stopped:
                self._loop.continue_process(host.process)
            if host.sync_offload is not None:
                host.sync_offload.slowest_s = self._parameters.slowest_s
                host.sync_offload.stalled_until = 0.0
            if host.node is not None:
                for worker in host.node.pipeline.workers.values():
                    if worker.state == "paused":
                        self._loop.run_as(host.process, worker.resume)


def _leads(host: Host) -> bool:
    return host.node is not None and host.node.pipeline.raft.engine.is_leader


def _both(a: Host, b: Host) -> list[tuple[str, str]]:
    return [(a.name, b.name), (b.name, a.name)]
