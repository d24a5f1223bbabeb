"""Applying one partition's committed batches: the cursor, the states, and one group's work.

Sans-io but for the state machine and the log it is given; the worker runs ``ApplyGroup.run``
off the loop and tells ``Cursor`` what came of it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from logboom.errors import CorruptData, Voided
from logboom.origins import Origin
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, ApplyBatch, Machine, Position, Results, Sealed
from logboom.types import NO_PRODUCER, GlobalLogIndex, PartitionLogIndex, ProducerId
from partitions.apply.dedupe import Decision, Dedupe, Numbered
from partitions.log.log import PartitionLog
from partitions.log.reading import CommittedBatch
from partitions.log.unread import NotRead
from ports.invariant import InvariantViolated, invariant

PASSING: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Of a machine that lacks something: once there is room again its partitions go on, without a word from anybody."""
RANGES_MAX: Final = 8
"""Batches that remove ranges of keys, applied in one transaction: each may change a thousand times what it says."""


class WorkerState(StrEnum):
    """What a worker is doing."""

    RUNNING = "running"
    RETRYING = "retrying"
    PAUSED = "paused"
    DAMAGED = "damaged"


class AppliedBatch(NamedTuple):
    """What became of one batch, or of one origin's records in a mixed one. ``refused``: an error code: no effect."""

    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    global_index: GlobalLogIndex
    producer: ProducerId
    epoch: int
    sequence: int
    record_count: int
    nbytes: int
    duplicate: int
    results: bytes | None
    refused: str | None


class Begun(NamedTuple):
    """What a worker begins with. To read it may take seconds, and a user's machine may raise anything."""

    dedupe: Dedupe
    position: Position

    @classmethod
    def of(cls, machine: Machine, settings: ApplySettings) -> Begun:
        """As the machine is now."""
        return cls(Dedupe(settings, machine.meta()), machine.position())


@dataclass(slots=True)
class Cursor:
    """Where a worker stands. Watermarks only grow (I7)."""

    applied: Position = NOWHERE
    limit: PartitionLogIndex = PartitionLogIndex(0)
    """May apply up to here: committed, durable here, and stable where the mode asks for it."""
    state: WorkerState = WorkerState.RUNNING
    attempts: int = 0
    gave_up: bool = False
    """It is paused since all attempts failed, not because somebody wanted it."""
    one_by_one: PartitionLogIndex = PartitionLogIndex(0)
    """A group up to here has failed: its batches are groups of their own, so that those in front of the culprit count.

    0: none has. Where it stops is the same on every node, however each has grouped them.
    """

    @property
    def due(self) -> bool:
        """There is something that may be applied."""
        return self.applied.applied_index < self.limit

    def raise_limit(self, limit: int) -> None:
        """More may be applied."""
        self.limit = PartitionLogIndex(max(self.limit, limit))

    def advance(self, position: Position) -> None:
        """A group was applied."""
        invariant(
            position.applied_index >= self.applied.applied_index
            and position.applied_global_index >= self.applied.applied_global_index,
            "I7: applied went back from {} to {}",
            self.applied,
            position,
        )
        self.applied = position
        if self.attempts or self.one_by_one:
            self.attempts = 0
            if self.state is WorkerState.RETRYING:
                self.state = WorkerState.RUNNING
            if self.one_by_one <= position.applied_index:
                self.one_by_one = PartitionLogIndex(0)

    def failed(self, error: BaseException | None, *, group: ApplyGroup, damaged: bool, useless: bool) -> None:
        """Retry so often, then wait for an operator; damaged data is not retried, what passes is for ever.

        A pause is kept, but where the state is ``useless``: nothing goes on with it.
        """
        self.attempts += 1
        if not damaged and not isinstance(error, NotRead):
            self.one_by_one = max(self.one_by_one, group.reach)
        if self.state is WorkerState.PAUSED and not useless:
            return
        if damaged:
            self.state = WorkerState.DAMAGED
        elif self.attempts >= group.settings.retry_attempts_max and not passes(error):
            self.state, self.gave_up = WorkerState.PAUSED, True
        else:
            self.state = WorkerState.RETRYING

    def pause_s(self, settings: ApplySettings) -> float:
        """Before the next attempt."""
        doubled: int = settings.retry_initial_ms * 2 ** (self.attempts - 1)
        return min(doubled, settings.retry_max_ms) / 1000


