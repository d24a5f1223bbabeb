"""What is admitted in one turn of the loop becomes few batches, and who asked for what is told his own."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.admission.admission import Admission
from dispatcher.pipeline.pending import Pending
from dispatcher.pipeline.proposing import LATELY, MIXED_BYTES_MAX, MIXED_ORIGINS_MAX, Admitted, Proposing
from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest
from logboom.errors import LogboomError, NotLeader
from logboom.records import RecordBlock
from logboom.settings import AdmissionSettings, LogSettings
from logboom.types import MIXED, NO_PRODUCER, GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId
from partitions.apply.apply_core import AppliedBatch
from partitions.log.batch import HEADER_BYTES, Batch, parse_batch

A, B = PARTITIONS = PartitionId(0), PartitionId(1)
P, Q, R = (ProducerId(bytes([number]) * 16) for number in (1, 2, 3))


class Leader:
    """What it appends, sends and orders."""

    def __init__(self, *, agreed: bool = True, share_bytes: int = 16_384, batch_bytes: int = 4_194_304) -> None:
        self.batches: list[Batch] = []
        self.ordered: list[list[tuple[int, int]]] = []
        """By proposal: partition and last index of each entry."""
        self.pokes = 0
        self.admission = Admission(AdmissionSettings(), PARTITIONS)
        self.pending = Pending()
        self.answers: dict[str, Any] = {}
        store = SimpleNamespace(append=lambda batch: self.batches.append(batch) or True)
        pipeline: Any = SimpleNamespace(
            settings=SimpleNamespace(log=LogSettings(mixed_bytes_max=share_bytes, batch_bytes_max=batch_bytes)),
            parent=SimpleNamespace(agreed=frozenset((MIXED,)) if agreed else frozenset()),
            raft=SimpleNamespace(
                poke=self._poke,
                engine=SimpleNamespace(term=4),
                send_payload=lambda buffers, traceparent: None,
                propose=lambda routes, payload_bytes: self.ordered.append(
                    [(route.partition_id, route.last_index) for route in routes]
                ),
            ),
            clock=SimpleNamespace(wall_ms=lambda: 1),
            logs=dict.fromkeys(PARTITIONS, store),
            tails={},
            pending=self.pending,
            appended=lambda store: None,
        )
        self.proposing = Proposing(pipeline)

    def _poke(self) -> None:
        self.pokes += 1

    def ask(
        self,
        name: str,
        producer: ProducerId = P,
        *partitions: PartitionId,
        sequence: int = 0,
        count: int = 1,
        size: int = 10,
        wait: Level = Level.COMMITTED,
        keyed: bool = False,
        **how: Any,
    ) -> None:
        keys = [b"key"] * count if keyed else None
        records = RecordBlock.from_columns(payloads=[name.encode().ljust(size)] * count, keys=keys)
        parts = tuple(SubmitPart(p, sequence, 0, records) for p in partitions or (A,))
        request = SubmitRequest(producer, 0, False, wait, 10.0, parts, records.nbytes * len(parts), **how)
        ticket = self.admission.admit([(part.partition_id, count, records.nbytes) for part in parts], 0.0)
        self.proposing.propose(Admitted(request, ticket, lambda answer: self.answers.setdefault(name, answer)))

    def names(self) -> list[list[bytes]]:
        """By batch, what is in it."""
        return [[payload.strip() for payload in batch.records().payloads()] for batch in self.batches]

    def apply(self, first: int, last: int, results: bytes | None = b"\0", refused: str | None = None) -> None:
        at = PartitionLogIndex(first), PartitionLogIndex(last), GlobalLogIndex(1)
        self.pending.applied(AppliedBatch(*at, P, 0, 0, 1, 10, 0, results, refused), A)


def test_who_comes_at_once_shares_a_batch() -> None:
    leader = Leader()
    leader.ask("p", P, sequence=7)
    leader.ask("q", Q, count=2)
    leader.ask("nobody", NO_PRODUCER)
    assert leader.batches == []
    assert leader.pokes == 3
    assert leader.proposing.under_way == 3
    leader.proposing.flush()
    assert leader.names() == [[b"p", b"q", b"q", b"nobody"]]
    assert leader.ordered == [[(A, 4)]]
    (batch,) = leader.batches
    found = parse_batch(b"".join(batch.buffers)).origins
    assert [(o.producer, o.first_index, o.record_count, o.sequence) for o in found] == [
        (P, 1, 1, 7), (Q, 2, 2, 0), (NO_PRODUCER, 4, 1, 0),
    ]  # fmt: skip
    assert (leader.proposing.under_way, leader.pending.uncommitted) == (3, 3)


def test_who_is_alone_goes_alone() -> None:
    leader = Leader()
    leader.ask("p", P, sequence=7)
    leader.proposing.flush()
    (batch,) = leader.batches
    assert (batch.header.producer, batch.header.sequence, batch.header.mixed) == (P, 7, 0)


def test_each_partition_has_a_batch_of_its_own() -> None:
    leader = Leader()
    for name, partition in (("1", A), ("2", B), ("3", A)):
        leader.ask(name, NO_PRODUCER, partition)
    leader.proposing.flush()
    assert leader.names() == [[b"1", b"3"], [b"2"]]


@pytest.mark.parametrize(
    "how", [{"count": 65}, {"size": 20_000}, {"dense": True}, {"wide": True}], ids=["many", "large", "dense", "wide"]
)
def test_what_shares_no_batch_comes_behind_what_was_there_before(how: dict[str, Any]) -> None:
    leader = Leader()
    leader.ask("p", P)
    leader.ask("q", Q)
    dense = how.pop("dense", False)
    if dense:
        records = RecordBlock.from_columns(payloads=[b"other"])
        request = SubmitRequest(R, 0, True, Level.COMMITTED, 10.0, (SubmitPart(A, 0, 0, records),), records.nbytes)
        ticket = leader.admission.admit([(A, 1, records.nbytes)], 0.0)
        leader.proposing.propose(Admitted(request, ticket, lambda _: None))
    else:
        leader.ask("other", R, **how)
    assert [batch.header.mixed for batch in leader.batches] == [2, 0]
    assert leader.names()[1][0] == b"other"


def test_a_request_over_several_partitions_stays_one_entry() -> None:
    leader = Leader()
    leader.ask("p", P)
    leader.ask("both", Q, A, B)
    assert leader.ordered == [[(A, 1)], [(A, 2), (B, 1)]]


def test_nothing_is_shared_before_all_know_of_it_or_if_that_is_switched_off() -> None:
    for leader in (Leader(agreed=False), Leader(share_bytes=0)):
        leader.ask("p", P)
        leader.ask("q", Q)
        assert [batch.header.mixed for batch in leader.batches] == [0, 0]


def test_what_a_producer_has_ordered_is_known_before_it_is_judged_again() -> None:
    leader = Leader()
    leader.ask("p", P, sequence=3)
    leader.ask("q", Q)
    leader.proposing.makes_way(R)
    leader.proposing.makes_way(NO_PRODUCER)
    assert leader.pending.ahead.of(A, P).runs == 0
    leader.proposing.makes_way(P)
    assert leader.pending.ahead.of(A, P).runs == 1
    assert leader.names() == [[b"p", b"q"]]


def test_who_comes_first_after_a_crowd_is_not_taken_for_the_only_one() -> None:
    """It would have a batch and a sync to itself, which those that follow at once wait for."""
    leader = Leader()
    leader.ask("p", P)
    assert leader.proposing.is_lone
    leader.ask("q", Q)
    assert not leader.proposing.is_lone
    leader.proposing.flush()
    index, lone = 2, list[bool]()
    leader.pending.committed(A, PartitionLogIndex(index), GlobalLogIndex(1))
    for _ in range(LATELY + 2):
        leader.ask("p", P)
        lone.append(leader.proposing.is_lone)
        leader.proposing.flush()
        index += 1
        leader.pending.committed(A, PartitionLogIndex(index), GlobalLogIndex(index))
    assert lone == [False] * LATELY + [True] * 2


def test_requests_that_share_nothing_become_lone_again_after_a_crowd_too() -> None:
    leader = Leader()
    leader.ask("p", P)
    leader.ask("q", Q)
    leader.proposing.flush()
    index, lone = 2, list[bool]()
    leader.pending.committed(A, PartitionLogIndex(index), GlobalLogIndex(1))
    for _ in range(LATELY + 2):
        leader.ask("large", P, size=20_000)
        lone.append(leader.proposing.is_lone)
        index += 1
        leader.pending.committed(A, PartitionLogIndex(index), GlobalLogIndex(index))
    assert lone == [False] * (LATELY - 1) + [True] * 3


def test_a_producer_is_in_a_batch_once() -> None:
    leader = Leader()
    for sequence in (0, 1):
        leader.ask(f"p{sequence}", P, sequence=sequence)
        leader.ask(f"q{sequence}", Q, sequence=sequence)
        leader.ask("nobody", NO_PRODUCER)
    leader.proposing.flush()
    assert leader.names() == [[b"p0", b"q0", b"nobody"], [b"p1", b"q1", b"nobody"]]


@pytest.mark.parametrize(
    ("count", "size", "batch_bytes"),
    [(2 * MIXED_ORIGINS_MAX, 10, 4_194_304), (40, 16_000, 4_194_304), (40, 500, 8_192)],
)
def test_a_batch_has_a_bound(count: int, size: int, batch_bytes: int) -> None:
    """Also that of the settings, with all that is added to what was sent."""
    leader = Leader(batch_bytes=batch_bytes)
    for number in range(count):
        leader.ask(str(number), NO_PRODUCER, size=size, keyed=number % 2 == 0)
    leader.proposing.flush()
    assert list(chain.from_iterable(leader.names())) == [b"%d" % number for number in range(count)]
    assert 1 < len(leader.batches) < count / 8
    assert max(len(batch.origins) for batch in leader.batches) <= MIXED_ORIGINS_MAX
    assert all(batch.nbytes <= min(MIXED_BYTES_MAX, batch_bytes) + HEADER_BYTES for batch in leader.batches)


def test_each_is_told_its_own() -> None:
    leader = Leader()
    leader.ask("committed", P)
    leader.ask("applied", Q, count=2, wait=Level.APPLIED)
    leader.ask("refused", R, wait=Level.APPLIED)
    leader.proposing.flush()
    assert leader.pending.committed(A, PartitionLogIndex(4), GlobalLogIndex(1)) == 1
    assert leader.pending.uncommitted == 0
    assert leader.answers == {"committed": SubmitReply(((A, 1, 1, 1, 0, None),), GlobalLogIndex(1))}
    leader.apply(1, 1)
    leader.apply(2, 3, b"\0\1")
    assert leader.answers["applied"] == SubmitReply(((A, 2, 3, 1, 0, b"\0\1"),), GlobalLogIndex(1))
    leader.apply(4, 4, None, "producer_fenced")
    assert leader.answers["refused"].code == "producer_fenced"
    assert leader.admission.used() == (0, 0)
    assert not len(leader.pending)
    assert not leader.pending._shares


def test_a_batch_that_is_void_is_so_for_all_that_share_it() -> None:
    leader = Leader()
    leader.ask("p", P, wait=Level.APPLIED)
    leader.ask("q", Q, wait=Level.APPLIED)
    leader.proposing.flush()
    leader.pending.committed(A, PartitionLogIndex(2), GlobalLogIndex(1))
    leader.pending.voided(A, PartitionLogIndex(2), lambda outcome: LogboomError("gone", outcome=outcome))
    assert [leader.answers[name].outcome for name in ("p", "q")] == ["not_applied"] * 2
    leader.apply(1, 2, None, "voided")
    assert leader.admission.used() == (0, 0)
    assert not len(leader.pending)


def test_who_was_gathered_when_leadership_was_lost_has_no_effect() -> None:
    leader = Leader()
    leader.ask("p", P)
    leader.ask("q", Q)
    leader.proposing.fail(lambda _: NotLeader("leadership was lost", leader=None))
    leader.proposing.flush()
    assert leader.batches == []
    assert [answer.outcome for answer in leader.answers.values()] == ["not_applied"] * 2
    assert leader.admission.used() == (0, 0)
    assert leader.proposing.under_way == 0


def test_what_is_lost_with_leadership_after_it_was_proposed_is_unknown() -> None:
    leader = Leader()
    leader.ask("p", P)
    leader.ask("q", Q)
    leader.proposing.flush()
    leader.pending.lost()
    assert [answer.outcome for answer in leader.answers.values()] == ["unknown"] * 2
    assert leader.admission.used() == (0, 0)
    assert not leader.pending._shares
