"""The checkpoints of one machine: when one is due, and who waits until what is applied is saved to stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Machine
from logboom.types import PartitionId, PartitionLogIndex
from partitions.apply.apply_counts import ApplyCounts
from ports.clock import Clock
from ports.offload import Offload

log = structlog.get_logger(__name__)

SAVES: Final = 2
"""Checkpoints after which the first of them is there to stay: a power loss may undo a state file's last transaction."""


@dataclass(slots=True, eq=False)
class _Save:
    """Somebody waits for checkpoints; ``begun``: so many have begun since."""

    saved: Callable[[BaseException | None], None]
    begun: int = 0
    index: PartitionLogIndex = PartitionLogIndex(0)
    """What was applied when the first of them began."""


class Checkpoints:
    """Saves one worker's machine, off the loop. ``ended`` is called after each checkpoint, with what went wrong."""

    def __init__(
        self,
        *,
        machine: Machine,
        partition_id: PartitionId,
        applied: Callable[[], PartitionLogIndex],
        offload: Offload,
        clock: Clock,
        settings: ApplySettings,
        counts: ApplyCounts,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        """``applied`` says how far the worker is."""
        self._machine = machine
        self._partition_id = partition_id
        self._applied = applied
        self._offload = offload
        self._clock = clock
        self._settings = settings
        self._counts = counts
        self._ended = ended
        self.under_way = False
        self.since = 0
        """Bytes of the log applied since the last checkpoint began: a crash repeats them."""
        self.saved_index = PartitionLogIndex(0)
        """Up to here a ``save`` has made sure of what is applied."""
        self._wanted: list[_Save] = []
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._closed = False

    @property
    def wanted(self) -> bool:
        """Somebody waits."""
        return bool(self._wanted)

    def save(self, saved: Callable[[BaseException | None], None]) -> None:
        """Have everything that is applied now saved so that a power loss cannot undo it; then call ``saved``."""
        # The last transaction of a state file may be undone by a power loss, the one before it cannot.
        self._wanted.append(_Save(saved))
        self._save()

    def fail(self, error: BaseException) -> None:
        """Whoever waits is told this."""
        saves, self._wanted = self._wanted, []
        for save in saves:
            save.saved(error)

    def close(self) -> None:
        """Begin no other: closing the machine saves."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def save_when_due(self) -> None:
        """Something was applied, or may go on."""
        unsaved = self._machine.unsaved_bytes
        if unsaved > self._settings.unsaved_bytes or (unsaved and self.since > self._settings.replay_bytes):
            self._save()
        elif unsaved and self._timer is None:
            # What is old and not saved would have to be applied again after a crash, before this node can answer.
            self._timer = asyncio.get_running_loop().call_later(self._settings.unsaved_ms / 1000, self._save)

    def _save(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.under_way and not self._closed:
            self.under_way, self.since = True, 0
            self._began = self._clock.monotonic()
            for save in self._wanted:
                save.index = save.index if save.begun else self._applied()
                save.begun += 1
            self._offload.submit(self._machine.checkpoint, self._saved)

    def _saved(self, _: object, error: BaseException | None) -> None:
        self.under_way = False
        self._counts.checkpoints += error is None
        self._counts.checkpoint_failures += error is not None
        self._counts.checkpoint_seconds.observe(self._clock.monotonic() - self._began)
        done = [save for save in self._wanted if error is not None or save.begun == SAVES]
        self._wanted = [save for save in self._wanted if save not in done]
        for save in done:
            if error is None:
                self.saved_index = max(self.saved_index, save.index)
            save.saved(error)
        if error is not None:
            log.error("checkpoint_failed", partition=self._partition_id, error=repr(error))
            if not self._closed and not isinstance(error, OSError | CorruptData):
                self._timer = asyncio.get_running_loop().call_later(self._settings.retry_max_ms / 1000, self._save)
        elif self._wanted:
            self._save()
        else:
            self.save_when_due()  # what a group added meanwhile
        self._ended(error)
