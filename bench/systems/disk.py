"""The physical limit: three processes, each of which writes and syncs blocks to a file of its own, and nothing else.

One operation is one block in all three, so its rate is what three replicas on this disk can take at most.
This module is also the writers' program.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Final

from bench.systems.api import System
from bench.systems.processes import Processes
from bench.targets import Job, Operation

FILE_BYTES: Final = 256 << 20
"""Then a fresh file, and the full one goes: a long load must not fill the disk."""
WORD: Final = 4
"""A request is a block's size, its answer the same bytes: written and synced."""


class DiskCluster(Processes):
    """Three writers; the first stands for the leader."""

    settings: str = "append of random bytes, then fdatasync, one block at a time in each of three processes"

    def command(self, node: str) -> list[str]:
        return [sys.executable, "-m", "bench.systems.disk", self.port(node), str(self.place(node))]

    def find_leader(self) -> str | None:
        for node in self.nodes:
            try:
                socket.create_connection(("127.0.0.1", int(self.port(node))), 1.0).close()
            except OSError:
                return None
        return self.nodes[0]

    def client_addresses(self) -> tuple[str, ...]:
        """All three: a client waits for every one."""
        return tuple(self.addresses.values())

    def version(self) -> str:
        """Of the kernel."""
        return platform.release()


class _Writer(asyncio.Protocol):
    """A connection to one writer; answers come in the order of requests."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.transport: asyncio.WriteTransport
        self._rest = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def ask(self, size: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(done)
        self.transport.write(size.to_bytes(WORD, "big"))
        return done

    def data_received(self, data: bytes) -> None:
        answers, self._rest = divmod(self._rest + len(data), WORD)
        for done in self.waiting[:answers]:
            done.set_result(None)
        del self.waiting[:answers]

    def connection_lost(self, exc: Exception | None) -> None:
        for done in self.waiting:
            if not done.done():
                done.set_exception(ConnectionError("a writer ended"))


class Target:
    """Blocks in all three files at once."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._writers: list[_Writer] = []

    async def open(self, connections: int) -> None:
        loop = asyncio.get_running_loop()
        for address in self._job.endpoints:
            host, _, port = address.rpartition(":")
            self._writers.append((await loop.create_connection(_Writer, host, int(port)))[1])

    def single(self, slot: int) -> Operation:
        return self.bulk(slot, 1)

    def bulk(self, slot: int, records: int) -> Operation:
        size = records * self._job.value_bytes

        async def block() -> None:
            await asyncio.gather(*(writer.ask(size) for writer in self._writers))

        return block

    async def drain(self) -> None:
        """What is synced is all there is."""

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.close()


def write(place: Path, port: int) -> None:
    """A writer's life: one connection after the other, one block after the other."""
    noise, number, file, used = os.urandom(8 << 20), 0, -1, FILE_BYTES
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, connection.makefile("rb") as requests:
                while len(request := requests.read(WORD)) == WORD:
                    size = int.from_bytes(request, "big")
                    if used + size > FILE_BYTES:
                        if file >= 0:
                            os.close(file)
                            (place / str(number)).unlink()
                        number, used = number + 1, 0
                        file = os.open(place / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
                    used += os.write(file, memoryview(noise)[:size])
                    os.fdatasync(file)
                    connection.sendall(request)


SYSTEM: Final = System("disk", lambda: Path(sys.executable), DiskCluster, Target)

if __name__ == "__main__":
    write(Path(sys.argv[2]), int(sys.argv[1]))
