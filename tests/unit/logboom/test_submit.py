"""Submitting: coalescing, exactly once, redirects, deadlines, what an error says about the outcome."""

from __future__ import annotations

import asyncio
import pickle  # noqa: TID251 - of receipts, as Spark does it
import socket
import time

import pytest

from logboom import Add, Cas, Client, Put, Record, RecordBlock, Status
from logboom.client.parts import Budget
from logboom.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LogboomError,
    NotLeader,
    Overloaded,
    PartitionFrozen,
    ProducerFenced,
    RecordTooLarge,
    Unavailable,
    UnknownOutcome,
    Voided,
)
from logboom.wire import Kind
from tests.unit.logboom.fake_server import applies_and_cuts, cluster, cuts, fails, silent, until

PRODUCER = bytes(range(16))


async def test_a_receipt_has_indices_and_a_status_per_command() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        receipt = await boom.submit(3, [Put(b"k", b"v"), Add(b"n", 1)])
        assert (receipt.partition_id, receipt.first_index, receipt.last_index) == (3, 1, 2)
        assert receipt.results == (Status.OK, Status.OK)
        assert boom.last_seen == receipt.global_index == 1


async def test_statuses_that_differ_come_one_by_one() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        rows = [[0, 1, 2, 1, 0, bytes((0, 2))]]
        node.answers[Kind.SUBMIT] = lambda session, frame: session.send(
            frame, Kind.SUBMITTED, {"parts": rows, "commit_index": 1}
        )
        receipt = await boom.submit(0, [Put(b"a", b""), Put(b"b", b"")])
        assert receipt.results == (Status.OK, Status.MISMATCH)


async def test_a_state_machine_may_have_statuses_of_its_own() -> None:
    """The write was ordered and applied, and its client told of an unknown outcome, or of a ValueError."""
    async with cluster() as [node], Client(node.address) as boom:
        for count, raw in ((1, b"\x4d"), (2, bytes((0, 255)))):
            rows = [[0, 1, count, 1, 0, raw]]
            node.once(Kind.SUBMIT, lambda s, f, r=rows: s.send(f, Kind.SUBMITTED, {"parts": r, "commit_index": 1}))
            receipt = await boom.submit(0, [Put(b"a", b"")] * count)
            assert receipt.results == tuple(raw)
            assert [each.name for each in receipt.results or ()][-1] == f"OTHER_{raw[-1]}"


def test_statuses_of_others_are_statuses() -> None:
    assert Status(77) is Status(77)
    assert pickle.loads(pickle.dumps(Status(77))) is Status(77)
    assert [each.value for each in Status] == list(range(9))
    for none in (256, -1, "77"):
        with pytest.raises(ValueError, match="not a valid Status"):
            Status(none)


async def test_singles_of_one_turn_travel_as_one_part() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        receipts = await asyncio.gather(*(boom.submit(1, Put(b"%d" % k, b"v")) for k in range(100)))
        [frame] = node.of(Kind.SUBMIT)
        [[partition, first, floor, count, *_]] = frame.header["parts"]
        assert (partition, first, floor, count) == (1, 0, 0, 100)
        assert [r.first_index for r in receipts] == list(range(1, 101))


async def test_a_lone_single_waits_for_nobody() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.submit(0, Put(b"a", b""))
        first = asyncio.create_task(boom.submit(0, Put(b"b", b"")))
        await first
        assert [frame.header["parts"][0][3] for frame in node.of(Kind.SUBMIT)] == [1, 1]


