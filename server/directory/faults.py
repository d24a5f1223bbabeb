"""Fault hooks for tests, off unless LOGBOOM_FAULTS names one.

``LOGBOOM_FAULTS=drop_payload:0.5`` loses half of the payload batches on outgoing links while
Raft messages pass: the gate must keep every such entry out of the follower's journal.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import structlog

from logboom.errors import ConfigError
from logboom.types import NodeId
from logboom.wire import Kind

log = structlog.get_logger(__name__)


def drop_hook() -> Callable[[NodeId, Kind], bool] | None:
    """The hook that the environment asks for."""
    wanted = os.environ.get("LOGBOOM_FAULTS", "")
    if not wanted:
        return None
    name, _, rate = wanted.partition(":")
    try:
        share = float(rate)
    except ValueError:
        share = -1.0
    if name != "drop_payload" or not 0 <= share <= 1:
        raise ConfigError(
            f"LOGBOOM_FAULTS={wanted!r}: expected drop_payload:<share from 0 to 1>", path="LOGBOOM_FAULTS"
        )
    log.warning("fault_hook_on", fault=wanted)
    rng = random.Random(0)
    return lambda _, kind: kind is Kind.PAYLOAD and rng.random() < share
