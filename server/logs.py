"""Logging: structlog to stderr, as JSON lines or for people. What libraries log goes the same way."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(*, level: str, form: str, node: str = "") -> None:
    """``form``: json, console, or auto (console on a terminal). ``node``: on every line."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
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
