"""Partitions that are created, on their way to being open: first the log, then the machine.

Once its log is open a partition holds what comes: this node stores it, acknowledges it, and goes on to what is ordered
behind it, of whatever partition. To open a user's machine may last, or never end: that partition alone waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

import structlog

from dispatcher.pipeline.rooms import Opened, Rooms
from dispatcher.pipeline.surroundings import Surroundings
from dispatcher.upkeep.installing import Check
from logboom.types import GlobalLogIndex, PartitionId
from partitions.log.log import PartitionLog
from ports.timers import wait
from raftlog.entries.lifecycle import PartitionKind

log = structlog.get_logger(__name__)

POLL_S: Final = 0.01
OPEN_AGAIN_S: Final = 1.0
"""Before it is looked again whether there are files for what is to be opened."""


class Opening:
    """Partitions of one node that were created and are not open yet."""

    def __init__(self, pipeline: Surroundings, rooms: Rooms, *, opened: Callable[[PartitionId, Opened], None]) -> None:
        """``opened``: this one is, log and machine; both are in their room."""
        self._pipeline = pipeline
        self._rooms = rooms
        self._opened = opened
        self._under_way: dict[PartitionId, float] = {}
        """Created, and not open; since when."""
        self._waits: dict[PartitionId, str] = {}
        """Those of ``_under_way`` that wait for files, and why."""
        self._found: set[PartitionId] = set()
        """Logs that were opened, their machines not yet: where an earlier process has left something."""
        self._logs: dict[PartitionId, PartitionKind | None] = {}
        """Logs that are being opened; with what it is, if it is created: else a snapshot needs it."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, partition_id: object) -> bool:
        return partition_id in self._under_way

    def why(self, partition_id: PartitionId) -> str | None:
        """What it waits for, if that is not just its turn."""
        return self._waits.get(partition_id)

    def rows(self, most: int) -> list[list[object]]:
        """So many of them: which, what it waits for, if that is known, and how many seconds it has not been open."""
        lifecycle, now = self._pipeline.parent.lifecycle, self._pipeline.clock.monotonic()
        living = (p for p in sorted(self._under_way) if not lifecycle.is_gone(p))
        return [[p, self._waits.get(p, ""), int(now - self._under_way[p])] for p in islice(living, most)]

    def may_have_state(self, partition_id: PartitionId) -> bool:
        """Nobody knows before it is open what its state has: an earlier process may have saved some."""
        return partition_id in self._found

    def passed_over(self) -> PartitionId | None:
        """One of which something is committed, and nothing can be shown."""
        logs, lifecycle = self._rooms.logs, self._pipeline.parent.lifecycle
        living = (p for p in sorted(self._under_way) if not lifecycle.is_gone(p))
        return next((p for p in living if p in logs and logs[p].committed_index), None)

    def nothing_through(self) -> GlobalLogIndex | None:
        """Of none of those that cannot be shown is anything to be applied up to there; None: nor behind it."""
        logs, lifecycle = self._rooms.logs, self._pipeline.parent.lifecycle
        bounds = list[GlobalLogIndex | None]()
        for partition_id in self._under_way:
            if lifecycle.is_gone(partition_id):
                continue
            if partition_id in logs:
                bounds.append(logs[partition_id].in_front_of_first)
            elif partition_id in self._found:  # it is being looked at what an earlier process has left there
                bounds.append(GlobalLogIndex(0))
        return min((bound for bound in bounds if bound is not None), default=None)

    def open(self, partition_id: PartitionId, kind: PartitionKind) -> None:
        """It was created."""
        if partition_id in self._under_way:
            return
        self._under_way[partition_id] = self._pipeline.clock.monotonic()
        if partition_id in self._logs:
            self._logs[partition_id] = kind  # in this log, once it is open: there are no two of it
        else:
            self._open_once_it_can(partition_id, kind)

    def _open_once_it_can(self, partition_id: PartitionId, kind: PartitionKind) -> None:
        """Without files for it this node waits, and lags; whoever has none left at all ends, now and at each start."""
        if self._closed:
            return
        if self._pipeline.parent.lifecycle.is_gone(partition_id):
            self._over(partition_id)
            return
        before = self._waits.pop(partition_id, None)
        why = self._rooms.waits_for_files(len(self._under_way) - len(self._waits))
        if why is not None:
            self._waits[partition_id] = why
            if before is None:
                log.error("partition_waits_for_files", partition=partition_id, reason=why)
                self._tell_of_log(partition_id)
            asyncio.get_running_loop().call_later(OPEN_AGAIN_S, self._open_once_it_can, partition_id, kind)
            return
        if before is not None:
            log.info("partition_opens", partition=partition_id)
        if partition_id in self._rooms.logs:
            self._open_machine(partition_id, kind)
            return
        opens = partition_id in self._logs  # for a snapshot, since it has waited
        self._logs[partition_id] = kind
        if not opens:
            self._open_log(partition_id, kind, None)

    def _open_log(self, partition_id: PartitionId, kind: PartitionKind, ended: asyncio.Future[None] | None) -> None:
        try:
            untouched = self._rooms.untouched(partition_id)
        except OSError as error:  # nobody would try again
            self._log_opened(partition_id, ended, None, error)
            return
        if not untouched:  # whoever needs the log: once it is open nobody can tell
            self._found.add(partition_id)
        # What an earlier process has left there is read, written again and synced. No thread of the machine's own is
        # needed for it: all of those may be in calls that do not return.
        job = partial(self._rooms.open_log, partition_id, kind)
        self._pipeline.offload.submit(job, partial(self._log_opened, partition_id, ended))

    def _log_opened(
        self,
        partition_id: PartitionId,
        ended: asyncio.Future[None] | None,
        store: PartitionLog | None,
        error: BaseException | None,
    ) -> None:
        created = self._logs.pop(partition_id)
        if store is not None:
            self._rooms.logs[partition_id] = store
        if created is not None and error is not None:
            self._over(partition_id)
            self._pipeline.raft.fatal(error)
        elif created is not None and not self._closed:
            self._open_machine(partition_id, created)
        else:
            self._tell_of_log(partition_id)
        if ended is None or ended.done():
            return  # nobody waits, or does any more
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def _tell_of_log(self, partition_id: PartitionId) -> None:
        """Of one that waits, if a snapshot has had its log opened: batches are taken from then on."""
        waits = partition_id in self._waits and not self._pipeline.parent.lifecycle.is_gone(partition_id)
        if waits and partition_id in self._rooms.logs and not self._closed:
            self._pipeline.log_opened(partition_id)

    def _open_machine(self, partition_id: PartitionId, kind: PartitionKind) -> None:
        if self._pipeline.parent.lifecycle.is_gone(partition_id):
            self._over(partition_id)
            return
        self._pipeline.log_opened(partition_id)
        job = partial(self._rooms.open, partition_id, kind)
        self._rooms.offload(kind.state_machine).submit(job, partial(self._machine_opened, partition_id))

    def _machine_opened(self, partition_id: PartitionId, opened: Opened | None, error: BaseException | None) -> None:
        self._over(partition_id)
        if opened is None:
            self._pipeline.raft.fatal(error or RuntimeError("opening a partition failed"))
            return
        self._rooms.machines[partition_id] = opened.machine
        if not self._closed:
            self._opened(partition_id, opened)

    def _over(self, partition_id: PartitionId) -> None:
        self._under_way.pop(partition_id, None)
        self._found.discard(partition_id)
        self._waits.pop(partition_id, None)

    def ended(self, partition_id: PartitionId) -> None:
        """It is gone; what is under way goes on to its end, and comes to nothing."""
        self._found.discard(partition_id)

    async def log_of(
        self, partition_id: PartitionId, kind: PartitionKind, check: Check = lambda **_: None
    ) -> PartitionLog:
        """Of a partition that a snapshot has, and this node perhaps not yet. ``check`` is asked as long as it waits.

        One that waits for files may wait for those that only this snapshot gives back, and a log takes just one. Where
        not even that is left it waits on: whoever has none at all ends.
        """
        logs = self._rooms.logs
        while partition_id not in logs:
            if partition_id in self._logs or self._goes_on(partition_id):
                await wait(POLL_S)
                check()
            elif partition_id in self._waits and not self._rooms.file_left():
                await wait(OPEN_AGAIN_S)
                check(stands=True)
            else:
                break
        if partition_id not in logs:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._logs[partition_id] = None
            self._open_log(partition_id, kind, ended)
            await ended
        return logs[partition_id]

    def _goes_on(self, partition_id: PartitionId) -> bool:
        return partition_id in self._under_way and partition_id not in self._waits

    def close(self) -> None:
        """Go no further."""
        self._closed = True
