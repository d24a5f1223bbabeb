"""Addresses of two clusters, given to one client: it is of the one that says first which it is."""

from __future__ import annotations

import asyncio

import pytest

from logboom.client.cluster import Cluster
from logboom.errors import InvalidRequest
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, until


class Slow:
    """Answers HELLO when it is told to."""

    def __init__(self, node: FakeNode) -> None:
        self.asked: list[tuple[Session, Frame]] = []
        node.answers[Kind.HELLO] = lambda session, frame: self.asked.append((session, frame))

    def answer(self) -> None:
        for session, frame in self.asked:
            session.usual(frame)


async def test_a_node_that_was_asked_before_anybody_had_answered_is_of_that_cluster_too() -> None:
    """Both were asked as nodes of any cluster, and both were welcome: commands went to one, and reads to the other."""
    async with cluster(2) as (first, second):
        first.cluster, second.cluster = "one", "other"
        first.members, second.members = ({each.name: each.address} for each in (first, second))
        slow = Slow(first)
        client = Cluster([first.address, second.address], tls=None, token=None)
        late = asyncio.create_task(client.connection(first.address))
        await until(lambda: slow.asked)
        assert (await client.connection(second.address)).welcome["node"] == second.name
        slow.answer()
        with pytest.raises(InvalidRequest, match="this is cluster 'one', not 'other'"):
            await late
        assert [frame.header["cluster"] for frame in first.of(Kind.HELLO)] == [None]
        assert (client.id, client.members) == ("other", {second.name: second.address})
        await until(lambda: not first.sessions)
        assert len(second.sessions) == 1
        await client.close()
