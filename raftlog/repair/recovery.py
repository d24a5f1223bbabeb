"""At a start, before anything else: what does the journal name that the partition logs do not hold? Blocking.

What was found and may not be on the disk is written again. What the journal carries and a log
lost with the power is put back. Anything else is missing: it is damaged, or, in write-behind mode,
gone with the power; it is refetched before this node leads or applies anything, unless the journal says
that it was declared void. Nothing is cut off the journal: it may have been acknowledged (docs/decisions/0010).
"""

from __future__ import annotations

from typing import NamedTuple

import structlog

from logboom.types import PartitionId
from raftlog.entries.entry import unpack_routes
from raftlog.entries.voids import voided_in
from raftlog.journal.journal import Journal
from raftlog.journal.outbox import GroupSync
from raftlog.links.payloads import Payloads
from raftlog.repair.wanted import Wanted

log = structlog.get_logger(__name__)


class Recovered(NamedTuple):
    """What was done, and what is left to do."""

    put_back: int
    """Batches that a power loss took from their log and the journal gave back."""
    missing: list[Wanted]


def recover(journal: Journal, payloads: Payloads, group: GroupSync) -> Recovered:
    """Make partition logs and journal agree, as far as this node can alone."""
    _write_again(journal, payloads)
    put_back = _put_back(journal, payloads)
    group.flush()  # opening a log has synced the rest of it: the journal is needed for none any more
    journal.forget_redo()
    voided = voided_in(command for command, _, _ in journal.entries[1:])
    missing = [
        Wanted(route, index)
        for command, index, _ in journal.entries[1:]
        for route in unpack_routes(command)
        if not payloads.holds(route) and not (route.digest in voided and payloads.concede(route))
    ]
    payloads.doubt({wanted.route.partition_id for wanted in missing if (wanted.raft_index or 0) <= journal.floor})
    group.flush()
    return Recovered(put_back, missing)


def _write_again(journal: Journal, payloads: Payloads) -> None:
    """What was acknowledged is on the disk, unless the journal had synced it in its place."""
    acknowledged = (
        route for command, index, _ in journal.entries[1:] if index <= journal.floor for route in unpack_routes(command)
    )
    payloads.write_again(acknowledged, journal.carried)


def _put_back(journal: Journal, payloads: Payloads) -> int:
    count, before = 0, dict[PartitionId, bytes]()
    for command, _, _ in journal.entries[1:]:
        for route in unpack_routes(command):
            carried = None if payloads.holds(route) else journal.find_redo(route.digest)
            if carried is not None:
                behind = before.get(route.partition_id, b"")  # void, or damaged here: no reason to lose this one, too
                count += payloads.receive(carried, behind=behind) is not None
            before[route.partition_id] = route.digest
    if count:
        log.info("batches_put_back", batches=count)
    return count
