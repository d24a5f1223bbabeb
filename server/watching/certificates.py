"""When the certificates of this node end: for the metrics, and for the log while there is time left.

The files are looked at again now and then, since others replace them. What counts in a file with several is the first
to end.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from ports.clock import Clock

log = structlog.get_logger(__name__)

LOOK_S: Final = 60.0
AGAIN_S: Final = 86_400.0
"""Seconds between two warnings of the same certificate."""
DAY_S: Final = 86_400.0
_PEM: Final = re.compile(r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
"""By each of the names that TLS knows them by. What is behind a trusted one's certificate says nothing of its end."""
_VERSION, _UTC_TIME, _TIME = 0xA0, 0x17, 0x18
_NEXT_CENTURY: Final = 50
"""Two digits of a year below this are of the 21st."""


class Certificates:
    """When the certificates in a node's directory end; an empty name of it: there are none."""

    def __init__(self, directory: str, node_id: str, *, warn_days: int, clock: Clock) -> None:
        self._directory, self._node_id = directory, node_id
        self._warn_s = warn_days * DAY_S
        self._clock = clock
        self._warned: dict[str, tuple[float, float]] = {}
        """By file: the end of its certificate, and when that was said."""
        self._timer: asyncio.TimerHandle | None = None
        self.ends: dict[str, float] = {}
        """By file: seconds since 1970; without those that cannot be read."""

    def start(self) -> None:
        """Look, and again and again."""
        if self._directory:
            self._tick()

    def stop(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.look()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)

    def look(self) -> None:
        """Read them, and warn of what ends soon. Blocks for a few small files."""
        self.ends = ends_of(self._directory, self._node_id)
        now = self._clock.wall_ms() / 1000
        for name, ends in self.ends.items():
            if not self._warn_s or ends - now > self._warn_s:
                continue
            before, said = self._warned.get(name, (0.0, 0.0))
            if before == ends and 0 <= now - said < AGAIN_S:  # a clock that was ahead is no reason to be silent
                continue
            self._warned[name] = ends, now
            tell: Callable[..., Any] = log.warning if ends > now else log.error
            tell(
                "certificate_ends_soon" if ends > now else "certificate_has_ended",
                file=name,
                ends=datetime.fromtimestamp(ends, UTC).isoformat(),
                days=int((ends - now) / DAY_S),
            )


def ends_of(directory: str, node_id: str) -> dict[str, float]:
    """File to the first end in it, in seconds since 1970; without those that cannot be read."""
    files = (Path(directory) / name for name in (f"{node_id}.pem", "ca.pem", "client-ca.pem"))
    return {file.name: ends for file in files if (ends := first_end(file)) is not None}


def first_end(file: Path) -> float | None:
    """When the first of the certificates in there ends; None if nobody can say: TLS itself says what is wrong."""
    try:
        found = [_end(base64.b64decode(pem)) for pem in _PEM.findall(file.read_text("utf-8", "replace"))]
    except (OSError, ValueError, IndexError, OverflowError):
        return None
    return min(found, default=None)


def _end(raw: bytes) -> float:
    """``notAfter`` of a certificate in DER. Raises ValueError or IndexError for what is none."""
    _, at, _ = _field(raw, 0)
    _, at, _ = _field(raw, at)
    tag, _, end = _field(raw, at)
    for _ in range(4 if tag == _VERSION else 3):  # version, serial number, algorithm, issuer
        _, _, end = _field(raw, at)
        at = end
    _, at, _ = _field(raw, at)
    _, _, at = _field(raw, at)
    tag, start, end = _field(raw, at)
    text = raw[start:end].decode("ascii")
    if tag == _UTC_TIME:
        text = f"{'20' if int(text[:2]) < _NEXT_CENTURY else '19'}{text}"
    elif tag != _TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _field(raw: bytes, at: int) -> tuple[int, int, int]:
    """Tag, beginning and end of what is in it."""
    size, start = raw[at + 1], at + 2
    if size & 0x80:
        more = size & 0x7F
        size, start = int.from_bytes(raw[start : start + more], "big"), start + more
    return raw[at], start, start + size
