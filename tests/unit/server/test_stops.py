"""A node as a process that is to end: within its time, whatever hangs."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import server.main
from dispatcher.upkeep.installing import InstallDue
from logboom.settings import NodeSettings, RaftSettings, Settings


class Ended(BaseException):
    """In place of the process's end."""


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


class Hanging:
    """In place of a node: asked to stop, or to start anew, it never closes."""

    node_id = "n1"
    why: Callable[[Callable[[BaseException], None]], None]

    def __init__(self, _: Settings, *, fatal: Callable[[BaseException], None]) -> None:
        self.fatal = fatal
        self.watching = SimpleNamespace(installs=0, stopping=lambda: None)

    async def start(self) -> None:
        type(self).why(self.fatal)

    async def hand_over(self) -> None:
        """At once."""

    async def close(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "why", [lambda _: os.kill(os.getpid(), signal.SIGTERM), lambda fatal: fatal(InstallDue("a snapshot has come"))]
)
async def test_a_node_that_does_not_close_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch, why: Callable[[Callable[[BaseException], None]], None]
) -> None:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Hanging, "why", staticmethod(why), raising=False)
    monkeypatch.setattr(server.main, "Node", Hanging)
    monkeypatch.setattr(os, "_exit", lambda status: loop.call_soon_threadsafe(ended.set_result, status))
    serving = asyncio.create_task(server.main._serve(Settings(node=NodeSettings(stop_ms=10))))
    async with asyncio.timeout(10):
        assert await ended == server.main.EXIT_UNHEALTHY
    serving.cancel()
    await asyncio.wait([serving])


async def test_a_node_that_hangs_in_a_call_on_its_loop_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: a machine of a user whose `close` did not return kept its node until it was killed."""
    ended, statuses, in_time = threading.Event(), list[int](), list[bool]()

    class Blocking(Hanging):
        async def close(self) -> None:
            in_time.append(ended.wait(20))

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    monkeypatch.setattr(Blocking, "why", staticmethod(lambda _: os.kill(os.getpid(), signal.SIGTERM)), raising=False)
    monkeypatch.setattr(server.main, "Node", Blocking)
    monkeypatch.setattr(os, "_exit", end)
    await server.main._serve(Settings(node=NodeSettings(stop_ms=10)))
    assert (in_time, statuses) == ([True], [server.main.EXIT_UNHEALTHY])


@pytest.mark.parametrize("where", ["hand_over", "serving"])
async def test_a_node_that_hangs_on_its_loop_before_it_closes_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Found by reading: nothing looked at the time before it closed, and a loop that hung did not hear the signal."""
    ended, statuses, in_time = threading.Event(), list[int](), list[bool]()

    class Blocking(Hanging):
        async def start(self) -> None:
            asyncio.get_running_loop().call_soon(self.serve)

        def serve(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            if where == "serving":
                in_time.append(ended.wait(20))

        async def hand_over(self) -> None:
            if where == "hand_over":
                in_time.append(ended.wait(20))

        async def close(self) -> None:
            """At once."""

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    monkeypatch.setattr(server.main, "Node", Blocking)
    monkeypatch.setattr(os, "_exit", end)
    settings = Settings(node=NodeSettings(stop_ms=10), raft=RaftSettings(transfer_ms=10))
    async with asyncio.timeout(60):
        assert await server.main._serve(settings) == server.main.EXIT_OK  # the process lives on, here
    # More than once where this machine is busy: a process has ended with the first.
    assert (in_time, {*statuses}) == ([True], {server.main.EXIT_UNHEALTHY})


async def test_a_node_that_is_asked_to_stop_while_it_closes_to_start_anew_has_no_more_time_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by reading: it had ten times as long, and whoever had asked killed it."""
    said, in_time, release = list[int](), list[bool](), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(status: int) -> None:
        said.append(status)
        loop.call_soon_threadsafe(release.set)

    class Anew(Hanging):
        async def close(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(20):
                await release.wait()
                in_time.append(True)

    def due(fatal: Callable[[BaseException], None]) -> None:
        fatal(InstallDue("a snapshot has come"))

    monkeypatch.setattr(server.main, "ANEW", 100_000)
    monkeypatch.setattr(Anew, "why", staticmethod(due), raising=False)
    monkeypatch.setattr(server.main, "Node", Anew)
    monkeypatch.setattr(os, "_exit", end)
    settings = Settings(node=NodeSettings(stop_ms=10), raft=RaftSettings(transfer_ms=10))
    assert await server.main._serve(settings) == server.main.EXIT_OK  # the process lives on, here
    assert (in_time, said) == ([True], [server.main.EXIT_UNHEALTHY])


async def test_a_loop_hears_for_itself_what_is_heard_before_it_and_again_when_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Hanging, "why", staticmethod(lambda _: os.kill(os.getpid(), signal.SIGTERM)), raising=False)
    monkeypatch.setattr(Hanging, "close", Hanging.hand_over)
    monkeypatch.setattr(server.main, "Node", Hanging)
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"it ends with {status}"))
    threads = {thread for thread in threading.enumerate() if thread.name == "signals"}
    assert await server.main._serve(Settings()) == server.main.EXIT_OK
    for thread in {thread for thread in threading.enumerate() if thread.name == "signals"} - threads:
        thread.join(10)
        assert not thread.is_alive()
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    async with asyncio.timeout(10):
        await heard.wait()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)


async def test_without_a_thread_to_watch_it_a_node_that_does_not_close_ends_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    due: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server.main._otherwise(lambda: due.set_result(1), 0.01)
    server.main._otherwise(lambda: pytest.fail("it was closed"), 0.0)()
    assert await due == 1


async def test_a_disk_that_fails_while_a_node_closes_ends_it_as_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: with status 1, which is none of a node's."""

    class Failing(Hanging):
        async def close(self) -> None:
            raise OSError(errno.EIO, "the disk")

    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(Failing, "why", staticmethod(lambda _: os.kill(os.getpid(), signal.SIGTERM)), raising=False)
    monkeypatch.setattr(server.main, "Node", Failing)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended, match="5"):
        await server.main._serve(Settings())
