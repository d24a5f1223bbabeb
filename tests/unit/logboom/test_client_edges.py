"""Where a client begins, ends, or is given what it cannot use."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from typing import Any

import pytest

from logboom import Add, Client, Put, Record, RecordBlock
from logboom.client.log_batches import LogBatch
from logboom.client.pool import CONNECT_S
from logboom.errors import (
    DeadlineExceeded,
    IndexCompacted,
    InvalidRequest,
    LogboomError,
    NoSuchPartition,
    RecordTooLarge,
    Unauthenticated,
    Unavailable,
)
from logboom.types import MIB
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Session, cluster, silent, until

PRODUCER = bytes(range(16))
LARGE = bytes(MIB + 200_000)


def nobody() -> str:
    """An address at which nobody is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class TestTheFirstRequest:
    """It is sized by what the cluster takes, and not by what a client believes before it has asked."""

    @pytest.mark.parametrize("how", ["single", "several", "block", "numbered"])
    async def test_may_be_as_large_as_any_other(self, how: str) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            if how == "single":
                await boom.submit(0, Put(b"k", LARGE))
            elif how == "several":
                await boom.submit(0, [Put(b"k", LARGE), Put(b"l", LARGE)])
            elif how == "block":
                await boom.submit_block(0, RecordBlock.from_columns(payloads=[LARGE]))
            else:
                await boom.submit(0, [Put(b"k", LARGE)], producer_id=PRODUCER, sequence=0)
            assert len(node.of(Kind.SUBMIT)) == 1

    async def test_is_refused_by_what_this_cluster_takes(self) -> None:
        async with cluster(frame_bytes=1 * MIB) as [node], Client(node.address) as boom:
            with pytest.raises(RecordTooLarge, match="this cluster takes 1044480"):
                await boom.submit(0, Put(b"k", LARGE))
            assert not node.of(Kind.SUBMIT)

    async def test_ends_at_its_deadline_where_nobody_is(self) -> None:
        async with Client(nobody()) as boom:
            with pytest.raises((Unavailable, DeadlineExceeded)) as refused:
                await boom.submit(0, Put(b"k", LARGE), timeout=0.3)
            assert refused.value.outcome == "not_applied"

    @pytest.mark.parametrize("takes", [{"part_bytes": 20_000, "part_records": 9_999}, {"part_records": 300}, {}])
    async def test_small_commands_that_travel_together_are_no_more_than_a_node_takes(
        self, takes: dict[str, int]
    ) -> None:
        """Each would have been taken; together they were refused, for good, as one that is too large."""
        async with cluster() as [node], Client(node.address) as boom:
            node.takes = takes
            for _ in range(2):  # before a node has said it, and after
                await asyncio.gather(*(boom.submit(0, Put(b"k%d" % each, bytes(50))) for each in range(3_000)))
            parts = [part for frame in node.of(Kind.SUBMIT) for part in frame.header["parts"]]
            assert sum(part[3] for part in parts) == 6_000
            assert max(part[3] for part in parts) <= takes.get("part_records", 8192)
            assert max(part[4] + part[5] for part in parts) <= takes.get("part_bytes", MIB)
            if not takes:
                assert len(parts) < 40, "as before"


