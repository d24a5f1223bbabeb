"""Names with several addresses, of which the first does not answer."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from logboom import Client, Put, dialing
from logboom.dialing import connect
from ports.net import ConnectionLimits
from tests.unit.logboom.fake_server import cluster, until
from tests.unit.server.net_world import LIMITS, Session, black_hole, serving


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """What ``boom.test`` is called."""

    async def rows(host: str, port: int) -> Any:
        assert (host, port) == ("boom.test", 7701)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", each) for each in addresses]

    monkeypatch.setattr(dialing, "_rows", rows)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def test_a_client_tries_the_next_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the time there is to connect went into the first one, at every attempt."""
    async with cluster() as [node]:
        with black_hole() as hole:
            resolve(monkeypatch, hole, split(node.address))
            async with Client("boom.test:7701", timeout=10) as boom:
                assert (await boom.submit(0, Put(b"k", b"v"))).count == 1


async def test_so_does_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as it:
        with black_hole() as hole:
            resolve(monkeypatch, hole, split(it.address))
            limits = ConnectionLimits(**{**LIMITS, "handshake_s": 5.0})
            connection = await it.network.dial("boom.test:7701", Session(), limits=limits, tls=None)
            connection.close()


async def test_who_refuses_is_passed_over_at_once_and_the_last_one_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as [node]:
        resolve(monkeypatch, ("127.0.0.1", 1), split(node.address))
        async with Client("boom.test:7701", timeout=10) as boom:
            assert (await boom.submit(0, Put(b"k", b"v"))).count == 1
        resolve(monkeypatch, ("127.0.0.1", 1), ("127.0.0.1", 2))
        with pytest.raises(ConnectionRefusedError):
            await connect(asyncio.Protocol, "boom.test", 7701)


async def test_what_comes_second_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as [node]:
        resolve(monkeypatch, split(node.address), split(node.address))
        monkeypatch.setattr(dialing, "NEXT_ADDRESS_S", 0)
        async with Client("boom.test:7701", timeout=10) as boom:
            assert (await boom.submit(0, Put(b"k", b"v"))).count == 1
            await until(lambda: len(node.sessions) == 1)


async def test_one_that_is_given_up_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with black_hole() as hole:
        resolve(monkeypatch, hole, hole)
        before = open_files()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2 * dialing.NEXT_ADDRESS_S):
                await connect(asyncio.Protocol, "boom.test", 7701)
        await asyncio.sleep(0)
        assert open_files() == before
