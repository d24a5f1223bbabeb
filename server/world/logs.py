"""Logging: structlog to stderr, as JSON lines or for people. What libraries log goes the same way.

Nobody may be there to read it, or its disk may be full: that is no reason for a node to end, nor to wait.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any, Final, TextIO, cast

import structlog

from logboom.settings import NodeSettings
from server.world.log_lines import STDERR, Lines

_LINES: Final = Lines()
_USUAL: Final = NodeSettings()
_drain_s = 0.0


class _Logger:
    """Without a lock, which structlog's own hold while they write.

    The collector may run there, find a task whose error nobody has looked at, and log that: the thread would wait for
    itself.
    """

    def msg(self, line: str) -> None:
        """At whatever level."""
        _LINES.write(f"{line}\n")

    debug = info = warning = error = critical = msg


def keep_standard_streams() -> None:
    """A process that was started without one of them would give its number to the next file, a journal perhaps."""
    for number in range(STDERR + 1):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def say(line: str) -> None:
    """To whoever has started the node: one line on stderr."""
    _LINES.write(f"{line}\n")


def lost() -> int:
    """Lines that could not be written, or that nobody has read in time, since the start."""
    return _LINES.lost


def ending() -> None:
    """What is logged from now on are the last words: there is room for them."""
    _LINES.ending()


def drain() -> None:
    """Until what has been logged is written; ``node.log_drain_ms`` at most."""
    _LINES.drain(_drain_s)


def configure(
    *,
    level: str,
    form: str,
    node: str = "",
    queue_bytes: int = _USUAL.log_queue_bytes,
    drain_s: float = _USUAL.log_drain_ms / 1000,
) -> None:
    """``form``: json, console, or auto (console on a terminal). ``node``: on every line.

    ``queue_bytes``, ``drain_s``: see NodeSettings.
    """
    global _drain_s
    stream = cast(TextIO, _LINES)  # as much of one as is used
    console = form == "console" or (form == "auto" and os.isatty(STDERR))
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()

    def name(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if node:
            event.setdefault("node", node)
        return event

    least = getattr(logging, level.upper(), logging.INFO)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]

    def told(lost: int) -> str:
        event: Any = {"event": "log_lines_lost", "lines": lost}
        for step in (*shared, renderer):
            event = step(None, "warning", event)
        return f"{event}\n"

    _LINES.queue_bytes, _LINES.told, _drain_s = queue_bytes, told, drain_s
    _LINES.start()
    atexit.unregister(drain)
    atexit.register(drain)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=lambda *_: _Logger(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(least, logging.INFO))  # libraries' own debugging is not ours
    logging.captureWarnings(capture=True)