class TestRecords:
    """Nothing is sent that readers could not read."""

    @pytest.mark.parametrize(
        "bad",
        [
            Record(b"v", b"k", (("source", "web"),)),  # type: ignore[arg-type]
            Record(b"v", b"k", (("source", b"web", b"x"),)),  # type: ignore[arg-type]
            Record(b"v", b"k", (("\ud800", b"web"),)),
            Record(b"v", b"k", (7,)),  # type: ignore[arg-type]
            Record("v", b"k"),  # type: ignore[arg-type]
            Record(None, b"k"),  # type: ignore[arg-type]
            Record(b"v", "k"),  # type: ignore[arg-type]
            Record(b"v", bytes(512)),
            Add(b"k", 10**400, 1.5),
        ],
    )
    async def test_are_checked_wherever_they_come_in(self, bad: Any) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            good = Record(b"v", b"k")
            for call in (
                lambda: boom.submit(0, bad),
                lambda: boom.submit(0, [good, bad]),
                lambda: boom.submit(0, [good, bad], producer_id=PRODUCER, sequence=0),
                lambda: boom.submit_many({0: [good, bad]}),
                lambda: boom.submit_by_key([good, bad]),
            ):
                with pytest.raises(InvalidRequest):
                    await call()
            assert not node.of(Kind.SUBMIT)

    @pytest.mark.parametrize(
        "headers",
        [
            lambda: zip(["source"], [b"web"], strict=True),
            lambda: ((name, b"web") for name in ("source",)),
            lambda: [iter(("source", b"web"))],
        ],
    )
    async def test_headers_that_can_be_read_once_are_refused(self, headers: Any) -> None:
        """Whoever looked whether they are pairs had used them up: the record was stored without."""
        async with cluster() as [node], Client(node.address) as boom:
            for call in (
                lambda bad: boom.submit(0, bad),
                lambda bad: boom.submit(0, [bad, bad]),
                lambda bad: boom.submit_many({0: [bad], 1: [bad]}),
                lambda bad: boom.submit_by_key([bad]),
                lambda bad: boom.sender(0).send(bad),
            ):
                with pytest.raises(InvalidRequest, match="pairs of text and bytes"):
                    await call(Record(b"v", b"k", headers()))
            assert not node.of(Kind.SUBMIT)
            for good in ([["source", b"web"]], {"source": b"web"}.items()):
                await boom.submit(0, Record(b"v", b"k", good))  # type: ignore[arg-type]
                assert b"source" in bytes(node.of(Kind.SUBMIT)[-1].body)

    @pytest.mark.parametrize("more", [{"dense": True}, {"epoch": 9}, {"sequence": 4}])
    async def test_numbering_of_ones_own_wants_a_name_of_ones_own(self, more: dict[str, Any]) -> None:
        """It was ignored: no gap was found, nobody was fenced off."""
        async with cluster() as [node], Client(node.address) as boom:
            for rows in (Put(b"k", b""), [Put(b"k", b""), Put(b"l", b"")]):
                with pytest.raises(InvalidRequest, match="producer_id"):
                    await boom.submit(0, rows, **more)
            with pytest.raises(InvalidRequest, match="producer_id"):
                await boom.submit_block(0, RecordBlock.from_columns(payloads=[b"x"]), **more)


class TestTime:
    @pytest.mark.parametrize("timeout", [math.inf, math.nan, -1.0, 1e18, "5", None])
    async def test_is_a_number_of_seconds(self, timeout: Any) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            if timeout is None:
                boom.timeout = math.nan
            for call in (
                lambda: boom.submit(0, Put(b"k", b""), timeout=timeout),
                lambda: boom.submit(0, [Put(b"k", b"")] * 2, timeout=timeout),
                lambda: boom.get(0, b"k", timeout=timeout),
                lambda: boom.barrier(1, timeout=timeout),
            ):
                with pytest.raises(InvalidRequest, match="timeout is 0 to"):
                    await call()
            assert not node.of(Kind.SUBMIT)

    @pytest.mark.parametrize("staleness", [math.inf, math.nan, -1.0, "5"])
    async def test_of_staleness_too(self, staleness: Any) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            with pytest.raises(InvalidRequest, match="max_staleness is 0 to"):
                await boom.get(0, b"k", max_staleness=staleness)

    @pytest.mark.parametrize("how", ["tail", "metadata", "scan"])
    async def test_to_find_a_node_to_follow_at_is_the_clients(self, how: str) -> None:
        """It was sixteen seconds, whatever the client said."""
        async with Client(nobody(), timeout=0.3) as boom:
            feed: Any = {
                "tail": lambda: boom.tail(0),
                "metadata": lambda: boom.tail_metadata(0),
                "scan": lambda: boom.scan_log([0]),
            }[how]()
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await anext(feed)
            assert time.monotonic() - began < 5

    async def test_is_not_what_a_broken_tail_counts_once_something_has_come(self) -> None:
        """However long it has run, it is found a node again."""
        async with cluster() as [node], Client(node.address, timeout=0.3) as boom:
            calls = 0

            def tail(session: Session, frame: Frame) -> None:
                nonlocal calls
                calls += 1
                session.send(frame, Kind.SKIPPED, {"next_index": calls + 1}, more=True)
                if calls < 8:
                    session.transport.abort()
                else:
                    session.send(frame, Kind.END, {"next_index": calls + 1})

            node.answers[Kind.TAIL] = tail
            found: list[LogBatch] = [each async for each in boom.tail(0)]
            assert (found, calls) == ([], 8)


