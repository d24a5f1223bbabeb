"""When all is quiet, what is done now and then is done, too: snapshots, compaction, waits and reads of every kind."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from chaos.sim.seen import Seen
from logboom import Add, Client, Record
from logboom.errors import LogboomError

ASKER: Final = "quiet"
PATIENCE_S: Final = 5.0
"""A try at something; then the next one."""
LOOK_S: Final = 0.05
CURSOR: Final = "quiet"
SCOPES: Final = ("node", "leader", "quorum", "all")
MACHINES: Final = ("kv", "log")
LEVELS: Final = ("ordered", "durable", "applied", "snapshotted")


class Quiet:
    """Of one run, after all nodes have converged. ``whole``: hosts that run, and whose files are good.

    ``all_there``: those are all members. ``within``: says what is to be done in time, else the run fails.
    """

    def __init__(
        self,
        whole: Sequence[Host],
        *,
        all_there: bool,
        loop: SimLoop,
        seen: Seen,
        within: Callable[..., Awaitable[None]],
    ) -> None:
        self._whole = whole
        self._all_there = all_there
        self._loop = loop
        self._seen = seen
        self._within = within
        self._count = 0
        self._newest = 0
        """Global index of what was written last."""
        self._first: dict[str, Any] = {}
        """The first set of those that were asked for."""
        self._doing = ""

    async def play(self, rng: random.Random) -> None:
        """One after the other."""
        addresses = [host.member.client_address for host in self._whole]
        if not addresses:
            return
        steps: list[tuple[str, Callable[[Client], Coroutine[Any, Any, None]]]] = [
            ("snapshots are taken, and logs compacted", self._snapshots),
            ("barriers of every kind are reached", self._barriers),
            ("every node reads what is new", self._reads),
            ("cursors move", self._cursor),
        ]
        for what, step in steps:
            await self._within(what, self._in_process(addresses, random.Random(rng.getrandbits(64)), step), self._lacks)

    async def _in_process(
        self, addresses: Sequence[str], rng: random.Random, step: Callable[[Client], Coroutine[Any, Any, None]]
    ) -> None:
        process, done = self._loop.process(ASKER), self._loop.create_future()

        async def run() -> None:
            async with Client(list(addresses), rng=rng, timeout=PATIENCE_S, admission_wait=PATIENCE_S) as client:
                await step(client)
            self._loop.run_as(None, done.set_result, None)  # what follows is not this process's

        self._loop.spawn(process, run())
        await done

    def _lacks(self) -> str:
        return f"{self._doing}; {'; '.join(filter(None, map(self._not_snapshotted, self._whole)))}"

    async def _until(self, doing: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """It is done: whoever is refused tries again."""
        self._doing = doing
        while True:
            try:
                return await work()
            except LogboomError as error:
                self._doing = f"{doing}: {error!r}"
                await asyncio.sleep(LOOK_S)

    # -- what is done

    def _living(self, machine: str = "") -> list[int]:
        node = self._whole[0].node
        backend: Any = None if node is None else node.pipeline
        ids = [] if backend is None else sorted(backend.partition_ids())
        machines = {p: backend.partitioning.kind(p).state_machine for p in ids}
        there = [p for p, each in machines.items() if each in MACHINES]
        # The last one stays, even if somebody has asked for its end and never heard what came of it.
        there = [p for p in there if p not in self._seen.doomed] or there
        return [p for p in there if machine in ("", machines[p])]

    async def _write(self, client: Client) -> None:
        """Anywhere, and under a name of its own each time: nobody knows what becomes of one that was refused."""

        async def once() -> None:
            keyed = self._living("kv")
            partition = (keyed or self._living())[0]
            self._count += 1
            name, kv = f"quiet-{self._count}", bool(keyed)
            kind, key, value = ("add", name, 1) if kv else ("append", f"log{partition}", name)
            op = self._seen.history.invoke(0, kind, key, value, partition)
            command = Add(name.encode(), 1) if kv else Record(name.encode())
            try:
                receipt = await client.submit(partition, command, wait="applied")
            except LogboomError as error:
                self._seen.history.end(op, "fail" if error.outcome == "not_applied" else "info", error=error.code)
                raise
            self._seen.history.end(op, "ok", index=receipt.first_index, global_index=receipt.global_index)
            self._newest = receipt.global_index

        await self._until("a write", once)

    async def _snapshots(self, client: Client) -> None:
        """Whoever passed one cut over takes the next; a log is compacted to the set before the last."""
        self._first = {}
        while not self._first or any(map(self._not_snapshotted, self._whole)):
            await self._write(client)
            made = await self._until("a snapshot", client.create_snapshot)
            self._first = self._first or made
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    while any(map(self._not_snapshotted, self._whole)):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(LOOK_S)

    def _not_snapshotted(self, host: Host) -> str:
        """What it lacks of a set, and of the compaction to it."""
        if host.node is None:
            return f"{host.name} is down"
        if not self._first:
            return f"{host.name}: nobody has a set yet"
        backend = host.node.pipeline
        progress, newest, base = (
            backend.snapshots.taking.progress(),
            backend.snapshots.store.newest,
            backend.raft.journal.base.index,
        )
        if newest is None or newest.global_index < self._first["global_index"]:
            return f"{host.name} has {newest and newest.global_index} of {self._first}, under way is {progress}"
        if progress is not None:
            return f"{host.name} has not come to an end with {progress}"
        if base >= self._first["raft_index"] or backend.snapshots.compaction._held_back():  # noqa: SLF001 - an observer
            return ""  # or who has fetched a set has it kept for a while, and all logs behind it
        return f"{host.name} begins at {base}, not at {self._first}"

    async def _barriers(self, client: Client) -> None:
        partitions = self._living()
        scopes = SCOPES if self._all_there else SCOPES[:-1]
        for scope, level in itertools.product(scopes, LEVELS):
            index = self._first["global_index"] if level == "snapshotted" else self._newest
            how: dict[str, Any] = {"partitions": partitions, "scope": scope, "level": level}
            await self._until(f"a barrier at {index}, {how}", partial(client.barrier, index, **how))

    async def _reads(self, client: Client) -> None:
        for partition in self._living("kv")[:1]:
            for host in self._whole:
                address = host.member.client_address
                read = partial(client.get, partition, b"quiet", max_staleness=0.0, node=address)
                await self._until(f"a read at {host.name}", read)

    async def _cursor(self, client: Client) -> None:
        await self._until("a cursor", lambda: client.cursor(CURSOR).commit(1))
