"""Single commands for one partition, many under way at a time, and a future for each in place of a task."""

from __future__ import annotations

import asyncio
from functools import partial

from logboom.client.cluster import Cluster
from logboom.client.known import PART_BYTES_MAX
from logboom.client.lanes import Lane
from logboom.client.parts import CLOSED, record_bytes
from logboom.client.submits import Submitter
from logboom.commands import Command, to_record
from logboom.errors import InvalidRequest
from logboom.types import Level, Receipt, Record


class Sender:
    """Made by ``Client.sender``, which says what each command waits for, and how long.

    ::

        out = boom.sender(3, wait="committed")
        answers = [out.send(Put(b"%d" % n, b"")) for n in range(1_000)]
        receipts = await asyncio.gather(*answers)
    """

    def __init__(
        self,
        cluster: Cluster,
        submitter: Submitter,
        partition_id: int,
        *,
        wait: Level | None,
        timeout: float,
        admission_wait: float,
    ) -> None:
        self._cluster = cluster
        self._submitter = submitter
        self._begin = cluster.begin
        self._try_take = submitter.budget.try_take
        self._lane: Lane | None = None
        """Where the last one went: looking for it costs as much as putting one in."""
        self._waiting: set[asyncio.Task[Receipt]] = set()
        """Commands for which there was no room; the loop alone would not hold their tasks."""
        self._last: asyncio.Future[None] | None = None
        """The turn of the last command that waits for room: whoever comes now comes behind it."""
        self.budget = submitter.budget
        """Bytes that the client has in flight, of whatever kind."""
        self.partition_id = partition_id
        self.wait = wait
        self.timeout = timeout
        self.admission_wait = admission_wait

    def send(self, command: Command | Record) -> asyncio.Future[Receipt]:
        """Submit one command; its receipt, or what became of it, comes through the future.

        The same as a ``submit`` in a task of its own, for half of its cost: exactly once, with others of the same
        turn of the loop in one frame, in the order of the calls as long as nothing fails, is refused or expires. What
        ``max_in_flight_bytes`` has no room for waits here for earlier ones to be answered, so await futures now and
        then. Cancel one to give up on its command. Raises InvalidRequest and RecordTooLarge (a key) at once for what
        is no command, and InvalidRequest when the client is closed.
        """
        record, deadline = to_record(command), self._begin() + self.timeout
        lane = self._lane
        if lane is None or lane.closed:
            if self._submitter.closed:
                raise InvalidRequest(CLOSED)
            lane = self._lane = self._submitter.lane(self.partition_id, self.wait)
        size = record_bytes(record)
        if self._last is not None or size > PART_BYTES_MAX or not self._try_take(size):
            return self._in_turn(record, deadline)
        return lane.put(record, size, deadline, self.admission_wait)

    def _in_turn(self, record: Record, deadline: float) -> asyncio.Task[Receipt]:
        loop, before = self._cluster.loop, self._last
        self._last = turn = loop.create_future()
        task = loop.create_task(self._behind(before, turn, record, deadline))
        task.add_done_callback(partial(self._over, before, turn))
        self._waiting.add(task)
        return task

    async def _behind(
        self, before: asyncio.Future[None] | None, turn: asyncio.Future[None], record: Record, deadline: float
    ) -> Receipt:
        if before is not None:
            await asyncio.wait((before,))  # who gives up while he waits takes nothing from those in front of him
        answer = await self._submitter.single_in_turn(
            self.partition_id, record, wait=self.wait, deadline=deadline, admission_wait=self.admission_wait
        )
        self._has_gone(turn)
        return await answer

    def _has_gone(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            turn.set_result(None)
        if self._last is turn:
            self._last = None

    def _over(
        self, before: asyncio.Future[None] | None, turn: asyncio.Future[None], task: asyncio.Task[Receipt]
    ) -> None:
        self._waiting.discard(task)
        if before is None or before.done():
            self._has_gone(turn)
        else:  # it has given up: who comes behind it comes behind those in front of it
            before.add_done_callback(lambda _: self._has_gone(turn))