async def test_while_frames_are_in_flight_the_next_ones_collect() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = []
        node.answers[Kind.SUBMIT] = lambda session, frame: held.append((session, frame))
        tasks = []
        for k in range(10):
            tasks.append(asyncio.create_task(boom.submit(0, Put(b"%d" % k, b""))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await until(lambda: len(held) >= 4)
        assert len(held) == 4  # pipelined, but not more
        del node.answers[Kind.SUBMIT]
        for session, frame in held:
            session.usual(frame)
        await asyncio.gather(*tasks)
        counts = [frame.header["parts"][0][3] for frame in node.of(Kind.SUBMIT)]
        assert sum(counts) == 10
        assert counts[4:] == [10 - sum(counts[:4])]


async def test_partitions_and_levels_are_not_mixed() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await asyncio.gather(
            boom.submit(0, Put(b"a", b""), wait="applied"),
            boom.submit(1, Put(b"b", b""), wait="applied"),
            boom.submit(0, Put(b"c", b""), wait="durable"),
        )
        assert sorted((f.header["parts"][0][0], f.header["wait"]) for f in node.of(Kind.SUBMIT)) == [
            (0, "applied"),
            (0, "durable"),
            (1, "applied"),
        ]


async def test_several_partitions_are_one_atomic_frame() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        single = boom.submit(0, Put(b"x", b""))
        many = boom.submit_many({0: [Put(b"a", b"")], 2: [Put(b"b", b""), Put(b"c", b"")]})
        _, receipts = await asyncio.gather(single, many)
        assert [part.partition_id for part in receipts.parts] == [0, 2]
        shapes = sorted([part[0] for part in frame.header["parts"]] for frame in node.of(Kind.SUBMIT))
        assert shapes == [[0], [0, 2]]


async def test_by_key_routes_as_the_protocol_says() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.partitions = 8
        receipts = await boom.submit_by_key([Put(b"a", b""), Put(b"k1", b""), Put(b"N14228", b"")])
        assert {part.partition_id for part in receipts.parts} == {0, 3, 2}
        with pytest.raises(InvalidRequest, match="key"):
            await boom.submit_by_key([Record(b"payload")])


async def test_large_accumulations_are_split() -> None:
    async with cluster(frame_bytes=64 * 1024) as [node], Client(node.address) as boom:
        await boom.partitions()
        await asyncio.gather(*(boom.submit(0, Put(b"%d" % k, bytes(10_000))) for k in range(20)))
        assert len(node.of(Kind.SUBMIT)) >= 4
        assert max(len(frame.body) for frame in node.of(Kind.SUBMIT)) < 64 * 1024
        assert len(node.log[0]) == 20


async def test_only_the_submitter_of_an_oversized_record_fails() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.partitions()
        answers = await asyncio.gather(
            boom.submit(0, Put(b"a", b"")),
            boom.submit(0, Put(b"b", bytes(9 * 1024 * 1024))),
            boom.submit(0, Put(b"k" * 512, b"")),
            boom.submit(0, Record("text")),  # type: ignore[arg-type]
            boom.submit(0, Put(b"c", b"")),
            return_exceptions=True,
        )
        kinds = [type(answer).__name__ for answer in answers]
        assert kinds == ["Receipt", "RecordTooLarge", "RecordTooLarge", "InvalidRequest", "Receipt"]
        assert len(node.log[0]) == 2


async def test_a_refused_part_fails_each_submitter_with_an_error_of_its_own() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.SUBMIT] = fails(ProducerFenced("fenced", epoch=7))
        answers = await asyncio.gather(*(boom.submit(0, Put(b"a", b"")) for _ in range(3)), return_exceptions=True)
        assert [answer.epoch for answer in answers if isinstance(answer, ProducerFenced)] == [7, 7, 7]
        assert len(set(map(id, answers))) == 3


# -- exactly once


async def test_a_retry_carries_the_same_sequence_and_takes_effect_once() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.submit(0, Put(b"a", b"1"))
        node.once(Kind.SUBMIT, applies_and_cuts, cuts)
        receipt = await boom.submit(0, Put(b"b", b"2"))
        assert receipt.duplicate == 1
        assert len(node.log[0]) == 2
        assert [frame.header["parts"][0][1] for frame in node.of(Kind.SUBMIT)] == [0, 1, 1, 1]
        assert len({frame.header["producer"] for frame in node.of(Kind.SUBMIT)}) == 1


async def test_the_floor_follows_what_is_settled() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        held = []
        node.once(Kind.SUBMIT, lambda session, frame: held.append((session, frame)))
        first = asyncio.create_task(boom.submit(0, [Put(b"a", b""), Put(b"b", b"")]))
        await until(lambda: held)
        await boom.submit(0, Put(b"c", b""))
        held[0][0].usual(held[0][1])
        await first
        await boom.submit(0, Put(b"d", b""))
        assert [frame.header["parts"][0][1:3] for frame in node.of(Kind.SUBMIT)] == [[0, 0], [2, 0], [3, 3]]


async def test_ones_own_numbering_is_sent_as_given() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        block = RecordBlock.from_columns(payloads=[b"1", b"2"])
        await boom.submit_block(0, block, producer_id=PRODUCER, epoch=3, sequence=40, dense=True)
        again = await boom.submit(0, [Record(b"1"), Record(b"2")], producer_id=PRODUCER, epoch=3, sequence=40)
        assert again.duplicate == 2
        header = node.of(Kind.SUBMIT)[0].header
        assert (header["producer"], header["epoch"], header["dense"]) == (PRODUCER, 3, True)
        assert header["parts"][0][1:3] == [40, 0]


@pytest.mark.parametrize("how", [{"producer_id": PRODUCER}, {"sequence": 1}, {"producer_id": b"x", "sequence": 1}])
async def test_half_a_numbering_is_refused(how) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(InvalidRequest, match="producer_id"):
            await boom.submit(0, Put(b"a", b""), **how)


# -- retries, redirects, deadlines


async def test_a_refusal_is_retried_after_its_hint() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.SUBMIT, fails(Overloaded("full", retry_after=0.1)), fails(PartitionFrozen("frozen")))
        started = time.monotonic()
        await boom.submit(0, Put(b"a", b""))
        assert time.monotonic() - started >= 0.05
        assert len(node.of(Kind.SUBMIT)) == 3