class TestStreams:
    async def test_what_cannot_be_asked_leaves_nothing_behind(self) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            await boom.partitions()
            for number in (2**70, -(2**70)):
                with pytest.raises(InvalidRequest, match="TAIL: something that was given cannot be sent"):
                    await anext(boom.tail(0, start=number))
                with pytest.raises(InvalidRequest, match="GET"):
                    await boom.get(number, b"k")
                with pytest.raises(InvalidRequest, match="SUBMIT"):
                    await boom.submit(0, Put(b"k", b""), producer_id=PRODUCER, epoch=number, sequence=0)
            assert not any(each._streams for each in boom._cluster._connections.values())

    @pytest.mark.parametrize("credit", [0, -1, 1.5, None])
    async def test_credit_is_something(self, credit: Any) -> None:
        """With none, nothing ever came."""
        async with cluster() as [node], Client(node.address) as boom:
            with pytest.raises(InvalidRequest, match="credit"):
                await anext(boom.tail(0, credit=credit))

    @pytest.mark.parametrize("given", ["raise", "Error", "", None, True, ["first"]])
    async def test_what_is_to_be_done_about_records_that_are_gone_is_one_of_two(self, given: Any) -> None:
        """Whatever was not ``error`` passed over them without a word."""
        async with cluster() as [node], Client(node.address) as boom:
            node.features = ["log_scan"]
            for kind in (Kind.TAIL, Kind.LOG_SCAN):
                node.answers[kind] = lambda s, f: s.fail(f, IndexCompacted("gone", first=5))
            for feed in (
                lambda how: boom.tail(0, start=1, on_compacted=how),
                lambda how: boom.tail_metadata(0, start=1, on_compacted=how),
                lambda how: boom.scan_log([0], start_global=1, on_compacted=how),
            ):
                with pytest.raises(InvalidRequest, match="on_compacted must be error or first"):
                    await anext(feed(given))  # type: ignore[arg-type]
                with pytest.raises(IndexCompacted):
                    await anext(feed("error"))  # type: ignore[arg-type]

    async def test_a_node_is_named(self) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            with pytest.raises(InvalidRequest, match="named by its id or address"):
                await boom.get(0, b"k", node=7)  # type: ignore[arg-type]


async def test_whoever_waits_for_a_connection_that_close_gives_up_is_told_so() -> None:
    """They were cancelled, though nobody had cancelled them: in a task group that went unseen."""
    async with cluster() as [node]:
        node.answers[Kind.HELLO] = silent
        boom = Client(node.address)
        waiting = [asyncio.ensure_future(boom.submit(0, Put(b"k", b""))), asyncio.ensure_future(boom.get(0, b"k"))]
        await until(lambda: node.of(Kind.HELLO))
        await boom.close()
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, LogboomError), repr(each)


async def test_whoever_asks_for_a_connection_while_close_runs_is_told_so_too() -> None:
    boom = Client(nobody())
    closing = asyncio.ensure_future(boom.close())
    asking = asyncio.ensure_future(boom.get(0, b"k"))  # its turn comes in the middle of the other's
    await closing
    (found,) = await asyncio.gather(asking, return_exceptions=True)
    assert isinstance(found, InvalidRequest), repr(found)
    assert "closed" in str(found)


