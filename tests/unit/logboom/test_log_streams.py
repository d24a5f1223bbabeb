"""Following the log: what a client makes of what nodes send, and where it goes on when one is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from logboom import Client, Record, RecordBlock
from logboom.client.home import Home
from logboom.client.log_batches import LogBatch, batches_of
from logboom.errors import (
    CorruptData,
    IncompatibleVersion,
    IndexCompacted,
    InvalidRequest,
    NoSuchPartition,
    ProtocolError,
    Unauthenticated,
    Unavailable,
    Voided,
)
from logboom.types import PartitionId, Term
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, fails, silent, until
from tests.unit.logboom.log_frames import raw, whole


def scanning(node: FakeNode) -> None:
    """It is of a release that can."""

    def hello(session: Session, frame: Any) -> None:
        welcome = {
            "version": 1, "cluster": "test", "node": node.name, "leader": node.leader, "members": node.members,
            "partitions": [[0, "kv", "write_ahead"], [1, "kv", "write_ahead"]], "frame_bytes": 1 << 20,
            "features": ["log_scan"],
        }  # fmt: skip
        session.send(frame, Kind.WELCOME, welcome)

    node.answers[Kind.HELLO] = hello


def frame_of(header: dict[str, Any], body: list[bytes]) -> Frame:
    return Frame(Kind.BATCHES, 1, header, memoryview(b"".join(body)))


def test_batches_as_they_are_on_the_disk() -> None:
    frame = frame_of(*whole([(9, raw(3, 5, [b"a", b"bb", b"c"])), (12, raw(3, 8, [b"d"]))], first=6))
    one, two = batches_of(frame)
    assert (one.partition_id, one.first_index, one.last_index, one.global_index) == (3, 6, 7, 9)
    assert (one.term, one.timestamp_ms, one.producer_id, one.epoch, one.sequence) == (2, 77, b"p" * 16, 3, 106)
    assert one.records.payloads() == [b"bb", b"c"]
    assert (two.first_index, two.global_index, two.records.payloads()) == (8, 12, [b"d"])


@pytest.mark.parametrize("spoil", ["short", "long", "magic", "checksum", "too few"])
def test_batches_that_are_none(spoil: str) -> None:
    good = raw(3, 5, [b"a", b"bb"])
    body = {
        "short": good[:100],
        "long": good + b"x",
        "magic": b"x" + good[1:],
        "checksum": good[:20] + b"\xff" + good[21:],
        "too few": good + raw(3, 7, [b"x"]),
    }[spoil]
    with pytest.raises(ProtocolError, match="BATCHES"):
        list(batches_of(frame_of(*whole([(1, body)]))))


def batch(count: int, size: int, offsets: list[int] | None = None) -> LogBatch:
    block = RecordBlock.from_columns(payloads=[b"%0*d" % (size, k) for k in range(count)])
    where = None if offsets is None else np.array(offsets, np.uint32)
    return LogBatch(PartitionId(1), 11, 5, Term(1), 0, bytes(16), 0, 40, block, where, 100 if offsets else 0)  # type: ignore[arg-type]


def test_pieces_have_at_most_so_many_records_and_bytes_and_one_at_least() -> None:
    assert [p.records.count for p in batch(10, 5).pieces(0, 0)] == [10]
    assert [p.records.count for p in batch(10, 5).pieces(4, 0)] == [4, 4, 2]
    assert [p.records.count for p in batch(10, 5).pieces(0, 15)] == [3, 3, 3, 1]
    assert [p.records.count for p in batch(3, 5).pieces(0, 1)] == [1, 1, 1]
    pieces = list(batch(10, 5).pieces(4, 0))
    assert [(p.first_index, p.last_index, p.sequence, p.position) for p in pieces] == [
        (11, 14, 40, 15),
        (15, 18, 44, 19),
        (19, 20, 48, 21),
    ]


def test_pieces_of_what_a_filter_left_go_on_where_they_end() -> None:
    pieces = list(batch(4, 5, [2, 3, 7, 9]).pieces(2, 0))
    assert [p.indexes().tolist() for p in pieces] == [[13, 14], [18, 20]]
    assert [p.position for p in pieces] == [15, 100]
    assert [p.last_index for p in pieces] == [14, 20]


async def test_a_position_that_a_filter_passed_over_is_not_asked_for_again() -> None:
    async with cluster() as [node], Client(node.address) as boom:

        def first(session: Session, frame: Any) -> None:
            session.send(frame, Kind.SKIPPED, {"next_index": 500}, more=True)
            asyncio.get_running_loop().call_later(0.05, session.transport.abort)

        node.once(Kind.TAIL, first, lambda session, frame: session.send(frame, Kind.END, {"next_index": 500}))
        assert [b async for b in boom.tail(0, key_prefix=b"a", header=("h", None))] == []
        asked = node.of(Kind.TAIL)
        assert [frame.header["start"] for frame in asked] == [0, 500]
        assert asked[0].header["key_prefix"] == b"a"
        assert asked[0].header["header"] == ["h", None]


async def test_where_records_were_removed_it_is_said_or_gone_on_from_the_first() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        removed = fails(IndexCompacted("gone", first=7))
        node.once(Kind.TAIL, removed, removed, lambda session, frame: session.send(frame, Kind.END, {"next_index": 9}))
        with pytest.raises(IndexCompacted):
            _ = [b async for b in boom.tail(0, start_global=3)]
        assert [b async for b in boom.tail(0, start_global=3, on_compacted="first")] == []
        assert [(f.header["start"], f.header.get("start_global")) for f in node.of(Kind.TAIL)] == [
            (0, 3),
            (0, 3),
            (7, None),
        ]


async def test_the_end_of_an_empty_log_is_none_of_one_that_others_have_removed_from() -> None:
    """A member that has nothing yet hid that, and whoever asked took its end for that of the log."""
    async with cluster(3) as nodes:
        for node, first in zip(nodes, (7, 5, 0), strict=True):
            node.answers[Kind.TAIL] = removed_before(first, Kind.TAIL, whole([(9, raw(0, 5, [b"a", b"b", b"c"]))]))
        nodes[2].answers[Kind.TAIL] = lambda session, frame: session.send(frame, Kind.END, {"next_index": 1})
        for begins in range(3):
            async with Client([node.address for node in nodes]) as boom:
                await boom._cluster.any()
                boom._cluster._next = begins
                for node in nodes:
                    await boom._cluster.connection(node.address)
                rows = [b.first_index async for b in boom.tail(0, start=3, on_compacted="first")]
                boom._cluster._next = begins
                if begins == 1:  # the next one is asked, and that has nothing: it says so, and nobody else was asked
                    assert rows == []
                    continue
                assert rows == [5]
                with pytest.raises(IndexCompacted) as refused:
                    _ = [b async for b in boom.tail(0, start=3)]
                assert refused.value.first == 5


def removed_before(first: int, kind: Kind, body: Any) -> Any:
    def answer(session: Session, frame: Frame) -> None:
        asked = frame.header["start"] or frame.header.get("start_global", 0)
        if asked < first:
            session.fail(frame, IndexCompacted("gone", first=first))
        elif kind is Kind.TAIL:
            session.send(frame, Kind.BATCHES, *body, more=True)
            session.send(frame, Kind.END, {"next_index": 8})
        else:
            session.send(frame, Kind.END, {"next_global": 10, "batches": 0})

    return answer


async def test_what_one_node_has_removed_another_is_asked_for() -> None:
    """Each removes for itself; one that was given a snapshot has nothing in front of it."""
    async with cluster(3) as nodes:
        for node, first in zip(nodes, (7, 5, 6), strict=True):
            scanning(node)
            for kind in (Kind.TAIL, Kind.LOG_SCAN):
                node.answers[kind] = removed_before(first, kind, whole([(9, raw(0, 5, [b"a", b"b", b"c"]))]))
        for node in nodes:
            async with Client(node.address) as boom:
                assert [b.first_index async for b in boom.tail(0, start=5)] == [5]
                assert [b.first_index async for b in boom.tail(0, start=3, on_compacted="first")] == [5]
                assert await scan(boom, start_global=5) == []
                for reading in (boom.tail(0, start=4), boom.scan_log([0, 1], start_global=4)):
                    with pytest.raises(IndexCompacted) as refused:
                        _ = [b async for b in reading]
                    assert refused.value.first == 5
        async with Client(nodes[1].address) as boom:
            with pytest.raises(IndexCompacted):
                _ = [b async for b in boom.tail(0, start=5, node="n1")]
        await nodes[1].stop()
        async with Client(nodes[0].address) as boom:
            with pytest.raises(IndexCompacted) as refused:
                _ = [b async for b in boom.tail(0, start=5)]
            assert refused.value.first == 6, "of those that can be reached"


async def test_who_wants_to_know_is_told_of_each_node_that_is_asked() -> None:
    async with cluster(2) as nodes:
        asked = list[str]()
        batches = whole([(9, raw(0, 5, [b"a"]))])
        for node, first in zip(nodes, (7, 5), strict=True):
            node.answers[Kind.TAIL] = removed_before(first, Kind.TAIL, batches)
        async with Client(nodes[0].address) as boom:
            assert [b.first_index async for b in boom.tail(0, start=5, node="n2", on_node=asked.append)] == [5]
            assert asked == [nodes[1].address]
            asked.clear()
            assert [b.first_index async for b in boom.tail(0, start=5, on_node=asked.append)] == [5]
        assert len(asked) == len(nodes[0].of(Kind.TAIL)) + len(nodes[1].of(Kind.TAIL)) - 1
        assert asked[-1] == nodes[1].address


@pytest.mark.parametrize("kind", [Kind.TAIL, Kind.LOG_SCAN])
async def test_who_follows_where_nothing_is_written_outlives_any_number_of_restarts(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two failures with an hour between them, and nothing to read in it, the second one ended it."""
    ahead = 0.0
    monkeypatch.setattr(Home, "now", property(lambda self: self.loop.time() + ahead))
    async with cluster() as [node], Client(node.address) as boom:
        scanning(node)
        node.answers[kind] = silent
        feed = boom.tail(0, follow=True) if kind is Kind.TAIL else boom.scan_log([0], follow=True)
        following = asyncio.ensure_future(anext(feed))
        for restarts in range(1, 5):
            await until(lambda restarts=restarts: len(node.of(kind)) == restarts or following.done())
            assert not following.done()
            ahead += 3600.0
            node.sessions[0].transport.abort()
        following.cancel()


