"""A node as a process: what becomes of the one that is closed to start anew from a snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import ssl
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import convert

import server.main
from dispatcher.upkeep.installing import InstallDue
from logboom.errors import ConfigError, CorruptData, LogboomError
from logboom.settings import AccessSettings, NodeSettings, Settings, TlsSettings
from server.directory.rejoin import RejoinDue

INSTALLS = 3


class Paper:
    """In place of a node: names itself, as nodes do, so that only the collector finds it."""

    made: list[weakref.ref[Paper]]
    last: asyncio.Event

    def __init__(self, _: Settings, *, fatal: Callable[[BaseException], None]) -> None:
        self.fatal, self.me = fatal, self
        self.watching = SimpleNamespace(installs=0, stopping=lambda: None)
        self.made.append(weakref.ref(self))

    async def start(self) -> None:
        if self.watching.installs == INSTALLS:
            self.last.set()
        else:
            asyncio.get_running_loop().call_soon(self.fatal, InstallDue("a snapshot has come"))

    async def hand_over(self) -> None:
        """At once."""

    async def close(self) -> None:
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _paper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Paper, "made", [], raising=False)
    monkeypatch.setattr(Paper, "last", asyncio.Event(), raising=False)
    monkeypatch.setattr(server.main, "Node", Paper)
    monkeypatch.setattr(server.main, "REPLACED_S", 0.0)
    yield
    gc.unfreeze()


async def test_nothing_is_left_of_a_node_that_was_started_anew() -> None:
    serving = asyncio.create_task(server.main._serve(Settings()))
    await Paper.last.wait()
    alive = [ref() is not None for ref in Paper.made]
    serving.cancel()
    await asyncio.wait([serving])
    assert alive == [False] * INSTALLS + [True]


class Stopping:
    """In place of a node: asked to stop at once, and its disk fails while it does, for ever."""

    node_id = "n1"

    def __init__(self, _: Settings, *, fatal: Callable[[BaseException], None]) -> None:
        self.fatal = fatal
        self.watching = SimpleNamespace(installs=0, stopping=lambda: None)

    async def start(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def hand_over(self) -> None:
        self.fatal(InstallDue("a snapshot has come"))  # is of no moment any more
        self.fatal(OSError(errno.EIO, "the disk"))
        await asyncio.Event().wait()


@pytest.mark.parametrize(("error", "status"), [(CorruptData("places: damaged"), 4), (ConfigError("x: no"), 2)])
async def test_what_a_start_cannot_mend_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: LogboomError, status: int
) -> None:
    async def start(_: Paper) -> None:
        raise error

    monkeypatch.setattr(Paper, "start", start)
    settings = convert({"node": {"data_dir": "/data/n1"}}, Settings)
    assert await server.main._serve(settings) == status
    said = capfd.readouterr().err
    assert error.message in said
    assert ("logboom verify /data/n1" in said) == (status == 4)


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), 5),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), 5),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), 5),
        (OSError(errno.ENOSPC, "No space left on device"), 5),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 5),
        (OSError(errno.EACCES, "Permission denied"), 2),
        (OSError(errno.ENOENT, "No such file or directory"), 2),
        (ssl.SSLError(ssl.SSLErrorNumber.SSL_ERROR_SYSCALL, "of no use"), 2),
        (None, 2),
    ],
)
async def test_what_may_pass_is_no_reason_to_stay_down(
    monkeypatch: pytest.MonkeyPatch, cause: OSError | None, status: int
) -> None:
    """Services are told not to start a node again whose configuration is wrong: at boot a name may be late."""

    async def start(_: Paper) -> None:
        raise ConfigError("cannot listen on n1:7701") from cause

    monkeypatch.setattr(Paper, "start", start)
    assert await server.main._serve(Settings()) == status


@pytest.mark.parametrize(
    ("tries", "status"),
    [(("old", "new"), 0), (("old", "new", "newer"), 5), (("old", "old"), 2), (("old", None), 5)],
    ids=["all there then", "still replaced", "as they were", "gone"],
)
@pytest.mark.parametrize("path", ["tls.directory", "access.file"])
async def test_files_that_are_replaced_while_a_node_starts_do_not_keep_it_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, tries: tuple[str | None, ...], status: int
) -> None:
    """Found by reading: a certificate whose key had not come yet was a configuration that is wrong, for good."""
    rules = tmp_path / "access.toml"
    file = tmp_path / "n1.key" if path == "tls.directory" else rules
    left = list(tries)
    waited: list[float] = []

    def put() -> None:
        if (text := left.pop(0)) is not None:
            file.with_suffix(".new").write_text(text)
            file.with_suffix(".new").replace(file)
        else:
            file.unlink()

    async def start(paper: Paper) -> None:
        if file.exists() and file.read_text() == "new" and not left:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        raise ConfigError("of no use", path=path)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if left[0] != "old":
            put()

    async def close(_: Paper) -> None:
        """At once."""

    put()
    monkeypatch.setattr(Paper, "start", start)
    monkeypatch.setattr(Paper, "close", close)
    monkeypatch.setattr(Paper, "node_id", "n1", raising=False)
    monkeypatch.setattr(server.main.asyncio, "sleep", sleep)
    settings = Settings(
        node=NodeSettings(id="n1"), tls=TlsSettings(directory=str(tmp_path)), access=AccessSettings(file=str(rules))
    )
    assert await server.main._serve(settings) == status
    assert waited == [0.0]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("/data: Permission denied", path="node.data_dir"), True),
        (ConfigError("n1.key: Permission denied", path="tls.directory"), True),
        (ConfigError("cannot listen on n1:80", path="address"), False),
        (None, True),
    ],
)
async def test_who_is_refused_files_is_told_as_whom_he_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: LogboomError | None, said: bool
) -> None:
    """A new volume belongs to root, and nobody knows by heart as whom an image runs."""
    cause = PermissionError(errno.EACCES, "Permission denied", "/data/lock")

    async def start(_: Paper) -> None:
        if error is None:
            raise cause
        raise error from cause

    monkeypatch.setattr(Paper, "start", start)
    assert await server.main._serve(Settings()) == (2 if error else 5)
    assert (f"chown -R {os.geteuid()}:{os.getegid()}" in capfd.readouterr().err) is said


async def test_what_must_stop_a_node_does_so_while_it_stops_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(server.main, "Node", Stopping)
    monkeypatch.setattr(os, "_exit", ended.set_result)
    serving = asyncio.create_task(server.main._serve(Settings()))
    async with asyncio.timeout(10):
        assert await ended == server.main.EXIT_UNHEALTHY
    serving.cancel()
    await asyncio.wait([serving])


async def test_a_node_that_is_asked_to_stop_while_it_is_to_start_anew_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close(_: Paper) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)

    monkeypatch.setattr(Paper, "close", close)
    async with asyncio.timeout(10):
        assert await server.main._serve(Settings()) == server.main.EXIT_OK
    assert len(Paper.made) == 1


async def test_a_node_that_is_to_start_anew_is_not_ready_while_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: whoever balances load went on to send clients to a port that was closed."""
    done: list[str] = []

    async def start(paper: Paper) -> None:
        paper.watching.stopping = lambda: done.append("stopping")
        asyncio.get_running_loop().call_soon(paper.fatal, InstallDue("a snapshot has come"))

    async def close(_: Paper) -> None:
        done.append("close")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)

    monkeypatch.setattr(Paper, "start", start)
    monkeypatch.setattr(Paper, "close", close)
    async with asyncio.timeout(10):
        await server.main._serve(Settings())
    assert done == ["stopping", "close"]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (InstallDue("a snapshot has come"), ["hand over", "stopping", "close"]),
        (RejoinDue("it was taken back"), ["stopping", "close"]),
    ],
)
async def test_a_leader_that_starts_anew_from_a_set_hands_over_before(
    monkeypatch: pytest.MonkeyPatch, reason: LogboomError, expected: list[str]
) -> None:
    """Found by reading: all partitions were without a leader for an election, which a stop by SIGTERM spares them."""
    done: list[str] = []

    async def start(paper: Paper) -> None:
        paper.watching.stopping = lambda: done.append("stopping")
        asyncio.get_running_loop().call_soon(paper.fatal, reason)

    async def hand_over(_: Paper) -> None:
        done.append("hand over")

    async def close(_: Paper) -> None:
        done.append("close")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)

    monkeypatch.setattr(Paper, "start", start)
    monkeypatch.setattr(Paper, "hand_over", hand_over)
    monkeypatch.setattr(Paper, "close", close)
    async with asyncio.timeout(10):
        await server.main._serve(Settings())
    assert done == expected


