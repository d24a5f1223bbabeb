"""A node as a process: ``run`` until SIGTERM, SIGINT, or something that must stop it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import gc
import os
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from dispatcher.upkeep.installing import InstallDue
from logboom import certs
from logboom.errors import CorruptData, LogboomError
from logboom.settings import Settings
from ports.invariant import InvariantViolated
from server.directory.rejoin import RejoinDue
from server.node import Node
from server.world.arenas import share_arenas
from server.world.hearing import Hearing
from server.world.log_lines import unwaiting
from server.world.logs import configure, drain, ending, keep_standard_streams, say

log = structlog.get_logger(__name__)

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
TERMINAL: Final = "/dev/tty"
ANEW: Final = 10
"""A node that is to go on in the same process has so many times ``node.stop_ms`` to close."""
EXIT_OK, EXIT_USAGE, EXIT_DAMAGED, EXIT_UNHEALTHY = 0, 2, 4, 5
PASSING: Final = {
    errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EIO, errno.EMFILE,
    errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS, errno.ESTALE,
}  # fmt: skip
"""What a machine may think better of; anything else that it says of a configuration holds."""
REPLACED: Final = ("tls.directory", "access.file")
"""Settings that name files which others replace while nodes run, or start."""
REPLACED_S: Final = 2.0
"""How long a start waits until all that is being replaced is there: it takes no longer as a rule."""
OF_FILES: Final = ("node.data_dir", *REPLACED)
ADVICE: Final = (
    "no start can mend that. `logboom verify {}` says all that is damaged, and what to do; see `A node that does not "
    "start` in docs/operating.md"
)


def run(settings: Settings) -> int:
    """The exit status: 0 after a clean stop, 2 for configuration, 4 for damage, 5 when the node had to stop itself."""
    keep_standard_streams()
    configure(
        level=settings.node.log_level,
        form=settings.node.log_format,
        node=settings.node.id,
        queue_bytes=settings.node.log_queue_bytes,
        drain_s=settings.node.log_drain_ms / 1000,
    )
    words = unwaiting()  # what is said in a signal holds up whoever got it: the loop, or a process that is to end
    faulthandler.enable(words)  # a fault in native code leaves more than a status
    faulthandler.register(signal.SIGQUIT, words)  # where all threads are, should nothing else answer
    _raise_open_files()
    share_arenas()
    # Long-lived node objects are many and rarely garbage: collect less often, keep pauses out of the hot path.
    gc.set_threshold(50_000, 20, 20)
    # Sync threads hand results to the loop: do not let either wait long for the interpreter.
    sys.setswitchinterval(0.0005)
    make: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        make = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=make) as runner:
        status = runner.run(_serve(settings, stops=STOPS + _hang_up()))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread()):
        _leave(status)  # one that waits for a collector would be waited for
    return status


def _raise_open_files() -> None:
    """Every partition has files open, and the soft limit is meant for programs that use select()."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError) as error:  # "unlimited", and the kernel knows a limit
        log.warning("open_files_limit_stays", limit=soft, error=str(error))


