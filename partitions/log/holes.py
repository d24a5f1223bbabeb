"""Committed batches that nobody has: what the log knows of them in their place (docs/decisions/0018-void.md).

A *hole* is conceded: its last index and digest are known, and what follows chains to it. It holds up what is
durable, and so what is applied, until it is filled, or void. A *void* batch is stepped over. In the columns
both have no place: segment 0.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NoReturn

from logboom.errors import Voided
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from partitions.log.columns import NOWHERE_SEGMENT
from partitions.log.committed import Committed
from partitions.log.reading import DamagedBatch
from partitions.log.segment import BatchRef

NEVER: Final = 1 << 62
"""Order of a batch that is not written."""
CONCEDED_MAX: Final = 1 << 16
"""Holes of a partition that are not committed yet, and damaged batches that nobody else has: more stay missing."""


class Hole(NamedTuple):
    """What stands in the way of a partition."""

    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    digest: bytes
    global_index: GlobalLogIndex


def hole_ref(first_index: int, last_index: int, digest: bytes, previous_digest: bytes, term: Term) -> BatchRef:
    """The place of a batch that is nowhere."""
    first, last = PartitionLogIndex(first_index), PartitionLogIndex(last_index)
    return BatchRef(first, last, digest, previous_digest, term, NOWHERE_SEGMENT, 0, 0, NEVER)


def refuse_gap(partition_id: PartitionId, committed: Committed, position: int) -> NoReturn:
    """Raises Voided, or DamagedBatch for a hole: what lies there cannot be read. Any thread.

    A hole that was filled since is one as well: whoever comes back for it finds it.
    """
    ref = committed.ref(position)
    lost = committed.is_lost(ref.last_index, ref.digest)
    if lost or not committed.is_nowhere(position):  # in this order: see ``Committed.mend``
        when = "is" if lost else "was until a moment ago"
        story = f"the batch from {ref.first_index} to {ref.last_index} {when} lost on all nodes"
        story = f"partition {partition_id}: {story}"
        raise DamagedBatch(
            story, last_index=ref.last_index, digest=ref.digest, segment=NOWHERE_SEGMENT, path="", offset=0
        )
    raise Voided.of(partition_id, ref.first_index, ref.last_index, committed.global_index(position))
