"""Batches that several producers share: as bytes, read back, and judged origin by origin when they are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from logboom.errors import CorruptData
from logboom.origins import ORIGIN, Origin
from logboom.records import RecordBlock
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch, Results, Sealed
from logboom.types import NO_PRODUCER, GlobalLogIndex, PartitionLogIndex, ProducerId, Term
from partitions.apply.apply_core import AppliedBatch, ApplyGroup
from partitions.apply.dedupe import Dedupe, Producer
from partitions.log.batch import Batch, build_batch, parse_batch, parse_header
from partitions.log.log import PartitionLog
from partitions.log.reading import RUN_BATCHES, DamagedBatch
from partitions.log.recent import HEADER_BYTES, ORIGIN_BYTES
from tests.unit.partitions.batches import P, commit, flush, open_log

A, B, C = (ProducerId(bytes([number]) * 16) for number in (1, 2, 3))

Share = tuple[ProducerId, int, int]
"""Producer, sequence of its first record, how many."""


def origins_of(
    shares: Sequence[Share], first: int = 1, *, epochs: dict[bytes, int] | None = None
) -> tuple[Origin, ...]:
    found, index = list[Origin](), first
    for producer, sequence, count in shares:
        epoch = (epochs or {}).get(producer, 0)
        found.append(Origin(producer, epoch, PartitionLogIndex(index), count, sequence, 0))
        index += count
    return tuple(found)


def mixed(*shares: Share, after: Batch | None = None, count: int | None = None, **changes: Any) -> Batch:
    """``count``: of its records, if it is not what the shares say."""
    first = 1 if after is None else after.last_index + 1
    rows = sum(share[2] for share in shares) if count is None else count
    given: dict[str, Any] = {
        "partition_id": P,
        "first_index": first,
        "term": Term(1),
        "timestamp_ms": 1,
        "records": RecordBlock.from_columns(payloads=[b"%d" % (first + n) for n in range(rows)]),
        "previous_digest": bytes(16) if after is None else after.digest,
        "origins": origins_of(shares, first, epochs=changes.pop("epochs", None)),
    }
    return build_batch(**given | changes)


def raw(batch: Batch) -> bytes:
    return b"".join(batch.buffers)


# -- as bytes


def test_it_comes_back() -> None:
    batch = mixed((A, 7, 2), (NO_PRODUCER, 0, 1), (B, 0, 3))
    found = parse_batch(raw(batch))
    assert found.header == batch.header == parse_header(raw(batch))
    assert found.origins == batch.origins
    assert [(o.first_index, o.last_index) for o in found.origins] == [(1, 2), (3, 3), (4, 6)]
    assert found.records().payloads() == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert found.header.producer == NO_PRODUCER
    assert (found.header.mixed, found.header.epoch) == (3, 0)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (mixed((A, 0, 1), (B, 0, 1), count=3), "origins of 2 records in a batch of 3"),
        (mixed((A, 0, 2), (B, 0, 2), count=3), "origins of 4 records in a batch of 3"),
        (mixed((A, 0, 0), (B, 0, 3)), "an origin of 0 records"),
        (mixed((A, 1 << 63, 1), (B, 0, 3)), "sequence"),
        (mixed((A, 0, 1), (B, 0, 1), producer=C), "a producer of its own"),
        (mixed((A, 0, 1), (B, 0, 1), dense=True), "flags 5"),
        (mixed((A, 0, 1), (B, 0, 1), sequence=4), "a producer of its own"),
        (mixed((A, 0, 1), (B, 0, 1), (C, 0, 0), count=2), "3 origins, 2 records"),
    ],
)
def test_what_is_off_is_named(batch: Batch, why: str) -> None:
    with pytest.raises(CorruptData, match=why):
        parse_batch(raw(batch))


# -- read back


def log_of(path: Path, batches: list[Batch], **how: Any) -> PartitionLog:
    log = open_log(path, **how)
    for batch in batches:
        log.append(batch)
    flush(log)
    commit(log, batches)
    return log


def test_a_header_does_not_vouch_for_the_origins(tmp_path: Path) -> None:
    """Who reads headers alone checks no section: of a mixed batch it does, or would take one producer for another."""
    batches = [mixed((A, 0, 1), (B, 0, 1))]
    batches.append(mixed((A, 1, 1), (B, 1, 1), after=batches[0]))
    log = log_of(tmp_path, batches)
    read: dict[str, Any] = {"after_index": 0, "through_index": 4, "max_bytes": 1 << 20, "headers_only": True}
    assert [found.origins for found in log.read_committed(**read)] == [batch.origins for batch in batches]
    (file,) = tmp_path.glob("*.log")
    damaged = bytearray(file.read_bytes())
    damaged[damaged.index(pack(batches[1].origins[0]))] ^= 1
    file.write_bytes(damaged)
    assert [found.origins for found in log.read_committed(**read)] == [batches[0].origins]
    with pytest.raises(DamagedBatch):
        log.read_committed(**read | {"after_index": 2})


def pack(origin: Origin) -> bytes:
    return ORIGIN.pack(origin.producer, origin.epoch, origin.record_count, origin.sequence, origin.floor)


def test_who_keeps_headers_keeps_origins(tmp_path: Path) -> None:
    batch = mixed((A, 0, 1), (B, 0, 1))
    log = log_of(tmp_path, [batch], headers_only=True)
    (found,) = log.read_committed(
        after_index=0, through_index=2, max_bytes=1 << 20, headers_only=True, recent=log.recent
    )
    assert (found.origins, found.records) == (batch.origins, None)
    log.recent.appended(batch)
    log.recent.committed(batch.digest)
    assert log.recent._put_bytes - log.recent._taken_bytes == HEADER_BYTES + 2 * ORIGIN_BYTES


# -- applied


class Machine:
    """Each record's status is its index."""

    needs_records = True

    def __init__(self) -> None:
        self.batches: list[ApplyBatch] = []
        self.meta: dict[bytes, bytes | None] = {}

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        self.batches += batches
        results = [bytes(k % 256 for k in range(b.first_index, b.first_index + b.count)) for b in batches]
        _, changes = seal(results)
        self.meta |= changes
        return results


