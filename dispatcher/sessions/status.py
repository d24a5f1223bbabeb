"""What a node says of itself: STATUS for clients, ``/status`` for operators."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from dispatcher.barriers.watermarks import to_row
from dispatcher.pipeline.backend import Backend
from dispatcher.reading import reads
from logboom.types import PartitionId

WITHHELD_SHOWN_MAX: Final = 16
LOST_SHOWN_MAX: Final = 16
VOIDS_SHOWN_MAX: Final = 16
DIFFER_SHOWN_MAX: Final = 64
OPENING_SHOWN_MAX: Final = 16


async def status(backend: Backend, *, digests: bool) -> dict[str, Any]:
    """Header of a STATUS_REPLY, but for what the sessions know."""
    backend.look()
    rows = await _digests(backend) if digests else None
    admission = backend.admission
    # What has not recovered may have shown more before; what stands still must be seen all the same.
    marks = [m for m in backend.watermarks.all() if m.state != "running" or backend.recovered([m.partition_id])]
    return {
        **_node(backend),
        "partitions": [to_row(mark) for mark in marks],
        "backlog": [[p, *admission.used(p)] for p in backend.partition_ids()],
        "node_backlog": list(admission.used()),
        "admission": _admission(backend),
        "waiters": len(backend.barriers),
        "digests": rows,
    }


def _node(backend: Backend) -> dict[str, Any]:
    engine = backend.raft.engine
    leader = engine.leader
    return {
        "node": backend.node_id,
        "cluster": backend.cluster.id,
        "lineage": backend.lineage,
        "agreed": sorted(backend.parent.agreed),
        "role": backend.role(),
        "term": engine.term,
        "leader": leader,
        "leader_address": backend.leader_address(),
        "admits": backend.raft.admits,
        "commit_index": backend.parent.global_index,
        "raft_index": engine.commit_index,
        "recovered": backend.recovery.over,
        "waits_for": _waits_for(backend),
        "scrub": backend.scrubbing.status(),
        "lag": backend.lagging.status(),
        "opening": backend.partitioning.opening.rows(OPENING_SHOWN_MAX),
        "stuck": sorted(backend.snapshots.taking.stuck)[:DIFFER_SHOWN_MAX],
        "lost": backend.voiding.rows(LOST_SHOWN_MAX),
        "voids": [backend.parent.voids.count, [list(each) for each in backend.parent.voids.kept[-VOIDS_SHOWN_MAX:]]],
        "differ": [list(each) for each in backend.comparing.differences[:DIFFER_SHOWN_MAX]],
        "acknowledgement": _acknowledgement(backend),
        "chosen": [
            [p, each.ack and str(each.ack), each.linearizable] for p, each in sorted(backend.parent.chosen.items())
        ],
        "members": [
            [
                seat.node,
                seat.client_address,
                seat.node == backend.node_id or backend.raft.links.connected(seat.node),
                str(seat.role),
            ]
            for seat in backend.members.seats
        ],
    }


def _waits_for(backend: Backend) -> list[int] | None:
    """Term and Raft index of what this node, which was empty, leads nobody without."""
    members = backend.raft.members.membership
    return [members.refill.term, members.refill.index] if members.refill is not None and members.lacks else None


def _acknowledgement(backend: Backend) -> dict[str, Any]:
    """How writes are answered and reads are made by default, and a row for each partition that is set otherwise."""
    cluster, parent = backend.cluster, backend.parent
    usual = cluster.ack, cluster.linearizable
    said = sorted({*parent.chosen, *(PartitionId(int(p)) for p in cluster.overrides)})
    each = (backend.choosing.of(p) for p in said if parent.lifecycle.lives(p, cluster.partitions))
    rows = [[p, str(ack), linearizable] for p, ack, linearizable in each if (ack, linearizable) != usual]
    return {"ack": str(usual[0]), "linearizable": usual[1], "partitions": rows}


def _admission(backend: Backend) -> dict[str, Any]:
    admission, waiting = backend.admission, backend.submitting.waiting
    judged = islice(admission.judged(), WITHHELD_SHOWN_MAX)
    return {
        "admitted": admission.admitted,
        "refused": dict(admission.refused_by),
        "waiting": [len(waiting), waiting.nbytes],
        "waited": waiting.entered,
        "reserved": admission.reserved,
        "pace": admission.pace.bytes_per_s,
        "withheld": [[p, verdict.signal, verdict.pressure] for p, verdict in judged],
        "signal_failures": dict(backend.signals.failures),
    }


async def _digests(backend: Backend) -> list[list[object]]:
    rows: list[list[object]] = []
    for partition in backend.partition_ids():
        if partition not in backend.workers:
            continue  # destroyed meanwhile
        mark = backend.watermarks.of(partition)
        found = await reads.digest(backend, partition)
        if found is None:
            continue  # its row says that it is damaged
        digest, position = found
        # An idle one follows the commit index; what was applied meanwhile is in the digest or is not.
        reached = position.applied_global_index
        if position.applied_index == mark.applied_index:
            reached = max(reached, mark.applied_global_index)
        rows.append([partition, reached, digest])
    return rows
