"""What one partition of many may use of its node's memory and addresses."""

from __future__ import annotations

import msgspec

from logboom.settings import ApplySettings, ClusterSettings, LogSettings
from logboom.types import KIB

UNSAVED_BYTES_MIN = 64 * KIB
ADDRESS_BYTES = 1 << 46
"""Half of what a process can map."""
PAGE_BYTES = 4 * KIB


def apply_share(settings: ApplySettings, cluster: ClusterSettings) -> ApplySettings:
    """A share of what `log` partitions do without."""
    partitions = max(1, sum(cluster.partition(p).state_machine != "log" for p in range(cluster.partitions)))
    share = max(UNSAVED_BYTES_MIN, settings.unsaved_node_bytes // partitions)
    mapped = ADDRESS_BYTES // partitions // PAGE_BYTES * PAGE_BYTES
    return msgspec.structs.replace(
        settings,
        unsaved_bytes=min(settings.unsaved_bytes, share),
        replay_bytes=min(settings.replay_bytes, share),
        kv_map_bytes=min(settings.kv_map_bytes, mapped),
    )


def log_share(settings: LogSettings, cluster: ClusterSettings) -> LogSettings:
    """A share of the memory for recent batches."""
    recent = settings.recent_node_bytes // cluster.partitions
    return msgspec.structs.replace(settings, recent_bytes=min(settings.recent_bytes, recent))