class Opening:
    """In place of a node: asked to stop while it opens."""

    def __init__(self, _: Settings, *, fatal: Callable[[BaseException], None]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _turn in range(1000):
            signal.getsignal(signal.SIGTERM)  # minutes of reading
        pytest.fail("it reads on")


class Ended(BaseException):
    """In place of the process's end."""


async def test_a_node_that_is_asked_to_stop_while_it_opens_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    before = {number: signal.getsignal(number) for number in server.main.STOPS}
    monkeypatch.setattr(server.main, "Node", Opening)
    monkeypatch.setattr(os, "_exit", end)
    try:
        with pytest.raises(Ended, match="0"):
            await server.main._serve(Settings())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def test_a_node_that_is_asked_to_stop_while_it_waits_for_a_name_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by review: where no name server answered, it went on waiting, and was killed half a minute later."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def start(_: Paper) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(Paper, "start", start)
    monkeypatch.setattr(os, "_exit", lambda status: ended.done() or ended.set_result(status))
    serving = asyncio.create_task(server.main._serve(Settings()))
    async with asyncio.timeout(10):
        assert await ended == server.main.EXIT_OK
    serving.cancel()
    await asyncio.wait([serving])


@pytest.fixture
def _hangs_up() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hangs_up")
@pytest.mark.parametrize(("terminal", "stops"), [(os.devnull, (signal.SIGHUP,)), ("/no/such/terminal", ())])
def test_a_hang_up_stops_a_node_that_has_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: str, stops: tuple[signal.Signals, ...]
) -> None:
    """Found by review: it ended nodes as a crash does, also where it is sent so that files are read anew."""
    monkeypatch.setattr(server.main, "TERMINAL", terminal)
    assert server.main._hang_up() == stops
    if not stops:
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.usefixtures("_hangs_up")
def test_whoever_is_to_outlive_hang_ups_does() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert server.main._hang_up() == ()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_thread_that_never_ends_does_not_keep_the_process() -> None:
    code = (
        "import threading, server.main\n"
        "from logboom.settings import NodeSettings, Settings\n"
        "async def serve(*_, **__):\n"
        "    threading.Thread(target=threading.Event().wait, args=(600,)).start()\n"
        "    return 0\n"
        "server.main._serve = serve\n"
        "raise SystemExit(server.main.run(Settings()))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_whatever_ends_the_process_at_once_waits_for_what_was_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(server.main, "drain", lambda: done.append("drained"))
    monkeypatch.setattr(os, "_exit", done.append)
    server.main._leave(3)
    assert done == ["drained", 3]


@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGBUS, -signal.SIGBUS, "Bus error"), (signal.SIGQUIT, 0, "Current thread")]
)
def test_a_process_that_is_ended_by_its_memory_and_one_that_is_asked_say_where_they_are(
    number: signal.Signals, status: int, said: str
) -> None:
    """Found by review: a node that LMDB had ended left no word of it; and `kill -QUIT` ended nodes."""
    code = (
        "import os, server.main\n"
        "from logboom.settings import Settings\n"
        "async def serve(*_, **__):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return 0\n"
        "server.main._serve = serve\n"
        "raise SystemExit(server.main.run(Settings()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True)
    assert ran.returncode == status
    assert said in ran.stderr
    assert "in serve" in ran.stderr


@pytest.mark.parametrize("stderr", ["pipe", "socket"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGBUS, -signal.SIGBUS), (signal.SIGQUIT, 0)])
def test_whoever_does_not_read_its_stderr_stops_no_process_that_says_where_it_is(
    number: signal.Signals, status: int, stderr: str
) -> None:
    """Found by reading: `kill -QUIT` stopped a node there, and one whose memory failed hung in place of ending."""
    code = (
        "import os, server.main\n"
        "from logboom.settings import NodeSettings, Settings\n"
        "async def serve(*_, **__):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return 0\n"
        "server.main._serve = serve\n"
        "raise SystemExit(server.main.run(Settings(node=NodeSettings(log_drain_ms=1))))\n"
    )
    reader, writer = os.pipe() if stderr == "pipe" else (end.detach() for end in socket.socketpair())
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x")
        os.set_blocking(writer, True)
        ran = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, stderr=writer)
        assert ran.returncode == status
    finally:
        os.close(reader)
        os.close(writer)


def test_in_a_file_nothing_is_written_over_what_a_process_says_of_where_it_is(tmp_path: Path) -> None:
    code = (
        "import os, server.main\n"
        "from logboom.settings import Settings\n"
        "async def serve(*_, **__):\n"
        f"    os.kill(os.getpid(), {int(signal.SIGQUIT)})\n"
        "    server.main.log.warning('after', much='x' * 10_000)\n"
        "    return 0\n"
        "server.main._serve = serve\n"
        "raise SystemExit(server.main.run(Settings()))\n"
    )
    with (tmp_path / "log").open("wb") as file:
        assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False, stderr=file).returncode == 0
    said = (tmp_path / "log").read_text()
    assert "Current thread" in said
    assert '"after"' in said.partition("in serve")[2]
