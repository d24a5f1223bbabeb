"""Writers as Spark's tasks are: attempts that die and are made again, two at a time, and a life after each.

A task is a dense producer of one partition, an epoch is what it writes in one life. An attempt sends all rows of an
epoch from the first one on, cut into other blocks than the attempt before. Every row takes effect once, in order; once
a newer epoch has been acknowledged, nothing of an older one does. Attempts of older epochs come back and are told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.history import Operation
from chaos.sim.host import Host
from chaos.sim.loop import Process, SimLoop
from chaos.sim.network import SimNetwork
from chaos.sim.parameters import Parameters
from chaos.sim.seen import Seen
from logboom import Add, Client, Status
from logboom.commands import to_record
from logboom.errors import LogboomError, ProducerFenced
from logboom.records import RecordBlock
from logboom.types import PRODUCER_ID_BYTES, Receipt
from partitions.apply.apply_core import AppliedBatch

DRIVER: Final = "driver"
AT_ONCE: Final = 2
EPOCHS_MAX: Final = 3
BLOCK_ROWS: Final = 24
"""In the largest, where there is room: enough for batches that are applied as a whole."""
BLOCKS: Final = 3
"""Rows of an epoch, in the largest blocks."""
TIMEOUT_S: Final = 6.0
PAUSE_S: Final = 3.0
"""Between two tasks, about."""
KILLED: Final = 0.4
"""Share of the attempts that are killed, within this many seconds."""
KILLED_S: Final = 1.5
BESIDE: Final = 0.3
"""Share of the attempts beside which there is another."""
RETURNS: Final = 0.5
"""Share of the epochs of which another attempt begins when the next one has begun."""
LOOK_S: Final = 0.05
AGAIN_S: Final = 0.1
FINE: Final = frozenset((Status.OK, Status.UNKNOWN_RESULT))
FENCED, GAP = "producer_fenced", "out_of_sequence"

Fail = Callable[[str, str], None]


@dataclass
class Task:
    """One producer's work, and what a dense one's should become at apply."""

    number: int
    partition: int
    producer: bytes
    epochs: list[list[Operation]] = field(default_factory=list)
    """Rows of each, by sequence."""
    told: int = -1
    """The newest epoch of which anything was acknowledged."""
    applied: int = -1
    """The newest epoch of which anything was applied,"""
    following: int = 0
    """and the sequence that comes next in it."""

    def due(self, batch: AppliedBatch) -> tuple[str | None, int]:
        """Why a batch is to be refused, or how many of its records have been applied before; it is applied now."""
        if batch.epoch < self.applied:
            return FENCED, 0
        following = self.following if batch.epoch == self.applied else 0
        if batch.sequence > following:
            return GAP, 0
        end = batch.sequence + batch.record_count
        self.applied, self.following = batch.epoch, max(following, end)
        return None, min(end, following) - batch.sequence


class Tasks:
    """All of a run. ``stopped``: no new ones begin; the run waits until those that have begun are over."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        loop: SimLoop,
        network: SimNetwork,
        rng: random.Random,
        seen: Seen,
        fail: Fail,
    ) -> None:
        self._loop = loop
        self._network = network
        self._rng = rng
        self._seen = seen
        self._fail = fail
        self._partitions = parameters.kv_partitions
        admission = parameters.settings.admission
        roomy = min(admission.node_ops, admission.partition_ops) >= 2 * BLOCK_ROWS
        self._block_max = max(parameters.batch_max, BLOCK_ROWS) if roomy else parameters.batch_max
        self._tasks: dict[bytes, Task] = {}
        self._outcomes: dict[tuple[int, int], tuple[str, tuple[object, ...]]] = {}
        """By partition and global index: what the first node that applied a batch made of it."""
        self.stopped = False
        self.process = loop.process(DRIVER)
        self.attempts = self.fenced = 0

    def start(self) -> None:
        """From now on."""
        self._loop.spawn(self.process, self._drive())

    async def _drive(self) -> None:
        await asyncio.gather(*[self._one_after_the_other() for _ in range(AT_ONCE)])
        self._loop.kill(self.process)

    def _there(self) -> list[int]:
        """Partitions that tasks write to, as long as any begin."""
        return [] if self.stopped else [p for p in self._partitions if p not in self._seen.doomed]

    async def _one_after_the_other(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            there = self._there()
            if not there:
                return
            task = Task(len(self._tasks), self._rng.choice(there), self._rng.randbytes(PRODUCER_ID_BYTES))
            self._tasks[task.producer] = task
            for epoch in range(self._rng.randint(1, EPOCHS_MAX)):
                if epoch == 0 or task.partition in self._there():
                    await self._live(task)

    async def _live(self, task: Task) -> None:
        """One epoch: until all of its rows are acknowledged, by whichever attempt."""
        rng, epoch, partition = self._rng, len(task.epochs), task.partition
        names = [f"t{task.number}-{epoch}-{row}" for row in range(rng.randint(1, BLOCKS * self._block_max))]
        rows = [self._seen.history.invoke(0, "add", name, 1, partition) for name in names]
        task.epochs.append(rows)
        if epoch and rng.random() < RETURNS:
            self._attempt(task, epoch - 1)
        while partition not in self._seen.doomed and any(row.outcome != "ok" for row in rows):
            attempts = [self._attempt(task, epoch)]
            if rng.random() < BESIDE:
                await asyncio.sleep(rng.random())
                attempts.append(self._attempt(task, epoch))
            if rng.random() < KILLED and not self.stopped:
                await asyncio.sleep(rng.uniform(0.0, KILLED_S))
                self._kill(attempts[0])
            while any(each.alive for each in attempts):  # noqa: ASYNC110 - the dead wake nobody
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(AGAIN_S)

    def _attempt(self, task: Task, epoch: int) -> Process:
        """A process that sends all rows of an epoch, and ends."""
        self.attempts += 1
        process = self._loop.process(f"t{self.attempts}")
        rng = random.Random(self._rng.getrandbits(64))

        async def live() -> None:
            client = Client(list(self._seen.addresses), rng=rng, timeout=TIMEOUT_S)
            sends, at, rows = list[asyncio.Task[None]](), 0, task.epochs[epoch]
            while at < len(rows):
                end = at + rng.randint(1, self._block_max)
                block = [Add(row.key.encode(), 1) for row in rows[at:end]]
                sends.append(asyncio.create_task(self._send(client, task, epoch, at, block)))
                at = end
            try:
                for send in sends:
                    await send
            except LogboomError:
                for send in sends:
                    send.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
            await client.close()
            self._loop.kill(process)

        self._loop.spawn(process, live())
        return process

    def _kill(self, process: Process) -> None:
        if process.alive:
            self._loop.kill(process)
            self._network.process_ended(process, silently=False)

    async def _send(self, client: Client, task: Task, epoch: int, at: int, block: Sequence[Add]) -> None:
        old, story = task.told > epoch, f"rows {at} to {at + len(block) - 1} of epoch {epoch} of {task.number}"
        records = RecordBlock.from_records(map(to_record, block))
        try:
            receipt = await client.submit_block(
                task.partition,
                records,
                wait="applied",
                producer_id=task.producer,
                epoch=epoch,
                sequence=at,
                dense=True,
            )
        except ProducerFenced as error:
            self.fenced += 1
            if epoch == len(task.epochs) - 1:
                self._fail("Fenced", f"{story} are refused, and there is no newer one: {error}")
            raise
        if task.partition in self._seen.doomed:
            return
        if old:
            self._fail("Fenced", f"{story} are taken, and {task.told} had been acknowledged: {receipt}")
        self._landed(task, epoch, at, receipt, story)

    def _landed(self, task: Task, epoch: int, at: int, receipt: Receipt, story: str) -> None:
        task.told = max(task.told, epoch)
        if not FINE.issuperset(receipt.results or ()):
            self._fail("ReceiptTrue", f"{story}: {receipt}")
        for index, row in enumerate(task.epochs[epoch][at : at + receipt.last_index - receipt.first_index + 1]):
            if row.outcome != "ok":
                first = receipt.first_index + index
                self._seen.history.end(row, "ok", index=first, global_index=receipt.global_index)

    # -- at the nodes

    def started(self, host: Host) -> None:
        """From now on what it makes of the tasks' batches is looked at."""
        if host.node is None or not self._partitions:
            return
        pending: Any = host.node.pipeline.pending
        applied = pending.applied

        def seen(batch: AppliedBatch, partition: Any) -> None:
            self.applied(host.name, batch, partition)
            applied(batch, partition)

        pending.applied = seen

    def applied(self, node: str, batch: AppliedBatch, partition: int) -> None:
        """The same on every node, and what it should be."""
        task = self._tasks.get(batch.producer)
        if task is None:
            return
        doomed = partition in self._seen.doomed  # unless that is refused: then all that was applied meanwhile counts
        became = (batch.epoch, batch.sequence, batch.record_count, batch.refused, batch.duplicate, batch.results)
        story = f"partition {partition}, global index {batch.global_index}"
        if (partition, batch.global_index) not in self._outcomes:
            refused, duplicate = task.due(batch)
            if (refused, duplicate) != (batch.refused, batch.duplicate) and not doomed:
                invariant = "Fenced" if FENCED in (refused, batch.refused) else "DenseInOrder"
                due = refused or f"{duplicate} of them applied before"
                self._fail(invariant, f"{node}, {story}: {batch} of task {task.number}; it should be {due}")
        first, known = self._outcomes.setdefault((partition, batch.global_index), (node, became))
        if known != became and not doomed:
            self._fail("I5", f"{story}: {node} makes {became} of it, {first} has made {known}")
