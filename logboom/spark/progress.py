"""How far a scan of several logs has come, and what may be missing on the way. No Spark in here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from logboom.client.reads import LogBatch
from logboom.errors import CorruptData, IndexCompacted, PartitionDestroyed, Voided
from logboom.spark.shares import Merged, Share

log: Final = logging.getLogger("logboom.spark")
GONE: Final = "partition %d: %d records from offset %d on are gone; going on behind them"


@dataclass(slots=True)
class Progress:
    """How far a merged scan has come."""

    merged: Merged
    fail_on_data_loss: bool
    after_global: int
    seen: dict[int, int] = field(default_factory=dict)
    from_first: bool = False
    """What comes now comes from where each log begins, not from a global index."""
    passed: Mapping[int, int] = field(default_factory=dict)
    """By partition, where it begins, if what is missing in front of that lies in front of the range, too."""
    too_large: bool = False
    """A batch of each log at once is more than may be held."""
    _given_up: dict[int, range] = field(default_factory=dict)
    """Offsets that whoever was asked did not have: another node, which comes back, may."""
    _done: bool = False

    def done(self) -> bool:
        """All of the range has been seen."""
        return self._done

    def batches_of(self, items: Sequence[LogBatch | Voided]) -> list[LogBatch]:
        """What is to be read of what has come. Raises Voided, IndexCompacted, CorruptData if something is missing."""
        return [each for each in items if self._take(each) and not isinstance(each, Voided)]

    def _take(self, batch: LogBatch | Voided) -> bool:
        """False: it lies outside of what is to be read yet."""
        span, partition = self.merged.span, batch.partition_id
        self._done = self._done or batch.global_index >= span.high
        before = self.seen.get(partition)
        if batch.global_index <= self.after_global:
            self.seen[partition] = max(before or 0, int(batch.last_index))
            return False
        given_up = self._given_up.get(partition, range(0))
        if batch.first_index < given_up.stop and batch.last_index >= given_up.start:
            before = batch.first_index - 1
        # One behind the range, too: it tells that nothing is left of what should have come in front of it.
        if before is not None and batch.first_index != before + 1:
            self._gap(batch, before)
        if before is None and (self.from_first or span.low <= 1):
            self._missing(self._rest(partition, 0), int(batch.first_index))
        self.seen[partition] = int(batch.last_index)
        if batch.global_index > span.high:
            return False
        if isinstance(batch, Voided):
            self._step_over(batch)
        self.after_global = batch.global_index
        return True

    def _step_over(self, void: Voided) -> None:
        share = self._share(void.partition_id)
        first = max(share.start, void.first_index)
        missing = min(share.end, void.last_index) + 1 - first
        if missing > 0:
            if self.fail_on_data_loss:
                raise void
            log.warning(GONE, void.partition_id, missing, first)

    def leave_out(self, gone: PartitionDestroyed, rest: Merged) -> None:
        """Go on with the others, which may end earlier."""
        log.warning("%s; it was read up to offset %d", gone, self.seen.get(gone.partition_id, 0))
        self.go_on_with(rest)

    def go_on_with(self, rest: Merged) -> None:
        """What is left of the range."""
        self.merged = rest
        self._done = self._done or self.after_global >= rest.span.high

    def wanted(self) -> list[Share]:
        """What is still to be read of each, or lies behind the range."""
        following = (self._rest(s.partition_id, self.seen.get(s.partition_id, 0)) for s in self.merged.parts)
        return [share for share in following if share.rows]

    def begin_behind(self, gone: Mapping[int, int]) -> frozenset[int]:
        """Nothing is expected in front of these offsets any more. Those of which nothing is left.

        Raises IndexCompacted.
        """
        nothing = set[int]()
        for share in self.wanted():
            first = gone.get(share.partition_id, 0)
            self._missing(share, first)
            if first > share.end:
                nothing.add(share.partition_id)
            if first > share.start:
                before = self._given_up.get(share.partition_id, range(0))
                start = before.start if before.stop >= share.start else share.start
                self._given_up[share.partition_id] = range(start, first)
                self.seen[share.partition_id] = first - 1
        return frozenset(nothing)

    def _rest(self, partition: int, before: int) -> Share:
        share = self._share(partition)
        return replace(share, start=max(share.start, before + 1, self.passed.get(partition, 0)))

    def _gap(self, batch: LogBatch | Voided, before: int) -> None:
        partition = batch.partition_id
        if batch.first_index > before:
            rest = self._rest(partition, before)
            if self.from_first or not self.fail_on_data_loss:
                self._missing(rest, int(batch.first_index))
                return
            if min(rest.end + 1, batch.first_index) <= rest.start:
                return
        raise CorruptData(
            f"partition {partition}: offset {batch.first_index} came after {before}; if what is between was "
            "declared void, failOnDataLoss=false goes on behind it",
            path=f"partition {partition}",
            offset=before,
        )

    def _missing(self, share: Share, first: int) -> None:
        missing = min(first, share.end + 1) - share.start
        if missing <= 0:
            return
        if self.fail_on_data_loss:
            raise lost(share.partition_id, share.start, first)
        log.warning(GONE, share.partition_id, missing, share.start)

    def _share(self, partition: int) -> Share:
        return next(s for s in self.merged.parts if s.partition_id == partition)


def lost(partition_id: int, position: int, first: int) -> IndexCompacted:
    """The error for what is wanted, and was removed."""
    return IndexCompacted(
        f"partition {partition_id}: offset {position} is gone, {first} is the first that is held; failOnDataLoss=false "
        "goes on there",
        first=first,
    )


def scattered(node: str, firsts: Mapping[int, int]) -> IndexCompacted:
    """Each node lacks something that another one has."""
    partition, first = next(iter(firsts.items()))
    return IndexCompacted(
        f"partition {partition}: {node} holds most of these logs, this one from offset {first} on; another has more, "
        "none has all, and these are too many logs, or too large batches, to read each from another: "
        "read fewer of them (option partitions), or without ordered=global, or with failOnDataLoss=false, which leaves "
        "that out",
        first=first,
    )
