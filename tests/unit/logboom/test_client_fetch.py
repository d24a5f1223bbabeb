"""Data by descriptor: what one node does not have (any more), another may."""

from __future__ import annotations

from typing import Any

import pytest

from logboom import Client
from logboom.client.log_batches import Descriptor
from logboom.errors import IndexCompacted
from logboom.wire import Kind
from tests.unit.logboom.fake_server import Session, cluster, fails

WANTED = [Descriptor(0, 5, 3)]


def gives(session: Session, frame: Any) -> None:
    session.send(frame, Kind.DATA, {"rows": [0], "lengths": [3]}, [b"abc"])


async def test_what_some_nodes_have_removed_another_gives() -> None:
    async with cluster(3) as nodes, Client(nodes[0].address) as boom:
        for each in nodes[:2]:
            each.answers[Kind.DATA_READ] = fails(IndexCompacted("gone", first=9))
        nodes[2].answers[Kind.DATA_READ] = gives
        for _ in range(3):  # whichever is asked first
            assert await boom.fetch(WANTED) == [b"abc"]


async def test_what_all_have_removed_is_said_to_be_gone() -> None:
    async with cluster(2) as nodes, Client(nodes[0].address) as boom:
        for each, first in zip(nodes, (9, 7), strict=True):
            each.answers[Kind.DATA_READ] = fails(IndexCompacted("gone", first=first))
        with pytest.raises(IndexCompacted) as gone:
            await boom.fetch(WANTED)
        assert gone.value.first == 7
        assert [len(each.of(Kind.DATA_READ)) for each in nodes] == [1, 1]


async def test_a_node_that_was_named_is_the_only_one_that_is_asked() -> None:
    async with cluster(2) as nodes, Client(nodes[0].address) as boom:
        nodes[0].answers[Kind.DATA_READ] = fails(IndexCompacted("gone", first=9))
        with pytest.raises(IndexCompacted):
            await boom.fetch(WANTED, node="n1")
        assert not nodes[1].of(Kind.DATA_READ)