async def test_a_redirect_is_followed_at_once() -> None:
    async with cluster(2) as [first, second], Client(first.address) as boom:
        await boom.partitions()
        first.answers[Kind.SUBMIT] = fails(NotLeader("no", leader=second.address))
        await boom.submit(0, Put(b"a", b""))
        await boom.submit(0, Put(b"b", b""))
        assert (len(first.of(Kind.SUBMIT)), len(second.of(Kind.SUBMIT))) == (1, 2)


async def test_a_leader_that_cannot_be_reached_is_reached_through_another_node() -> None:
    async with cluster(2) as [follower, dead], Client(follower.address) as boom:
        await dead.stop()
        follower.leader = dead.address

        def answer(session, frame) -> None:
            if frame.header["forward"]:
                session.usual(frame)
            else:
                session.fail(frame, NotLeader("no", leader=dead.address))

        follower.answers[Kind.SUBMIT] = answer
        for _ in range(3):
            await boom.submit(0, Put(b"a", b""), timeout=5.0)
        assert len(follower.log[0]) == 3
        assert follower.of(Kind.SUBMIT)[-1].header["forward"] is True


async def test_another_node_is_asked_when_one_is_gone() -> None:
    async with cluster(3) as [first, second, third], Client([first.address, second.address, third.address]) as boom:
        await boom.submit(0, Put(b"a", b""))
        await first.stop()
        second.leader = third.leader = second.address
        third.answers[Kind.SUBMIT] = fails(NotLeader("no", leader=second.address))
        await boom.submit(0, Put(b"b", b""), timeout=10.0)
        assert (len(first.log[0]), len(second.log[0])) == (1, 1)


async def test_the_first_request_goes_straight_to_the_leader() -> None:
    async with cluster(2) as [leader, follower], Client(follower.address) as boom:
        await boom.submit(0, Put(b"a", b""))
        assert (len(leader.of(Kind.SUBMIT)), len(follower.of(Kind.SUBMIT))) == (1, 0)


