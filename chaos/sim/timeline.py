"""What happened, line by line in simulated time; and the log lines of the simulated processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

import structlog

from chaos.sim.loop import EPOCH_S, SimLoop
from logboom.errors import LogboomError

ALARMS: Final = frozenset(("connection_handler_failed", "request_failed", "unhandled"))
"""Log events that say something failed which nobody expected."""
EXPECTED: Final = (LogboomError, OSError)
"""What may become of anything that is tried. Whatever else somebody has caught, and logged, is a mistake."""
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Timeline:
    """Kept only if asked for: a quiet run costs nothing."""

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.lines: list[str] = []
        self._loop: SimLoop | None = None
        self._fail: Callable[[str, str], None] = lambda *_: None

    def attach(self, loop: SimLoop, fail: Callable[[str, str], None]) -> None:
        """Before the run."""
        self._loop, self._fail = loop, fail

    def note(self, line: str) -> None:
        """One line."""
        if self.keep and self._loop is not None:
            current = self._loop.current
            who = current.name if current is not None else "-"
            self.lines.append(f"{self._loop.now - EPOCH_S:10.4f} {who:>4}  {line}")

    @contextmanager
    def logging(self) -> Iterator[None]:
        """The processes' logs come here; alarms fail the run."""
        before = structlog.get_config()
        structlog.configure(
            processors=[self._take],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug" if self.keep else "warning"]),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)

    def _take(self, _: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        name = str(event.pop("event"))
        if name in ALARMS or _is_unexpected(event.get("exc_info")):
            self._fail("NothingUnhandled", f"{self._who()}: {name} {event}")
        if self.keep:
            fields = " ".join(f"{key}={value}" for key, value in event.items())
            self.note(f"{level} {name} {fields}".rstrip())
        raise structlog.DropEvent

    def _who(self) -> str:
        return repr(self._loop.current) if self._loop is not None else "?"


def _is_unexpected(logged: Any) -> bool:
    error = sys.exc_info()[1] if logged is True else logged
    return isinstance(error, BaseException) and not isinstance(error, EXPECTED)
