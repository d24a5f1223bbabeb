"""Simulated clients that read the log: what comes out must be what everybody else is told, in order, with no gap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chaos.sim.parameters import Parameters
from chaos.sim.waiting import Waited
from chaos.sim.whole import Add, missed
from logboom import Client, LogBatch, LogMetadata
from logboom.client.cursors import Cursor
from logboom.errors import IndexCompacted, LogboomError, Voided

if TYPE_CHECKING:
    from chaos.sim.seen import Seen

READ_S: Final = 3.0
ERROR_PAUSE_S: Final = 0.2
WHOLE_SHARE: Final = 0.2
"""Of the reads: from the beginning. The others begin near the end of what anybody has read."""
BACK: Final = (0, 5, 30)
"""Global indices before that."""
PATIENT: Final = 1 / 3
"""Of the scans from somewhere on: they come to an end of their own."""
OF_ALL: Final = 1 / 4
"""Of the scans and views."""
LEAVES: Final = 3
"""One of so many tails takes one batch, and no more."""
READERS: Final = 2
"""Names of cursors that clients share."""


class CursorAt(NamedTuple):
    """Where a cursor was; ``by``: a global index up to which that had been ordered."""

    name: str
    position: int
    by: int


@dataclass
class Places:
    """What anybody has read, of all clients: the same place holds the same for everyone."""

    by_global: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    """Partition, first index and content of a batch, by its global index."""
    newest: int = 0
    """The highest of them."""
    cursors: dict[str, int] = field(default_factory=dict)
    """The highest position that a cursor is known to have had."""
    told: list[CursorAt] = field(default_factory=list)
    """As somebody was told, each higher than those before."""


class LogReaders:
    """One client's."""

    def __init__(
        self,
        client: Client,
        parameters: Parameters,
        seen: Seen,
        rng: random.Random,
        reached: Callable[[Waited], None] = lambda _: None,
        number: int = 0,
    ) -> None:
        """``reached``: told of what a node gives as durable, or applied, there. ``number``: the client's."""
        self._client = client
        self._parameters = parameters
        self._seen = seen
        self._rng = rng
        self._reached = reached
        self._cursors: dict[str, Cursor] = {}
        self._asked: list[int] = []
        """Of these partitions the last tail, scan or fetch is,"""
        self._merged = False
        """and whether in their global order."""
        self._dice = random.Random(parameters.seed << 40 ^ number)
        self._wanted = 0
        """Global index that comes next in a scan, or a higher one."""
        self._limit: asyncio.Timeout | None = None

    @property
    def _partitions(self) -> list[int]:
        return self._parameters.kv_partitions + self._parameters.log_partitions

    async def look(self) -> None:
        """One read of the log, of some kind."""
        works = [self._tail, self._scan, self._fetch, self._cursor, self._view]
        work = self._rng.choice(works)
        try:
            async with asyncio.timeout(READ_S) as self._limit:
                await work()
        except TimeoutError:
            pass
        except IndexCompacted as error:
            if work == self._scan and error.first <= self._wanted:
                story = f"who scans {self._asked}, and has all in front of {self._wanted}, was told: {error}"
                self._wrong("RefusedRightly", story)
            self._seen.refused("who reads the log", error, *self._asked, merged=self._merged)
        except LogboomError as error:
            if error.code in ("corrupt_data", "protocol") and "lost" not in str(error):
                self._suspect(error)
            self._seen.refused("who reads the log", error)
            await asyncio.sleep(ERROR_PAUSE_S)

    def _wrong(self, invariant: str, story: str) -> None:
        self._seen.problems.append((invariant, story))

    def _suspect(self, error: LogboomError) -> None:
        """Damage is said where there is some; a scan that is not what was announced is never right."""
        if any(word in str(error) for word in ("announced", "came after", "expected", "safe to give")):
            self._wrong("ScanComplete", str(error))

    def _same(self, batch: LogBatch) -> None:
        place = batch.partition_id, int(batch.first_index), bytes(batch.records.data)
        places = self._seen.places
        known = places.by_global.setdefault(batch.global_index, place)
        places.newest = max(places.newest, batch.global_index)
        if known != place:
            self._wrong("PrefixAgreement", f"at {batch.global_index}: {place!r} and {known!r}")

    def _start(self) -> int:
        """A global index to read from."""
        if self._rng.random() < WHOLE_SHARE:
            return 0
        return max(0, self._seen.places.newest - self._rng.choice(BACK))

    def _somewhere(self) -> str | None:
        """One node in some of the tails: what it says then is looked at there. Without dice."""
        newest, nodes = self._seen.places.newest, sorted(self._seen.addresses)
        return nodes[newest % len(nodes)] if newest % 2 else None

    async def _tail(self) -> None:
        partition, index, start = self._rng.choice(self._partitions), 0, self._start()
        self._asked, self._merged = [partition], False

        def stepped_over(gap: Voided) -> None:
            nonlocal index
            following = self._seen.stepped_over("who reads the log", gap, index)
            index = following if index else 0

        level, at = self._rng.choice(["durable", "applied"]), self._somewhere()
        leaves = self._seen.places.newest % LEAVES == 0  # while what comes next has been read, and waits for it
        how: dict[str, Any] = {"credit": 1} if leaves else {}
        tail = self._client.tail(partition, start_global=start, level=level, on_void=stepped_over, node=at, **how)
        async with aclosing(tail):
            async for batch in tail:
                if at is not None and at in self._seen.addresses:
                    self._reached(Waited(self._seen.addresses[at], {partition: batch.global_index}, level))
                if batch.global_index < start:
                    self._wrong("GlobalOrder", f"{partition} from {start} on begins at {batch.global_index}")
                if index and batch.first_index != index:
                    self._wrong("OffsetsDenseUnique", f"{partition}: {batch.first_index} after {index - 1}")
                index = batch.position
                self._same(batch)
                if leaves:
                    break

    async def _scan(self) -> None:
        partitions = sorted(self._rng.sample(self._partitions, self._rng.randint(1, len(self._partitions))))
        self._asked, self._merged = partitions, True
        start = self._wanted = self._start()
        level, of_all = self._dice.choice(["durable", "applied"]), self._dice.random() < OF_ALL
        if self._dice.random() < PATIENT and start and not self._parameters.paced and self._limit is not None:
            self._limit.reschedule(None)
        if of_all:
            self._asked = partitions = sorted({*self._partitions, *self._seen.created_at})
        # Who begins at 0 is given what has not been removed.
        due = [add for add in self._seen.told.adds if 0 < start <= add[3] and add[1] in partitions]
        last, nexts, came = start - 1, dict[int, int](), set[int]()
        async for batch in self._client.scan_log(None if of_all else partitions, start_global=start, level=level):
            partition = batch.partition_id
            if batch.global_index <= last or (partition not in partitions and not of_all):
                self._wrong("GlobalOrder", f"{partition} at {batch.global_index} after {last}")
            whole = self._parameters.blackout is None  # else some may be void
            if whole and nexts.get(partition, batch.first_index) != batch.first_index:
                self._wrong("ScanComplete", f"{partition}: {batch.first_index}, not {nexts[partition]}")
            last, nexts[partition] = batch.global_index, batch.position
            self._wanted = last + 1
            came.add(last)
            self._same(batch)
        self._lacks("ScanComplete", f"a scan from {start} to {last}", missed(due, came, last, self._seen.doomed))

    def _lacks(self, invariant: str, what: str, lacking: Sequence[Add]) -> None:
        if lacking:
            self._wrong(invariant, f"{what} lacks what was acknowledged before it began: {lacking}")

    async def _fetch(self) -> None:
        partition = self._rng.choice(self._partitions)
        self._asked, self._merged = [partition], False
        following = 0

        def stepped_over(gap: Voided) -> None:
            nonlocal following
            at = self._seen.stepped_over("who reads what records are like", gap, following)
            following = at if following else 0

        rows = list[LogMetadata]()
        async for each in self._client.tail_metadata(partition, start_global=self._start(), on_void=stepped_over):
            if following and each.first_index != following:
                self._wrong("OffsetsDenseUnique", f"{partition}: {each.first_index} after {following - 1}")
            following = each.position
            rows.append(each)
        if rows:
            row = self._rng.choice(rows)
            wanted = row.descriptors()
            found = await self._client.fetch(wanted, timeout=READ_S)
            known = self._seen.places.by_global.get(row.global_index)
            if known is not None and known[1] == row.first_index and known[2] != b"".join(found):
                self._wrong("NoServeCorrupt", f"fetched at {row.global_index}: {found!r}, not {known!r}")

    async def _cursor(self) -> None:
        name = f"reader{self._rng.randrange(READERS)}"
        cursor = self._cursors.setdefault(name, self._client.cursor(name))
        known = self._seen.places.cursors
        floor = known.get(name, 0)
        wanted = self._rng.randint(1, 1000)
        if self._rng.random() < 0.5:
            now = await cursor.position(timeout=READ_S)
        else:
            now = await cursor.commit(wanted, timeout=READ_S)
            if now < wanted:
                self._wrong("CursorMonotonic", f"{name} is at {now} after {wanted} was committed")
        if now < floor:
            self._wrong("CursorMonotonic", f"{name} was at {floor} and is at {now}")
        if now > known.get(name, 0):
            known[name] = now
            self._seen.places.told.append(CursorAt(name, now, self._seen.committed()))

    async def _view(self) -> None:
        """A request over several partitions is in a view as a whole or not at all: in, if it was acknowledged before.

        And whatever was ordered up to the moment that it is said to be of.
        """
        partitions = self._parameters.kv_partitions
        if len(partitions) < 2:
            return
        requests = [ops for ops in self._seen.together if not any(op.partition in self._seen.doomed for op in ops)]
        told = [op for ops in requests for op in ops if op.outcome == "ok" and op.partition in partitions]
        state, moment = set[tuple[int, str]](), None
        of_all = self._dice.random() < OF_ALL
        due = [add for add in self._seen.told.adds if of_all or add[1] in partitions]
        async for entry in self._client.scan_view(None if of_all else partitions, timeout=READ_S):
            state.add((entry.partition_id, entry.key.decode()))
            moment = entry.global_index
        for ops in requests:
            mine = {(op.partition, op.key) for op in ops if op.partition in partitions}
            if len(mine) == len(ops) and 0 < len(mine & state) < len(mine):
                self._wrong("ViewAtomic", f"half of a request: {sorted(mine & state)} of {sorted(mine)}")
            for op in ops:  # one that was sent again may be said to be of later than it is, and never of earlier
                there = op.outcome == "ok" and op.partition in partitions and moment is not None
                if there and (op.partition, op.key) not in state and op.global_index <= (moment or 0):
                    self._wrong("ViewAtomic", f"a view of {moment} lacks what was ordered at {op.global_index}: {op}")
        for op in told:
            if (op.partition, op.key) not in state and op.partition not in self._seen.doomed:
                self._wrong("ViewFresh", f"a view of {moment} lacks what was acknowledged before it began: {op}")
        lacking = [add for add in due if add[1:3] not in state and add[1] not in self._seen.doomed]
        self._lacks("ViewFresh", f"a view of {moment}", lacking)