async def test_a_node_that_has_not_heard_of_a_partition_yet_is_asked_again() -> None:
    """It was just created, the leader knows it, and the node that is asked may be behind."""
    async with cluster() as [node], Client(node.address) as boom:
        scanning(node)
        rows = [[p, "log", "write_ahead"] for p in (0, 9)]
        node.answers[Kind.ADMIN] = lambda session, frame: session.send(
            frame, Kind.ADMIN_REPLY, {"partitions": rows, "key_partitions": 1}
        )
        for partition in (9, 7):
            unheard = fails(NoSuchPartition(f"partition {partition} does not exist", partition_id=partition))
            node.once(Kind.TAIL, unheard, removed_before(0, Kind.TAIL, whole([(9, raw(0, 5, [b"a"]))])))
            node.once(Kind.LOG_SCAN, unheard, removed_before(0, Kind.LOG_SCAN, []))
            if partition == 9:
                assert [b.first_index async for b in boom.tail(partition, start=5)] == [5]
                assert await scan(boom, start_global=5) == []
                continue
            for reading in (boom.tail(partition), boom.scan_log([partition])):
                with pytest.raises(NoSuchPartition):
                    _ = [b async for b in reading]


async def test_who_refuses_us_is_not_the_one_that_has_what_another_has_removed() -> None:
    """Of three nodes one has removed it, one refuses our certificate (or is of before a restore), one has it."""
    async with cluster(3) as nodes:
        for node in nodes:
            scanning(node)
        nodes[0].answers[Kind.TAIL] = removed_before(7, Kind.TAIL, whole([]))
        nodes[1].answers[Kind.HELLO] = fails(Unauthenticated("not you"))
        nodes[2].answers[Kind.TAIL] = removed_before(5, Kind.TAIL, whole([(9, raw(0, 5, [b"a", b"b", b"c"]))]))
        async with Client(nodes[0].address) as boom:
            assert [b.first_index async for b in boom.tail(0, start=5)] == [5]
            with pytest.raises(IndexCompacted) as refused:
                _ = [b async for b in boom.tail(0, start=4)]
            assert refused.value.first == 5


