"""Each ``(producer, sequence)`` at most once (I5), decided from replicated state only.

Per producer: its epoch, a floor below which everything is settled, and the applied ranges
above it. A batch is applied less the records that these cover. ``dense`` producers (Spark
writers) may leave no gap. What is remembered is bounded: ranges per producer, receipts per
producer, producers per partition (the one that wrote longest ago goes first: the same one on
every node, since that order is the order of the log). Sans-io.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import msgpack
import msgspec

from logboom.errors import CorruptData, QuotaExceeded
from logboom.settings import ApplySettings
from logboom.types import NO_PRODUCER, GlobalLogIndex, PartitionLogIndex, ProducerId, Status
from partitions.apply.ordered import OrderedParts
from ports.invariant import invariant

RESULTS_BYTES_MAX = 1024
RETRY_AFTER_S: Final = 0.1
NOTHING: Final = OrderedParts()


class AppliedReceipt(NamedTuple):
    """What became of a part when it was applied."""

    sequence: int
    record_count: int
    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    global_index: GlobalLogIndex
    results: bytes | None


class Decision(NamedTuple):
    """What to do with a batch: refuse it (an error code), or skip some records (half-open positions)."""

    refused: str | None
    skip: tuple[tuple[int, int], ...]

    @property
    def duplicate(self) -> int:
        """Records skipped."""
        return sum(stop - start for start, stop in self.skip) if self.skip else 0


class Numbered(Protocol):
    """Consecutive records of one producer: a batch, or one origin of a mixed batch."""

    @property
    def producer(self) -> ProducerId: ...
    @property
    def epoch(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def floor(self) -> int: ...
    @property
    def dense(self) -> bool: ...
    @property
    def first_index(self) -> PartitionLogIndex: ...
    @property
    def last_index(self) -> PartitionLogIndex: ...
    @property
    def record_count(self) -> int: ...


ALL_OF_IT: Final = Decision(None, ())
TOO_MUCH: Final = Decision("quota_exceeded", ())


@dataclass(slots=True)
class Producer:
    """One producer's past."""

    epoch: int = 0
    floor: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Applied sequences at or above the floor: disjoint, ascending, half-open."""
    receipts: list[AppliedReceipt] = field(default_factory=list)
    last_global: int = 0
    """Global index of the batch that it wrote last."""
    last_in_mixed: int = 0
    """Where in that batch, by index, if others wrote in it, too; else 0."""

    @property
    def expected(self) -> int:
        """The next sequence of a dense producer; of any other nothing from here on was applied."""
        return self.ranges[-1][1] if self.ranges else self.floor

    def covered(self, first: int, last: int, floor: int) -> list[tuple[int, int]]:
        """The parts of [first, last) that are settled."""
        found = list[tuple[int, int]]()
        floor = max(floor, self.floor)
        if not self.ranges and first >= floor:  # nearly always
            return found
        if first < floor:
            found.append((first, min(last, floor)))
        for start, stop in self.ranges:
            low, high = max(start, first, floor), min(stop, last)
            if low < high:
                found.append((low, high))
        return _merge(found)

    def settle(self, first: int, last: int, floor: int) -> None:
        """[first, last) is applied; nothing below ``floor`` will come again."""
        self.floor = max(self.floor, floor)
        if not self.ranges and first <= self.floor:  # nearly always
            self.floor = max(self.floor, last)
            return
        merged = _merge([*self.ranges, (first, last)])
        while merged and merged[0][0] <= self.floor:
            self.floor = max(self.floor, merged.pop(0)[1])
        self.ranges = merged

    def copy(self) -> Producer:
        """To change without touching the original."""
        return Producer(
            self.epoch, self.floor, list(self.ranges), list(self.receipts), self.last_global, self.last_in_mixed
        )

    @property
    def age(self) -> tuple[int, int]:
        """Ascending in the order of the log."""
        return self.last_global, self.last_in_mixed

    def encode(self) -> bytes:
        """For the state machine's transaction."""
        # With every group: a fifth of the time that msgpack takes for the same bytes.
        row: tuple[Any, ...] = (self.epoch, self.floor, self.ranges, self.receipts, self.last_global)
        return msgspec.msgpack.encode((*row, self.last_in_mixed) if self.last_in_mixed else row)

    @classmethod
    def decode(cls, raw: bytes) -> Producer:
        """Inverse of ``encode``. Raises CorruptData."""
        try:
            row: Any = msgpack.unpackb(raw)
            epoch, floor, ranges, receipts, last_global, *mixed = row
            (last_in_mixed,) = mixed or (0,)
            found = cls(
                epoch,
                floor,
                [(a, b) for a, b in ranges],
                [AppliedReceipt(*r) for r in receipts],
                last_global,
                last_in_mixed,
            )
            sound = _is_sound(found) and (not mixed or last_in_mixed > 0)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"a producer's entry cannot be read: {error}") from error
        if not sound:
            raise CorruptData("a producer's entry is not one of ours")
        return found