def _hang_up() -> tuple[signal.Signals, ...]:
    """SIGHUP, if it is to stop a node: one whose terminal is closed. Else whoever sends it wants files to be read anew.

    Those that may change are looked at all the time. By default the signal ends a process, as a crash would.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
        return ()  # nohup, say
    with contextlib.suppress(OSError):
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
        return (signal.SIGHUP,)
    signal.signal(signal.SIGHUP, _hung_up)
    return ()


def _hung_up(*_: object) -> None:
    log.info("sighup", advice="certificates and rules of access are read as they change; a restart reads all else")


async def _serve(settings: Settings, stops: Sequence[signal.Signals] = STOPS) -> int:
    most_ms = settings.raft.transfer_ms + settings.node.stop_ms
    hearing = Hearing(stops, partial(_too_long, most_ms), most_ms / 1000)
    try:
        return await _until_asked(settings, stops, hearing)
    finally:
        hearing.close()


async def _until_asked(settings: Settings, stops: Sequence[signal.Signals], hearing: Hearing) -> int:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[BaseException | None] = loop.create_future()
    asked = started = False

    def fatal(error: BaseException) -> None:
        if not stop.done():
            stop.set_result(error)
        elif not isinstance(error, InstallDue | RejoinDue):
            _end(error)  # while it stops, or is closed to start anew: nobody looks at ``stop`` any more

    def ask_to_stop() -> None:
        nonlocal asked
        asked = True
        if not started:
            leave()  # it may wait for a name server
        if not stop.done():
            stop.set_result(None)

    def leave(*_: object) -> None:
        log.info("stopped", node=settings.node.id)
        _leave(EXIT_OK)

    loop.set_exception_handler(lambda _, context: _unhandled(context, fatal))
    installs = 0
    found: list[object] | None = None
    while True:
        started = False
        for number in stops:
            signal.signal(number, leave)  # while it opens, which may take minutes, the loop hears nothing
        hearing.listen()
        try:
            node = Node(settings, fatal=fatal)
            for number in stops:
                loop.add_signal_handler(number, ask_to_stop)
            hearing.listen()
            node.watching.installs = installs
            await node.start()
        except LogboomError as error:
            if found is None and getattr(error, "path", "") in REPLACED:
                found = _found(settings)
                log.warning("files_of_no_use", error=error.message, advice="they may be being replaced: once more")
                await asyncio.sleep(REPLACED_S)
                continue
            say(f"logboom node: {error} [{error.code}]")
            _say_who(error.__cause__, error)
            if not isinstance(error, CorruptData):
                passing = _may_pass(error) or found not in (None, _found(settings))
                return EXIT_UNHEALTHY if passing else EXIT_USAGE
            say(f"logboom node: {ADVICE.format(settings.node.data_dir)}")
            return EXIT_DAMAGED
        except InvariantViolated as error:
            _end(error)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else f"{settings.node.data_dir}: "
            say(f"logboom node: {where}{error.strerror or error} [io]")
            _say_who(error)
            return EXIT_UNHEALTHY
        started, found = True, None
        gc.freeze()
        reason = await stop
        if not isinstance(reason, InstallDue | RejoinDue):
            break
        log.warning("starting_anew", reason=reason.message)
        if isinstance(reason, InstallDue):
            installs += 1
            await node.hand_over()
        node.watching.stopping()  # one that has forgotten its votes hands nothing over: it does not lead
        await _close(node, ANEW * settings.node.stop_ms)
        if asked:
            return EXIT_OK
        stop = loop.create_future()
        del node, reason
        gc.unfreeze()
        gc.collect()  # all of the old node, before what is long-lived is frozen again
    if reason is not None:
        _end(reason)
    await node.hand_over()
    await _close(node, settings.node.stop_ms)
    log.info("stopped", node=node.node_id)
    return EXIT_OK


def _say_who(cause: BaseException | None, told: LogboomError | None = None) -> None:
    """Files that are refused are somebody else's: a new volume of a container is root's."""
    of_files = told is None or getattr(told, "path", "") in OF_FILES
    if of_files and isinstance(cause, PermissionError):
        user = f"{os.geteuid()}:{os.getegid()}"
        say(f"logboom node: it runs as user {user}, who may not do that: `chown -R {user}` what is meant for it")


def _found(settings: Settings) -> list[object]:
    """The same as long as nobody replaces what a start reads beside its configuration."""
    tls, rules = settings.tls.directory, settings.access.file
    files = certs.files_of(tls, settings.node.id) if tls else []
    return [*certs.stamps([*files, *([Path(rules)] if rules else [])])]


def _may_pass(error: LogboomError) -> bool:
    """A port or directory in use, a name that is not known yet, a disk that refuses: who starts nodes tries again."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return False  # its numbers are others
    return isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno in PASSING)


async def _close(node: Node, most_ms: int) -> None:
    """Within that time, or the process ends without: that is safe, as a crash is."""
    closed = _otherwise(partial(_too_long, most_ms), most_ms / 1000)
    try:
        await node.close()
    except Exception as error:  # noqa: BLE001 - as while it ran: a disk that fails, say
        _end(error)
    finally:
        closed()


def _too_long(ms: int) -> None:
    ending()
    log.error("not_closed_in_time", ms=ms, advice="the next start does the rest")
    _leave(EXIT_UNHEALTHY)


def _otherwise(act: Callable[[], None], seconds: float) -> Callable[[], None]:
    """``act`` unless what is returned is called before. By a thread: what hangs may be a call on the loop."""
    called = threading.Event()

    def watch() -> None:
        if not called.wait(min(seconds, threading.TIMEOUT_MAX)):
            act()

    try:
        threading.Thread(target=watch, name="stop", daemon=True).start()
    except RuntimeError:  # no more threads
        return asyncio.get_running_loop().call_later(seconds, act).cancel
    return called.set


def _end(reason: BaseException) -> NoReturn:
    """Whatever it was, memory and disk may disagree: leave as a crash would, recovery knows how."""
    ending()
    log.critical("stopping", error=repr(reason), exc_info=reason)
    _leave(EXIT_UNHEALTHY)  # a thread that hangs on a broken disk must not keep the process


def _leave(status: int) -> NoReturn:
    """At once, but for what was logged."""
    drain()
    os._exit(status)


def _unhandled(context: dict[str, Any], fatal: Callable[[BaseException], None]) -> None:
    """Nothing may go wrong unseen; a broken promise stops the node."""
    error = context.get("exception")
    log.error("unhandled", message=context.get("message"), exc_info=error)
    if isinstance(error, InvariantViolated):
        fatal(error)