async def test_a_single_command_that_a_node_would_cut_the_connection_for_was_never_sent() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.submit(0, Put(b"k", b""))
        [connection] = boom._cluster._connections.values()
        connection._frame_bytes_max = 200
        with pytest.raises(RecordTooLarge) as refused:
            await boom.submit(0, Put(b"k", bytes(300)))
        assert refused.value.outcome == "not_applied"
        await boom.submit(0, Put(b"k", b""))
        assert boom._submitter.budget.used == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda boom: boom.get(0, 5), "keys are bytes"),
        (lambda boom: boom.get(0, "k"), "keys are bytes"),
        (lambda boom: boom.get_many(0, 3), "keys are a list, not 3"),
        (lambda boom: boom.fetch(3), "descriptors are a list, not 3"),
        (lambda boom: boom.fetch([3]), "a Descriptor, .* not 3"),
        *(
            (lambda boom, call=call, bad=bad: call(boom, bad), says)
            for call in (
                lambda boom, bad: boom.barrier(5, partitions=bad),
                lambda boom, bad: boom.barrier({0: 5}, partitions=bad),
                lambda boom, bad: anext(boom.barrier_watch(5, partitions=bad)),
                lambda boom, bad: boom.watermarks(bad),
                lambda boom, bad: boom.watermarks(bad, linearizable=True),
                lambda boom, bad: anext(boom.watermarks_stream(bad)),
                lambda boom, bad: anext(boom.scan_log(bad)),
                lambda boom, bad: anext(boom.scan_view(bad)),
            )
            for bad, says in (
                (3, "partitions are a list of ids, not 3"),
                (b"\0", "partitions are a list of ids"),
                (["3"], "a partition's id is an int .* not '3'"),
                ([1, True], "a partition's id is an int .* not True"),
            )
        ),
        (lambda boom: boom.barrier({0: "x", 1: 2}), "a global index is an int from 0 on, not 'x'"),
        (lambda boom: boom.barrier({0: -1}), "a global index is an int from 0 on, not -1"),
        (lambda boom: boom.barrier({"0": 2}), "a partition's id is an int .* not '0'"),
        (lambda boom: boom.submit_many({0: 5}), "expected Put, .* not int"),
        (lambda boom: boom.submit_many([Put(b"k", b"")]), "commands of several partitions are"),
        (lambda boom: boom.submit_by_key(5), "expected Put, .* not int"),
        (lambda boom: boom.submit_blocks([5]), "blocks are"),
        (lambda boom: boom.submit_blocks({0: 5}), "a block is a RecordBlock, not 5"),
        (lambda boom: boom.submit_block(0, 5, producer_id=PRODUCER, sequence=0), "a block is a RecordBlock, not 5"),
        (lambda boom: boom.submit(0, Put(b"k", b""), admission_wait="x"), "admission_wait"),
        (lambda boom: boom.submit(0, Put(b"k", b""), admission_wait=math.nan), "admission_wait"),
        (lambda boom: boom.cursor_position(b"mine"), "name of a cursor"),
        (lambda boom: boom.cursor_position("\ud800"), "name of a cursor"),
        *(
            (lambda boom, feed=feed, every=every: anext(getattr(boom, feed[0])(*feed[1:], every=every)), "every")
            for feed in (("watermarks_stream",), ("barrier_watch", 1))
            for every in (math.inf, math.nan, -1.0, "x")
        ),
    ],
)
async def test_what_a_call_is_given_and_cannot_be_is_refused_with_a_typed_error(call: Any, says: str) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(InvalidRequest, match=says):
            await call(boom)


async def test_a_lone_command_is_one_wherever_commands_are_taken() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.submit(0, Put(b"k", b"1"))
        await boom.submit_many({0: Put(b"k", b"2"), 1: [Put(b"l", b"3")]})
        await boom.submit_by_key(Record(b"4", b"k"))
        logged = [payload for log in node.log.values() for payload in log]
        expected = [Put(b"k", value).record().payload for value in (b"1", b"2", b"3")]
        assert sorted(logged) == sorted([*expected, b"4"])


async def test_keys_and_partitions_may_come_from_anything_that_gives_them() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.barrier(5, partitions=(p for p in (1, 2)))  # type: ignore[arg-type]
        await boom.barrier(5, partitions={3})  # type: ignore[arg-type]
        assert [frame.header["partitions"] for frame in node.of(Kind.BARRIER)] == [[1, 2], [3]]
        node.answers[Kind.GET] = lambda s, f: s.fail(f, NoSuchPartition("enough seen"))
        with pytest.raises(NoSuchPartition):
            await boom.get_many(0, (key for key in (b"a", b"b")))  # type: ignore[arg-type]
        assert node.of(Kind.GET)[0].header["keys"] == [b"a", b"b"]


