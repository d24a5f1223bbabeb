"""A partition that the node that is asked has not heard of: whoever leads has the last word."""

from __future__ import annotations

from typing import Any

import pytest

from logboom import Client, RecordBlock
from logboom.errors import NoSuchPartition, NotLeader
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, fails

ROWS = [[p, "kv", "write_ahead"] for p in (0, 9)]
LEAST = RecordBlock.from_columns(payloads=[b"bvalue"])


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
        body = [bytes(LEAST.metadata), bytes(LEAST.data)]
        header = {"found": [True], "metadata": len(body[0]), "data": len(body[1]), "global_index": 42}
        second.answers[Kind.GET] = lambda session, frame: session.send(frame, Kind.VALUES, header, body)
        second.answers[Kind.ADMIN] = lambda session, frame: session.send(
            frame, Kind.ADMIN_REPLY, {"partitions": ROWS, "key_partitions": 1}
        )
        assert await boom.get(9, b"k") == b"value"


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
