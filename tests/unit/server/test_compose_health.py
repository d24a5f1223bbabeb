"""The health check of docker-compose.yml, as it stands there, against a node's port for probes."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

from logboom.testing import free_ports
from tests.unit.server.compose import PORT, program
from tests.unit.server.watched import watched


async def checked(port: int) -> int:
    process = await asyncio.create_subprocess_exec(*program(port), stderr=asyncio.subprocess.DEVNULL)
    return await process.wait()


async def test_a_node_that_answers_is_healthy_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with watched(tmp_path, node__probe_address=f"127.0.0.1:{port}"):
        assert await checked(port) == 0
    assert await checked(port) == 1


async def test_who_answers_something_else_is_not() -> None:
    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(busy, "127.0.0.1", 0, family=socket.AF_INET)
    async with server:
        assert await checked(server.sockets[0].getsockname()[1]) == 1


def test_a_check_does_not_begin_a_client_of_its_own() -> None:
    """Half a second of a processor, every five seconds, per node: on a busy machine every check was late, for good."""
    _, flag, code = program(int(PORT))
    assert flag == "-ISc"
    assert re.findall(r"import (\w+)", code) == ["socket"]