@pytest.mark.parametrize("kind", [Kind.SCAN, Kind.VIEW_SCAN])
async def test_a_scan_that_is_refused_again_and_again_has_one_connection_of_its_own(kind: Kind) -> None:
    most = 0

    def refuse(session: Session, frame: Frame) -> None:
        nonlocal most
        most = max(most, len(session.node.sessions))
        session.fail(frame, Unavailable("not recovered"))

    async with cluster() as [node], Client(node.address) as boom:
        node.answers[kind] = refuse
        feed: Any = boom.scan(0) if kind is Kind.SCAN else boom.scan_view([0])
        asked = asyncio.ensure_future(anext(feed))
        await until(lambda: len(node.of(kind)) >= 5)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert most <= 3, "the shared one, that of this attempt, and perhaps the one that is just being closed"


class TestTimeouts:
    """Of a call hold for all that it does. (A client of a minute: what goes by that is seen.)"""

    async def test_keys_are_routed_within_it(self) -> None:
        async with Client(nobody(), timeout=60) as boom, asyncio.timeout(20):
            with pytest.raises((Unavailable, DeadlineExceeded)):  # between two attempts, or in the midst of one
                await boom.submit_by_key([Put(b"k", b"v")], timeout=0.1)

    async def test_what_looking_for_the_keys_took_is_not_there_twice(self) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            later = asyncio.get_running_loop().call_later
            node.once(Kind.HELLO, lambda s, f: later(0.3, s.usual, f) and None)
            await boom.submit_by_key([Put(b"k", b"v")], timeout=20)
            assert node.of(Kind.SUBMIT)[0].header["timeout_ms"] < 19_800

    @pytest.mark.parametrize(
        "call",
        [Client.create_snapshot, Client.member_list, lambda boom, timeout: boom.promote_member("n", timeout=timeout)],
    )
    async def test_a_second_attempt_of_an_operator_is_given_what_is_left_of_it(self, call: Any) -> None:
        async with cluster() as [node], Client(node.address) as boom:
            later = asyncio.get_running_loop().call_later
            node.answers[Kind.ADMIN] = lambda s, f: s.send(f, Kind.ADMIN_REPLY, {"snapshot": {}, "members": {}})
            busy = Unavailable("another change is under way", retry_after=0.001)
            node.once(Kind.ADMIN, lambda s, f: later(0.3, s.fail, f, busy) and None)
            await call(boom, timeout=20)
            first, second = (frame.header["timeout_ms"] for frame in node.of(Kind.ADMIN))
            assert second <= first - 300

    async def test_a_second_look_at_the_partitions_is_taken_within_it(self) -> None:
        async with cluster() as [node], Client(node.address, timeout=60) as boom:
            await boom.submit(0, Put(b"k", b"v"))
            node.answers[Kind.GET] = lambda s, f: s.fail(f, NoSuchPartition("9 of 4", partition_id=9))
            node.answers[Kind.ADMIN] = silent
            began = time.monotonic()
            with pytest.raises(Unavailable, match="9 of 4"):
                await boom.get(9, b"k", timeout=0.1)
            assert time.monotonic() - began < CONNECT_S


async def test_a_producer_of_zeros_is_refused() -> None:
    """Nodes take it for nobody's: what was sent again, by the client itself too, was applied again."""
    with pytest.raises(InvalidRequest, match="zeros"):
        Client(nobody(), producer_id=bytes(16))
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(InvalidRequest, match="zeros"):
            await boom.submit(0, Put(b"k", b"v"), producer_id=bytes(16), sequence=0)
        assert not node.of(Kind.SUBMIT)


async def test_a_node_that_refuses_us_is_not_asked_again_at_every_turn() -> None:
    """One that did not answer was left alone for a while; one that did not take our certificate was not."""
    async with cluster(2) as [node, other]:
        other.answers[Kind.HELLO] = lambda s, f: s.fail(f, Unauthenticated("not you"))
        node.answers[Kind.STATUS] = lambda s, f: s.send(f, Kind.STATUS_REPLY, {})
        async with Client([node.address, other.address]) as boom:
            for _ in range(50):
                await boom.status()
                await asyncio.sleep(0.002)
        assert len(other.of(Kind.HELLO)) <= 4


@pytest.mark.parametrize("sequence", [-1, "1", True, (1 << 62) + 1])
async def test_a_sequence_that_is_none_is_told_as_that(sequence: Any) -> None:
    """A node says that a part is six numbers."""
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(InvalidRequest, match="a sequence is an int from 0 on"):
            await boom.submit(0, Put(b"k", b"v"), producer_id=PRODUCER, sequence=sequence)
        assert not node.of(Kind.SUBMIT)