def test_one_position_at_most() -> None:
    boom = Client("127.0.0.1:1")
    with pytest.raises(InvalidRequest, match="one of"):
        boom.tail(0, start=3, start_global=4)


async def test_whoever_reads_of_a_log_without_its_data_has_seen_it() -> None:
    """A read with ``at_least="session"`` behind it could be of a state from before that."""
    async with cluster() as [node], Client(node.address) as boom:
        about = RecordBlock.from_records([Record(b"", b"key")])
        header = {
            "partition": 0, "first_index": 5, "global_index": 9, "term": 2, "timestamp_ms": 77, "producer": b"p" * 16,
            "epoch": 3, "sequence": 1, "count": 1, "data": 0, "next_index": 6,
        }  # fmt: skip

        def answer(session: Session, frame: Any) -> None:
            session.send(frame, Kind.METADATA, header, [about.metadata], more=True)
            session.send(frame, Kind.END, {"next_index": 6})

        node.answers[Kind.TAIL] = answer
        rows = boom.tail_metadata(0)
        assert boom.last_seen == 0
        assert (await anext(rows)).keys() == [b"key"]
        assert boom.last_seen == 9
        await rows.aclose()


async def test_who_meets_a_node_that_waits_for_what_the_others_have_goes_on_at_one_of_those() -> None:
    async with cluster(3) as nodes:
        for node in nodes:
            scanning(node)
            for kind in (Kind.TAIL, Kind.LOG_SCAN):
                node.answers[kind] = removed_before(5, kind, whole([(9, raw(0, 5, [b"a", b"b", b"c"]))]))
        lacks = nodes[0]
        lacks.answers[Kind.TAIL] = lacks.answers[Kind.LOG_SCAN] = fails(Unavailable("ask another", retry_after=0.01))
        async with Client(lacks.address) as boom:
            assert [b.first_index async for b in boom.tail(0, start=5)] == [5]
            assert await scan(boom, start_global=5) == []
        assert lacks.of(Kind.TAIL)


