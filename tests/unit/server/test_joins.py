"""``node.join`` is for who has no data."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from logboom import Client, Put
from logboom.errors import ConfigError
from logboom.settings import Member, Settings
from server.node import Node
from tests.unit.server.lone_node import fails, lone


async def serves(settings: Settings) -> bytes | None:
    """What it had, with one thing more."""
    node = Node(settings, fatal=fails)
    address = await node.start()
    try:
        async with Client(address, timeout=10) as boom:
            before = await boom.get(1, b"k")
            await boom.submit(1, Put(b"k", b"v"))
            return before  # type: ignore[return-value]
    finally:
        await node.close()


async def test_a_first_member_that_is_told_to_join_goes_on(tmp_path: Path) -> None:
    """As where one file is for all nodes, those that are there and those that come."""
    settings = lone(tmp_path)
    joins = replace(settings, node=replace(settings.node, join=True))
    assert await serves(settings) is None
    assert await serves(joins) == b"v"
    assert await serves(settings) == b"v"


async def test_but_not_with_other_members(tmp_path: Path) -> None:
    settings = lone(tmp_path)
    assert await serves(settings) is None
    more = Member(id="n2", peer_address="127.0.0.1:3", client_address="127.0.0.1:4")
    cluster = replace(settings.cluster, members=(*settings.cluster.members, more))
    with pytest.raises(ConfigError, match=r"n1, n2, and .* is of a cluster with n1"):
        Node(replace(settings, cluster=cluster, node=replace(settings.node, join=True)), fatal=fails)
