"""A partition that the node that is asked has not heard of: whoever leads has the last word."""

from __future__ import annotations

from typing import Any

import pytest

from logboom import Client, Put, RecordBlock
from logboom.client import cluster as cluster_module
from logboom.errors import (
    DeadlineExceeded,
    NoSuchPartition,
    NotLeader,
    PartitionDestroyed,
    PermissionDenied,
    Unavailable,
)
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, fails

ROWS = [[p, "kv", "write_ahead"] for p in (0, 9)]
LEAST = RecordBlock.from_columns(payloads=[b"bvalue"])


def values(session: Session, frame: Frame) -> None:
    """A GET is answered."""
    body = [bytes(LEAST.metadata), bytes(LEAST.data)]
    header = {"found": [True], "metadata": len(body[0]), "data": len(body[1]), "global_index": 42}
    session.send(frame, Kind.VALUES, header, body)


def behind(node: FakeNode, leader: FakeNode) -> None:
    """It was the leader, and has not heard yet that it is no more, nor of partition 9."""

    def partitions(session: Session, frame: Frame) -> None:
        if frame.header.get("linearizable"):
            session.fail(frame, NotLeader("no", leader=leader.address))
        else:
            session.send(frame, Kind.ADMIN_REPLY, {"partitions": ROWS[:1], "key_partitions": 1})

    node.answers[Kind.ADMIN] = partitions
    node.answers[Kind.GET] = fails(NoSuchPartition("9 of 1", partition_id=9, partitions=1))


async def test_a_node_that_led_and_is_behind_does_not_say_what_there_is() -> None:
    """Its own list was taken for the leader's, and the partition for one that does not exist."""
    async with cluster(2) as [first, second], Client(first.address) as boom:
        behind(first, second)
        second.answers[Kind.GET] = values
        second.answers[Kind.ADMIN] = lambda session, frame: session.send(
            frame, Kind.ADMIN_REPLY, {"partitions": ROWS, "key_partitions": 1}
        )
        assert await boom.get(9, b"k") == b"value"


@pytest.mark.parametrize("meanwhile", ["forgotten", "older"])
async def test_what_whoever_leads_has_said_counts_whatever_is_learned_meanwhile(meanwhile: str) -> None:
    """With the next answer of a node that was behind, it did not exist."""
    async with cluster(2) as [first, second], Client(first.address) as boom:
        asked: list[Any] = []

        def partitions(session: Session, frame: Frame) -> None:
            asked.append(frame.header["linearizable"])
            session.send(frame, Kind.ADMIN_REPLY, {"partitions": ROWS, "key_partitions": 1})

        def once_more(session: Session, frame: Frame) -> None:
            if meanwhile == "forgotten":
                boom._cluster.forget_partitions()
            else:
                boom._cluster._learn_partitions({"partitions": ROWS[:1], "key_partitions": 1})
            unheard(session, frame)

        unheard = fails(NoSuchPartition("9 of 1", partition_id=9, partitions=1))
        second.answers[Kind.ADMIN] = partitions
        first.leader, first.answers[Kind.ADMIN] = second.address, fails(NotLeader("no", leader=second.address))
        first.once(Kind.GET, unheard, once_more, values)
        assert await boom.get(9, b"k", stale=True, node=first.address) == b"value"
        assert asked == [True]


async def test_of_several_the_one_that_whoever_leads_does_not_know_does_not_exist() -> None:
    async with cluster(1) as [node], Client(node.address) as boom:
        node.answers[Kind.ADMIN] = lambda session, frame: session.send(
            frame, Kind.ADMIN_REPLY, {"partitions": ROWS, "key_partitions": 1}
        )
        nine, five = (fails(NoSuchPartition(f"{p} of 1", partition_id=p, partitions=1)) for p in (9, 5))
        node.once(Kind.SUBMIT, nine, five)
        with pytest.raises(NoSuchPartition, match="5 of 1"):
            await boom.submit_many({9: Put(b"k", b""), 5: Put(b"k", b"")})
        assert len(node.of(Kind.ADMIN)) == 1


async def test_what_whoever_leads_does_not_know_does_not_exist() -> None:
    async with cluster(2) as [first, second], Client(first.address) as boom:
        behind(first, second)
        asked: list[Any] = []

        def partitions(session: Session, frame: Frame) -> None:
            asked.append(frame.header.get("linearizable"))
            session.send(frame, Kind.ADMIN_REPLY, {"partitions": ROWS[:1], "key_partitions": 1})

        second.answers[Kind.ADMIN] = partitions
        with pytest.raises(NoSuchPartition):
            await boom.get(9, b"k", stale=True, node=first.address)
        assert asked == [True]