async def scan(boom: Client, **how: Any) -> list[int]:
    return [int(each.global_index) async for each in boom.scan_log([0, 1], **how)]


async def test_a_scan_goes_on_at_another_connection_to_the_same_horizon() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        scanning(node)

        def first(session: Session, frame: Any) -> None:
            rows = [(4, raw(0, 1, [b"x"])), (5, raw(1, 1, [b"y"]))]
            session.send(frame, Kind.BATCHES, *whole(rows, after=0, batches=2, through=8), more=True)
            asyncio.get_running_loop().call_later(0.05, session.transport.abort)

        def second(session: Session, frame: Any) -> None:
            session.send(
                frame, Kind.BATCHES, *whole([(8, raw(0, 2, [b"z"]))], after=0, batches=1, through=8), more=True
            )
            session.send(frame, Kind.END, {"next_global": 9, "batches": 1})

        node.once(Kind.LOG_SCAN, first, second)
        assert await scan(boom, start_global=2) == [4, 5, 8]
        asked = [(f.header.get("start_global"), f.header["through_global"]) for f in node.of(Kind.LOG_SCAN)]
        assert asked == [(2, 0), (6, 8)]
        assert boom.last_seen == 8


async def test_a_scan_tells_of_what_was_declared_void_in_its_place() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        scanning(node)

        def answer(session: Session, frame: Any) -> None:
            rows = [(4, raw(0, 1, [b"x"])), (7, raw(1, 1, [b"y"]))]
            more = {"after": 0, "batches": 2, "through": 9, "voids": [[0, 2, 3, 5]]}
            session.send(frame, Kind.BATCHES, *whole(rows, **more), more=True)
            session.send(frame, Kind.END, {"next_global": 10, "batches": 2, "voids": [[1, 2, 2, 9]]})

        node.answers[Kind.LOG_SCAN] = answer
        seen: list[Any] = []
        async for batch in boom.scan_log([0, 1], on_void=seen.append):
            seen += [batch]
        assert [(each.partition_id, each.first_index) for each in seen] == [(0, 1), (0, 2), (1, 1), (1, 2)]

        def refuse(gap: Voided) -> None:
            raise gap

        with pytest.raises(Voided, match="from 2 to 3"):
            _ = [b async for b in boom.scan_log([0, 1], on_void=refuse)]
        assert len(node.of(Kind.LOG_SCAN)) == 2, "what it raises ends the scan: nothing is asked again"


@pytest.mark.parametrize("voids", [7, [7], [[1, 2, 3]], [[1, 2, 3, "4"]], [[1, 2, 3, -4]]])
async def test_voids_that_are_none_are_an_error(voids: Any) -> None:
    async with cluster() as [node], Client(node.address, timeout=0.2) as boom:
        scanning(node)
        node.answers[Kind.LOG_SCAN] = lambda session, frame: session.send(
            frame, Kind.END, {"next_global": 10, "batches": 0, "voids": voids}
        )
        with pytest.raises(ProtocolError, match="END: bad voids"):
            _ = [b async for b in boom.scan_log([0, 1], on_void=pytest.fail)]


