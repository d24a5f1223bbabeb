"""Senders: a future for each command, and neither a task nor a frame of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logboom import Client, Put, Record
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError, RecordTooLarge, UnknownOutcome
from logboom.types import KIB
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Session, cluster, silent, until

COMMAND = Record(b"c" * KIB)
ROOM = 3 * KIB
"""For two of them."""


async def test_those_of_a_turn_travel_together_without_a_task() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.partitions()
        out = boom.sender(2, wait="committed")
        before = len(asyncio.all_tasks())
        answers = [out.send(Put(b"%d" % n, b"")) for n in range(5)]
        assert len(asyncio.all_tasks()) == before
        receipts = await asyncio.gather(*answers)
        assert [(r.partition_id, r.first_index, r.last_index) for r in receipts] == [(2, n, n) for n in range(1, 6)]
        (frame,) = node.of(Kind.SUBMIT)
        assert frame.header["wait"] == "committed"
        assert boom.last_seen == receipts[-1].global_index


async def test_they_say_what_a_submit_says() -> None:
    async with cluster() as [node], Client(node.address, admission_wait=0.25) as boom:
        await boom.partitions()
        await boom.sender(0).send(COMMAND)
        await boom.sender(0, wait="durable", timeout=7.0, admission_wait=0.5).send(COMMAND)
        first, second = (frame.header for frame in node.of(Kind.SUBMIT))
        assert first["admission_wait_ms"] == 250
        assert first["timeout_ms"] > 20_000
        assert (second["wait"], second["admission_wait_ms"]) == ("durable", 500)
        assert 6_000 < second["timeout_ms"] <= 7_000


@pytest.mark.parametrize(
    ("partition", "terms"),
    [(-1, {}), ("0", {}), (0, {"wait": "soon"}), (0, {"timeout": -1}), (0, {"admission_wait": 1e9})],
)
async def test_what_cannot_be_is_refused_when_it_is_made(partition: Any, terms: dict[str, Any]) -> None:
    boom = Client("127.0.0.1:1")
    with pytest.raises(InvalidRequest):
        boom.sender(partition, **terms)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"raw", InvalidRequest),
        (Put(b"", b"v"), InvalidRequest),
        (Record("text"), InvalidRequest),  # type: ignore[arg-type]
        (Record(b"", b"k" * 70_000), RecordTooLarge),
    ],
)
async def test_what_is_no_command_is_refused_at_once_and_takes_nothing(command: Any, error: type[LogboomError]) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        out = boom.sender(0)
        with pytest.raises(error):
            out.send(command)
        assert out.budget.idle
        assert (await out.send(COMMAND)).count == 1
        assert len(node.log[0]) == 1


async def test_what_there_is_no_room_for_waits_its_turn() -> None:
    held: list[tuple[Session, Frame]] = []
    async with cluster() as [node], Client(node.address, max_in_flight_bytes=ROOM) as boom:
        await boom.partitions()
        node.answers[Kind.SUBMIT] = lambda session, frame: held.append((session, frame))
        out = boom.sender(0)
        answers = [out.send(Record(b"%d" % n * KIB)) for n in range(5)]
        await until(lambda: len(held) == 1)
        assert held[0][1].header["parts"][0][3] == 2
        del node.answers[Kind.SUBMIT]
        session, frame = held[0]
        session.usual(frame)
        receipts = await asyncio.gather(*answers)
        assert [r.first_index for r in receipts] == [1, 2, 3, 4, 5]
        assert [payload[:1] for payload in node.log[0]] == [b"%d" % n for n in range(5)]
        assert out.budget.idle


async def test_who_waits_for_room_in_vain_has_sent_nothing() -> None:
    async with cluster() as [node], Client(node.address, max_in_flight_bytes=ROOM) as boom:
        await boom.partitions()
        node.answers[Kind.SUBMIT] = silent
        out = boom.sender(0)
        sent = [out.send(COMMAND), out.send(COMMAND)]
        with pytest.raises(DeadlineExceeded, match="max_in_flight_bytes") as caught:
            await boom.sender(0, timeout=0.05).send(COMMAND)
        assert caught.value.outcome == "not_applied"
        assert len(node.of(Kind.SUBMIT)) == 1
        for each in sent:
            each.cancel()


async def test_one_that_is_cancelled_in_time_is_not_sent() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.partitions()
        out = boom.sender(0)
        one, two = out.send(Record(b"one")), out.send(Record(b"two"))
        one.cancel()
        await two
        assert node.log[0] == [b"two"]
        assert out.budget.idle


@pytest.mark.parametrize("part_bytes", [8 * KIB, 64 * KIB], ids=["in parts", "in one"])
async def test_who_gives_up_gives_back_its_room(part_bytes: int) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        node.takes = {"part_bytes": part_bytes, "part_records": 1_000}
        await boom.partitions()
        out = boom.sender(0)
        answers = [out.send(Record(b"%02d" % n * KIB)) for n in range(20)]
        for each in answers[1::2]:
            each.cancel()
        await asyncio.gather(*answers[::2])
        assert [payload[:2] for payload in node.log[0]] == [b"%02d" % n for n in range(0, 20, 2)]
        assert (len(node.of(Kind.SUBMIT)) == 1) == (part_bytes > 40 * KIB)
        assert out.budget.idle


async def test_its_deadline_ends_it() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        await boom.partitions()
        node.answers[Kind.SUBMIT] = silent
        with pytest.raises(DeadlineExceeded) as caught:
            await boom.sender(0, timeout=0.05).send(COMMAND)
        assert caught.value.outcome == "unknown"
        assert boom.last_seen == 0


async def test_a_closed_client_sends_nothing() -> None:
    async with cluster() as [node]:
        boom = Client(node.address, max_in_flight_bytes=ROOM)
        await boom.partitions()
        out = boom.sender(0)
        node.answers[Kind.SUBMIT] = silent
        sent, waiting = [out.send(COMMAND), out.send(COMMAND)], out.send(COMMAND)
        await until(lambda: node.of(Kind.SUBMIT))
        await boom.close()
        for each in sent:
            with pytest.raises(UnknownOutcome):
                await each
        for late in (lambda: waiting, lambda: out.send(COMMAND)):
            with pytest.raises(InvalidRequest, match="closed"):
                await late()
        assert len(node.of(Kind.SUBMIT)) == 1


def test_another_loop_is_told_so() -> None:
    boom = Client("127.0.0.1:1")
    out = boom.sender(0)

    async def send() -> None:
        out.send(COMMAND)

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(send())
        with pytest.raises(InvalidRequest, match="another: make one on each"):
            second.run(send())
        first.run(boom.close())
