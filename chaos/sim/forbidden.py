"""What must not happen inside a simulation: threads, sockets, files, clocks, unseeded randomness. It raises.

Clocks and randomness are replaced while a run lasts; the rest is seen by an audit hook, which
Python cannot remove again: it sleeps between runs.
"""

from __future__ import annotations

import _thread
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

FORBIDDEN_EVENTS: Final = (
    "os.",
    "shutil.",
    "socket.",
    "subprocess.",
    "tempfile.",
    "time.sleep",
)
ALLOWED_EVENTS: Final = frozenset(("os.listdir", "os.putenv", "os.unsetenv", "os.add_dll_directory"))
"""Of the import system."""
CODE: Final = (".py", ".pyc", ".so", ".zip", ".pth", ".dist-info/METADATA")
CLOCKS: Final = (
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
    "process_time", "process_time_ns", "clock_gettime", "clock_gettime_ns", "sleep",
)  # fmt: skip
THREADS: Final = ((_thread, ("start_new_thread",)), (threading, ("_start_new_thread",)))
"""Python 3.11 has no audit event for them."""
DICE: Final = (
    (random, ("random", "randrange", "randint", "choice", "choices", "shuffle", "uniform", "sample", "randbytes")),
    (random, ("getrandbits", "expovariate", "gauss", "normalvariate", "triangular", "seed", "_urandom")),
    (os, ("urandom", "getrandom")),
    (uuid, ("uuid1", "uuid4")),
    (secrets, ("token_bytes", "token_hex", "randbits", "randbelow", "choice")),
)

TELLS: Final = "logging"
"""Python's, by which asyncio tells of tasks that others have left behind, whenever they are collected."""

_state = {"on": 0, "installed": 0}
"""``on``: the thread that simulates; others of this process are none of our business."""
_refused: list[str] = []


class Forbidden(AssertionError):
    """The code under simulation reached for the real world."""


def _refuse(what: str) -> Forbidden:
    _refused.append(what)
    return Forbidden(what)


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if _state["on"] != threading.get_ident():
        return
    if event == "open":
        path = os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else ""
        if path.endswith(CODE):
            return  # the import system, and the engine that checks PySyncObj's sources
        raise _refuse(f"open({args[0]!r}) in the simulation")
    if event.startswith(FORBIDDEN_EVENTS) and event not in ALLOWED_EVENTS:
        raise _refuse(f"{event}{args!r} in the simulation")


def _refusal(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **more: Any) -> Any:
        if _state["on"] != threading.get_ident() or sys._getframe(1).f_globals.get("__name__") == TELLS:  # noqa: SLF001
            return original(*args, **more)
        raise _refuse(f"{name} in the simulation")

    return refuse


@contextmanager
def real_world_forbidden() -> Iterator[list[str]]:
    """While this lasts, whoever touches the real world gets Forbidden, and it is told in the list that this gives."""
    if not _state["installed"]:
        _state["installed"] = 1
        sys.addaudithook(_watch)
    modules = [(time, CLOCKS), *THREADS, *DICE]
    saved = [(module, name, getattr(module, name)) for module, names in modules for name in names]
    for module, name, original in saved:
        setattr(module, name, _refusal(f"{module.__name__}.{name}", original))
    outer, _state["on"] = _state["on"], threading.get_ident()
    _refused.clear()
    try:
        yield _refused
    finally:
        _state["on"] = outer
        for module, name, original in saved:
            setattr(module, name, original)