class Election:
    """Nobody proves that he leads until ``over``, as it is counted in questions; then there is partition 9."""

    def __init__(self, *, over: int) -> None:
        self.asked, self.over = 0, over

    def partitions(self, session: Session, frame: Frame) -> None:
        self.asked += 1
        if self.asked > self.over:
            session.send(frame, Kind.ADMIN_REPLY, {"partitions": ROWS, "key_partitions": 1})
        else:
            session.fail(frame, NotLeader("nobody leads", leader=None))

    def get(self, session: Session, frame: Frame) -> None:
        if self.asked > self.over:
            values(session, frame)
        else:
            session.fail(frame, NoSuchPartition("9 of 1", partition_id=9, partitions=1))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leads is asked for a moment only."""
    monkeypatch.setattr(cluster_module, "CONNECT_S", 0.05)


@pytest.mark.usefixtures("hasty")
async def test_while_nobody_leads_nobody_says_that_there_is_none() -> None:
    """It was raised as soon as nobody had proven for two seconds that he leads, whatever time was left."""
    async with cluster(1) as [node], Client(node.address) as boom:
        await boom._cluster.any()
        election = Election(over=12)
        node.answers[Kind.ADMIN], node.answers[Kind.GET] = election.partitions, election.get
        assert await boom.get(9, b"k", stale=True, timeout=30.0) == b"value"
        assert election.asked == 13, "and no more, once somebody has said it"


@pytest.mark.usefixtures("hasty")
async def test_while_nobody_leads_a_stream_does_not_end() -> None:
    async with cluster(1) as [node], Client(node.address) as boom:
        await boom._cluster.any()
        election = Election(over=12)
        node.answers[Kind.ADMIN] = election.partitions

        def tail(session: Session, frame: Frame) -> None:
            if election.asked > election.over:
                session.send(frame, Kind.END, {"next_index": 1})
            else:
                session.fail(frame, NoSuchPartition("9 of 1", partition_id=9, partitions=1))

        node.answers[Kind.TAIL] = tail
        assert [each async for each in boom.tail(9)] == []


@pytest.mark.usefixtures("hasty")
async def test_what_nobody_could_be_asked_of_is_said_in_the_end() -> None:
    async with cluster(1) as [node], Client(node.address) as boom:
        await boom._cluster.any()
        election = Election(over=1_000)
        node.answers[Kind.ADMIN], node.answers[Kind.GET] = election.partitions, election.get
        with pytest.raises(
            (Unavailable, DeadlineExceeded), match="9 of 1, as one node says; nobody who leads could be"
        ):
            await boom.get(9, b"k", stale=True, timeout=0.5)


async def test_of_whom_nobody_may_be_asked_the_node_is_believed() -> None:
    async with cluster(1) as [node], Client(node.address) as boom:
        node.answers[Kind.ADMIN] = fails(PermissionDenied("no"))
        node.answers[Kind.GET] = fails(NoSuchPartition("9 of 1", partition_id=9, partitions=1))
        with pytest.raises(NoSuchPartition):
            await boom.get(9, b"k", stale=True)
        assert len(node.of(Kind.ADMIN)) == 1


def shown(node: FakeNode, *, opening: set[int], paused: set[int], gone: set[int]) -> None:
    """Of partitions from 0 on: one that is being opened is open by the next time, one that is gone is listed once."""
    there = list(range(node.partitions))

    def partitions(session: Session, frame: Frame) -> None:
        rows = [[p, "kv", "write_ahead"] for p in there]
        session.send(frame, Kind.ADMIN_REPLY, {"partitions": rows, "key_partitions": 1})

    def watermarks(session: Session, frame: Frame) -> None:
        asked = frame.header["partitions"] or [p for p in there if p not in opening]
        if ended := sorted(gone.intersection(asked)):
            there.remove(ended[0])
            gone.remove(ended[0])
            session.fail(frame, PartitionDestroyed("since", partition_id=ended[0]))
        elif opening.intersection(asked):
            opening.clear()
            session.fail(frame, Unavailable("is being opened", retry_after=0.01))
        elif paused.intersection(asked):
            session.fail(frame, Unavailable("still recovering", retry_after=60.0))
        else:
            rows = [[p, 1, 1, 1, 0, 1, "running"] for p in asked]
            session.send(frame, Kind.WATERMARKS_REPLY, {"commit_index": 9, "node": "n1", "watermarks": rows})

    node.answers[Kind.ADMIN], node.answers[Kind.WATERMARKS] = partitions, watermarks


async def marks(boom: Client, partitions: list[int] | None = None) -> list[int]:
    return [mark.partition_id for mark in await boom.watermarks(partitions, linearizable=True)]


async def test_marks_of_all_wait_for_one_that_is_being_opened_by_whoever_leads() -> None:
    """They were those of all others, without a word."""
    async with cluster(partitions=4) as [node], Client(node.address) as boom:
        shown(node, opening={1}, paused=set(), gone={2})
        assert await marks(boom) == [0, 1, 3], "and 2 was destroyed meanwhile"
        assert await marks(boom, []) == []


async def test_one_that_stands_still_keeps_nobody_from_the_marks_of_others() -> None:
    async with cluster(partitions=4) as [node], Client(node.address) as boom:
        shown(node, opening=set(), paused={1}, gone={2})
        assert await marks(boom, [3, 0]) == [0, 3]
        with pytest.raises(Unavailable, match="still recovering"):  # at once: it would have no time for another attempt
            await boom.watermarks(linearizable=True, timeout=20.0)
        with pytest.raises(NoSuchPartition):
            await marks(boom, [0, 7])
        with pytest.raises(NoSuchPartition):
            await marks(boom, [0, 2])
