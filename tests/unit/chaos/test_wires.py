"""Wires between nodes: what passes, what waits, and what is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chaos.wire_faults import WireFaults
from chaos.wires import CLIENTS, Switchboard, Wires
from logboom.testing import free_ports
from logboom.wire import Kind, encode

BYE_S = 5.0
A_MOMENT_S = 0.2


class Echo:
    """A node ``n2`` that says everything again, behind wires; and those who talk to it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.writers.append(writer)
        return reader, writer

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while data := await reader.read(1 << 16):
            writer.write(data)


@asynccontextmanager
async def echo(board: Switchboard, *, clients: bool = True) -> AsyncIterator[Echo]:
    behind, port = free_ports(2)
    it = Echo(port)
    server = await asyncio.start_server(it.answer, "127.0.0.1", behind)
    await board.listen("n2", port=port, to=behind, clients=clients)
    try:
        yield it
    finally:
        server.close()
        for writer in it.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await board.close()


async def said(reader: asyncio.StreamReader, count: int) -> bytes:
    async with asyncio.timeout(BYE_S):
        return await reader.readexactly(count)


async def silent(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(A_MOMENT_S):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_what_is_said_comes_and_comes_back() -> None:
    board = Switchboard()
    async with echo(board) as it:
        reader, writer = await it.connect()
        writer.write(b"hello")
        assert await said(reader, 5) == b"hello"
        assert board.way((CLIENTS, "n2")).carried == board.way(("n2", CLIENTS)).carried == 5


@pytest.mark.parametrize("pair", [[CLIENTS, "n2"], ["n2", CLIENTS]])
async def test_one_way_stands_still_and_then_everything_comes(pair: list[str]) -> None:
    board = Switchboard()
    async with echo(board) as it:
        reader, writer = await it.connect()
        await board.obey({"way": pair, "passes": False, "bytes_per_s": 0})
        writer.write(b"hello")
        assert await silent(reader)
        carried = {pair[0]: board.way((CLIENTS, "n2")).carried}
        assert carried[pair[0]] == (0 if pair[0] == CLIENTS else 5)
        await board.obey({"way": pair, "passes": True, "bytes_per_s": 0})
        assert await said(reader, 5) == b"hello"


async def test_a_slow_way_takes_its_time() -> None:
    board = Switchboard()
    async with echo(board) as it:
        reader, writer = await it.connect()
        await board.obey({"way": [CLIENTS, "n2"], "passes": True, "bytes_per_s": 10_000})
        writer.write(bytes(5_000))
        began = asyncio.get_running_loop().time()
        await said(reader, 5_000)
        assert asyncio.get_running_loop().time() - began >= 0.4


async def test_lost_connections_are_heard_of_and_cut_ones_do_not_come_back() -> None:
    board = Switchboard()
    async with echo(board) as it:
        reader, writer = await it.connect()
        writer.write(b"hello")
        await said(reader, 5)
        await board.obey({"reset": [CLIENTS, "n2"]})
        with pytest.raises(EOFError):
            await said(reader, 1)
        await board.obey({"cut": ["n2", CLIENTS], "is": True})
        reader, writer = await it.connect()
        with pytest.raises((EOFError, ConnectionError)):
            await said(reader, 1)
        await board.obey({"cut": [CLIENTS, "n2"], "is": False})
        reader, writer = await it.connect()
        writer.write(b"hello")
        assert await said(reader, 5) == b"hello"


async def test_another_node_is_known_by_what_it_says() -> None:
    board = Switchboard()
    async with echo(board, clients=False) as it:
        reader, writer = await it.connect()
        hello = b"".join(encode(Kind.PEER_HELLO, {"node": "n1"}))
        writer.write(hello[:7])
        assert await silent(reader)
        writer.write(hello[7:] + b"more")
        assert await said(reader, len(hello) + 4) == hello + b"more"
        await board.obey({"cut": ["n1", "n2"], "is": True})
        with pytest.raises(EOFError):
            await said(reader, 1)


async def test_whoever_says_nothing_of_use_is_turned_away() -> None:
    board = Switchboard()
    async with echo(board, clients=False) as it:
        reader, writer = await it.connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10)
        with pytest.raises((EOFError, ConnectionError)):
            await said(reader, 1)


def test_the_process_takes_orders_and_says_what_it_cannot_do() -> None:
    with Wires() as wires:
        wires.way("n1", "n2", passes=False)
        assert wires.order(carried=["n1", "n2"]) == {"carried": 0}
        with pytest.raises(ValueError, match="nobody knows"):
            wires.order(what="is this")


def test_every_fault_names_ways_between_those_that_are_there() -> None:
    import random

    names = set()
    for seed in range(200):
        faults = WireFaults(None, random.Random(seed), lambda line: None)  # type: ignore[arg-type]
        name, ways = faults.draw("n1", ["n1", "n2", "n4"])
        names.add(name)
        assert {end for pair in ways for end in pair} <= {"n1", "n2", "n4", CLIENTS}
        assert all(one != other for one, other in ways)
    assert len(names) == 14
