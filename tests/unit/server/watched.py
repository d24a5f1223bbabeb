"""A node of its own, whole, in this process: for tests of what is seen of it."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logboom import Client
from logboom.config import load
from logboom.testing import free_ports
from ports.http import HttpRequest, HttpResponse
from server.node import Node
from server.watching.operators import Operators

PARTITIONS = 3


@dataclass
class Watched:
    """A node, a client of it, and its port for operators without the sockets."""

    node: Node
    boom: Client
    fatal: list[BaseException]

    @property
    def operators(self) -> Operators:
        found = self.node.watching.operators
        assert found is not None
        return found

    async def get(self, path: str, **headers: str) -> HttpResponse:
        return await self.operators.respond(
            HttpRequest("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})
        )


@asynccontextmanager
async def watched(tmp_path: Path, **settings: Any) -> AsyncIterator[Watched]:
    """One node is a cluster: it elects itself."""
    client, peer, http = free_ports(3)
    flags = {
        "cluster.members": f"n1=127.0.0.1:{peer}@127.0.0.1:{client}",
        "cluster.partitions": PARTITIONS,
        "node.id": "n1",
        "node.data_dir": str(tmp_path / "n1"),
        "node.http_address": f"127.0.0.1:{http}",
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    fatal: list[BaseException] = []
    node = Node(load(environment={}, flags=flags), fatal=fatal.append)
    try:
        await node.start()
        async with asyncio.timeout(20):
            while not node.pipeline.recovery.over:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        async with Client(f"127.0.0.1:{client}", timeout=20.0) as boom:
            yield Watched(node, boom, fatal)
    finally:
        await node.close()
    assert fatal == []


def fetch(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Blocking: status, headers in lower case, body."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()
