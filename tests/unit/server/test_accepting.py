"""Whoever only connects has no more of a node than there is room for: places, and descriptors."""

from __future__ import annotations

import asyncio
import resource
import socket
from pathlib import Path

import pytest

from logboom import certs
from ports.net import ConnectionLimits
from server.world.accepting import SPARE_MIN
from tests.unit.server.net_world import LIMITS, Session, serving

STRANGERS = 12


class Stranger:
    """Connects, and says nothing."""

    async def connect(self, address: str) -> bool:
        host, port = address.rsplit(":", 1)
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        return True

    async def is_cut(self) -> bool:
        try:
            async with asyncio.timeout(0.5):
                return await self.reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True


async def strangers(address: str) -> list[Stranger]:
    """So many, connected."""
    found = [Stranger() for _ in range(STRANGERS)]
    for stranger in found:
        await stranger.connect(address)
    return found


async def left(found: list[Stranger]) -> int:
    """How many of them are still there."""
    return STRANGERS - sum(await asyncio.gather(*(each.is_cut() for each in found)))


async def test_who_has_not_agreed_upon_tls_counts_as_a_connection(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path, ["n1", "n2"])
    server, client = certs.peer_contexts(tmp_path, "n1")[0], certs.peer_contexts(tmp_path, "n2")[1]
    async with serving(tls=server, connections_max=3) as it:
        found = await strangers(it.address)
        assert await left(found) == 3
        for each in found:
            each.writer.close()

        async def comes_in() -> bool:
            try:
                made = await it.network.dial(it.address, Session(), limits=ConnectionLimits(**LIMITS), tls=client)
            except OSError:
                return False
            made.abort()
            return True

        async with asyncio.timeout(10):
            while not await comes_in():
                pass


@pytest.mark.parametrize("tls", [False, True])
async def test_descriptors_are_left_for_files(tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certs.make_test_authority(tmp_path, ["n1"])
    async with serving(tls=certs.peer_contexts(tmp_path, "n1")[0] if tls else None) as it:
        with socket.socket() as next_one:
            used = next_one.fileno()
        limit = used + 8 + SPARE_MIN  # a connection takes two here, where both its ends are
        monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
        found = await strangers(it.address)
        assert 3 <= await left(found) <= 5
        for each in found:
            each.writer.close()
