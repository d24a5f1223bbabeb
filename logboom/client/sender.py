"""Single commands for one partition, many under way at a time, and a future for each in place of a task."""

from __future__ import annotations

import asyncio

from logboom.client.cluster import Cluster
from logboom.client.known import PART_BYTES_MAX
from logboom.client.lanes import Lane
from logboom.client.parts import record_bytes
from logboom.client.submits import Submitter
from logboom.commands import Command, to_record
from logboom.types import Level, Receipt, Record, WideRecord


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
        """Where the last one went that was over one key: looking for it costs as much as putting one in."""
        self._waiting: set[asyncio.Task[Receipt]] = set()
        """Those for which there was no room; the loop alone would not hold them."""
        self.budget = submitter.budget
        """Of all that the client has in flight."""
        self.partition_id = partition_id
        self.wait = wait
        self.timeout = timeout
        self.admission_wait = admission_wait

    def send(self, command: Command | Record) -> asyncio.Future[Receipt]:
        """Submit one command; its receipt, or what became of it, comes through the future.

        The same as a ``submit`` in a task of its own, for half of its cost: exactly once, with others of the same
        turn of the loop in one frame, in the order of the calls as long as nothing fails or is refused. What
        ``max_in_flight_bytes`` has no room for waits here for earlier ones to be answered, so await futures now and
        then. Cancel one to give up on its command. Raises InvalidRequest and RecordTooLarge (a key) at once for what
        is no command, and InvalidRequest when the client is closed.
        """
        record, deadline = to_record(command), self._begin() + self.timeout
        lane = self._lane
        if lane is None or lane.closed or type(record) is WideRecord:
            return self._look_up(record, deadline)
        size = record_bytes(record)
        if size > PART_BYTES_MAX or not self._try_take(size):
            return self._in_turn(record, deadline)
        return lane.put(record, size, deadline, self.admission_wait)

    def _look_up(self, record: Record, deadline: float) -> asyncio.Future[Receipt]:
        submitter, partition_id, level = self._submitter, self.partition_id, self.wait
        answer = submitter.try_single(partition_id, record, level, deadline, self.admission_wait)
        if type(record) is not WideRecord:
            self._lane = submitter.lane(partition_id, level)
        return self._in_turn(record, deadline) if answer is None else answer

    def _in_turn(self, record: Record, deadline: float) -> asyncio.Task[Receipt]:
        work = self._submitter.single_in_turn(
            self.partition_id, record, wait=self.wait, deadline=deadline, admission_wait=self.admission_wait
        )
        task = self._cluster.loop.create_task(work)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return task
