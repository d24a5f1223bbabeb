"""One simulated machine: a disk, state files, clocks, and the node process that comes and goes on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from chaos.sim.disk import SimDisk
from chaos.sim.loop import EPOCH_S, Process, ProcessDied, SimLoop
from chaos.sim.network import WINDOW_BYTES, SimNetwork
from chaos.sim.port import SimPort
from chaos.sim.state_file import StateFiles
from dispatcher.upkeep.installing import InstallDue
from logboom.settings import Member, Settings
from server.directory.rejoin import RejoinDue
from server.main import ANEW
from server.node import Node
from server.world.connection_os import Reading
from server.world.net_os import AsyncioNetwork
from server.world.world import World

T = TypeVar("T")

READING: Final = Reading(shared_bytes=WINDOW_BYTES, place_bytes=512)
"""A write arrives in one piece, but for frames that are read into their place: more of them than on real machines."""
WALL_EPOCH_MS: Final = 1_800_000_000_000
OPENS_S = CLOSES_S = 0.01
MOVES_BY: Final = 2
"""Ports: one is for nodes, one for clients."""


class NotClosed(Exception):
    """A node that was stopped in order has not come to its end in time, or has left something open."""


class SimClock:
    """Monotonic time is the loop's; the wall clock may be wrong by ``skew_ms``."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def monotonic(self) -> float:
        return self._loop.now

    def wall_ms(self) -> int:
        return WALL_EPOCH_MS + int((self._loop.now - EPOCH_S) * 1000) + self.skew_ms


