"""When all is quiet the nodes still do what is asked for seldom: snapshots, compaction, every way to wait, all reads.

Who writes notices nothing of it if they do not: logs only grow, until some day there is no room.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from chaos.sim.parameters import Parameters
from dispatcher.barriers.frontiers import LEVELS
from dispatcher.pipeline.backend import Backend
from logboom import Client
from logboom.errors import DeadlineExceeded, Unavailable
from logboom.types import Scope
from snapshots.meta import SetMeta

CHORES: Final = "chores"
DICE: Final = 0xC402E5
ASKED_S: Final = 5.0
"""For a snapshot: it is asked for again where it takes longer."""
LOOK_S: Final = 0.25
READ, CURSOR = "chore-read", "of the chores"


class Writes(Protocol):
    """Writes something new to a partition until it is applied; its global index, 0: the partition is gone."""

    def __call__(self, client: Client, partition: int, name: str) -> Awaitable[int]: ...


class Chores:
    """Of one run. ``whole``: nodes that have all there is; ``all_are``: there are no others.

    ``living``: partitions with a state machine that are there to stay.
    """

    def __init__(
        self,
        parameters: Parameters,
        whole: Sequence[Host],
        *,
        all_are: bool,
        loop: SimLoop,
        write: Writes,
        living: Callable[[str], list[int]],
        fail: Callable[[str, str], None],
    ) -> None:
        self._parameters = parameters
        self._whole = whole
        self._all_are = all_are
        self._loop = loop
        self._write = write
        self._living = living
        self._fail = fail
        self._rng = random.Random(parameters.seed ^ DICE)

    async def play(self, timeout: float) -> None:
        """All of them; whoever asks waits so long."""
        done: asyncio.Future[None] = self._loop.create_future()

        async def ask() -> None:
            addresses = [host.member.client_address for host in self._whole]
            async with Client(addresses, rng=self._rng, timeout=timeout, admission_wait=timeout) as client:
                reached = await self._snapshots(client)
                await self._waits(client, reached)
                await self._places(client)
            self._loop.run_as(None, done.set_result, None)  # what follows is nobody's who asks

        if self._whole:
            self._loop.spawn(self._loop.process(CHORES), ask())
            await done

    async def _snapshots(self, client: Client) -> int:
        """Every node takes sets and removes what they make superfluous. The global index of one that all have."""
        first: dict[str, Any] | None = None
        partitions = self._living("kv") + self._living("log")
        if not partitions:
            return 0  # nothing is written any more, and nothing is due
        written = 0
        while True:
            written += 1
            await self._write(client, self._rng.choice(partitions), f"chore-{written}")
            # Of one that came to nothing, as with a partition that was destroyed a moment ago, there is another try.
            with suppress(DeadlineExceeded, Unavailable):
                made = await client.create_snapshot(timeout=ASKED_S)
                first = first or made
            await asyncio.sleep(LOOK_S)
            if first is not None and all(_is_through(host, first) for host in self._whole):
                return int(first["global_index"])

    async def _waits(self, client: Client, reached: int) -> None:
        """A barrier of each level and scope for what all nodes have, and what each says of what was acknowledged."""
        for level, scope in itertools.product(LEVELS, Scope):
            if scope is Scope.NODE:
                for host in self._whole:
                    address = host.member.client_address
                    await client.barrier(reached, level=level.value, scope=scope.value, node=address)
            elif scope is not Scope.ALL or self._all_are:
                await client.barrier(reached, level=level.value, scope=scope.value)

    async def _places(self, client: Client) -> None:
        """Reads of bounded age, at each node; a cursor; and what is set of a partition."""
        for partition in self._living("kv"):
            await self._write(client, partition, READ)
            due = await client.get(partition, READ.encode())
            for host in self._whole:
                where = host.member.client_address
                found = await client.get(partition, READ.encode(), max_staleness=0.0, node=where)
                if found != due:
                    self._fail("BoundedStaleness", f"{READ} of {partition} is {due!r}; {where} says {found!r}")
        if self._parameters.reads_log:
            now = await client.commit_cursor(CURSOR, None, 1)
            if now != 1:
                self._fail("CursorMonotonic", f"{CURSOR} is at {now}: nobody else has moved it")
        partitions = self._living("kv") + self._living("log")
        if self._parameters.sets and partitions:
            partition = self._rng.choice(partitions)
            told = await client.set_partition(partition, ack="applied")
            if told["ack"] != "applied":
                self._fail("SetTold", f"partition {partition} is set to applied: {told}")


def _is_through(host: Host, first: dict[str, Any]) -> bool:
    """It has this set or a later one, takes none, and its journal begins there: or where somebody still fetches one."""
    if host.node is None:
        return False
    backend = host.node.pipeline
    sets = backend.snapshots.store.sets()
    if not sets or sets[-1].global_index < first["global_index"] or backend.snapshots.taking.progress() is not None:
        return False
    due = min([int(first["raft_index"]), *(int(meta.raft_index) for meta in _fetched(backend, sets))])
    return int(backend.raft.journal.base_index) >= due


def _fetched(backend: Backend, sets: Sequence[SetMeta]) -> list[SetMeta]:
    serving: Any = backend.snapshots.serving
    wanted = {*serving._leases, *serving._given.values()}  # noqa: SLF001 - an observer
    return [meta for meta in sets if meta.global_index in wanted]


def standing(backend: Backend) -> str:
    """What a node has taken, and removed."""
    newest, taking = backend.snapshots.store.newest, backend.snapshots.taking.progress()
    return (
        f"set {0 if newest is None else newest.global_index}, journal from {backend.raft.journal.base_index}"
        f"{'' if taking is None else f', takes {taking}'}"
    )
