"""What a node may use of its memory, and one partition of many of its node's memory and addresses."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from logboom.settings import ApplySettings, LogSettings, Settings
from logboom.types import KIB

UNSAVED_BYTES_MIN = 64 * KIB
ADDRESS_BYTES = 1 << 46
"""Half of what a process can map."""
PAGE_BYTES = 4 * KIB
LATER = 4
"""What is created later gets a smaller share by so much: with ever more of them the sum grows, but slowly."""

OF_LIMIT = 3 / 4
"""The rest is for what the kernel keeps for the process, and for what comes between two looks of the signals."""


def within(settings: Settings, limit: int | None) -> Settings:
    """With a limit of memory: what may be admitted and kept in memory is so small that it fits."""
    most = settings.admission.memory_bytes_max or int(OF_LIMIT * (limit or 0))
    if not most:
        return settings
    eighth = most // 8
    admission, apply, log, reads = settings.admission, settings.apply, settings.log, settings.reads
    replace = msgspec.structs.replace
    return replace(
        settings,
        admission=replace(
            admission,
            memory_bytes_max=most,
            node_bytes=min(admission.node_bytes, max(2 * eighth, settings.net.client_frame_bytes)),
            queue_bytes=min(admission.queue_bytes, eighth),
        ),
        # LMDB keeps the pages of its largest transactions for the next ones: some times as much as was unsaved.
        apply=replace(apply, unsaved_node_bytes=min(apply.unsaved_node_bytes, eighth)),
        log=replace(log, recent_node_bytes=min(log.recent_node_bytes, eighth)),
        reads=replace(reads, memory_bytes=min(reads.memory_bytes, max(eighth, reads.window_bytes))),
    )


def unread_share(settings: Settings) -> int:
    """Of what answers take that clients have not read, over all connections; one alone may have its own. 0: any."""
    most = settings.admission.memory_bytes_max
    return max(most // 8, 2 * settings.net.client_send_buffer_bytes) if most else 0


def apply_share(settings: ApplySettings, machines: Collection[str]) -> ApplySettings:
    """A share, for each of these partitions (names of their state machines), of what `log` partitions do without."""
    return _apply_share(settings, sum(name != "log" for name in machines))


def later_apply_share(settings: ApplySettings, partitions: int) -> ApplySettings:
    """Of a partition that is created while others have their shares; at the next start all are shared out anew."""
    return _apply_share(settings, LATER * partitions)


def later_log_share(settings: LogSettings, partitions: int) -> LogSettings:
    """The share of a partition that is created later in the memory for recent batches."""
    return log_share(settings, LATER * partitions)


def _apply_share(settings: ApplySettings, partitions: int) -> ApplySettings:
    partitions = max(1, partitions)
    share = max(UNSAVED_BYTES_MIN, settings.unsaved_node_bytes // partitions)
    mapped = ADDRESS_BYTES // partitions // PAGE_BYTES * PAGE_BYTES
    return msgspec.structs.replace(
        settings,
        unsaved_bytes=min(settings.unsaved_bytes, share),
        replay_bytes=min(settings.replay_bytes, share),
        kv_map_bytes=min(settings.kv_map_bytes, mapped),
    )


def without_age(settings: LogSettings) -> LogSettings:
    """Of a log from which nothing is removed by its age: segments that are sealed for theirs were only more files."""
    return msgspec.structs.replace(settings, segment_ms=0)


def log_share(settings: LogSettings, partitions: int) -> LogSettings:
    """A share, for each of so many, of the memory for recent batches, and of open files."""
    recent = settings.recent_node_bytes // partitions
    files = max(1, settings.open_files_node_max // partitions)
    return msgspec.structs.replace(
        settings,
        recent_bytes=min(settings.recent_bytes, recent),
        open_files_max=min(settings.open_files_max, files),
    )