class Dedupe:
    """All producers of one partition.

    Per batch, or origin of a mixed one, in log order: ``decide``, then ``record``. Per transaction: ``changes`` gives
    what to write, then ``commit`` makes it so in memory, or ``rollback`` forgets it.
    """

    def __init__(self, settings: ApplySettings, entries: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._settings = settings
        loaded = [(ProducerId(key), Producer.decode(raw)) for key, raw in entries]
        loaded.sort(key=lambda item: item[1].age)
        self._producers: OrderedDict[ProducerId, Producer] = OrderedDict(loaded)
        self._count = len(loaded)
        """Producers known after what is staged."""
        self._oldest_first: Iterator[ProducerId] | None = None
        self._staged: dict[ProducerId, Producer] = {}
        """Changed in the transaction under way, in the order of their last write."""
        self._evicted: dict[ProducerId, None] = {}
        """Forgotten in the transaction under way; who writes again after that begins anew."""
        self._recorded: dict[int, Producer] = {}
        """By first index: the producer as that part of the transaction left it, whatever has become of it since."""

    def __len__(self) -> int:
        return len(self._producers)

    def drop(self) -> None:
        """The partition is gone. What knows each other is garbage that may be looked for much later: keep it small."""
        for each in (self._producers, self._staged, self._evicted, self._recorded):
            each.clear()

    def decide(self, header: Numbered) -> Decision:
        """Reads only."""
        if header.producer == NO_PRODUCER:
            return ALL_OF_IT
        known = self._known(header.producer)
        if known is None or header.epoch > known.epoch:
            known = Producer(epoch=header.epoch)
        if header.epoch < known.epoch:
            return Decision("producer_fenced", ())
        if header.dense and header.sequence > max(known.expected, header.floor):
            return Decision("out_of_sequence", ())
        covered = known.covered(header.sequence, header.sequence + header.record_count, header.floor)
        if not covered:  # nearly always
            much = self._is_too_much(known, (header.sequence, header.sequence + header.record_count))
            return TOO_MUCH if much else ALL_OF_IT
        return Decision(None, tuple((a - header.sequence, b - header.sequence) for a, b in covered))

    def results(self, header: Numbered, decision: Decision, fresh: bytes) -> bytes:
        """Status per record: what was remembered for skipped ones, ``fresh`` for the others."""
        if not decision.skip:
            return fresh
        known = self._recorded.get(header.first_index)
        full = bytearray(fresh * header.record_count if len(fresh) == 1 else fresh)
        before = _remembered(known, header.sequence, header.record_count)
        for start, stop in decision.skip:
            full[start:stop] = before[start:stop]
        return bytes(full[:1]) if full.count(full[0]) == len(full) else bytes(full)

    def record(
        self, header: Numbered, decision: Decision, global_index: GlobalLogIndex, *, mixed: bool = False
    ) -> None:
        """It will be applied as decided, and what follows it is judged with that in mind. ``mixed``: an origin."""
        if header.producer == NO_PRODUCER or decision.refused is not None:
            return
        known = self._staged.pop(header.producer, None)
        if known is None:
            before = self._known(header.producer)
            known = before.copy() if before is not None else Producer(epoch=header.epoch)
            self._count += before is None
        place = header.first_index if mixed else 0
        later = global_index > known.last_global or (global_index, place) > known.age
        invariant(later, "I5: a producer's batches recorded out of order")
        if header.epoch > known.epoch:
            known = Producer(epoch=header.epoch)
        known.settle(header.sequence, header.sequence + header.record_count, header.floor)
        known.last_global, known.last_in_mixed = global_index, place
        self._staged[header.producer] = self._recorded[header.first_index] = known
        if self._count > self._settings.producers_max:
            self._evict()

    def _evict(self) -> None:
        """At once: how batches are grouped into transactions differs between nodes, who is forgotten must not."""
        # Ascending by their last write: those that this transaction has not touched come before those that it has.
        if self._oldest_first is None:
            self._oldest_first = iter(self._producers)
        oldest = next((p for p in self._oldest_first if p not in self._evicted and p not in self._staged), None)
        if oldest is not None:
            self._evicted[oldest] = None
        else:
            oldest = next(iter(self._staged))
            del self._staged[oldest]
            if oldest in self._producers:
                self._evicted[oldest] = None
        self._count -= 1

    def remember(self, header: Numbered, global_index: GlobalLogIndex, results: bytes) -> None:
        """Keep the receipt of a batch that had any effect, for retries."""
        known = self._recorded.get(header.first_index)
        if known is None:
            return
        kept = results if len(results) <= RESULTS_BYTES_MAX else None
        known.receipts.append(
            AppliedReceipt(
                header.sequence, header.record_count, header.first_index, header.last_index, global_index, kept
            )
        )
        del known.receipts[: -self._settings.producer_receipts]

    def changes(self) -> dict[bytes, bytes | None]:
        """Entries to write in the transaction under way; None: forget."""
        found: dict[bytes, bytes | None] = dict.fromkeys(map(bytes, self._evicted))
        found.update((bytes(p), known.encode()) for p, known in self._staged.items())
        return found

    def commit(self) -> None:
        """The transaction is on disk."""
        for producer in self._evicted:
            del self._producers[producer]
        for producer, known in self._staged.items():
            self._producers[producer] = known
            self._producers.move_to_end(producer)
        self.rollback()

    def rollback(self) -> None:
        """The transaction did not happen."""
        if self._staged or self._evicted or self._recorded:
            self._staged, self._evicted, self._recorded = {}, {}, {}
        self._oldest_first = None
        self._count = len(self._producers)

    def _known(self, producer: ProducerId) -> Producer | None:
        known = self._staged.get(producer)
        return known if known is not None or producer in self._evicted else self._producers.get(producer)

    def _is_too_much(self, known: Producer, part: tuple[int, int]) -> bool:
        """With this part, of which nothing is settled, there would be more ranges than are remembered."""
        most = self._settings.producer_ranges_max
        return len(known.ranges) >= most and len(_merge([*known.ranges, part])) > most

    def makes_room(
        self,
        producer: ProducerId,
        epoch: int,
        part: tuple[int, int],
        floor: int,
        ahead: OrderedParts = NOTHING,
        *,
        more: bool = False,
    ) -> int | None:
        """A sequence that has to be sent again first, with that floor, for ``part`` (half-open) not to be refused.

        Too many ranges are known, or will be once what is ordered ``ahead`` is applied, and the floor has settled most
        of them; but a batch that is refused raises no floor. One whose sequence is below it never is, and has no
        effect. None: nothing needs to. Raises QuotaExceeded if nothing helps. ``more``: others have ordered something,
        too, and nobody here knows what: who has half of what is remembered waits until that is applied.
        """
        known, most = self._producers.get(producer), self._settings.producer_ranges_max
        if known is None or known.epoch < epoch:
            known = Producer(epoch=epoch)
        if known.epoch > epoch or len(known.ranges) + ahead.runs < ((most + 1) // 2 if more else most):
            return None  # as nearly always
        if more and not known.covered(*part, floor):
            raise QuotaExceeded(
                f"what was ordered before this node led is not applied yet, and {len(known.ranges)} ranges of this "
                "producer are known",
                limit=most,
                used=len(known.ranges),
                retry_after=RETRY_AFTER_S,
            )
        ahead.recount()
        if len(known.ranges) + ahead.runs < most:
            return None
        known = known.copy()
        for each in ahead:  # some of it may have been applied meanwhile: then it is settled, and changes nothing
            span = each.first, each.stop
            if each.epoch == epoch and (known.covered(*span, each.floor) or not self._is_too_much(known, span)):
                known.settle(*span, each.floor)
        if known.covered(*part, floor) or not self._is_too_much(known, part):
            return None
        used, below = len(known.ranges), [stop for start, stop in known.ranges if start < floor]
        again = min(below[-1], floor) - 1 if below else None
        if again is not None:
            known.settle(again, again + 1, floor)
        if again is None or self._is_too_much(known, part):
            raise QuotaExceeded(
                f"sequence {part[0]} would be one range too many of its producer: {used} are known above its floor, "
                "between which something may still come; a higher `floor` settles those below it",
                limit=most,
                used=used,
                retry_after=RETRY_AFTER_S,
            )
        return again

    def lookup(self, producer: ProducerId, epoch: int, first_sequence: int, count: int) -> AppliedReceipt | None:
        """The receipt of exactly this part, if it was applied and is remembered."""
        known = self._producers.get(producer)
        if known is None or known.epoch != epoch or first_sequence >= known.expected:
            return None  # behind all that was applied, as nearly always
        for receipt in reversed(known.receipts):
            if (receipt.sequence, receipt.record_count) == (first_sequence, count):
                return receipt
        return None

    def settled(
        self, producer: ProducerId, epoch: int, part: tuple[int, int], floor: int, ahead: OrderedParts = NOTHING
    ) -> int:
        """How many of ``part`` (half-open) have no effect any more, once what is ordered ``ahead`` is applied."""
        known = self._producers.get(producer)
        if known is not None and known.epoch > epoch:
            return part[1] - part[0]
        if known is None or known.epoch < epoch:
            known = Producer(epoch=epoch)
        covered = known.covered(*part, floor) + ahead.settled(epoch, *part)
        return sum(stop - start for start, stop in _merge(covered)) if covered else 0

    def may_have(self, producer: ProducerId, epoch: int, first: int, stop: int) -> bool:
        """Something of these sequences may have been applied; if not, nothing is remembered to have been."""
        known = self._producers.get(producer)
        if known is None or known.epoch != epoch:
            return known is not None and known.epoch > epoch
        return bool(known.covered(first, stop, known.floor))


def _is_sound(known: Producer) -> bool:
    edges = [known.floor, *(edge for bounds in known.ranges for edge in bounds)]
    numbers = [known.epoch, *known.age, *edges, *(n for receipt in known.receipts for n in receipt[:5])]
    if any(type(n) is not int or n < 0 for n in numbers) or any(a >= b for a, b in pairwise(edges)):
        return False
    kept: list[tuple[Any, int]] = [(receipt.results, receipt.record_count) for receipt in known.receipts]
    return all(r is None or (isinstance(r, bytes) and len(r) in (1, count)) for r, count in kept)


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _remembered(known: Producer | None, first: int, count: int) -> bytes:
    """Status of each of these sequences, as far as receipts have it; what came last counts.

    Receipt by receipt: records may be many, and whoever applies may be the loop.
    """
    found = bytearray((Status.UNKNOWN_RESULT,)) * count
    for receipt in known.receipts if known is not None else ():
        low, high = max(first, receipt.sequence), min(first + count, receipt.sequence + receipt.record_count)
        if receipt.results is None or low >= high:
            continue
        one_for_all, at = len(receipt.results) == 1, low - receipt.sequence
        part = receipt.results * (high - low) if one_for_all else receipt.results[at : at + high - low]
        found[low - first : high - first] = part
    return bytes(found)