async def test_the_deadline_ends_a_submit_whose_outcome_nobody_knows() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.SUBMIT] = silent
        for commands in (Put(b"a", b""), [Put(b"a", b""), Put(b"b", b"")]):
            with pytest.raises(DeadlineExceeded) as caught:
                await boom.submit(0, commands, timeout=0.1)
            assert caught.value.outcome == "unknown"
        assert 0 < node.of(Kind.SUBMIT)[-1].header["timeout_ms"] <= 100


async def test_what_was_refused_to_the_end_is_not_applied() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.SUBMIT] = fails(Overloaded("full", partition_id=0, retry_after=60.0))
        with pytest.raises(Overloaded) as caught:
            await boom.submit(0, [Put(b"a", b"")], timeout=5.0)
        assert caught.value.outcome == "not_applied"
        assert caught.value.partition_id == 0


async def test_what_was_void_and_had_taken_effect_somewhere_is_not_forgotten() -> None:
    """A later attempt that is refused said that nothing had happened."""
    async with cluster() as [node], Client(node.address) as boom:
        gone = Voided.of(0, 1, 1, 1, outcome="applied")
        node.once(Kind.SUBMIT, fails(gone), fails(Overloaded("full", retry_after=60.0)))
        with pytest.raises(LogboomError) as caught:
            await boom.submit(0, Put(b"a", b""), timeout=30.0)
        assert caught.value.outcome == "unknown"


async def test_a_doubt_from_an_earlier_attempt_stays() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.once(Kind.SUBMIT, cuts, fails(Overloaded("full", retry_after=60.0)))
        with pytest.raises(UnknownOutcome) as caught:
            await boom.submit(0, Put(b"a", b""), timeout=30.0)
        assert caught.value.outcome == "unknown"
        node.answers[Kind.SUBMIT] = fails(ProducerFenced("fenced"))
        node.once(Kind.SUBMIT, cuts)
        with pytest.raises(ProducerFenced) as fenced:
            await boom.submit(0, Put(b"a", b""), timeout=30.0)
        assert fenced.value.outcome == "unknown"


async def test_nobody_there_is_unavailable_and_not_applied() -> None:
    with socket.socket() as held:  # bound and not listening: nobody else can be there
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        async with Client(address) as boom:
            with pytest.raises(Unavailable, match=address) as caught:
                await boom.submit(0, Put(b"a", b""), timeout=0.5)
            assert caught.value.outcome == "not_applied"


async def test_giving_up_on_one_single_leaves_the_others() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.partitions()
        impatient = asyncio.create_task(boom.submit(0, Put(b"a", b"")))
        patient = asyncio.create_task(boom.submit(0, Put(b"b", b"")))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).count == 1
        with pytest.raises(asyncio.CancelledError):
            await impatient


async def test_closing_answers_everybody() -> None:
    async with cluster() as [node]:
        boom = Client(node.address)
        node.answers[Kind.SUBMIT] = silent
        tasks = [asyncio.create_task(boom.submit(0, Put(b"a", b""))) for _ in range(3)]
        await until(lambda: node.of(Kind.SUBMIT))
        await boom.close()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer).__name__ for answer in answers] == ["UnknownOutcome"] * 3
        for commands in (Put(b"a", b""), [Put(b"a", b"")] * 2):
            with pytest.raises(InvalidRequest, match="closed"):
                await boom.submit(0, commands)


async def test_closing_ends_requests_that_would_be_tried_again() -> None:
    async with cluster() as [node]:
        boom = Client(node.address)
        node.answers[Kind.SUBMIT] = silent
        task = asyncio.create_task(boom.submit(0, [Put(b"a", b"")] * 2))
        await until(lambda: node.of(Kind.SUBMIT))
        await boom.close()
        with pytest.raises(UnknownOutcome):
            await task
        await until(lambda: not node.sessions)
        assert len(node.of(Kind.HELLO)) == 1


