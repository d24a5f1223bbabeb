"""What a node's data takes on the disk, part by part, and how much it may take if old parts are removed."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, Self

MIB: Final = 1 << 20
CUTS: Final = 4
"""From the older of the two kept sets to now: up to the newer one, up to the next, while that is being written, and one
that was passed over meanwhile."""
SETS: Final = 3
"""Two, and the one that is being written."""
PER_KEY: Final = 96
"""Bytes of a key's entry beside its value: the key itself, lengths, a B-tree's part."""
STATE_COPIES: Final = 5
"""A state file replaces pages by new ones and never shrinks. With keys drawn at random every checkpoint touches most
pages: the newest two count, one is being written, a snapshot holds on to one, and what is free lies in between."""
JOURNAL_SHARE: Final = 1 / 8
"""Bytes of parent log per byte of payload: 32 and a record's head to a batch, and small batches that travel in it."""
SMALL: Final = MIB
"""What is there at any size: manifests, indices, first pages of state files."""


@dataclass(frozen=True)
class Use:
    """Bytes on the disk (allocated, not apparent)."""

    journal: int = 0
    logs: int = 0
    """Partitions' logs with their indices."""
    state: int = 0
    """State machines' own files."""
    snapshots: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """Everything."""
        return sum(asdict(self).values())

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Of a node's data directory. Files that go while it looks count as gone."""
        found = dict.fromkeys((field.name for field in fields(cls)), 0)
        for root, _, names in os.walk(directory):
            part = part_of(Path(root).relative_to(directory).parts)
            for name in names:
                try:
                    found[part] += Path(root, name).stat().st_blocks * 512
                except FileNotFoundError:
                    continue
        return cls(**found)


def part_of(places: tuple[str, ...]) -> str:
    """Which part a directory belongs to, by its path within the data directory."""
    if places[:1] == ("partitions",):
        return "state" if places[2:3] == ("state",) else "logs"
    return places[0] if places[:1] in {("journal",), ("snapshots",)} else "other"


@dataclass(frozen=True)
class Retention:
    """The settings that decide what is kept, and the work that they are held against. Sizes in bytes."""

    kv: int = 2
    log: int = 2
    """Partitions."""
    keys: int = 20_000
    """Of a ``kv`` partition."""
    value_bytes: int = 256
    log_bytes: int = 8 * MIB
    """``snapshot.log_bytes``: a cut is made when so much payload has come since the last one, over all partitions."""
    retain_bytes: int = 0
    """``snapshot.retain_bytes``: kept of each ``kv`` partition's log below the older cut."""
    retain_log_bytes: int = MIB
    """``snapshot.retain_log_bytes``: the same of each ``log`` partition."""
    segment_bytes: int = 4 * MIB
    journal_segment_bytes: int = MIB

    def settings(self, *, snapshots: bool = True) -> dict[str, object]:
        """Dotted paths, as ``LocalCluster`` takes them."""
        found: dict[str, object] = {
            "log.segment_bytes": self.segment_bytes,
            "log.batch_bytes_max": self.segment_bytes - 64 * 1024,
            "raft.journal_segment_bytes": self.journal_segment_bytes,
        }
        if snapshots:
            found |= {
                "snapshot.log_bytes": self.log_bytes,
                "snapshot.retain_bytes": self.retain_bytes,
                "snapshot.retain_log_bytes": self.retain_log_bytes,
            }
        return found

    def most(self) -> Use:
        """What a node's data may take at any time, part by part."""
        written = CUTS * self.log_bytes
        rest = self.kv * self.retain_bytes + self.log * self.retain_log_bytes
        state = self.kv * self.keys * (self.value_bytes + PER_KEY)
        return Use(
            # Only whole files go: one more than is needed, one that is open, and one on its way out, of each log.
            journal=int(written * JOURNAL_SHARE) + 3 * self.journal_segment_bytes,
            logs=written + rest + 3 * (self.kv + self.log) * self.segment_bytes,
            state=STATE_COPIES * state + SMALL,
            snapshots=SETS * state + SMALL,
            other=SMALL,
        )
