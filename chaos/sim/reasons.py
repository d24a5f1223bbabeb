"""What may be said to clients in no run, or only in some."""

from __future__ import annotations

from typing import Final

from chaos.sim.parameters import Parameters
from logboom.errors import LogboomError
from logboom.types import MIB

NEVER: Final = frozenset(
    (
        "protocol",
        "incompatible_version",
        "wrong_node",
        "config",
        "unauthenticated",
        "permission_denied",
        "out_of_sequence",  # what follows is of writers with numbers of their own, and they look at that themselves
        "producer_fenced",
        "commands_rejected",
        "non_deterministic_replay",
    )
)
"""Nobody asks for anything that deserves it."""
ROOM: Final = 1_000
"""Of operations, batches or proposals: so much is never under way."""


def may_be_frozen(drawn: Parameters) -> bool:
    """Partitions apply nothing for a while, and are said to take nothing meanwhile."""
    return drawn.lags or drawn.asks or "pause_partition" in drawn.kinds


def may_be_full(drawn: Parameters, error: LogboomError) -> bool:
    """Somewhere there is little room, or little comes through. A client that lets others go first says no ``limit``."""
    settings, admission = drawn.settings, drawn.settings.admission
    budgets = admission.node_ops, admission.partition_ops, admission.node_batches, admission.partition_batches
    counted = *budgets, settings.raft.proposals_max, admission.queue_requests
    sizes = admission.node_bytes, admission.partition_bytes, settings.net.forward_bytes
    bounded = admission.partition_age_ms, admission.node_age_ms, admission.light_commit_ms, admission.signals
    return (
        "limit" not in error.fields
        or min(counted) < ROOM
        or min(sizes) < MIB
        or any(bounded)
        or drawn.rated
        or "thin_lines" in drawn.kinds
    )
