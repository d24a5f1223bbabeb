"""Load for fault runs: four clients, every operation recorded.

Single commands and registers; requests of several commands, in one partition or in many; commands over several keys;
and tasks that several clients run under the same numbers, as Spark does with one that it takes for lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from chaos.history import History, Operation
from chaos.readings import GROUPS
from chaos.transfers import ERROR_PAUSE_S, Moving
from logboom import Add, Cas, Client, Put, Record, RecordBlock, Status
from logboom.errors import LogboomError
from logboom.types import KIB, PRODUCER_ID_BYTES, Receipt

KV_PARTITIONS = 6
LOG_PARTITIONS = (6, 7)
REGISTERS = 12
ACCOUNTS_PARTITIONS: Final = 2
"""Partitions with accounts: several clients move something in each."""
CREATED_SHARE = 0.25
TIMEOUT_S = 15.0
TOGETHER_SHARE: Final = 0.15
TASK_SHARE: Final = 0.06
LARGE_SHARE: Final = 0.1
LARGE: Final = (1 * KIB, 4 * KIB, 16 * KIB)
"""Bytes of a header that nobody reads: links that are slow, and logs that are removed, want something to carry."""
TASK_LOG_SHARE: Final = 0.4
"""Of the tasks: they append to a log."""
ATTEMPTS: Final = 3
"""Of a task, at the same time or nearly."""


class Workload:
    """One client's part. Registers live on partitions 0 to 5 by number; appends go to the ``log`` partitions."""

    def __init__(
        self,
        client: Client,
        history: History,
        process: int,
        rng: random.Random,
        *,
        created: Callable[[], Sequence[tuple[int, str]]] = lambda: (),
        requests: list[list[Operation]] | None = None,
        partners: Sequence[Client] = (),
        addresses: Callable[[], Sequence[str]] = lambda: (),
        problems: list[str] | None = None,
    ) -> None:
        """``created``: further partitions to write to, as of now, and their state machines.

        ``requests``: of several commands, to be recorded there. ``partners``: those that run the same tasks.
        ``addresses``: of nodes to be asked by name. ``problems``: where what is seen to be wrong is told.
        """
        self._client = client
        self._history = history
        self._process = process
        self._rng = rng
        self._created = created
        self._requests = [] if requests is None else requests
        self._partners = [*partners] or [client]
        self._count = 0
        self._seen_last: dict[str, Any] = {}
        """What each register had when this client last read or wrote it."""
        self._moving = Moving(
            client,
            history=history,
            rng=random.Random(rng.random()),
            partition=process % ACCOUNTS_PARTITIONS,
            invoke=lambda f, key, value, partition: history.invoke(process, f, key, value, partition),
            call=self._moved,
            name=f"m{process}",
            nodes=addresses,
            problem=(problems if problems is not None else []).append,
        )
        self.stopped = False

    async def run(self, concurrency: int) -> None:
        """Until ``stopped``: a few operations under way at any time (registers one at a time)."""
        await asyncio.gather(self._registers(), self._moves(), *[self._writes() for _ in range(concurrency)])

    async def _moves(self) -> None:
        while not self.stopped:
            await self._moving.step()

    async def _moved(self, ops: list[Operation], submit: Callable[[], Coroutine[Any, Any, Receipt]]) -> None:
        try:
            self._told(ops, await submit())
        except LogboomError as error:
            self._end_all(ops, [error])
            await asyncio.sleep(ERROR_PAUSE_S)

    async def _writes(self) -> None:
        while not self.stopped:
            dice = self._rng.random()
            if dice < TOGETHER_SHARE:
                await self._together()
            elif dice < TOGETHER_SHARE + TASK_SHARE:
                await self._task()
            else:
                await self._single()

    def _name(self, letter: str = "c") -> str:
        self._count += 1
        return f"{letter}{self._process}-{self._count}"

    async def _single(self) -> None:
        name = self._name()
        partition, machine = self._somewhere()
        if machine == "kv":
            op = self._history.invoke(self._process, "add", name, 1, partition)
            await self._call(op, self._perhaps_large(Add(name.encode(), 1).record()))
        else:
            op = self._append(name, partition)
            await self._call(op, self._perhaps_large(Record(name.encode())))

    def _append(self, name: str, partition: int) -> Operation:
        return self._history.invoke(self._process, "append", f"log{partition}", name, partition)

    def _perhaps_large(self, record: Record) -> Record:
        if self._rng.random() >= LARGE_SHARE:
            return record
        return msgspec.structs.replace(record, headers=(("ballast", bytes(self._rng.choice(LARGE))),))

    async def _together(self) -> None:
        """Several commands, for one partition or for some: all or none."""
        places = self._rng.sample(range(KV_PARTITIONS), self._rng.choice([1, 2, 2, 3]))
        ops = [
            self._history.invoke(self._process, "add", self._name(GROUPS), 1, partition)
            for partition in places
            for _ in range(self._rng.randint(1 if len(places) > 1 else 2, 3))
        ]
        self._requests.append(ops)
        rows = {p: [Add(op.key.encode(), 1) for op in ops if op.partition == p] for p in places}
        wait = self._rng.choice(["committed", "durable", "applied"])
        try:
            parts = (await self._client.submit_many(rows, wait=wait, timeout=TIMEOUT_S)).parts
        except LogboomError as error:
            self._end_all(ops, [error])
            return
        for part in parts:
            self._told([op for op in ops if op.partition == part.partition_id], part)

    async def _task(self) -> None:
        """The same commands under the same numbers, by several clients: each takes effect once."""
        producer, appends = self._rng.randbytes(PRODUCER_ID_BYTES), self._rng.random() < TASK_LOG_SHARE
        partition = self._rng.choice(LOG_PARTITIONS) if appends else self._rng.randrange(KV_PARTITIONS)
        dense = self._rng.random() < 0.5
        blocks: list[tuple[int, list[Operation]]] = []
        first = 0
        for _ in range(self._rng.randint(1, 3)):
            count = self._rng.randint(1, 4)
            names = [self._name() for _ in range(count)]
            if appends:
                ops = [self._append(name, partition) for name in names]
            else:
                ops = [self._history.invoke(self._process, "add", name, 1, partition) for name in names]
            blocks.append((first, ops))
            first += count
        clients = [self._rng.choice(self._partners) for _ in range(self._rng.randint(1, ATTEMPTS))]
        delays = [self._rng.choice([0.0, 0.0, 0.05, 0.5]) for _ in clients]

        async def attempt(client: Client, delay: float) -> list[Receipt | LogboomError]:
            await asyncio.sleep(delay)
            found: list[Receipt | LogboomError] = []
            for sequence, ops in blocks:
                block = RecordBlock.from_records(
                    [Record(op.value.encode()) if appends else Add(op.key.encode(), 1).record() for op in ops]
                )
                sent = client.submit_block(
                    partition, block, producer_id=producer, sequence=sequence, dense=dense, timeout=TIMEOUT_S
                )
                found.append(await _answer(sent))
            return found

        answers = await asyncio.gather(*map(attempt, clients, delays))
        for number, (_, ops) in enumerate(blocks):
            mine = [each[number] for each in answers]
            told = [each for each in mine if isinstance(each, Receipt)]
            if told:
                self._told(ops, told[0])
            else:
                self._end_all(ops, [each for each in mine if isinstance(each, LogboomError)])

    def _told(self, ops: Sequence[Operation], part: Receipt) -> None:
        for offset, op in enumerate(ops):
            self._history.end(op, "ok", index=part.first_index + offset, global_index=part.global_index)

    def _end_all(self, ops: Sequence[Operation], errors: Sequence[LogboomError]) -> None:
        outcome = "fail" if all(error.outcome == "not_applied" for error in errors) else "info"
        for op in ops:
            self._history.end(op, outcome, error=errors[0].code)

    def _somewhere(self) -> tuple[int, str]:
        created = self._created()
        if created and self._rng.random() < CREATED_SHARE:
            return self._rng.choice(created)
        if self._rng.random() < 0.7:
            return self._rng.randrange(KV_PARTITIONS), "kv"
        return self._rng.choice(LOG_PARTITIONS), "log"

    async def _registers(self) -> None:
        while not self.stopped:
            number = self._rng.randrange(REGISTERS)
            key, partition = f"r{number}", number % KV_PARTITIONS
            self._count += 1
            value = f"v{self._process}-{self._count}"
            choice = self._rng.random()
            if choice < 0.5:
                op = self._history.invoke(self._process, "get", key, None, partition)
                await self._get(op)
            elif choice < 0.8:
                op = self._history.invoke(self._process, "put", key, value, partition)
                await self._call(op, Put(key.encode(), value.encode()))
            else:
                seen = self._seen_last.get(key)
                expected = self._rng.choice([None, seen, seen, seen])  # by a guess alone hardly any would succeed
                op = self._history.invoke(self._process, "cas", key, [expected, value], partition)
                await self._call(op, Cas(key.encode(), expected.encode() if expected else None, value.encode()))

    async def _get(self, op: Operation) -> None:
        try:
            found = await self._client.get(op.partition, op.key.encode(), timeout=TIMEOUT_S)
        except LogboomError as error:
            self._history.end(op, "fail", error=error.code)
        else:
            value = found.decode() if isinstance(found, bytes) else found
            self._history.end(op, "ok", result=value)
            self._seen_last[op.key] = value

    async def _call(self, op: Operation, command: Any) -> None:
        try:
            receipt = await self._client.submit(op.partition, command, wait="applied", timeout=TIMEOUT_S)
        except LogboomError as error:
            self._history.end(op, "fail" if error.outcome == "not_applied" else "info", error=error.code)
            return
        status = receipt.results[0] if receipt.results else Status.UNKNOWN_RESULT
        where = {"index": receipt.first_index, "global_index": receipt.global_index}
        if op.f == "cas" and status is Status.UNKNOWN_RESULT:
            self._history.end(op, "info", **where)
        else:
            self._history.end(op, "ok", result=status is Status.OK, **where)
            if status is Status.OK and op.f in ("put", "cas"):
                self._seen_last[op.key] = op.value[1] if op.f == "cas" else op.value


async def _answer(sent: Coroutine[Any, Any, Receipt]) -> Receipt | LogboomError:
    try:
        return await sent
    except LogboomError as error:
        return error