class SimOffload:
    """Jobs take virtual time: they happen in the middle of it, and are heard of at its end."""

    def __init__(self, loop: SimLoop, rng: random.Random, *, slowest_s: float) -> None:
        self._loop, self._rng = loop, rng
        self.slowest_s = slowest_s
        self.stalled_until = 0.0
        """Nothing is done before (a disk that hangs)."""
        self.held: Callable[[Any], bool] = lambda _: False
        """Jobs that do not return before they are released."""
        self._waiting: list[Callable[[], None]] = []
        self._under_way = 0
        self._closed = False

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        if self._closed:
            raise RuntimeError("a job for threads that have ended")  # as their pool says
        if self.held(job):
            self._waiting.append(lambda: self.submit(job, done))
            return
        self._under_way += 1
        delay = 0.0001 + self._rng.random() ** 3 * self.slowest_s
        start = max(0.0, self.stalled_until - self._loop.now)
        self._loop.call_later(start + delay / 2, self._run, job, done, delay / 2)

    def _run(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None], rest: float) -> None:
        try:
            result, error = job(), None
        except Exception as caught:  # noqa: BLE001 - handed over, as the port says
            result, error = None, caught
        self._under_way -= 1
        self._loop.call_later(rest, done, result, error)

    def release(self) -> None:
        """Go on with what was held."""
        waiting, self._waiting = self._waiting, []
        for submit in waiting:
            submit()

    async def run(self, job: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if answer.cancelled():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        self.submit(job, done)
        return await answer

    async def close(self) -> None:
        """Wait for the jobs under way: none is taken any more."""
        self._closed = True
        while self._under_way:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(CLOSES_S)


class Host:
    """A machine by name. ``ended`` is told why its node stopped itself."""

    def __init__(
        self,
        name: str,
        *,
        loop: SimLoop,
        network: SimNetwork,
        rng: random.Random,
        settings: Settings,
        slowest_s: float,
        ended: Callable[[Host, BaseException], None],
        started: Callable[[Host], None],
        orderly: bool = False,
    ) -> None:
        """``orderly``: what must stop its node is heard of a turn later, and it closes before it begins anew, as
        server.main has it. Else it is gone there and then."""
        self.name = name
        self.loop, self.network, self.rng = loop, network, rng
        self.settings = settings
        self.disk = SimDisk(random.Random(rng.getrandbits(64)))
        self.state_files = StateFiles(random.Random(rng.getrandbits(64)))
        self.disk.moved = self.state_files.moved
        self.clock = SimClock(loop)
        self.slowest_s = slowest_s
        self._takes: Callable[[], float] | None = None
        """Seconds that each piece of code takes here; None: no time."""
        self.process: Process | None = None
        self.node: Node | None = None
        self.sync_offload: SimOffload | None = None
        self.apply_offload: SimOffload | None = None
        self.starts = 0
        self.may_run = True
        """False: stays down, whoever wants it up."""
        self.wanted = True
        """It may run again at the end."""
        self.retired = False
        """Switched off for good: no faults, no checks."""
        self._ended, self._started = ended, started
        self._orderly = orderly
        self._opened = self.closing = False
        self.stops = 0
        """That it was asked for, and that came to their end."""

    # -- life

    @property
    def up(self) -> bool:
        """A process runs here (it may stand still)."""
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Boot the node, unless it runs or must not."""
        if self.up or not self.may_run:
            return
        self.starts += 1
        self.process = self.loop.process(self.name)
        self.process.takes = self._takes
        self.loop.spawn(self.process, self._boot(self.process))

    def slow_down(self, takes: Callable[[], float] | None) -> None:
        """From now on each piece of code takes so many seconds here, whatever process runs; None: no time."""
        self._takes = takes
        if self.process is not None:
            self.process.takes = takes

    async def _boot(self, process: Process) -> None:
        def fatal(error: BaseException) -> None:
            if self._orderly:
                self.loop.run_as(process, self._hear, process, error)
                return
            self.exit(process, error)
            raise ProcessDied

        rng = random.Random(self.rng.getrandbits(64))
        self.sync_offload = SimOffload(self.loop, rng, slowest_s=self.slowest_s)
        self.apply_offload = SimOffload(self.loop, rng, slowest_s=self.slowest_s)
        world = World(
            clock=self.clock,
            rng=rng,
            disk=self.disk,
            network=AsyncioNetwork(clock=self.clock, on_fatal=fatal, reading=READING, port=SimPort),
            sync_offload=self.sync_offload,
            apply_offload=self.apply_offload,
            save_offload=SimOffload(self.loop, rng, slowest_s=self.slowest_s),
            slow_offload=SimOffload(self.loop, rng, slowest_s=self.slowest_s),
            sleep=lambda _: None,
            open_state_file=self.state_files.open,
            resident_bytes=lambda: 0,
        )
        try:
            node = Node(self.settings, fatal=fatal, world=world)
            self.node = node
            self._started(self)
            await node.start()
            self._opened = True
        except Exception as error:  # noqa: BLE001 - as the process's main does: it ends, and says why
            self.exit(process, error)

    def exit(self, process: Process, error: BaseException) -> None:
        """The process ends itself."""
        if process.alive:
            self.kill(power=False)
            self._ended(self, error)

    def kill(self, *, power: bool) -> None:
        """kill -9, or the plug is pulled: what was not synced may be gone."""
        if self.process is None or not self.process.alive:
            return
        process = self.process
        self.loop.kill(process)
        self.network.process_ended(process, silently=power)
        self.node = None
        self._opened = self.closing = False
        self.sync_offload = self.apply_offload = None
        if power:
            self.disk.power_loss()
        else:
            self.disk.kill()
        self.state_files.crash(power=power)

    # -- stopping in order

    @property
    def serving(self) -> bool:
        """Its node runs, and has not been asked to stop."""
        return self.up and self._opened and not self.closing

    def stop(self) -> None:
        """As SIGTERM: it hands over, closes everything, and ends."""
        if self.process is not None and self.serving:
            self.closing = True
            self.loop.spawn(self.process, self._close(self.process, None))

    def _hear(self, process: Process, error: BaseException) -> None:
        """What must stop it; what was about to run has run meanwhile."""
        if isinstance(error, InstallDue | RejoinDue):
            if not self.closing:
                self.closing = True
                self.loop.spawn(process, self._close(process, error))
        else:
            self.exit(process, error)

    async def _close(self, process: Process, reason: BaseException | None) -> None:
        while not self._opened:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(OPENS_S)
        node = self.node
        if node is None:
            return
        most_s = self.settings.node.stop_ms / 1000 * (1 if reason is None else ANEW)
        try:
            if reason is None:
                await node.hand_over()
            self.node = None  # nobody looks into what is being closed
            late = NotClosed(f"{self.name} was not closed within {most_s:.0f} s")
            self.loop.call_later(most_s, self.exit, process, late)
            await node.close()
        except Exception as error:  # noqa: BLE001 - as in _boot
            self.exit(process, error)
            return
        left = [*self.disk.still_open(), *self.state_files.still_open()]
        if left:
            reason = NotClosed(f"{self.name} is closed, and has open: {', '.join(left)}")
        if reason is not None:
            self.exit(process, reason)
        else:
            self.stops += 1
            self.kill(power=False)

    def switch_off(self) -> None:
        """Nothing runs, and the machine is without power: what was not synced may be gone."""
        self.disk.power_loss()
        self.state_files.crash(power=True)

    def retire(self) -> None:
        """Nobody starts it again."""
        self.kill(power=False)
        self.may_run = self.wanted = False
        self.retired = True

    def lose_disk(self) -> None:
        """The machine stops, and another disk is in it, an empty one."""
        self.kill(power=True)
        self._have(
            SimDisk(random.Random(self.rng.getrandbits(64))), StateFiles(random.Random(self.rng.getrandbits(64)))
        )

    def copy(self, rng: random.Random) -> tuple[SimDisk, StateFiles]:
        """Of its disk: what a power loss would leave at the worst. Put into a machine once at most."""
        return SimDisk.of(self.disk.twin().image(), rng), self.state_files.copy(rng)

    def put_back(self, copy: tuple[SimDisk, StateFiles]) -> None:
        """The machine stops, and its disk is what it was."""
        self.kill(power=False)
        self._have(*copy)

    def _have(self, disk: SimDisk, state_files: StateFiles) -> None:
        self.disk, self.state_files = disk, state_files
        self.disk.moved = self.state_files.moved

    def move(self) -> None:
        """The machine stops, and has other addresses from now on: its own file says so, the others' do not."""
        self.kill(power=False)
        there, cluster = elsewhere(self.member), self.settings.cluster
        members = tuple(there if each.id == self.name else each for each in cluster.members)
        cluster = msgspec.structs.replace(cluster, members=members)
        self.settings = msgspec.structs.replace(self.settings, cluster=cluster)

    @property
    def member(self) -> Member:
        """Its addresses."""
        return next(each for each in self.settings.cluster.members if each.id == self.name)

    def path(self, *parts: str) -> Path:
        """Below its data directory."""
        return Path(self.settings.node.data_dir, *parts)


def elsewhere(member: Member) -> Member:
    """Where a machine is once it has moved."""

    def moved(address: str) -> str:
        host, _, port = address.rpartition(":")
        return f"{host}:{int(port) + MOVES_BY}"

    return Member(id=member.id, peer_address=moved(member.peer_address), client_address=moved(member.client_address))
