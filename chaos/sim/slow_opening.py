"""When all is quiet a partition is created whose machine does not open: on the followers, then where it is led from.

A user's machine may read for long before it is open, or never be: its node stores and acknowledges what comes for the
partition all the same, goes on with all others, and the partition can be destroyed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from logboom import Client
from logboom.errors import DeadlineExceeded, Unavailable
from logboom.types import PartitionId

OPENER: Final = "opener"
DICE: Final = 0x510E
SHARE: Final = 0.5
HELD_S: Final = 1.0
"""A creation is waited for so long where its machine does not open."""
LOOK_S: Final = 0.02


class Writes(Protocol):
    """As ``chores.Writes``."""

    def __call__(self, client: Client, partition: int, name: str) -> Awaitable[int]: ...


class SlowOpening:
    """Of the nodes ``hosts``. ``created``, ``doomed``: what the run knows of partitions."""

    def __init__(
        self,
        seed: int,
        hosts: Sequence[Host],
        *,
        loop: SimLoop,
        write: Writes,
        created: dict[int, str],
        doomed: set[int],
    ) -> None:
        self._rng = random.Random(seed ^ DICE)
        self._hosts = hosts
        self._loop = loop
        self._write = write
        self._created = created
        self._doomed = doomed

    @property
    def due(self) -> bool:
        """In some seeds; where a node leads and others follow it."""
        return self._rng.random() < SHARE and len({_leads(host) for host in self._hosts}) > 1

    async def play(self, others: Sequence[int], timeout: float) -> None:
        """``others``: partitions that are there. It ends: what waits for a machine that does not open never would."""
        done: asyncio.Future[None] = self._loop.create_future()

        async def ask() -> None:
            addresses = [host.member.client_address for host in self._hosts]
            async with Client(addresses, rng=self._rng, timeout=timeout, admission_wait=timeout) as client:
                await self._written_unopened(client, others)
                await self._destroyed_unopened(client)
            self._loop.run_as(None, done.set_result, None)  # what follows is nobody's who asks

        self._loop.spawn(self._loop.process(OPENER), ask())
        await done

    async def _written_unopened(self, client: Client, others: Sequence[int]) -> None:
        try:
            self._hold(lambda host: not _leads(host))
            partition = await client.create_partition(state_machine="kv", mode="write_behind")
            self._created[partition] = "kv"
            await self._write(client, partition, "held")
            for other in others:
                await self._write(client, other, "beside-held")
        finally:
            self._release()
        await self._opened(partition)

    async def _destroyed_unopened(self, client: Client) -> None:
        known = set(_created_on(self._hosts))
        try:
            self._hold(_leads)
            with suppress(DeadlineExceeded, Unavailable):
                await client.create_partition(state_machine="kv", timeout=HELD_S)
            for partition in sorted(set(_created_on(self._hosts)) - known):
                self._created[partition] = "kv"
                self._doomed.add(partition)
                await client.destroy_partition(partition)
        finally:
            self._release()

    def _hold(self, whose: Callable[[Host], bool]) -> None:
        """Of those that do, as they stand when a machine is to be opened: leadership may have gone elsewhere."""
        for host in self._hosts:
            offload, node = host.apply_offload, host.node
            if offload is not None and node is not None:
                opens: Any = node.rooms.open
                offload.held = partial(_holds, opens, partial(whose, host))

    def _release(self) -> None:
        for host in self._hosts:
            if host.apply_offload is not None:
                host.apply_offload.held = lambda _: False
                self._loop.run_as(host.process, host.apply_offload.release)

    async def _opened(self, partition: int) -> None:
        """Everywhere, by now."""
        while not all(_is_open(host, partition) for host in self._hosts):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_S)


def _holds(opens: Any, now: Callable[[], bool], job: Any) -> bool:
    return getattr(job, "func", None) == opens and now()


def _leads(host: Host) -> bool:
    return host.node is not None and host.node.pipeline.raft.engine.is_leader


def _is_open(host: Host, partition: int) -> bool:
    return host.node is not None and PartitionId(partition) in host.node.pipeline.workers


def _created_on(hosts: Sequence[Host]) -> list[int]:
    """Partitions that were created, as far as any node knows."""
    return [
        int(partition)
        for host in hosts
        if host.node is not None
        for partition in host.node.pipeline.parent.lifecycle.created
    ]
