"""A TCP connection to a name: its addresses are tried beside each other, not one after the other (RFC 8305).

Loops try the next address when the one before has failed, which for a machine that is gone takes minutes; and only
asyncio's own can do otherwise (``happy_eyeballs_delay``), uvloop cannot. Nor do names wait for a loop's threads: a
name server that does not answer keeps them for half a minute, other names wait behind that, and so does whoever ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

P = TypeVar("P", bound=asyncio.BaseProtocol)

NEXT_ADDRESS_S: Final = 0.25
"""After so long the next one is tried, too."""

Address = tuple[Any, Any, int, str, Any]
"""A row of getaddrinfo."""
Rows = Sequence[Address]

_asked: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Future[Rows]]]()
"""What is being looked up, per loop: each name once, however often it is dialled meanwhile."""


async def connect(
    factory: Callable[[], P], host: str, port: int, *, connect_s: float | None = None, **options: Any
) -> tuple[asyncio.BaseTransport, P]:
    """As ``loop.create_connection``. Raises OSError; TimeoutError, too, where nobody says anything for ``connect_s``.

    A name is looked up, and a certificate shown, for as long as that takes.
    """
    loop = asyncio.get_running_loop()
    rows: Rows = ()
    if not _is_address(host):
        rows = await _rows(host, port)
        if len(rows) == 1:
            host, port = rows[0][4][:2]
    if len(rows) < 2:
        if connect_s is None:
            return await loop.create_connection(factory, host, port, **options)
        if options.get("ssl") is None:
            async with asyncio.timeout(connect_s):
                return await loop.create_connection(factory, host, port, **options)
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    async with asyncio.timeout(connect_s):
        sock = await _first(rows)
    return await loop.create_connection(factory, sock=sock, **options)


async def _rows(host: str, port: int) -> Rows:
    loop = asyncio.get_running_loop()
    own = getattr(loop, "look_up", None)
    if own is not None:  # the simulator's, which has no threads
        return await own(host, port)  # type: ignore[no-any-return]
    asked = _asked.setdefault(loop, {})
    found = asked.get((host, port))
    if found is None:
        found = loop.create_future()
        # A daemon: nobody waits for it at the end of the process.
        thread = threading.Thread(target=_look_up, args=(loop, found, host, port), name=f"name-{host}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of processes
            raise OSError(f"{host} cannot be looked up: {error}") from error
        asked[host, port] = found
        found.add_done_callback(lambda _: asked.pop((host, port), None))
    return await asyncio.shield(found)  # who gives up does so for himself


def _look_up(loop: asyncio.AbstractEventLoop, found: asyncio.Future[Rows], host: str, port: int) -> None:
    rows: Rows = ()
    failed: Exception | None = None
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except Exception as error:  # noqa: BLE001 - whoever asked is told
        failed = error
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_settle, found, rows, failed)


def _settle(found: asyncio.Future[Rows], rows: Rows, failed: Exception | None) -> None:
    if found.done():  # cancelled with its loop
        return
    if failed is None:
        found.set_result(rows)
    else:
        found.set_exception(failed)
        found.exception()  # nobody may be left who asks


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
