"""Whoever only connects has no more of a node than there is room for: places, and descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from logboom import certs
from logboom.errors import ConfigError
from ports.net import ConnectionLimits
from server.world import accepting
from server.world.accepting import SPARE_LEAST, SPARE_MIN, SPARE_SHARE
from tests.unit.server.net_world import LIMITS, Serving, Session, serving, until

STRANGERS = 12


class Stranger:
    """Connects, and says nothing."""

    async def connect(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.reader, self.writer = await asyncio.open_connection(host, int(port))

    @property
    def is_cut(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None


async def strangers(it: Serving) -> list[Stranger]:
    """So many, connected; the node has taken them, or turned them away."""
    found = [Stranger() for _ in range(STRANGERS)]
    for stranger in found:
        await stranger.connect(it.address)
    await until(lambda: len(it.sessions) + it.traffic.refused == STRANGERS)
    return found


async def left(it: Serving, found: list[Stranger]) -> int:
    """How many of them are still there, once those that were turned away have heard of it."""
    await until(lambda: sum(each.is_cut for each in found) == it.traffic.refused)
    return len(it.sessions)


async def gone(found: list[Stranger]) -> None:
    """All of them, before there are other numbers."""
    for each in found:
        each.writer.close()
        with contextlib.suppress(ConnectionError):
            await each.writer.wait_closed()


@contextlib.contextmanager
def no_numbers_between() -> Iterator[int]:
    """All descriptors below the yielded one are taken, none from it on: what other tests have open leaves holes."""
    gc.collect()  # what is thrown away does not become a number in the middle of it
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names of descriptors
    filled = list[int]()
    try:
        while not filled or filled[-1] <= highest:
            filled.append(os.open(os.devnull, os.O_RDONLY))
        yield filled[-1] + 1
    finally:
        for each in filled:
            os.close(each)


async def test_who_has_not_agreed_upon_tls_counts_as_a_connection(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path, ["n1", "n2"])
    server, client = certs.peer_contexts(tmp_path, "n1")[0], certs.peer_contexts(tmp_path, "n2")[1]
    async with serving(tls=server, connections_max=3) as it:
        found = await strangers(it)
        assert await left(it, found) == 3
        for each in found:
            each.writer.close()

        async def comes_in() -> bool:
            try:
                made = await it.network.dial(it.address, Session(), limits=ConnectionLimits(**LIMITS), tls=client)
            except OSError:
                return False
            made.abort()
            return True

        async with asyncio.timeout(10):
            while not await comes_in():
                pass


async def test_an_address_of_a_name_that_is_not_here_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: a node that is to listen on `localhost` did not start in a container, which has no IPv6."""
    loop, tcp = asyncio.get_running_loop(), (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    here = (socket.AF_INET, *tcp, ("127.0.0.1", 0))
    absent = (socket.AF_INET, *tcp, ("192.0.2.1", 0))
    known = [absent, here]

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        return list(known)

    monkeypatch.setattr(type(loop), "getaddrinfo", getaddrinfo)
    async with serving() as it:
        assert it.address.startswith("127.0.0.1:")
        monkeypatch.undo()
    monkeypatch.setattr(type(loop), "getaddrinfo", getaddrinfo)
    known.remove(here)
    with pytest.raises(ConfigError, match="assign"):
        async with serving():
            pass


@pytest.mark.parametrize("tls", [False, True])
async def test_descriptors_are_left_for_files(tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certs.make_test_authority(tmp_path, ["n1"])
    tls_of = certs.peer_contexts(tmp_path, "n1")[0] if tls else None
    async with serving(tls=tls_of) as it:
        with no_numbers_between() as used:
            limit = next(n for n in itertools.count(used) if n - max(SPARE_MIN, n // SPARE_SHARE) == used + 8)
            # A connection takes two here, where both its ends are.
            monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
            monkeypatch.setattr(accepting, "CONNECTIONS_LEAST", 0)
            found = await strangers(it)
            assert 3 <= await left(it, found) <= 5
            await gone(found)
            monkeypatch.undo()


async def test_where_files_have_taken_what_there_is_a_few_connections_are_taken_in_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by review: with as many partitions as descriptors allow a node let in nobody, other nodes neither."""
    async with serving() as it:
        with no_numbers_between() as used:
            limit = used + SPARE_LEAST + 8
            monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
            found = await strangers(it)
            assert 3 <= await left(it, found) <= 5
            await gone(found)
            monkeypatch.undo()
