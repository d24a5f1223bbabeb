"""What is at an address and is not a node's port for clients: the error says what else it may be."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from logboom import SyncClient
from logboom.certs import client_context, make_test_authority
from logboom.cli import PORTS, common
from logboom.client.connection import NodeConnection
from logboom.client.pool import parse_endpoints
from logboom.errors import ConfigError, InvalidRequest, Unauthenticated, Unavailable
from logboom.testing import free_ports
from logboom.wire import Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, silent


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:7901", "https://n1:7701", "n1/x:7701", "http://n1:7701/"])
def test_the_address_of_a_page_is_none_of_a_node(endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="is not host:port"):
        parse_endpoints(f"n2:7701,{endpoint}")


@pytest.mark.parametrize("endpoints", [None, "", [], [""], ()])
def test_no_endpoints_are_told_as_that(endpoints: Any) -> None:
    """`os.environ.get("LOGBOOM_ENDPOINTS")`, not set: 'NoneType' object is not iterable."""
    with pytest.raises(InvalidRequest, match=r"no endpoints given: .* host:port"):
        SyncClient(endpoints)


@pytest.mark.parametrize("endpoints", [[None, "n1:7701"], b"n1:7701", ["n1:7701", 7702]])
def test_endpoints_that_are_no_text_are_named(endpoints: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not host:port"):
        parse_endpoints(endpoints)


class Other(asyncio.Protocol):
    """Something else than a node. ``first``: what it says as soon as somebody comes; nothing: it hangs up."""

    def __init__(self, first: bytes | None) -> None:
        self._first = first
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._first is None:
            self._transport.close()
        else:
            self._transport.write(self._first)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@asynccontextmanager
async def other(first: bytes | None) -> AsyncIterator[str]:
    """Its address."""
    seen: list[Other] = []

    def made() -> Other:
        seen.append(Other(first))
        return seen[-1]

    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for each in seen:
            each.end()
        await server.wait_closed()
        await asyncio.sleep(0)


async def test_one_that_never_answers_may_be_another_port() -> None:
    """As the operators' does: it waits for the rest of a line."""
    async with other(b"") as address:
        with pytest.raises(Unavailable, match=r"no answer within 0\.2 s; is that the port for clients"):
            await NodeConnection.open(address, tls=None, timeout=0.2, token=None)


async def test_one_that_hangs_up_may_want_tls_or_be_another_port() -> None:
    async with other(None) as address:
        with pytest.raises(
            Unavailable,
            match=r"want TLS \(`tls`, --tls-dir, LOGBOOM_TLS_DIR\), have no room for one more, or not be the p",
        ):
            await NodeConnection.open(address, tls=None, timeout=5, token=None)


async def test_one_that_does_not_speak_tls_is_said_to(tmp_path: Path) -> None:
    make_test_authority(tmp_path, ["n1"])
    async with other(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        with pytest.raises(Unauthenticated, match="it does not speak TLS"):
            await NodeConnection.open(address, tls=client_context(tmp_path), timeout=5, token=None)


@pytest.mark.parametrize("missing", ["ca.pem", "client.pem", "client.key"])
def test_a_file_of_tls_that_is_missing_or_none_is_named(tmp_path: Path, missing: str) -> None:
    make_test_authority(tmp_path, ["n1"])
    (tmp_path / missing).write_text("something else\n")
    with pytest.raises(ConfigError, match=missing):
        client_context(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        client_context(tmp_path)


def test_who_asks_where_nobody_is_hears_so_before_his_time_is_over(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty seconds of silence, for an address with a wrong digit."""
    monkeypatch.setattr(common, "ALONE_S", 0.2)
    (port,) = free_ports(1)
    nowhere = f"127.0.0.1:{port}"
    status, out, err = run(capsys, "status", "--endpoints", nowhere, "--timeout", "1s")
    assert (status, out) == (3, "")
    first, last = err.splitlines()
    assert first == f"logboom: no node has answered yet ({nowhere}); trying for 1 s (--timeout); {PORTS}"
    assert f"asked were {nowhere}: is that where nodes run? (--endpoints, LOGBOOM_ENDPOINTS)" in last


def test_of_another_port_it_is_said_which_each_is(capsys: Any) -> None:
    """Each node has three."""
    silent_port = socket.create_server(("127.0.0.1", 0))
    with silent_port:
        address = f"127.0.0.1:{silent_port.getsockname()[1]}"
        status, _, err = run(capsys, "status", "--endpoints", address, "--timeout", "2500ms")
    assert status == 3
    assert f"is that the port for clients? ({PORTS}) [" in err


def test_who_is_answered_hears_nothing_of_the_kind(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "ALONE_S", 0.1)
    node.answers[Kind.GET] = silent
    _, _, err = run(capsys, "get", "-p", "0", "k", "--timeout", "500ms")
    assert "has answered" not in err