def applied(path: Path, batches: list[Batch], dedupe: Dedupe) -> tuple[list[AppliedBatch], Machine]:
    log, machine = log_of(path, batches), Machine()
    settings = ApplySettings()
    group = ApplyGroup(log, machine, dedupe, settings, PartitionLogIndex(0), batches[-1].last_index)  # type: ignore[arg-type]
    outcomes = group.run()
    dedupe.commit()
    return outcomes, machine


def test_each_origin_is_judged_by_itself(tmp_path: Path) -> None:
    """One is new, of one a part was applied before, one is refused: each is told its own, and the last is skipped."""
    dedupe = Dedupe(ApplySettings(), [(bytes(C), Producer(epoch=2).encode())])
    first = mixed((A, 0, 2), (B, 0, 1))
    second = mixed((B, 1, 1), (C, 0, 2), (A, 1, 3), after=first, epochs={C: 1})
    outcomes, machine = applied(tmp_path, [first, second], dedupe)
    told = [
        (o.producer, o.first_index, o.last_index, o.global_index, o.duplicate, o.results, o.refused) for o in outcomes
    ]
    assert told == [
        (A, 1, 2, 1, 0, bytes((1, 2)), None),
        (B, 3, 3, 1, 0, bytes((3,)), None),
        (B, 4, 4, 2, 0, bytes((4,)), None),
        (C, 5, 6, 2, 0, None, "producer_fenced"),
        (A, 7, 9, 2, 1, bytes((2, 8, 9)), None),
    ]
    assert [batch.skip for batch in machine.batches] == [(), ((1, 4),)]
    assert sum(outcome.nbytes for outcome in outcomes) == first.nbytes + second.nbytes


def test_one_of_which_all_is_refused_is_not_applied(tmp_path: Path) -> None:
    dedupe = Dedupe(ApplySettings(), [(bytes(p), Producer(epoch=2).encode()) for p in (A, B)])
    outcomes, machine = applied(tmp_path, [mixed((A, 0, 1), (B, 0, 1))], dedupe)
    assert [outcome.refused for outcome in outcomes] == ["producer_fenced"] * 2
    assert machine.batches == []


