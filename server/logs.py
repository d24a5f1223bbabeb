"""Logging: structlog to stderr, as JSON lines or for people. What libraries log goes the same way.

Nobody may be there to read it, or its disk may be full: that is no reason for a node to end.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Final, TextIO

import structlog

STDERR: Final = 2


class Stderr:
    """As a stream, unbuffered. What cannot be written is dropped: a log line never raises."""

    def write(self, text: str) -> int:
        """All of it, or as much as is taken."""
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(STDERR, left) :]
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


def keep_standard_streams() -> None:
    """A process that was started without one of them would give its number to the next file, a journal perhaps."""
    for number in range(STDERR + 1):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def say(line: str) -> None:
    """To whoever has started the node: one line on stderr."""
    Stderr().write(f"{line}\n")


def configure(*, level: str, form: str, node: str = "") -> None:
    """``form``: json, console, or auto (console on a terminal). ``node``: on every line."""
    stream: TextIO = Stderr()  # type: ignore[assignment]  # as much of one as is used
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
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(stream),
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