def passes(error: BaseException | None) -> bool:
    """No operator could do anything for the partition: what cannot be read is damaged before long, or is read."""
    return isinstance(error, NotRead | MemoryError) or (isinstance(error, OSError) and error.errno in PASSING)


@dataclass(slots=True)
class ApplyGroup:
    """One transaction's worth: read, decide, apply. All or nothing."""

    log: PartitionLog
    machine: Machine
    dedupe: Dedupe
    settings: ApplySettings
    after: PartitionLogIndex
    through: PartitionLogIndex
    alone: bool = False
    """One batch is all of it."""
    ends: PartitionLogIndex = PartitionLogIndex(0)
    """With the last batch that it has, 0: it has not been read yet."""

    @property
    def reach(self) -> PartitionLogIndex:
        """Where it ends; no further than where it would without what could not be read."""
        return self.ends or PartitionLogIndex(min(self.through, self.after + self.settings.batches_max))

    def run(self) -> list[AppliedBatch]:
        """Off the loop. Raises whatever reading or applying raised; then nothing has changed."""
        try:
            read = self.log.read_committed(
                after_index=self.after,
                through_index=self.through,
                max_bytes=self.settings.batch_bytes,
                max_batches=1 if self.alone else self.settings.batches_max,
                headers_only=not self.machine.needs_records,
                recent=self.log.recent,
            )
        except Voided as gap:
            return [self._step_over(gap)]
        batches = _bounded(read)
        invariant(bool(batches), "nothing to apply after {} though {} is durable", self.after, self.through)
        last = batches[-1]
        self.ends = last.last_index
        self._check_follows(batches[0].header.first_index)
        self.dedupe.rollback()
        decisions, applied = self._decide(batches)
        outcomes: list[AppliedBatch] = []

        def seal(results: Results) -> Sealed:
            by_batch = iter(_checked(results, applied))
            for batch, decided in zip(batches, decisions, strict=True):
                fresh = next(by_batch) if _counts(decided) else None
                if batch.origins:
                    outcomes.extend(self._outcomes(batch, decided, fresh))
                else:
                    header = batch.header
                    outcomes.append(self._outcome(header, batch.global_index, header.nbytes, decided[0], fresh))
            return Position(self.ends, last.global_index), self.dedupe.changes()

        self._apply(applied, seal)
        return outcomes

    def _check_follows(self, first_index: int) -> None:
        """What begins there is next. Raises CorruptData for a machine that says to be in the midst of it.

        Its worker began with that; wherever one has brought it, a batch ends.
        """
        if first_index <= self.after and self.machine.position().applied_index == self.after:
            raise CorruptData(f"the state is at {self.after}, which no batch ends at: the next begins at {first_index}")
        invariant(first_index == self.after + 1, "I5: applying {} after {}", first_index, self.after)

    def _apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> None:
        """All or nothing. Raises CorruptData for a machine that failed and moved: it would be given the same again."""
        try:
            self._apply_sealed(batches, seal)
        except InvariantViolated:
            raise
        except Exception as error:
            try:
                at = self.machine.position().applied_index
            except Exception as unknown:  # noqa: BLE001 - of two errors of a user's the first says what is wrong
                error.add_note(f"where it is it does not say: {unknown!r}")
                raise error from None
            if at != self.after:
                story = f"the state machine raised {error!r} and is at {at} all the same, not at {self.after}"
                raise CorruptData(f"{story}: apply is all or nothing") from error
            raise

    def _apply_sealed(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> None:
        """Raises ValueError for a machine that does not take, exactly once, what it has to keep with its state."""
        calls, sealed = 0, 0

        def once(results: Results) -> Sealed:
            nonlocal calls, sealed
            calls += 1
            if calls > 1:
                raise ValueError("the state machine called seal a second time in one apply")
            found = seal(results)
            sealed += 1
            return found

        self.machine.apply(batches, once)
        if (calls, sealed) != (1, 1):
            raise ValueError("the state machine's apply ended without position and meta from seal: it applied nothing")

    def _step_over(self, gap: Voided) -> AppliedBatch:
        """A batch that was declared void takes its indices, and has no effect."""
        self._check_follows(gap.first_index)
        self.dedupe.rollback()
        first, last = PartitionLogIndex(gap.first_index), PartitionLogIndex(gap.last_index)
        self.ends = last
        position = Position(last, GlobalLogIndex(gap.global_index))
        self._apply([], lambda _: (position, self.dedupe.changes()))
        return AppliedBatch(
            first,
            last,
            position.applied_global_index,
            producer=NO_PRODUCER,
            epoch=0,
            sequence=0,
            record_count=0,
            nbytes=0,
            duplicate=0,
            results=None,
            refused=Voided.code,
        )

    def _decide(self, batches: Sequence[CommittedBatch]) -> tuple[list[list[Decision]], list[ApplyBatch]]:
        """Of each batch, for each of its origins: one that is not mixed is its own."""
        # Decisions depend on what comes before in the same group: stage each at once.
        dedupe = self.dedupe
        decisions, applied = [], []
        for batch in batches:
            header, origins = batch.header, batch.origins
            decided = []
            for part in origins or (header,):
                decision = dedupe.decide(part)
                dedupe.record(part, decision, batch.global_index, mixed=bool(origins))
                decided.append(decision)
            decisions.append(decided)
            if _counts(decided):
                applied.append(
                    ApplyBatch(
                        header.first_index,
                        batch.global_index,
                        header.timestamp_ms,
                        header.record_count,
                        header.nbytes,
                        header.digest,
                        batch.records,
                        _skipped(header.first_index, origins, decided) if origins else decided[0].skip,
                    )
                )
        return decisions, applied

    def _outcomes(
        self, batch: CommittedBatch, decided: Sequence[Decision], fresh: bytes | None
    ) -> Iterator[AppliedBatch]:
        """Of one that several share. ``fresh``: a status for each record, or one for all; None: none was applied."""
        header = batch.header
        for origin, decision in zip(batch.origins, decided, strict=True):
            own = None
            if decision.refused is None and fresh is not None:
                at = origin.first_index - header.first_index
                own = fresh if len(fresh) == 1 else fresh[at : at + origin.record_count]
            nbytes = header.nbytes if origin.last_index == header.last_index else 0
            yield self._outcome(origin, batch.global_index, nbytes, decision, own)

    def _outcome(
        self, part: Numbered, global_index: GlobalLogIndex, nbytes: int, decision: Decision, fresh: bytes | None
    ) -> AppliedBatch:
        duplicate = decision.duplicate
        results = None
        if fresh is not None:
            results = self.dedupe.results(part, decision, fresh)
            if duplicate < part.record_count:
                self.dedupe.remember(part, global_index, results)
        return AppliedBatch(
            part.first_index,
            part.last_index,
            global_index,
            part.producer,
            part.epoch,
            part.sequence,
            part.record_count,
            nbytes,
            duplicate,
            results,
            decision.refused,
        )


def _counts(decided: Sequence[Decision]) -> bool:
    """Not all of the batch is refused."""
    return decided[0].refused is None or any(decision.refused is None for decision in decided[1:])


def _skipped(first_index: int, origins: Sequence[Origin], decided: Sequence[Decision]) -> tuple[tuple[int, int], ...]:
    """Positions in a mixed batch that have no effect: what was applied before, and what is refused."""
    found = list[tuple[int, int]]()
    for origin, decision in zip(origins, decided, strict=True):
        at = origin.first_index - first_index
        spans = decision.skip if decision.refused is None else ((0, origin.record_count),)
        for start, stop in spans:
            if found and found[-1][1] == at + start:
                found[-1] = (found[-1][0], at + stop)
            else:
                found.append((at + start, at + stop))
    return tuple(found)


def _bounded(batches: Sequence[CommittedBatch]) -> Sequence[CommittedBatch]:
    """As many as one transaction has memory for; the others are read again."""
    if not batches or batches[0].records is None:
        return batches  # headers alone
    left = RANGES_MAX
    for number, batch in enumerate(batches):
        left -= batch.records is not None and batch.records.has_ranges
        if left < 0:
            return batches[:number]
    return batches


def _checked(results: Sequence[Any], applied: Sequence[ApplyBatch]) -> Sequence[bytes]:
    """Statuses as they may be remembered. Raises ValueError for what would not be taken for ours at the next start."""
    if len(results) != len(applied):
        raise ValueError(f"the state machine gave {len(results)} results for {len(applied)} batches")
    for each, batch in zip(results, applied, strict=True):
        if type(each) is not bytes or len(each) not in (1, batch.count):
            if type(each) is not bytes and isinstance(each, bytes):  # such as numpy's, which cannot be kept
                return _checked([_plain(status) for status in results], applied)
            kind = type(each).__name__
            raise ValueError(f"the state machine gave {each!r:.40} ({kind}) as statuses of {batch.count} records")
    return results


def _plain(status: Any) -> Any:
    return bytes(memoryview(status)) if isinstance(status, bytes) else status