async def test_a_scan_gives_nothing_of_what_is_in_front_of_its_start() -> None:
    """A node of an older release that is behind gives what comes next there, though it was given before."""
    async with cluster() as [node], Client(node.address) as boom:
        scanning(node)

        def behind(session: Session, frame: Any) -> None:
            rows = [(4, raw(0, 1, [b"x"])), (5, raw(1, 1, [b"y"])), (8, raw(0, 2, [b"z"]))]
            session.send(frame, Kind.BATCHES, *whole(rows, after=0, batches=3, through=8), more=True)
            session.send(frame, Kind.END, {"next_global": 9, "batches": 3})

        node.answers[Kind.LOG_SCAN] = behind
        assert await scan(boom, start_global=5) == [5, 8]


@pytest.mark.parametrize("wrong", ["count", "order", "gap", "end"])
async def test_a_scan_that_is_not_what_was_announced_is_an_error(wrong: str) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        scanning(node)

        def answer(session: Session, frame: Any) -> None:
            two = [(4, raw(0, 1, [b"x"])), (3 if wrong == "order" else 5, raw(1, 1, [b"y"]))]
            count = 3 if wrong == "count" else 2
            session.send(frame, Kind.BATCHES, *whole(two, after=0, batches=count, through=8), more=True)
            after = 6 if wrong == "gap" else 5
            session.send(
                frame, Kind.BATCHES, *whole([(8, raw(0, 2, [b"z"]))], after=after, batches=3, through=8), more=True
            )
            session.send(frame, Kind.END, {"next_global": 9, "batches": 4 if wrong == "end" else 3})

        node.answers[Kind.LOG_SCAN] = answer
        with pytest.raises(CorruptData):
            await scan(boom)


async def test_a_node_of_an_older_release_is_not_asked() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(IncompatibleVersion):
            await scan(boom)


class TestFilters:
    block = RecordBlock.from_records(
        [
            Record(b"0", b"user/1", (("kind", b"a"), ("by", b"kind"))),
            Record(b"11", b"user/22"),
            Record(b"", b"use", (("kind", b"b"),)),
            Record(b"333"),
            Record(b"4444", b"user/", (("kindly", b"a"),)),
        ]
    )

    def test_by_key(self) -> None:
        assert self.block.keys_begin_with(b"user/").tolist() == [True, True, False, False, True]
        assert self.block.keys_begin_with(b"user/2").tolist() == [False, True, False, False, False]
        assert not RecordBlock.from_columns(payloads=[b"a", b"b"]).keys_begin_with(b"a").any()

    def test_by_header(self) -> None:
        assert self.block.headers_have("kind", None).tolist() == [True, False, True, False, False]
        assert self.block.headers_have("kind", b"b").tolist() == [False, False, True, False, False]
        assert self.block.headers_have("by", b"kind").tolist() == [True, False, False, False, False]
        assert not self.block.headers_have("a", None).any()

    def test_what_is_left_is_a_block(self) -> None:
        wanted = np.array([False, True, True, False, True])
        assert self.block.where(wanted).records() == [self.block.records()[k] for k in (1, 2, 4)]
        plain = RecordBlock.from_columns(payloads=[b"ab", b"", b"c"])
        assert plain.where(np.array([True, True, False])).payloads() == [b"ab", b""]
        assert plain.where(np.ones(3, np.bool_)) is plain


async def test_whoever_has_little_time_for_a_tail_is_told_why_there_is_none() -> None:
    """Cut off by a clock of his own, he never was: what may pass is tried again for as long as the client's timeout."""
    async with cluster() as [node], Client(node.address, timeout=3600.0) as boom:
        node.answers[Kind.TAIL] = fails(Unavailable("still recovering"))
        for read in (boom.tail, boom.tail_metadata):
            before = len(node.of(Kind.TAIL))
            with pytest.raises(Unavailable, match="still recovering"):
                _ = [b async for b in read(0, start=5, follow=True, timeout=0.2)]
            assert len(node.of(Kind.TAIL)) > before + 1
            with pytest.raises(InvalidRequest, match="timeout is 0 to"):
                read(0, timeout=-1)
