"""Wires: every connection between two nodes, and between clients and a node, goes through this process.

So a way can be slow, stand still in one direction, be cut, or lose what is on it, without root and on any system.
``python -m chaos.wires`` takes orders as JSON lines and answers each with a line; it ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from logboom.errors import LogboomError
from logboom.testing import LocalCluster, free_ports
from logboom.wire import FrameDecoder

CLIENTS: Final = "clients"
"""Whoever connects to a node's port for clients."""
CHUNK_BYTES: Final = 64 * 1024
STEPS_PER_S: Final = 50
"""A slow way carries pieces that take so long each."""
HELLO_BYTES: Final = 64 * 1024
Pair = tuple[str, str]


@dataclass(eq=False)
class Way:
    """From one end to the other; the way back is another."""

    passes: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set what is under way stays there, and nobody hears that anything has ended."""
    bytes_per_s: int = 0
    """0: as fast as it goes."""
    carried: int = 0

    def __post_init__(self) -> None:
        self.passes.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the sender has ended."""
        while True:
            piece = max(1, self.bytes_per_s // STEPS_PER_S) if self.bytes_per_s else CHUNK_BYTES
            data = await reader.read(min(CHUNK_BYTES, piece))
            if self.bytes_per_s:
                await asyncio.sleep(len(data) / self.bytes_per_s)
            await self.passes.wait()
            if not data:
                return
            if writer.transport.is_closing():
                raise ConnectionResetError
            self.carried += len(data)
            writer.write(data)
            await writer.drain()


class Switchboard:
    """All wires of a cluster."""

    def __init__(self) -> None:
        self._ways: dict[Pair, Way] = {}
        self._cut: set[frozenset[str]] = set()
        self._open: dict[frozenset[str], set[asyncio.StreamWriter]] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def way(self, pair: Pair) -> Way:
        """From the first to the second."""
        return self._ways.setdefault(pair, Way())

    async def listen(self, node: str, *, port: int, to: int, clients: bool) -> None:
        """Whatever comes to ``port`` is for ``node``, which listens on ``to``."""

        async def come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            try:
                await self._connect(reader, writer, node, to, clients=clients)
            except (OSError, EOFError, LogboomError):  # one end went away, or said nothing of use
                writer.transport.abort()

        self._servers.append(await asyncio.start_server(come, "127.0.0.1", port))

    async def _connect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str, to: int, *, clients: bool
    ) -> None:
        caller, said = (CLIENTS, b"") if clients else await _introduction(reader)
        ends = frozenset((caller, node))
        if ends in self._cut:
            raise EOFError
        inner_reader, inner = await asyncio.open_connection("127.0.0.1", to)
        both = {writer, inner}
        self._open.setdefault(ends, set()).update(both)
        there, back = self.way((caller, node)), self.way((node, caller))
        try:
            await there.passes.wait()
            inner.write(said)
            tasks = {
                asyncio.ensure_future(there.carry(reader, inner)),
                asyncio.ensure_future(back.carry(inner_reader, writer)),
            }
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
                await asyncio.gather(*[each.drain() for each in both])
            finally:
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._open[ends] -= both
            for end in both:
                end.close()  # what was said last still comes

    async def close(self) -> None:
        """Nothing comes any more, and what is there is lost."""
        for server in self._servers:
            server.close()
        for writers in self._open.values():
            for each in writers:
                each.transport.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def reset(self, one: str, other: str) -> None:
        """Whatever is on its way between them is lost, and both hear of it."""
        for each in list(self._open.get(frozenset((one, other)), ())):
            each.transport.abort()

    async def obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """One order, done."""
        match dict(order):
            case {"listen": node, "port": port, "to": to, "clients": clients}:
                await self.listen(node, port=port, to=to, clients=clients)
            case {"way": [one, other], "passes": passes, "bytes_per_s": rate}:
                way = self.way((one, other))
                way.bytes_per_s = rate
                (way.passes.set if passes else way.passes.clear)()
            case {"cut": [one, other], "is": cut}:
                (self._cut.add if cut else self._cut.discard)(frozenset((one, other)))
                if cut:
                    self.reset(one, other)
            case {"reset": [one, other]}:
                self.reset(one, other)
            case {"carried": [one, other]}:
                return {"carried": self.way((one, other)).carried}
            case unknown:
                raise ValueError(f"nobody knows what {unknown} means")
        return {}


async def _introduction(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Who calls another node, and the bytes that say so."""
    decoder = FrameDecoder(frame_bytes_max=HELLO_BYTES)
    said = b""
    while True:
        data = await reader.read(CHUNK_BYTES)
        if not data:
            raise EOFError
        said += data
        if frames := decoder.feed(data, frames_max=1):
            return str(frames[0].header.get("node")), said


async def serve() -> None:
    """Take orders until there are no more."""
    board, orders = Switchboard(), asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        try:
            answer = await board.obey(json.loads(line))
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await board.close()


class Wires:
    """The process, from outside."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "chaos.wires"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # a Ctrl-C is for whoever started it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """All connections end."""
        self._process.communicate()

    def order(self, **order: Any) -> dict[str, Any]:
        """Have it done. Raises ValueError with what went wrong."""
        orders, answers = self._process.stdin, self._process.stdout
        if orders is None or answers is None:
            raise ValueError("the wires have no pipes")
        orders.write(json.dumps(order).encode() + b"\n")
        orders.flush()
        answer: dict[str, Any] = json.loads(answers.readline() or b'{"error": "the wires have ended"}')
        if "error" in answer:
            raise ValueError(f"{order}: {answer['error']}")
        return answer

    def way(self, one: str, other: str, *, passes: bool = True, bytes_per_s: int = 0) -> None:
        """What comes from one to the other, from now on."""
        self.order(way=[one, other], passes=passes, bytes_per_s=bytes_per_s)

    def cut(self, one: str, other: str, *, cut: bool = True) -> None:
        """Both hear that they have no connection, and get no other."""
        self.order(cut=[one, other], **{"is": cut})

    def reset(self, one: str, other: str) -> None:
        """Both hear that they have no connection; another may follow."""
        self.order(reset=[one, other])

    def carried(self, one: str, other: str) -> int:
        """Bytes so far."""
        return int(self.order(carried=[one, other])["carried"])


class WiredCluster(LocalCluster):
    """One of which every node is reached by wires alone; its addresses are theirs."""

    def __init__(self, wires: Wires, **settings: Any) -> None:
        self.wires = wires
        self._behind: dict[str, tuple[int, int]] = {}
        """Where each node listens itself, for clients and for other nodes."""
        super().__init__(**settings)

    def _write_config(self, node: str, flags: Mapping[str, Any]) -> None:
        if node not in self._behind:
            client, peer = self._behind[node] = _both(free_ports(2))
            self.wires.order(listen=node, port=_port(self.addresses[node]), to=client, clients=True)
            self.wires.order(listen=node, port=_port(self.peer_addresses[node]), to=peer, clients=False)
        client, peer = self._behind[node]
        own = {"node.client_address": f"127.0.0.1:{client}", "node.peer_address": f"127.0.0.1:{peer}"}
        super()._write_config(node, {**flags, **own})


def _both(ports: list[int]) -> tuple[int, int]:
    return ports[0], ports[1]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def main() -> None:
    """See the module."""
    make = None
    with contextlib.suppress(ImportError):
        import uvloop

        make = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
