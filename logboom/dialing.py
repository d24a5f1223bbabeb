"""A TCP connection to a name: its addresses are tried beside each other, not one after the other (RFC 8305).

Loops try the next address when the one before has failed, which for a machine that is gone takes minutes; and only
asyncio's own can do otherwise (``happy_eyeballs_delay``), uvloop cannot.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)

NEXT_ADDRESS_S: Final = 0.25
"""After so long the next one is tried, too."""

Address = tuple[Any, Any, int, str, Any]
"""A row of getaddrinfo."""


async def connect(factory: Callable[[], P], host: str, port: int, **options: Any) -> tuple[asyncio.BaseTransport, P]:
    """As ``loop.create_connection``. Raises OSError."""
    loop = asyncio.get_running_loop()
    if _is_address(host):
        return await loop.create_connection(factory, host, port, **options)
    rows = await _rows(host, port)
    if len(rows) == 1:
        return await loop.create_connection(factory, host, port, **options)
    return await loop.create_connection(factory, sock=await _first(rows), **options)


async def _rows(host: str, port: int) -> Sequence[Address]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _first(rows: Sequence[Address]) -> socket.socket:
    """Whichever is connected first."""
    waiting, tried, error = list(rows), list[asyncio.Task[socket.socket]](), OSError("the name has no address")
    pending = set[asyncio.Task[socket.socket]]()
    winner = None
    try:
        while waiting or pending:
            if waiting:
                tried.append(asyncio.get_running_loop().create_task(_connected(waiting.pop(0))))
                pending.add(tried[-1])
            timeout = NEXT_ADDRESS_S if waiting else None
            done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                failed = task.exception()
                if failed is None:
                    winner = task
                    return task.result()
                if not isinstance(failed, OSError):
                    raise failed
                error = failed
        raise error
    finally:
        for task in tried:
            if task is not winner:
                task.cancel()
                task.add_done_callback(_drop)


async def _connected(row: Address) -> socket.socket:
    family, kind, protocol, _, address = row
    sock = socket.socket(family, kind, protocol)
    try:
        sock.settimeout(0)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _drop(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