def test_it_leaves_what_batches_of_their_own_leave(tmp_path: Path) -> None:
    shares = [(A, 0, 1), (B, 5, 2), (A, 1, 1), (NO_PRODUCER, 0, 1), (C, 0, 3)]
    together, apart = Dedupe(ApplySettings()), Dedupe(ApplySettings())
    outcomes, _ = applied(tmp_path / "together", [mixed(*shares)], together)
    alone = list(batches_of_their_own(shares))
    others, _ = applied(tmp_path / "apart", alone, apart)
    for one, other in zip(outcomes, others, strict=True):
        assert one._replace(global_index=0, nbytes=0) == other._replace(global_index=0, nbytes=0)  # type: ignore[arg-type]
    for producer in (A, B, C):
        one, other = together._producers[producer], apart._producers[producer]
        assert (one.floor, one.ranges, one.expected) == (other.floor, other.ranges, other.expected)


def batches_of_their_own(shares: Sequence[Share]) -> Iterator[Batch]:
    after = None
    for producer, sequence, count in shares:
        after = mixed((producer, sequence, count), after=after, origins=(), producer=producer, sequence=sequence)
        yield after


@pytest.mark.parametrize(("recent_bytes", "beyond"), [(1 << 20, 1), (0, RUN_BATCHES)])
def test_a_group_has_as_many_requests_as_it_would_have_batches(tmp_path: Path, recent_bytes: int, beyond: int) -> None:
    """Else what was not applied for a while is a hundred times as much at once, told in one turn of the loop."""
    batches = list[Batch]()
    for number in range(20):
        shares = [(ProducerId(k.to_bytes(16, "big")), number, 1) for k in range(1, 101)]
        batches.append(mixed(*shares, after=batches[-1] if batches else None))
    log = log_of(tmp_path, batches, recent_bytes=recent_bytes, segment_bytes=1 << 20)
    dedupe, settings, at = Dedupe(ApplySettings()), ApplySettings(batches_max=256), PartitionLogIndex(0)
    told = list[AppliedBatch]()
    while at < batches[-1].last_index:
        group = ApplyGroup(log, Machine(), dedupe, settings, at, batches[-1].last_index)  # type: ignore[arg-type]
        outcomes = group.run()
        dedupe.commit()
        assert len(outcomes) <= 256 + 100 * beyond
        told += outcomes
        at = outcomes[-1].last_index
    assert [outcome.first_index for outcome in told] == list(range(1, 2001))


def test_many_origins_are_not_for_the_loop(tmp_path: Path) -> None:
    """Of a log that is applied by headers: each is judged all the same."""
    few = mixed(*((ProducerId(k.to_bytes(16, "big")), 0, 1) for k in range(1, 11)))
    many = mixed(*((ProducerId(k.to_bytes(16, "big")), 1, 1) for k in range(1, 101)), after=few)
    log = log_of(tmp_path, [few, many], headers_only=True)
    assert log.is_recent(after_index=0, through_index=10, nbytes=ApplySettings().inline_bytes)
    assert not log.is_recent(after_index=10, through_index=110, nbytes=ApplySettings().inline_bytes)


# -- who is forgotten first


def test_who_wrote_first_in_a_batch_is_forgotten_first_also_after_a_restart(tmp_path: Path) -> None:
    """They have one global index, and nodes that start again know them by what they kept alone."""
    settings = ApplySettings(producers_max=3)
    running = Dedupe(settings)
    _, machine = applied(tmp_path, [mixed((C, 0, 1), (A, 0, 1), (B, 0, 1))], running)
    kept = {key: entry for key, entry in machine.meta.items() if entry is not None}
    started = [Dedupe(settings, order) for order in (kept.items(), reversed(kept.items()))]
    newcomer = Origin(ProducerId(b"n" * 16), 0, PartitionLogIndex(4), 1, 0, 0)
    for dedupe in (running, *started):
        dedupe.record(newcomer, dedupe.decide(newcomer), GlobalLogIndex(2))
        dedupe.commit()
        assert list(dedupe._producers) == [A, B, newcomer.producer]


def test_what_is_kept_of_others_is_as_it_was() -> None:
    """An earlier release reads it, as long as nobody shares batches."""
    plain = Producer(epoch=1, floor=2, last_global=9)
    assert Producer.decode(plain.encode()) == plain
    shared = Producer(epoch=1, floor=2, last_global=9, last_in_mixed=30)
    assert Producer.decode(shared.encode()) == shared
    assert len(shared.encode()) > len(plain.encode())
    with pytest.raises(CorruptData):
        Producer.decode(plain.encode().replace(b"\x95", b"\x96", 1) + b"\x00")
