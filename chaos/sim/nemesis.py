"""The faults: what each kind does to the simulated world, and how it is undone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from chaos.sim.disk_faults import DiskFaults
from chaos.sim.drawn_faults import FOLLOWER, LEADER, Fault
from chaos.sim.host import Host
from chaos.sim.lag import LONGER_S, SlowWorkers
from chaos.sim.loop import ProcessDied, SimLoop
from chaos.sim.network import SimNetwork
from chaos.sim.parameters import Parameters
from logboom.types import KIB

RESTART_S: Final = (0.05, 2.0)
SKEW_MS: Final = 3_600_000
CONFIDE_S: Final = 0.3
THIN_BYTES: Final = (512, 2 * KIB, 8 * KIB)
"""In the time that a leader's silence is borne: a batch has some hundred bytes, with others up to 8 KiB."""
HALF_BACK_S, HALF_BACK_LOOKS = 3.0, 100
ALL_SLOW: Final = 0.5
"""Share of the scarce processors that all hosts have: they are on one machine."""
CALLBACK_S: Final = (0.0001, 0.0005, 0.002)
"""So long a piece of code takes on the average,"""
PAUSE_SHARE: Final = (0.0, 0.001, 0.01)
"""and one in so many,"""
PAUSE_S: Final = (0.01, 0.3)
"""as something else has the processor, so long."""


