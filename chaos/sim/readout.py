"""When all is quiet every reader gets all there is: a read that ends early is no error while others go on writing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from logboom import Client
from logboom.errors import Voided
from logboom.types import PartitionId

READER: Final = "reader"
BACK: Final = 20
"""So many global indices before the end are read: where windows are of one batch, more would take most of a run."""
TIMEOUT_S: Final = 20.0
Row = tuple[int, int, int]
"""Global index, partition and last index of a batch."""


class ReadOut:
    """Of the nodes ``hosts``. ``ends``: per partition the global and last index of its committed batches."""

    def __init__(
        self,
        hosts: Sequence[Host],
        *,
        loop: SimLoop,
        ends: Callable[[int], Sequence[tuple[int, int]]],
        doomed: set[int],
        fail: Callable[[str, str], None],
        stepped_over: Callable[[str, Voided, int], int],
    ) -> None:
        self._hosts = hosts
        self._loop = loop
        self._ends = ends
        self._doomed = doomed
        self._fail = fail
        self._stepped_over = stepped_over

    async def play(self, rng: random.Random) -> None:
        """Logs of every node, states of one."""
        done: asyncio.Future[None] = self._loop.create_future()

        async def read() -> None:
            for host in self._hosts:
                address = host.member.client_address
                async with Client([address], rng=rng, timeout=TIMEOUT_S) as client:
                    await self._logs(client, host, address)
            host = rng.choice(self._hosts)
            address = host.member.client_address
            async with Client([address], rng=rng, timeout=TIMEOUT_S) as client:
                await self._states(client, host, address)
            self._loop.run_as(None, done.set_result, None)  # what follows is not the reader's

        if self._hosts:
            self._loop.spawn(self._loop.process(READER), read())
            await done

    def _partitions(self, host: Host, machine: str) -> list[int]:
        backend: Any = host.node.pipeline if host.node is not None else None
        found = [p for p in backend.partition_ids() if backend.partitioning.kind(p).state_machine == machine]
        return sorted(p for p in found if p not in self._doomed)

    def _due(self, host: Host, partition: int, start: int) -> list[Row]:
        """What is to be read of a log from a global index on."""
        backend: Any = host.node.pipeline if host.node is not None else None
        first = backend.logs[PartitionId(partition)].first_available_index
        voids = {row[2] for row in backend.parent.voids.of(PartitionId(partition))}
        rows = [(at, partition, last) for at, last in self._ends(partition) if last >= first and last not in voids]
        return [row for row in rows if row[0] >= start]

    def _first(self, host: Host, partitions: Sequence[int]) -> int:
        """From this global index on nothing of them has been removed."""
        backend: Any = host.node.pipeline if host.node is not None else None
        return max(int(backend.logs[PartitionId(partition)].first_global_index) for partition in partitions)

    async def _logs(self, client: Client, host: Host, address: str) -> None:
        partitions = self._partitions(host, "kv") + self._partitions(host, "log")
        if not partitions:
            return
        newest = max((self._ends(p)[-1][0] for p in partitions if self._ends(p)), default=0)
        start = max(1, newest - BACK)
        for partition in partitions:
            due = self._due(host, partition, start)
            what = f"a tail of {partition} at {host.name}"
            told = self._told(what)
            tail = client.tail(partition, start_global=start, node=address, on_compacted="first", on_void=told)
            got = [(b.global_index, b.partition_id, b.position - 1) async for b in tail]
            self._compare(what, got, due, self._first(host, [partition]))
        due = sorted(row for p in partitions for row in self._due(host, p, start))
        what = f"a scan of all logs at {host.name}"
        told = self._told(what)
        scan = client.scan_log(partitions, start_global=start, node=address, on_compacted="first", on_void=told)
        got = [(b.global_index, b.partition_id, b.position - 1) async for b in scan]
        self._compare(what, got, due, self._first(host, partitions))

    def _told(self, who: str) -> Callable[[Voided], None]:
        """Of a gap, which is one."""

        def told(gap: Voided) -> None:
            self._stepped_over(who, gap, 0)

        return told

    def _compare(self, what: str, got: Sequence[Row], due: Sequence[Row], first: int) -> None:
        """What was there before, in order; what has been removed since (in front of ``first``) may be missing."""
        lacks = sorted(row for row in set(due) - set(got) if row[0] >= first)
        more = sorted(set(got) - set(due))
        if lacks or more or list(got) != sorted(set(got)):
            story = f"not {lacks[:3]}, and also {more[:3]}"
            self._fail("ReadsAll", f"{what} gives {len(got)} batches of {len(due)}; {story}")

    async def _states(self, client: Client, host: Host, address: str) -> None:
        partitions, node = self._partitions(host, "kv"), host.node
        if not partitions or node is None:
            return
        newest = int(node.pipeline.parent.global_index)
        due, found = dict[tuple[int, bytes], Any](), dict[tuple[int, bytes], Any]()
        for partition in partitions:
            for chunk, _ in node.machines[PartitionId(partition)].scan(start=b"", end=None, limit=0, chunk=1 << 20):
                due.update(((partition, key), value) for key, value in chunk)
            scan = client.scan(partition, at_least=newest, node=address)
            found.update({(partition, key): value async for key, value in scan})
        entries = client.scan_view(partitions, at_least=newest, node=address)
        view = {(entry.partition_id, entry.key): entry.value async for entry in entries}
        for what, rows in (("a scan", found), ("a view", view)):
            if rows != due:
                self._fail("ReadsAll", f"{what} of {partitions} at {host.name} has {len(rows)} keys of {len(due)}")
