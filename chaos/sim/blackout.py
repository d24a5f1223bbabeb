"""All nodes lose power at once although some partitions are written behind; then an operator who declares void what
nobody has any more. What such partitions forget is expected; that all nodes forget the same is not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from logboom.errors import LogboomError
from logboom.types import DurabilityMode, PartitionId

LOOK_S: Final = 0.25
DARK_S: Final = 0.4
ASKED_S: Final = 2.0
PREY_S, PREY_LOOKS = 0.001, 4000
LATE: Final = 0.5
"""Share of the blackouts in which one host starts later than the others,"""
LATE_S: Final = (1.0, 4.0)
"""by so much: whoever asks is not answered by all, and what it has turns up."""
WAITS_S: Final = (0.0, 0.0, 4.0, 12.0)
"""Until the operator comes."""
KILLED: Final = 0.5
"""Share of what he asks for that the leader does not live to do,"""
KILLED_MAX: Final = 4
"""at most so often,"""
KILLED_S: Final = 0.05
"""so soon,"""
BACK_S: Final = 0.3
"""and how long it is gone."""
GIVES_UP_S: Final = (0.0, 16.0)
"""Then he asks again, so much later."""
CUT_S: Final = 1.0


class Blackout:
    """One of a run. ``forget``: what was promised of these partitions holds no more."""

    def __init__(
        self,
        hosts: Sequence[Host],
        loop: SimLoop,
        *,
        down: Callable[[Sequence[Host], float], Awaitable[None]],
        forget: Callable[[set[int]], None],
        note: Callable[[str], None],
        rng: random.Random,
    ) -> None:
        self._hosts = hosts
        self._loop = loop
        self._down = down
        self._forget = forget
        self._note = note
        self._rng = rng
        self._late: Host | None = None
        """Starts later than the others."""
        self._kills = 0
        self._over = False
        """Nobody is killed any more, or comes late."""
        self.voids = 0
        """Batches that were declared void."""

    async def play(self, at: float) -> None:
        """Until the run ends."""
        await asyncio.sleep(at)
        behind = {
            int(partition)
            for host in self._hosts
            if host.node is not None
            for partition, store in host.node.logs.items()
            if store.mode is DurabilityMode.WRITE_BEHIND
        }
        await self._wait_for_prey(behind)
        for host in self._hosts:
            host.disk.forgets = True  # until the lights are on again
        self._forget(behind)
        self._note(f"blackout; partitions {sorted(behind)} may forget")
        if self._rng.random() < LATE:
            self._late = self._rng.choice(self._hosts)
            self._late.may_run = False
        await self._down(self._hosts, DARK_S)
        for host in self._hosts:
            host.disk.forgets = False
        late = asyncio.ensure_future(self._come_late(self._rng.uniform(*LATE_S)))
        try:
            await self._wait(self._rng.choice(WAITS_S))
            await self._work()
        finally:
            late.cancel()

    async def _come_late(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._all_start()

    def _all_start(self) -> None:
        if self._late is not None:
            self._note(f"{self._late.name} has power, too")
            self._late.may_run = True
            self._late.start()
            self._late = None

    async def _wait(self, seconds: float) -> None:
        """Nobody comes yet. Snapshots are taken meanwhile, and one node starts again, in the middle of the loss."""
        if not seconds:
            return
        for part_s in (seconds / 2, seconds / 2 - CUT_S, CUT_S):
            await self._sleep(part_s)
            for host in self._hosts:
                self._cut(host)
        await self._kill(self._rng.choice(self._hosts), 0.0)

    async def _sleep(self, seconds: float) -> None:
        until = self._loop.now + seconds
        while self._loop.now < until and not self._over:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(min(LOOK_S, until - self._loop.now))

    def _cut(self, host: Host) -> None:
        """A snapshot, if it leads."""
        node, process = host.node, host.process
        if node is None or process is None or not node.pipeline.raft.admits:
            return

        async def ask(backend: Any) -> None:
            try:
                backend.snapshots.taking.create(lambda _: None)
            except LogboomError as error:
                self._note(f"{host.name}: no snapshot: {error.message}")

        self._loop.spawn(process, ask(node.pipeline))

    async def _kill(self, host: Host, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self._over or not host.up:
            return
        self._note(f"{host.name} is killed while the operator is at work")
        host.kill(power=False)
        await asyncio.sleep(BACK_S)
        host.start()

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for host in self._hosts:
                await self._operate(host)

    async def _wait_for_prey(self, behind: set[int]) -> None:
        """A moment at which all nodes have something of one partition that no disk has: not for ever."""
        for _ in range(PREY_LOOKS):
            for partition in behind:
                logs: list[Any] = [h.node.logs.get(PartitionId(partition)) for h in self._hosts if h.node is not None]
                if len(logs) == len(self._hosts) and all(each is not None and _is_behind(each) for each in logs):
                    return
            await asyncio.sleep(PREY_S)

    async def _operate(self, host: Host) -> None:
        """At the leader, if this is it: the oldest hole first."""
        node, process = host.node, host.process
        if node is None or process is None or not node.pipeline.raft.admits:
            return
        rows = [row for row in node.pipeline.voiding.rows(1 << 30) if row[3] is not None]
        if not rows:
            return
        partition, index = rows[0][:2]
        ended: asyncio.Future[None] = self._loop.create_future()

        async def ask(backend: Any) -> None:
            try:
                deadline = backend.clock.monotonic() + ASKED_S
                await backend.voiding.void(partition, index, yes=True, deadline=deadline)
                self.voids += 1
            except LogboomError as error:
                self._note(f"{host.name}: partition {partition}, {index}: {error.message}")
            self._loop.run_as(None, lambda: None if ended.done() else ended.set_result(None))

        self._loop.spawn(process, ask(node.pipeline))
        if self._kills < KILLED_MAX and self._rng.random() < KILLED:
            self._kills += 1
            await self._kill(host, self._rng.uniform(0.0, KILLED_S))
            await self._sleep(self._rng.choice(GIVES_UP_S))
            return
        await asyncio.wait([ended], timeout=2 * ASKED_S)

    async def settled(self) -> None:
        """All nodes run, and nothing is lost any more."""
        self._over = True
        self._all_start()
        while not all(map(_is_whole, self._hosts)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


def _is_behind(store: Any) -> bool:
    return bool(store._written_order > store._synced_order)  # noqa: SLF001 - an observer


def _is_whole(host: Host) -> bool:
    if host.node is None:
        return False
    backend = host.node.pipeline
    return not backend.raft.repair.active and backend.voiding.set_needed() is None and backend.recovered()
