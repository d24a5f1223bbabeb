"""Checking snapshot sets: of a node, and of a backup."""

from __future__ import annotations

from pathlib import Path

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import lineage_shown
from ports.disk import Disk
from raftlog.entries.parent_state import EMPTY, ParentState
from server.offline.findings import Report
from snapshots.meta import SetMeta
from snapshots.states import verify_states
from snapshots.store import SnapshotStore

Owner = tuple[str, str | None]
"""A cluster, and which history of it."""


def check_sets(disk: Disk, directory: Path, *, owner: Owner | None, advice: str, report: Report) -> list[SetMeta]:
    """Read all of every set; returns those that are sound. ``disk`` must take no changes; ``owner`` None: any."""
    try:
        store = SnapshotStore(disk, directory)
    except (CorruptData, IncompatibleVersion) as error:
        report.error(directory, error, advice)
        return []
    for damaged in store.damaged:
        report.error(directory, damaged.error, advice)
    return [meta for meta in store.sets() if _is_sound(directory, store, meta, owner, advice, report)]


def _is_sound(
    directory: Path, store: SnapshotStore, meta: SetMeta, owner: Owner | None, advice: str, report: Report
) -> bool:
    path = directory / f"{meta.global_index:020d}.set"
    report.count("sets")
    try:
        file = store.open_states(meta.global_index)
        try:
            verify_states(file, meta)
            report.read("snapshots", file.size())
        finally:
            file.close()
        parent = ParentState.decode(meta.parent)
    except (CorruptData, IncompatibleVersion) as error:
        report.error(path, error, advice)
        return False
    wrong = None
    if owner is not None and meta.cluster != owner[0]:
        wrong = f"it is of cluster {meta.cluster!r}, not {owner[0]!r}"
    elif owner is not None and meta.lineage != owner[1]:
        wrong = f"it is of another history ({lineage_shown(meta.lineage)}), not {lineage_shown(owner[1])}"
    elif (parent.global_index, parent.raft_index) != (meta.global_index, meta.raft_index):
        wrong = f"its parent state is of {parent.global_index}, it of {meta.global_index}"
    else:
        for each in meta.partitions:
            tail = parent.tails.get(each.partition_id, EMPTY)
            if tail.last_index != each.applied_index:
                wrong = f"partition {each.partition_id}: a state at {each.applied_index}, the log at {tail.last_index}"
    if wrong is not None:
        report.damage(path, wrong, advice)
    return wrong is None
