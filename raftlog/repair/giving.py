"""What a peer asks for and this node holds, read from the disk. Blocking."""

from __future__ import annotations

import structlog

from logboom.errors import CorruptData
from raftlog.entries.entry import Route
from raftlog.links.lacks import Lack
from raftlog.links.payloads import REMOVED, DamagedPayload, Payloads

log = structlog.get_logger(__name__)


Held = tuple[list[tuple[Route, bytes]], list[tuple[Route, Lack]], list[DamagedPayload]]
"""Batches, why others are not here, and those that are damaged."""


def read_held(payloads: Payloads, routes: list[Route]) -> Held:
    """As many as can be read, and why not of the others: one of them keeps nobody from the rest."""
    given, unreadable, damaged = list[tuple[Route, bytes]](), list[tuple[Route, Lack]](), list[DamagedPayload]()
    for route in routes:
        try:
            given.append((route, payloads.read(route)))
        except DamagedPayload as error:
            damaged.append(error)
        except REMOVED:
            unreadable.append((route, Lack.COMPACTED))
        except (CorruptData, OSError) as error:  # the disk cannot read it now
            log.error("fetch_failed", partition=route.partition_id, last_index=route.last_index, error=str(error))
            unreadable.append((route, Lack.UNKNOWN))
    return given, unreadable, damaged
