"""A sender's commands leave in the order of the calls, whatever keeps some of them back."""

from __future__ import annotations

import asyncio

import pytest

from logboom import Client, Put, Record, Txn
from logboom.client import turns
from logboom.errors import NotLeader
from logboom.types import KIB, KV_TXN, MIB
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Answer, FakeNode, Session, cluster, fails, until

ROOM = 3 * KIB
"""For two of a kilobyte."""


def order(node: FakeNode) -> list[bytes]:
    return [payload[:3] for payload in node.log[0]]


def late(answer: Answer) -> Answer:
    return lambda session, frame: session.loop.call_later(0.05, answer, session, frame)


async def test_one_that_is_large_is_not_overtaken() -> None:
    """It went by a task, a turn of the loop later."""
    async with cluster() as [node], Client(node.address) as boom:
        await boom.partitions()
        out = boom.sender(0)
        await asyncio.gather(*[out.send(Record(b"%03d" % n * size)) for n, size in enumerate((MIB, 1, MIB, 1, 1))])
        assert order(node) == [b"%03d" % n for n in range(5)]


async def test_one_that_waits_for_room_is_not_overtaken_by_who_is_answered_in_front_of_it() -> None:
    held: list[tuple[Session, Frame]] = []
    async with cluster() as [node], Client(node.address, max_in_flight_bytes=ROOM) as boom:
        await boom.partitions()
        node.answers[Kind.SUBMIT] = lambda session, frame: held.append((session, frame))
        out = boom.sender(0)
        answers = [out.send(Record((b"%03d" % n).ljust(KIB))) for n in range(3)]
        answers.append(out.send(Record(b"003")))  # for this one there is room
        await until(lambda: held)
        del node.answers[Kind.SUBMIT]
        held[0][0].usual(held[0][1])
        await answers[0]
        answers.append(out.send(Record(b"004")))
        await asyncio.gather(*answers)
        assert order(node) == [b"%03d" % n for n in range(5)]
        assert out.budget.idle


@pytest.mark.parametrize("given_up", [2, 3, 4])
async def test_who_gives_up_while_waiting_lets_nobody_past_those_in_front_of_it(given_up: int) -> None:
    held: list[tuple[Session, Frame]] = []
    async with cluster() as [node], Client(node.address, max_in_flight_bytes=ROOM) as boom:
        await boom.partitions()
        node.answers[Kind.SUBMIT] = lambda session, frame: held.append((session, frame))
        out = boom.sender(0)
        answers = [out.send(Record((b"%03d" % n).ljust(KIB))) for n in range(5)]
        await until(lambda: held)
        answers[given_up].cancel()
        await asyncio.sleep(0)
        answers.append(out.send(Record(b"005")))
        del node.answers[Kind.SUBMIT]
        for session, frame in held:
            session.usual(frame)
        await asyncio.gather(*answers, return_exceptions=True)
        assert order(node) == [b"%03d" % n for n in range(6) if n != given_up]
        assert out.budget.idle


async def test_commands_over_several_keys_and_over_one_keep_their_order() -> None:
    """They had lanes of their own: a lone one left at once, and what was called before it at the end of the turn."""
    async with cluster() as [node], Client(node.address) as boom:
        node.features = [KV_TXN]
        await boom.partitions()
        out = boom.sender(0)
        txn = Txn([], [Put(b"k", b"v")])
        await out.send(txn)
        await asyncio.gather(
            *[out.send(each) for each in (Put(b"a", b"1"), txn, txn, Put(b"b", b"2"), Put(b"c", b"3"))]
        )
        asked = [(bool(frame.header.get("wide")), frame.header["parts"][0][3]) for frame in node.of(Kind.SUBMIT)]
        assert asked == [(True, 1), (False, 1), (True, 2), (False, 2)]


@pytest.mark.parametrize("begins", range(3))
async def test_the_first_ones_of_a_client_that_knows_nobody_are_not_overtaken(begins: int) -> None:
    """Each part looked for the leader by itself, and the last one may have found it first."""
    async with cluster(3) as nodes:
        leader, *others = nodes
        for node in nodes:  # who leads they say when they are asked to write, and take their time
            node.leader, node.takes = None, {"part_bytes": MIB, "part_records": 100}
        for node in others:
            node.answers[Kind.SUBMIT] = late(fails(NotLeader("I do not lead", leader=leader.address)))
        async with Client([node.address for node in nodes]) as boom:
            for node in nodes:
                await boom._cluster.connection(node.address)
            boom._cluster._next = begins
            out = boom.sender(0)
            await asyncio.gather(*[out.send(Record(b"%03d" % n)) for n in range(900)])
            assert order(leader) == [b"%03d" % n for n in range(900)]


async def test_what_waits_for_the_connection_to_take_more_is_not_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that waited for long the last to come went first."""
    monkeypatch.setattr(turns, "LAST_FIRST_AFTER_S", -1.0)  # all have
    async with cluster() as [node], Client(node.address) as boom:
        await boom.partitions()
        out = boom.sender(0)
        await out.send(Record(b"xxx"))
        leader = boom._cluster.leader_now()
        assert leader is not None
        leader.pause_writing()
        answers = [out.send(Record(b"%03d" % n * 300_000)) for n in range(12)]
        await asyncio.sleep(0)
        leader.resume_writing()
        await asyncio.gather(*answers)
        assert order(node) == [b"xxx", *(b"%03d" % n for n in range(12))]
