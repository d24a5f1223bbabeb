"""What a journal says, above its base, of the partitions that there are: committed or not, unless that is asked for."""

from __future__ import annotations

from collections.abc import Callable

from logboom.types import PartitionId
from raftlog.entries.chosen import SET, Choice
from raftlog.entries.entry import unpack_control, unpack_routes
from raftlog.entries.lifecycle import CHANGES, Change, PartitionKind
from raftlog.journal.journal import Journal


def changes_in(journal: Journal) -> list[Change]:
    """Of partitions, above the journal's base; committed or not. Raises CorruptData."""
    found = (unpack_control(command) for command, _, _ in journal.entries[1:])
    return [Change.parse(fields) for fields in found if fields is not None and fields.get("do") in CHANGES]


def begun_in(journal: Journal, *, committed: bool, opened: Callable[[PartitionId], bool]) -> set[int]:
    """How many partitions the cluster began with, as what is known to be committed says. Raises CorruptData.

    That is all of the journal if it is ``committed``, else what stands before a creation that was: the partition has
    batches, or was ``opened`` here. Whatever else stands there may be cut off, and then nothing was said.
    """
    said, created, known = list[tuple[int, int]](), dict[PartitionId, int](), 0
    for command, index, _ in journal.entries[1:]:
        fields = unpack_control(command) or {}
        if fields.get("do") in CHANGES:
            change = Change.parse(fields)
            said.append((index, change.begun))
            if change.kind is not None:
                created[change.partition_id] = index
                known = index if opened(change.partition_id) else known
        elif fields.get("do") == SET:
            said.append((index, Choice.parse(fields).begun))
        else:
            known = max([known, *(created.get(route.partition_id, 0) for route in unpack_routes(command))])
    return {begun for index, begun in said if committed or index <= known}


def created_in(
    journal: Journal, *, begun: int, untouched: Callable[[PartitionId], bool]
) -> dict[PartitionId, PartitionKind]:
    """Partitions that are created above the journal's base, and of which it has batches, or this node any file.

    It was opened then, so its creation is committed. A batch may have come ahead of its routing entry: others may
    have lost it, and elect nobody before this node, which hears of the partition from a leader, gives it to them.
    One of a cluster that did not begin with ``begun`` never came to be, and another one may have its id.
    """
    ordered = ordered_in(journal)
    changes = [change for change in changes_in(journal) if change.kind is not None and change.begun == begun]
    here = [c for c in changes if c.partition_id in ordered or not untouched(c.partition_id)]
    return {change.partition_id: change.kind for change in here if change.kind is not None}


def ordered_in(journal: Journal) -> set[PartitionId]:
    """Partitions with routing entries above the journal's base. Their creation, if it is there, is committed."""
    return {route.partition_id for command, _, _ in journal.entries[1:] for route in unpack_routes(command)}