async def test_the_budget_is_first_come_first_served_and_loses_nothing() -> None:
    budget, later = Budget(10), asyncio.get_running_loop().time() + 5.0
    await budget.take(50, deadline=later)  # alone, larger than all of it
    waiting = [asyncio.create_task(budget.take(size, deadline=later)) for size in (8, 2, 3)]
    await asyncio.sleep(0)
    assert not budget.try_take(1)
    waiting[0].cancel()
    await asyncio.sleep(0)
    budget.give(50)
    await asyncio.gather(*waiting[1:])
    assert budget.used == 5
    assert budget.try_take(5)
    budget.give(10)
    assert budget.used == 0


async def test_bytes_in_flight_are_bounded() -> None:
    async with cluster() as [node], Client(node.address, max_in_flight_bytes=3000) as boom:
        held = []
        node.answers[Kind.SUBMIT] = lambda session, frame: held.append((session, frame))
        tasks = [asyncio.create_task(boom.submit(0, [Put(b"k", bytes(1000))] * 2)) for _ in range(3)]
        await until(lambda: held)
        with pytest.raises(DeadlineExceeded, match="max_in_flight_bytes") as caught:
            await boom.submit(0, Put(b"late", bytes(1000)), timeout=0.05)
        assert caught.value.outcome == "not_applied"
        assert len(held) == 1
        del node.answers[Kind.SUBMIT]
        held[0][0].usual(held[0][1])
        await asyncio.gather(*tasks)
        assert len(node.log[0]) == 6


@pytest.mark.parametrize("how", [{"wait": "maybe"}, {"wait": "ordered"}, {"wait": ["applied"]}])
async def test_bad_arguments_are_told_before_anything_is_sent(how) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        with pytest.raises(InvalidRequest, match="wait"):
            await boom.submit(0, Put(b"a", b""), **how)
        with pytest.raises(InvalidRequest, match="no commands"):
            await boom.submit(0, [])
        assert not node.frames


@pytest.mark.parametrize(
    "command",
    [Put(b"k", "v"), Put(b"k", None), Put(b"k", 5), Put("k", b"v"), Cas(b"k", "", None), Cas(b"k", None, 0), b"k", 5],
)
async def test_what_is_not_made_of_bytes_is_told_before_anything_is_sent(command) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        for commands in (command, [command], [Put(b"k", b"v"), command]):
            with pytest.raises(InvalidRequest):
                await boom.submit(0, commands)
        assert not node.frames


@pytest.mark.parametrize("partition", ["0", None, 0.0, True, [0], -1, 1 << 32, 1 << 70])
async def test_a_partition_that_cannot_be_is_told_before_anything_is_sent(partition) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        block = RecordBlock.from_columns(payloads=[b"a"])
        for attempt in (
            boom.submit(partition, Put(b"a", b"")),
            boom.submit(partition, [Put(b"a", b"")] * 2),
            boom.submit_block(partition, block, producer_id=PRODUCER, sequence=0),
        ):
            with pytest.raises(InvalidRequest, match="partition"):
                await attempt
        if not isinstance(partition, list):
            with pytest.raises(InvalidRequest, match="partition"):
                await boom.submit_blocks({5: block, partition: block})
        assert boom._submitter.budget.used == 0
        assert not node.frames


async def test_a_request_larger_than_a_frame_is_refused_here() -> None:
    async with cluster(frame_bytes=64 * 1024) as [node], Client(node.address) as boom:
        await boom.partitions()
        with pytest.raises(RecordTooLarge) as caught:
            await boom.submit(0, [Put(b"k", bytes(40_000))] * 2)
        assert caught.value.limit < 64 * 1024 < caught.value.size
        assert isinstance(caught.value, LogboomError)
        assert not node.of(Kind.SUBMIT)
