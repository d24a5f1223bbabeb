"""Names for which nobody answers, which takes the system's resolver half a minute to notice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from logboom import Client
from logboom.dialing import connect
from logboom.errors import Unavailable
from tests.unit.logboom.fake_server import cluster

MANY = 40
"""More than a loop has threads."""
PATIENCE_S = 10.0
AT_ONCE_S = 0.05


class Resolver:
    """Knows 127.0.0.1 as `here.test`, and that there is no `nowhere.test`; of others it says nothing until the end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.asked: Counter[str] = Counter()
        self._real = socket.getaddrinfo

    def __call__(self, host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if not str(host).endswith(".test"):
            return self._real(host, port, *rest, **more)
        self.asked[host] += 1
        if host == "here.test":
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]
        if host != "nowhere.test":
            self.over.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@contextlib.contextmanager
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    it = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", it)
    try:
        yield it
    finally:
        it.over.set()


async def give_up(name: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(AT_ONCE_S):
            await connect(asyncio.Protocol, name, 7701)


async def test_names_that_are_known_do_not_wait_for_those_that_nobody_answers_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node of five could not call one that was there while two others, gone, had names that took long."""
    async with cluster() as [node]:
        with resolver(monkeypatch):
            await asyncio.gather(*(give_up(f"gone-{k}.test") for k in range(MANY)))
            port = node.address.rpartition(":")[2]
            async with Client(f"here.test:{port}", timeout=PATIENCE_S / 2) as boom:
                assert await boom.partitions()


def test_who_ends_does_not_wait_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was stopped, and any command, ended when the resolver had given up."""
    ended = threading.Event()

    def run() -> None:
        asyncio.run(give_up("gone.test"))
        ended.set()

    with resolver(monkeypatch) as it:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert ended.wait(PATIENCE_S / 2)
            assert not it.over.is_set()
        finally:
            it.over.set()
            thread.join()


async def test_a_name_is_looked_up_once_however_often_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try left one more behind that one, without end."""
    with resolver(monkeypatch) as it:
        for _ in range(5):
            await give_up("gone.test")
        assert it.asked["gone.test"] == 1
        waiting = asyncio.create_task(connect(asyncio.Protocol, "gone.test", 7701))
        await asyncio.sleep(0)
        it.over.set()
        with pytest.raises(socket.gaierror):  # who gave up took nothing from who waits
            await waiting
        with pytest.raises(socket.gaierror):
            await connect(asyncio.Protocol, "gone.test", 7701)
        assert it.asked["gone.test"] == 2


async def test_what_the_resolver_says_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with resolver(monkeypatch):
        with pytest.raises(socket.gaierror, match="not known"):
            await connect(asyncio.Protocol, "nowhere.test", 7701)
        async with Client("nowhere.test:7701", timeout=1) as boom:
            with pytest.raises(Unavailable, match="not known"):
                await boom.partitions()


async def test_without_a_further_thread_a_name_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with resolver(monkeypatch) as it:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", none)
            with pytest.raises(OSError, match=r"here\.test cannot be looked up: can't start new thread"):
                await connect(asyncio.Protocol, "here.test", 7701)
        with pytest.raises(ConnectionRefusedError):
            await connect(asyncio.Protocol, "here.test", 1)
        assert it.asked["here.test"] == 1
