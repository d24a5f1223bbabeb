"""What simulated clients do, with the production client: every operation is recorded, every promise looked at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from chaos.checkers.watermarks import Sample, monotonic
from chaos.history import Operation
from chaos.sim.crowd import Crowd
from chaos.sim.parameters import Parameters
from chaos.sim.readers import LogReaders
from chaos.sim.seen import Seen
from chaos.sim.setting import Setting
from chaos.sim.tokens import Handing
from chaos.sim.transfers import Transfers
from chaos.sim.waiting import Waited, Waiting
from logboom import Add, Cas, Client, Put, Record, Status
from logboom.errors import InvalidRequest, LogboomError

TIMEOUT_S: Final = 6.0
REGISTERS: Final = 6
ASK_S: Final = 0.3
"""How long a node that does not lead is asked for a read that only a leader may answer."""
GIVEN_UP: Final = 0.3
"""Of the writes, where clients lose patience,"""
PATIENCE_S: Final = (0.002, 0.03, 0.3)
"""after so long."""
SCANNED: Final = 1 / 3
"""Of the reads of registers."""
ERROR_PAUSE_S: Final = 0.2
PASSES_S: Final = 0.5
COMES_BACK: Final = 0.1
CHANGE_S: Final = 4.0
CHANGE_MAX_S: Final = 20.0
"""Else there are pauses, one in two thousand, that are longer than clients are given to come to an end."""
CREATED_MAX: Final = 4
"""Living ones that were created; with so many some are destroyed first."""


class SimClient:
    """One client process's work."""

    def __init__(
        self,
        number: int,
        *,
        parameters: Parameters,
        seen: Seen,
        rng: random.Random,
        barrier_reached: Callable[[Waited], None],
    ) -> None:
        self.client = Client(list(seen.addresses), rng=rng, timeout=TIMEOUT_S)
        self.number = number
        self.stopped = False
        self._parameters = parameters
        self._seen = seen
        self._rng = rng
        self._dice = random.Random(parameters.seed << 8 ^ number)
        self._scan_dice = random.Random(parameters.seed << 32 ^ number)
        self._barrier_dice = random.Random(parameters.seed << 48 ^ number)
        self._count = 0
        self._seen_last: dict[str, Any] = {}
        """What each register had when this client last read or wrote it."""
        self._addresses = seen.addresses
        self._barrier_reached = barrier_reached
        self._begun = parameters.kv_partitions
        """With registers."""
        self._gone = seen.gone
        self.readers = LogReaders(self.client, parameters, seen, rng, barrier_reached, number)
        self._late: Client | None = None
        """One that writes seldom."""
        self._acknowledged: tuple[int, str, int] | None = None
        """Partition, key and global index of an add."""

    async def run(self) -> None:
        """Until ``stopped``."""
        if self._seen.again:
            await self._meet()
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [self._watch, self._write]
        if self._begun:
            loops += [self._registers, self._write]
        if self._parameters.partitions_change and not self._parameters.restores:
            loops += [self._change_partitions]
        if self._parameters.reads_log:
            loops += [self.readers.look]
        if self._parameters.waits:
            waiting = Waiting(
                self.client,
                told=self._seen.told,
                addresses=self._addresses,
                rng=random.Random(self._rng.getrandbits(64)),
                partitions=lambda: self._kv + self._logs,
                doomed=lambda partition: partition in self._seen.doomed,
                reached=self._barrier_reached,
                problem=lambda invariant, story: self._seen.problems.append((invariant, story)),
                refused=lambda error: self._seen.refused("who waits", error),
                dice=self._barrier_dice,
                all_of=self._seen.all_of,
            )
            loops += [waiting.step, waiting.step]
        stories = [self._repeat(each, self._dice) for each in self._stories()]
        if self._parameters.transfers:
            transfers = self._transfers()
            stories.append(self._repeat(transfers.step, transfers.rng))
        if self._parameters.sets:
            setting = self._setting()
            stories.append(self._repeat(setting.step, setting.rng))
        crowd = None
        if self._parameters.stories.crowds:
            tools: Any = {"invoke": self._invoke, "call": self._call, "name": self._name}
            crowd = Crowd(self._parameters, self._seen, self.number, timeout=TIMEOUT_S, **tools)
            stories.append(self._repeat(crowd.step, crowd.rng))
        await asyncio.gather(*[self._repeat(each, self._rng) for each in loops], *stories)
        if crowd is not None:
            await crowd.close()
        await self.client.close()
        if self._late is not None:
            await self._late.close()

    async def _meet(self) -> None:
        """Whoever has had an answer of a leader takes none of another history."""
        while not self.stopped:
            try:
                await self.client.get(self._begun[0], b"")
            except LogboomError:
                await asyncio.sleep(ERROR_PAUSE_S)
            else:
                return

    def _stories(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """With dice of their own: all else is as it is without them."""
        passing = [self._pass_by] if self._parameters.forgets_producers else []
        if not self._parameters.hands_on:
            return passing
        handing = Handing(
            self.client,
            seen=self._seen,
            rng=self._dice,
            acknowledged=lambda: self._acknowledged,
            reached=self._barrier_reached,
        )
        return [handing.step, *passing]

    def _transfers(self) -> Transfers:
        return Transfers(
            self.client,
            seen=self._seen,
            rng=random.Random(self._parameters.seed << 16 ^ self.number),
            partition=self._begun[0],
            invoke=self._invoke,
            call=self._call,
            name=f"t{self.number}{'again' if self._seen.again else ''}",
        )

    def _setting(self) -> Setting:
        rng = random.Random(self._parameters.seed << 24 ^ self.number)
        return Setting(self.client, seen=self._seen, rng=rng, partitions=lambda: self._kv + self._logs)

    async def _pass_by(self) -> None:
        """Somebody writes once: whoever has not written for long is forgotten for that. Some come back, late, just as
        somebody else comes: he may be the one whose turn it is to be forgotten.
        """
        await asyncio.sleep(self._dice.expovariate(1 / PASSES_S))
        partition, again = self._begun[0], self._late is not None and self._dice.random() < COMES_BACK
        if partition in self._gone:
            return
        fresh = Client(list(self._addresses), rng=random.Random(self._dice.getrandbits(64)), timeout=TIMEOUT_S / 3)
        comers = [self._late, fresh] if self._late is not None and again else [fresh]
        await asyncio.gather(*[self._pass(client, partition) for client in comers])
        if self._late is None:
            self._late = fresh
        else:
            await fresh.close()

    async def _pass(self, client: Client, partition: int) -> None:
        name = f"passing-{self._name()}"
        op = self._invoke("add", name, 1, partition)
        await self._call([op], lambda: client.submit(partition, Add(name.encode(), 1)))

    async def _repeat(self, step: Callable[[], Coroutine[Any, Any, None]], rng: random.Random) -> None:
        while not self.stopped:
            await asyncio.sleep(rng.expovariate(1 / self._parameters.think_s))
            await step()

    def _name(self) -> str:
        self._count += 1
        return f"c{self.number}-{self._count}"

    # -- partitions

    @property
    def _kv(self) -> list[int]:
        return self._alive(self._begun) + self._living("kv")

    @property
    def _logs(self) -> list[int]:
        return self._alive(self._parameters.log_partitions) + self._living("log")

    def _alive(self, partitions: list[int]) -> list[int]:
        return [p for p in partitions if p not in self._gone]

    def _living(self, kind: str) -> list[int]:
        # Some ask for one that is just being destroyed.
        seen = self._seen
        return self._alive([p for p, machine in seen.created.items() if machine == kind])

    async def _change_partitions(self) -> None:
        await asyncio.sleep(min(self._rng.expovariate(1 / CHANGE_S), CHANGE_MAX_S))
        living = [p for p in self._seen.created if p not in self._seen.doomed]
        if self._parameters.begun_go:
            begun = range(self._parameters.settings.cluster.partitions)
            living += [p for p in begun if p not in self._seen.doomed]
        try:
            if len(living) >= CREATED_MAX or (living and self._rng.random() < 0.4):
                await self._destroy(self._rng.choice(living))
                return
            kind = self._rng.choice(["kv", "log"])
            mode = self._rng.choice(["write_ahead", "write_behind"]) if self._parameters.write_behind else None
            partition = await self.client.create_partition(state_machine=kind, mode=mode)
            if partition in self._seen.created:
                self._seen.problems.append(("IdsNotReused", f"partition {partition} was created twice"))
            self._seen.created[partition] = kind
        except LogboomError as error:
            self._seen.refused("who changes partitions", error)
            await asyncio.sleep(ERROR_PAUSE_S)

    async def _destroy(self, partition: int) -> None:
        self._seen.doomed.add(partition)
        try:
            await self.client.destroy_partition(partition)
        except InvalidRequest as error:  # the last one: it stays, and whoever has heard that may not find it gone
            if error.outcome != "not_applied":
                raise
            self._seen.doomed.discard(partition)
            self._seen.kept += 1
            return
        self._gone.add(partition)
        await self._is_gone(partition)

    async def _is_gone(self, partition: int) -> None:
        """Whoever has heard that it is destroyed can write nothing there any more."""
        try:
            await self.client.submit(partition, Record(b"too late"), timeout=1.0)
        except LogboomError:
            return
        self._seen.problems.append(("DestroyedStaysSo", f"partition {partition} was destroyed and takes writes"))

    # -- writing

    async def _write(self) -> None:
        dice = self._rng.random()
        if dice < 0.25 and len(self._kv) > 1:
            await self._write_together()
        elif (dice < 0.7 or not self._logs) and self._kv:
            await self._adds()
        elif self._logs:
            partition = self._rng.choice(self._logs)
            name = self._name()
            op = self._invoke("append", f"log{partition}", name, partition)
            await self._call([op], lambda: self.client.submit(partition, Record(name.encode()), **self._wait()))

    def _wait(self) -> dict[str, Any]:
        """How to submit."""
        how: dict[str, Any] = {"wait": self._rng.choice(["committed", "durable", "applied", "applied"])}
        acks, sets = self._parameters.acks, self._parameters.sets
        if (acks and self._rng.random() < 0.5) or (sets and self._dice.random() < 0.5):
            how["wait"] = None
        patience = self._parameters.admission_wait_s
        if patience and self._rng.random() < 0.5:
            how["admission_wait"] = self._rng.random() * patience
        return how

    async def _adds(self) -> None:
        partition = self._rng.choice(self._kv)
        names = [self._name() for _ in range(self._rng.randint(1, self._parameters.batch_max))]
        ops = [self._invoke("add", name, 1, partition) for name in names]
        await self._call(
            ops, lambda: self.client.submit(partition, [Add(n.encode(), 1) for n in names], **self._wait())
        )
        if ops[0].outcome == "ok":
            self._acknowledged = partition, names[0], ops[0].global_index
            self._seen.told.add(asyncio.get_running_loop().time(), partition, names[0], ops[0].global_index)

    async def _write_together(self) -> None:
        names = {p: self._name() for p in self._rng.sample(self._kv, self._rng.randint(2, len(self._kv)))}
        ops = [self._invoke("add", name, 1, partition) for partition, name in names.items()]
        self._seen.together.append(ops)
        rows = {p: [Add(name.encode(), 1)] for p, name in names.items()}
        await self._call(ops, lambda: self.client.submit_many(rows, **self._wait()))

    async def _call(self, ops: list[Operation], submit: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        end = self._seen.history.end
        try:
            async with asyncio.timeout(self._patience()):
                receipt = await submit()
        except LogboomError as error:
            self._seen.refused("a write", error)
            for op in ops:
                end(op, "fail" if error.outcome == "not_applied" else "info", error=error.code)
            await asyncio.sleep(ERROR_PAUSE_S)
            return
        except TimeoutError:
            for op in ops:
                end(op, "info", error="given_up")
            return
        parts = {p.partition_id: p for p in getattr(receipt, "parts", [receipt])}
        for op in ops:
            part = parts[op.partition]
            end(op, "ok", index=part.first_index, global_index=part.global_index)

    def _patience(self) -> float | None:
        """Whoever gives up a write, waiting to be admitted or not, does not know what becomes of it."""
        if not self._parameters.gives_up or self._rng.random() >= GIVEN_UP:
            return None
        return self._rng.choice(PATIENCE_S)

    # -- registers

    async def _registers(self) -> None:
        number = self._rng.randrange(REGISTERS)
        key, partition = f"{'again-' if self._seen.again else ''}r{number}", self._begun[number % len(self._begun)]
        if partition in self._gone:
            return
        value = f"v{self._name()}"
        choice = self._rng.random()
        if choice < 0.5:
            await self._get(self._invoke("get", key, None, partition))
        elif choice < 0.65:
            await self._put(self._invoke("put", key, value, partition), Put(key.encode(), value.encode()))
        elif choice < 0.8:
            await self._put_as_stranger(key, value, partition)
        else:
            seen = self._seen_last.get(key)
            expected = self._rng.choice([None, seen, seen, seen])  # by a guess alone hardly any would succeed
            old = expected.encode() if expected else None
            await self._put(
                self._invoke("cas", key, [expected, value], partition), Cas(key.encode(), old, value.encode())
            )

    async def _put_as_stranger(self, key: str, value: str, partition: int) -> None:
        """Whoever has just come finds the new leader. Then everybody is asked: an old one must not answer."""
        address = self._rng.choice(list(self._addresses))
        stranger = Client([address], rng=random.Random(self._rng.getrandbits(64)), timeout=TIMEOUT_S / 3)
        op = self._invoke("put", key, value, partition)
        await self._put(op, Put(key.encode(), value.encode()), stranger)
        await stranger.close()
        nodes = list(self._addresses)
        asked = [self._invoke("get", key, None, partition) for _ in nodes]
        await asyncio.gather(*[self._get(op, node) for op, node in zip(asked, nodes, strict=True)])

    async def _get(self, op: Operation, node: str | None = None) -> None:
        timeout = None if node is None else ASK_S
        try:
            found = await self._found(op, node, timeout)
        except LogboomError as error:
            self._seen.refused("a read", error)
            self._seen.history.end(op, "fail", error=error.code)
        else:
            value = found.decode() if isinstance(found, bytes) else found
            self._seen.history.end(op, "ok", result=value)
            self._seen_last[op.key] = value

    async def _found(self, op: Operation, node: str | None, timeout: float | None) -> Any:
        """A scan of one key alone promises as much as a get."""
        key, how = op.key.encode(), dict[str, Any](node=node, timeout=timeout)
        if self._scan_dice.random() >= SCANNED:
            return await self.client.get(op.partition, key, **how)
        rows = [value async for _, value in self.client.scan(op.partition, start=key, end=key + b"\0", **how)]
        return rows[0] if rows else None

    async def _put(self, op: Operation, command: Any, client: Client | None = None) -> None:
        end = self._seen.history.end
        try:
            receipt = await (client or self.client).submit(op.partition, command, wait="applied")
        except LogboomError as error:
            self._seen.refused("a write", error)
            end(op, "fail" if error.outcome == "not_applied" else "info", error=error.code)
            return
        status = receipt.results[0] if receipt.results else Status.UNKNOWN_RESULT
        if op.f == "cas" and status is Status.UNKNOWN_RESULT:
            end(op, "info", index=receipt.first_index)
        else:
            end(op, "ok", result=status is Status.OK, index=receipt.first_index, global_index=receipt.global_index)
            if status is Status.OK:
                self._seen_last[op.key] = op.value[1] if op.f == "cas" else op.value

    def _invoke(self, f: str, key: str, value: Any, partition: int) -> Operation:
        return self._seen.history.invoke(self.number, f, key, value, partition)

    # -- watching

    async def _watch(self) -> None:
        address = self._rng.choice(list(self._addresses))
        try:
            choice = self._rng.random()
            if choice < 0.5:
                await self._sample(address)
            elif choice < 0.8:
                await self._barrier(address)
            elif self._acknowledged is not None:
                await self._read_own_write(address)
        except LogboomError as error:
            self._seen.refused("who watches", error)
            await asyncio.sleep(ERROR_PAUSE_S)  # a node that is down has nothing to say

    async def _sample(self, address: str) -> None:
        """What a node says must not be less than what anybody had heard from it before the question was asked."""
        node, heard = self._addresses[address], self._seen.heard
        floors = {p: heard[node, p] for p in self._kv + self._logs if (node, p) in heard}
        for m in await self.client.watermarks(node=address, timeout=1.0):
            sample = Sample(node, m.partition_id, m.log_index, m.durable_index, m.applied_index, m.applied_global_index)
            floor = floors.get(m.partition_id, sample)
            self._seen.problems += [("I7", problem) for problem in monotonic([floor, sample])]
            heard[node, m.partition_id] = max(heard.get((node, m.partition_id), sample), sample)
            self._seen.sampled += 1

    async def _barrier(self, address: str) -> None:
        node = self._addresses[address]
        target = max((op.global_index for op in self._seen.history.operations[-50:]), default=0)
        known = self._kv + self._logs
        if not known:
            return
        partitions = sorted(self._rng.sample(known, self._rng.randint(1, len(known))))
        of_all = self._barrier_dice.random() < 0.5
        how: dict[str, Any] = {"partitions": None if of_all else partitions, "node": address, "timeout": 2.0}
        reached = await self.client.barrier(target, **how)
        if of_all:
            partitions = [mark.partition_id for mark in reached.watermarks]
            self._seen.all_of(f"a barrier at {target}, {address}", target, partitions)
        for mark in reached.watermarks:
            if mark.applied_global_index < target:
                self._seen.problems.append(("BarrierSound", f"reached {target} with {mark}"))
        targets = dict.fromkeys(partitions, target)
        self._barrier_reached(Waited(node, targets, needed=len(targets)))

    async def _read_own_write(self, address: str) -> None:
        if self._acknowledged is None:
            return
        partition, key, global_index = self._acknowledged
        if partition in self._seen.doomed:
            return
        found = await self.client.get(partition, key.encode(), at_least=global_index, node=address, timeout=2.0)
        if found != (1,):
            where = f"{address}, partition {partition}, at least {global_index}"
            self._seen.problems.append(("ReadYourWrites", f"{key} was acknowledged; {where} says {found!r}"))
