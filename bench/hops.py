"""``python -m bench.hops``: the least that a lone command can cost on this machine, whoever serves it.

A client, a leader and a follower of bare uvloop: the client's bytes are passed on, written and synced by the follower
on its loop and by the leader on a thread, and answered when the follower has synced them. Four ways over loopback and
one sync, nothing read, checked, ordered or remembered. What a system takes above that is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, cast

import uvloop

ROOT: Final = Path(__file__).resolve().parent.parent
HOST: Final = "127.0.0.1"
COMMAND_BYTES: Final = 300
"""What 256 bytes of value are on the wire."""
WARM_UP: Final = 200
LASTS_S: Final = 120.0
"""Servers end by themselves, should nobody be there to end them."""


class _Peer(asyncio.Protocol):
    """Calls ``heard`` with whatever comes."""

    def __init__(self, heard: Callable[[_Peer, bytes], None]) -> None:
        self._heard = heard
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = cast(asyncio.WriteTransport, transport).write

    def data_received(self, data: bytes) -> None:
        self._heard(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()


def _opened(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)


async def _follower(told: Callable[[int], None], directory: Path) -> None:
    file = _opened(directory / "follower")

    def heard(peer: _Peer, data: bytes) -> None:
        os.write(file, data)
        os.fdatasync(file)
        peer.write(b"synced")

    await _serve(lambda: _Peer(heard), told)


async def _leader(told: Callable[[int], None], directory: Path, follower: int) -> None:
    loop, file, clients = asyncio.get_running_loop(), _opened(directory / "leader"), list[_Peer]()
    _, link = await loop.create_connection(lambda: _Peer(lambda _, data: clients[0].write(data)), HOST, follower)

    def asked(peer: _Peer, data: bytes) -> None:
        clients[:] = [peer]
        link.write(data)
        os.write(file, data)
        loop.run_in_executor(None, os.fdatasync, file)

    await _serve(lambda: _Peer(asked), told)


async def _serve(made: Callable[[], asyncio.Protocol], told: Callable[[int], None]) -> None:
    server = await asyncio.get_running_loop().create_server(made, HOST, 0)
    told(server.sockets[0].getsockname()[1])
    await asyncio.sleep(LASTS_S)


async def _ask(leader: int, times: int) -> list[float]:
    loop, taken = asyncio.get_running_loop(), list[float]()
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    transport, client = await loop.create_connection(
        lambda: _Peer(lambda _, data: answers.put_nowait(data)), HOST, leader
    )
    for _ in range(times):
        began = time.perf_counter()
        client.write(bytes(COMMAND_BYTES))
        await answers.get()
        taken.append(time.perf_counter() - began)
    transport.close()
    await client.gone.wait()
    return taken


def _run(main: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
    uvloop.run(main(*given))


def measure(directory: Path, times: int) -> list[float]:
    """Seconds that each of ``times`` commands took, the first ones left out. Ends what it has begun."""
    spawned, servers, ports = multiprocessing.get_context("spawn"), list[Any](), list[int]()
    try:
        for main in (_follower, _leader):
            ours, theirs = spawned.Pipe(duplex=False)
            server = spawned.Process(target=_run, args=(main, theirs.send, directory, *ports), daemon=True)
            server.start()
            theirs.close()  # of a server that fails the end is heard, and not waited for
            servers.append(server)
            ports.append(ours.recv())
        return uvloop.run(_ask(ports[-1], WARM_UP + times))[WARM_UP:]
    finally:
        for server in servers:
            server.kill()
            server.join()


def main() -> None:
    """Say what it took."""
    parser = argparse.ArgumentParser(prog="python -m bench.hops", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--times", type=int, default=5_000, help="commands, one after the other")
    parser.add_argument("--directory", type=Path, default=ROOT / ".bench", help="on the disk to be measured")
    given = parser.parse_args()
    if given.times < 2:
        parser.error("--times: two commands at least, for a median")
    given.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        cuts = statistics.quantiles(measure(Path(directory), given.times), n=100)
    print(f"four ways and one sync: p50 {cuts[49] * 1000:.3f} ms, p99 {cuts[98] * 1000:.3f} ms")


if __name__ == "__main__":
    main()