class Nemesis(DiskFaults):
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
        self._all = hosts
        self._network = network
        self._loop = loop
        self._note = note
        self._replace_client = replace_client
        self.injected: Counter[str] = Counter()
        self.faulty: dict[str, tuple[int, float]] = {}
        """Hosts whose disk has reported an error: in which life of their node, and when the last time."""
        self.damaged: set[str] = set()
        """Hosts whose files were damaged behind their back, or replaced: what they had promised may be gone."""
        self.rotten: set[str] = set()
        """Of them, those whose present partition logs may be damaged: on another disk nothing is."""
        self.forgetful: set[str] = set()
        """Hosts whose journal was: they may not know what they have promised,"""
        self.may_forget: set[str] = set()
        """and those of them that have not begun anew since."""
        self.states_rotten: set[str] = set()
        """Hosts with values that were damaged in what they have saved of states, and may be yet."""
        self.states_struck: Counter[tuple[str, int]] = Counter()
        """How often that was, by host and partition."""
        self.disk_lost: Callable[[Host], None] = lambda _: None
        """Told when a host has another disk, an empty one,"""
        self.struck: Callable[[str], None] = lambda _: None
        """and when data of a host are damaged, by its name."""
        self.victims = [hosts[k].name for k in sorted(parameters.victims)]
        """The minority whose data may be damaged."""
        self.over = False
        self._striking: set[asyncio.Task[None]] = set()
        self._slow = SlowWorkers(loop)

    @property
    def _hosts(self) -> list[Host]:
        return [host for host in self._all if not host.retired]

    async def play(self, faults: Sequence[Fault]) -> None:
        """All faults, each beginning at its time, whatever the others do."""
        started = self._loop.now
        for fault in faults:
            await asyncio.sleep(max(0.0, started + fault.at - self._loop.now))
            self._begin(self._inject(fault))

    def _begin(self, striking: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(striking)
        self._striking.add(task)
        task.add_done_callback(self._injected)

    async def ended(self) -> None:
        """Every fault is, that has begun."""
        while self._striking:
            await asyncio.wait(self._striking)

    def _injected(self, task: asyncio.Task[None]) -> None:
        self._striking.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "a fault failed", "exception": task.exception()})

    async def _inject(self, fault: Fault) -> None:
        rng = random.Random(fault.dice)
        await self._act(fault.kind, self._target(fault.node, rng), fault.duration, rng)

    def strike(self, kind: str, host: Host | None, duration: float, rng: random.Random, *, after: float) -> None:
        """A fault that is not in the schedule, in a moment. None: on whoever leads then."""

        async def strike() -> None:
            await asyncio.sleep(after)
            if not self.over:
                await self._act(kind, host or self._target(LEADER, rng), duration, rng)

        self._begin(strike())

    async def _act(self, kind: str, host: Host, duration: float, rng: random.Random) -> None:
        act = getattr(self, f"_{kind}")
        self.injected[kind] += 1
        self._note(f"fault {kind} on {host.name} for {duration:.2f} s")
        await act(host, duration, rng)

    def _target(self, node: int, rng: random.Random) -> Host:
        hosts = self._hosts
        if node not in (LEADER, FOLLOWER):
            return hosts[node % len(hosts)]
        leading = [h for h in hosts if h.node is not None and h.node.pipeline.raft.engine.is_leader]
        if node == LEADER and leading:
            return leading[-1]
        return rng.choice([h for h in hosts if h not in leading] or list(hosts))

    def _others(self, host: Host) -> list[Host]:
        return [h for h in self._hosts if h is not host]

    def _victims(self) -> list[Host]:
        return [host for name in self.victims for host in self._hosts if host.name == name]

    def _victim(self, rng: random.Random) -> Host | None:
        victims = self._victims()
        return rng.choice(victims) if victims else None  # there is none while a lost disk is made up for

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

    async def blackout(self, hosts: Sequence[Host], duration: float) -> None:
        """Whatever the partitions promise."""
        self.injected["blackout"] += 1
        await self._down(hosts, duration, power=True)

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
        other = rng.choice(self._others(host) or [host])
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
        behind = rng.choice([h for h in self._others(host) if not _leads(h)] or self._others(host) or [host])
        lines = [line for other in self._others(behind) for line in _both(behind, other)]
        gone = asyncio.ensure_future(self._cut(lines, duration, rng))
        await asyncio.sleep(duration * rng.uniform(0.7, 1.0))
        leader = self._target(LEADER, rng)
        if leader is not behind:
            power = rng.random() < 0.5 and self._power_may_fail(leader)
            await self._down([leader], rng.uniform(*RESTART_S), power=power)
        await gone

    async def _confide(self, host: Host, duration: float, rng: random.Random) -> None:
        """The leader reaches this one alone for a moment, and goes: who leads next may know what nobody else does."""
        leader = self._target(LEADER, rng)
        lines = [line for other in self._others(leader) if other is not host for line in _both(leader, other)]
        for src, dst in lines:
            self._network.cut(src, dst)
        await asyncio.sleep(CONFIDE_S)
        await self._down([leader], duration, power=False)
        for src, dst in lines:
            self._network.heal(src, dst)

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

    async def _thin_lines(self, host: Host, duration: float, rng: random.Random) -> None:
        """All lines between nodes, or those of one, take longer for what is written than anybody bears a silence."""
        hosts = self._hosts if rng.random() < 0.5 else [host]
        election_s = self._parameters.settings.raft.election_min_ms / 1000
        rate = rng.choice(THIN_BYTES) / election_s
        lines = [line for each in hosts for other in self._others(each) for line in _both(each, other)]
        for line in lines:
            self._network.thin[line] = rate
        await asyncio.sleep(duration)
        for line in lines:
            self._network.thin.pop(line, None)

    async def _lossy_link(self, host: Host, duration: float, rng: random.Random) -> None:
        lines = [line for other in self._others(host) for line in _both(host, other)]
        for line in lines:
            self._network.lossy[line] = rng.choice([0.02, 0.1, 0.3])
        await asyncio.sleep(duration)
        for line in lines:
            self._network.lossy.pop(line, None)

    async def _client_lines(self, host: Host, duration: float, rng: random.Random) -> None:
        """Lines of one node, or of all, to some of those who are no nodes: silent, one way or both, slow, or lossy."""
        hosts = self._hosts if rng.random() < 0.5 else [host]
        ours, nodes = {each.name for each in hosts}, self._network.nodes
        out = {(end.out.src, end.out.dst) for end in self._network.ends if end.out.src in ours}
        pairs = [line for line in sorted(out) if line[1] not in nodes and rng.random() < 0.7]
        what, ways = rng.choice(["cut", "cut", "slow", "lossy"]), rng.choice(["there", "back", "both"])
        lines = [pair for pair in pairs if ways != "there"] + [(b, a) for a, b in pairs if ways != "back"]
        if what == "cut":
            await self._cut(lines, duration, rng)
            return
        bad = self._network.slow if what == "slow" else self._network.lossy
        bad.update((line, rng.choice([0.02, 0.1, 0.5])) for line in lines)
        await asyncio.sleep(duration)
        for line in lines:
            bad.pop(line, None)

    async def _reset(self, host: Host, duration: float, rng: random.Random) -> None:
        names = [h.name for h in self._others(host)] + [f"c{k}" for k in range(1, self._parameters.clients + 1)]
        for name in names:
            if rng.random() < 0.6:
                self._network.reset(host.name, name, both_know=rng.random() < 0.5)

    # -- the rest

    async def _slow_cpu(self, host: Host, duration: float, rng: random.Random) -> None:
        """Code takes time, on a host or on all: what comes from timers, lines and disks comes in between."""
        hosts = self._hosts if rng.random() < ALL_SLOW else [host]
        mean_s, share, dice = rng.choice(CALLBACK_S), rng.choice(PAUSE_SHARE), random.Random(rng.getrandbits(64))

        def takes() -> float:
            return dice.uniform(*PAUSE_S) if dice.random() < share else dice.expovariate(1 / mean_s)

        for each in hosts:
            each.slow_down(takes)
        await asyncio.sleep(duration)
        for each in hosts:
            each.slow_down(None)

    async def _clock_jump(self, host: Host, duration: float, rng: random.Random) -> None:
        host.clock.skew_ms = rng.randint(-SKEW_MS, SKEW_MS)

    async def _client_dies(self, host: Host, duration: float, rng: random.Random) -> None:
        self._replace_client(rng.randrange(self._parameters.clients))

    async def _pause_partition(self, host: Host, duration: float, rng: random.Random) -> None:
        node = host.node
        if node is None or not node.pipeline.workers:
            return
        worker = rng.choice(list(node.pipeline.workers.values()))
        worker.pause()
        await asyncio.sleep(duration)
        if host.node is node:
            self._loop.run_as(host.process, worker.resume)

    async def _slow_apply(self, host: Host, duration: float, rng: random.Random, *, stalled: bool = False) -> None:
        duration += rng.choice(LONGER_S)
        workers = self._slow.slow(host, rng, stalled_s=duration if stalled else 0.0)
        await asyncio.sleep(duration)
        self._slow.restore(workers)

    async def _stall_apply(self, host: Host, duration: float, rng: random.Random) -> None:
        await self._slow_apply(host, duration, rng, stalled=True)

    # -- the end

    def heal(self) -> None:
        """Everything that was broken works again."""
        self.over = True
        self._network.cuts.clear()
        self._network.slow.clear()
        self._network.lossy.clear()
        self._network.thin.clear()
        self._network.heal()
        self._slow.restore_all()
        for host in self._hosts:
            host.disk.hook = None
            host.disk.write_fault = None
            host.slow_down(None)
            host.state_files.fault = None
            if host.process is not None and host.process.stopped:
                self._loop.continue_process(host.process)
            if host.sync_offload is not None:
                host.sync_offload.slowest_s = self._parameters.slowest_s
                host.sync_offload.stalled_until = 0.0
        self.resume()

    def resume(self) -> None:
        """Nobody is paused: neither by who has gone since, nor by what he sent and comes only now.

        But for a partition that has given up by itself: nobody would come for that.
        """
        for host in self._hosts:
            if host.node is not None:
                for worker in host.node.pipeline.workers.values():
                    if worker.state == "paused" and not worker._cursor.gave_up:  # noqa: SLF001
                        self._loop.run_as(host.process, worker.resume)


def _leads(host: Host) -> bool:
    return host.node is not None and host.node.pipeline.raft.engine.is_leader


def _both(a: Host, b: Host) -> list[tuple[str, str]]:
    return [(a.name, b.name), (b.name, a.name)]
