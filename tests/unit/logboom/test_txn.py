"""Commands over several keys, as a client makes, sends and reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from dispatcher.reading.feeds import Filter
from logboom import Add, Cas, Client, Compare, Delete, DeletePrefix, DeleteRange, Put, Record, Status, Txn
from logboom.commands import end_of, from_record, keys_of, to_record
from logboom.errors import IncompatibleVersion, InvalidRequest, PermissionDenied, RecordTooLarge
from logboom.records import RecordBlock
from logboom.routing import partition_of, partition_of_record
from logboom.types import KV_TXN, WideRecord
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Session, cluster, entries, fails

TXN = Txn([Compare(b"a", "==", None)], [Put(b"b", b"1")], [Delete(b"c")])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Txn(), "without comparisons and commands"),
        (Txn([], [Put(b"k", b"")] * 129), "then of a Txn has 129"),
        (Txn([Compare(b"k", "==", b"")] * 129), "compares of a Txn has 129"),
        (Txn([], [TXN]), "a Txn has Compare, and Put"),  # type: ignore[list-item]
        (Txn([], [DeletePrefix(b"k")]), "a Txn has Compare, and Put"),  # type: ignore[list-item]
        (Txn([Put(b"k", b"")]), "a Txn has Compare"),  # type: ignore[list-item]
        (Txn([], Put(b"k", b"")), "then of a Txn is a list"),  # type: ignore[arg-type]
        (Txn([Compare(b"k", "=", b"")]), "a Compare is one of == !="),
        (Txn([Compare(b"k", "<", None)]), "not there"),
        (Txn([Compare(b"k", "==", "text")]), "bytes, numbers or None"),  # type: ignore[arg-type]
        (Txn([Compare(b"k", "==", True)]), "numbers"),
        (Txn([Compare(b"", "==", b"")]), "non-empty bytes key"),
        (Txn([Compare(bytes(512), "==", b"")]), "at most 511"),
        (Txn([], [Put(bytes(512), b"")]), "at most 511"),
        (Add(b"k", 0.5, 2**53 + 1), "no double is equal to 9007199254740993"),
        (Add(b"k", 0.5, 10**400), "fit 64 bits"),
        (Txn([], [Add(b"k", 2**53 + 1, 0.5)]), "no double is equal to 9007199254740993"),
        (Txn([Compare(b"k", ">", (2**53 + 1, 0.5))]), "no double is equal to 9007199254740993"),
        (DeleteRange(b"b", b"b"), "nothing is from"),
        (DeletePrefix(b""), "non-empty bytes key"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_sent(wrong: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        wrong.record()


@pytest.mark.parametrize("number", [0, -(2**53), 2**53 + 2, -(2**63), 2**80])
def test_a_float_makes_floats_of_the_integers_that_are_equal_to_some(number: int) -> None:
    assert from_record(Add(b"k", number, 0.5).record()) == Add(b"k", float(number), 0.5)


@pytest.mark.parametrize(("prefix", "end"), [(b"a", b"b"), (b"a\xff\xff", b"b"), (b"\xff", b""), (b"a\xfe", b"a\xff")])
def test_where_a_prefix_ends(prefix: bytes, end: bytes) -> None:
    assert end_of(prefix) == end
    assert from_record(DeletePrefix(prefix).record()) == DeleteRange(prefix, end or None)


def test_a_block_knows_that_it_has_some() -> None:
    plain, wide = Put(b"k", b"v").record(), TXN.record()
    assert not RecordBlock.from_records([plain]).wide
    assert not RecordBlock.from_records([plain] * 3).wide
    assert RecordBlock.from_records([wide]).wide
    assert not RecordBlock.from_records([wide, plain]).has_ranges
    for rows in ([DeletePrefix(b"k").record()], [plain, wide, DeletePrefix(b"k").record()]):
        block = RecordBlock.from_records(rows)
        assert block.has_ranges
        assert not block.as_wide(wide=False).has_ranges
    block = RecordBlock.from_records([plain, wide, plain])
    assert block.wide
    assert block.take(1, 3).wide
    assert block.where(np.array([True, False, True])).wide
    assert block.records() == [plain, wide, plain]  # copied out of a log, they are what they were
    assert RecordBlock.from_records(block.records()[1:]).wide
    assert not RecordBlock.from_records(block.records()[:1]).wide


def test_a_block_knows_how_many_keys_its_transactions_look_at() -> None:
    one = Txn([Compare(b"k", "==", None)] * 3, [Put(b"k", b"v")] * 2, [Delete(b"k")] * 7).record()
    other = Txn([], [Put(b"k", b"v")] * 128, []).record()
    rows = [
        one,
        Put(b"k", b"v").record(),
        WideRecord(b"\5", b"k"),
        WideRecord(b"", b"k"),
        other,
        DeletePrefix(b"k").record(),
    ]
    block = RecordBlock.from_records(rows)
    assert block.txn_keys == 3 + 7 + 128
    assert block.as_wide(wide=False).txn_keys == 0
    assert RecordBlock.from_records([DeletePrefix(b"k").record()]).txn_keys == 0


def test_who_follows_a_prefix_is_given_what_may_change_it() -> None:
    rows = [
        Put(b"b", b""),
        TXN,
        Txn([Compare(b"x", "==", None)], [Put(b"y", b"")]),
        DeletePrefix(b"b"),
        DeletePrefix(b"bb"),
        DeleteRange(b"a"),
        DeleteRange(b"a", b"b"),
        DeleteRange(b"c"),
        DeleteRange(b"b\xff", b"z"),
        Record(b"\6\0", b"b"),
    ]
    block = RecordBlock.from_records(map(to_record, rows))
    assert Filter(b"b").wanted(block).tolist() == [True, True, False, True, True, True, False, False, True, True]


def test_all_keys_of_a_txn_are_in_one_partition() -> None:
    places: dict[int, list[bytes]] = {}
    for number in range(20):
        places.setdefault(partition_of(b"%d" % number, 4), []).append(b"%d" % number)
    (one, (first, second, *_)), (_, (third, *_)), *_ = places.items()
    assert keys_of(TXN.record()) == [b"a", b"b", b"c"]
    assert partition_of_record(Txn([], [Add(first, -1), Add(second, 1)]).record(), 4) == one
    assert partition_of_record(Record(b"\x05", first), 4) == one
    with pytest.raises(InvalidRequest, match="keys of one partition"):
        partition_of_record(Txn([], [Add(first, -1), Add(third, 1)]).record(), 4)
    with pytest.raises(InvalidRequest, match="name one"):
        partition_of_record(DeletePrefix(first).record(), 4)


async def test_it_is_said_that_nodes_have_to_know_them() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.features = [KV_TXN]
        await boom.submit(0, Put(b"k", b"v"))
        await boom.submit(0, TXN)
        await boom.submit(0, [Put(b"k", b"v"), DeletePrefix(b"k")])
        await boom.submit_many({0: [Cas(b"k", None, b"v")], 1: [TXN]})
        await boom.submit(0, TXN, producer_id=b"p" * 16, sequence=0)
        assert [frame.header.get("wide") for frame in node.of(Kind.SUBMIT)] == [None, [0], [0], [1], [0]]


async def test_a_node_of_an_earlier_release_is_not_sent_what_it_would_read_as_nothing() -> None:
    """And what is on its way beside it is not held up."""
    async with cluster() as [node], Client(node.address) as boom:
        await boom.submit(0, Put(b"k", b"v"))
        several = (
            boom.submit(0, TXN),
            boom.submit(0, Put(b"k", b"v")),
            boom.submit(0, [DeletePrefix(b"k"), Add(b"n", 1)]),
        )
        refused, done, also = await asyncio.gather(*several, return_exceptions=True)
        assert isinstance(refused, IncompatibleVersion)
        assert isinstance(also, IncompatibleVersion)
        assert refused.outcome == "not_applied"
        assert not isinstance(done, BaseException)
        assert len(node.of(Kind.SUBMIT)) == 2
        assert boom._submitter.budget.used == 0


def test_plain_records_are_never_taken_for_them() -> None:
    record = TXN.record()
    assert not RecordBlock.from_records([Record(record.payload, record.key)]).wide
    assert isinstance(record, WideRecord)


async def test_a_prefix_of_which_some_keys_are_gone_is_not_told_as_untouched() -> None:
    """The last request had no effect; those before it had."""

    def some(session: Session, frame: Frame) -> None:
        session.send(frame, Kind.SUBMITTED, {"parts": [[0, 1, 1, 1, 0, bytes((Status.MORE,))]], "commit_index": 1})

    async with cluster() as [node], Client(node.address) as boom:
        node.features = [KV_TXN]
        node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"k1"], more=False)
        node.answers[Kind.SUBMIT] = fails(PermissionDenied("no rule allows it"))
        with pytest.raises(PermissionDenied) as refused:
            await boom.delete_prefix(0, b"k")
        assert refused.value.outcome == "not_applied"
        node.once(Kind.SUBMIT, some)
        with pytest.raises(PermissionDenied, match=r"no rule.*some keys are removed") as refused:
            await boom.delete_prefix(0, b"k")
        assert refused.value.outcome == "unknown"


@pytest.mark.parametrize("prefix", [b"", "text", None, bytes(512)])
async def test_what_is_no_prefix_is_refused_before_a_key_is_looked_at(prefix: Any) -> None:
    """All keys were read first, of a partition of any size."""
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.SCAN] = lambda s, f: entries(s, f, [b"k"], more=False)
        with pytest.raises((InvalidRequest, RecordTooLarge)):
            await boom.delete_prefix(0, prefix)
        assert not node.of(Kind.SCAN)
        assert not node.of(Kind.SUBMIT)
