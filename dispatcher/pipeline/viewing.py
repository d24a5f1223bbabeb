"""What admission signals are shown of a node and its partitions."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.pipeline.surroundings import Surroundings
from logboom.signals import NodeView, PartitionView
from logboom.types import PartitionId


def view(node: Surroundings, partitions: Sequence[PartitionId]) -> NodeView:
    """What admission signals are shown."""
    now, gate = node.clock.monotonic(), node.admission.gate()
    return NodeView(
        node=node.node_id,
        data_dir=node.settings.node.data_dir,
        leads=node.raft.admits,
        operations=gate.operations,
        nbytes=gate.nbytes,
        batches=gate.batches,
        age_s=gate.age(now),
        waiting=len(node.submitting.waiting),
        partitions={p: _of_partition(node, p, now) for p in partitions},
    )


def _of_partition(node: Surroundings, partition_id: PartitionId, now: float) -> PartitionView:
    gate, worker, store = node.admission.gate(partition_id), node.workers[partition_id], node.logs[partition_id]
    lag_records = max(0, store.committed_index - worker.applied_index)
    return PartitionView(
        partition_id=partition_id,
        state=worker.state,
        operations=gate.operations,
        nbytes=gate.nbytes,
        batches=gate.batches,
        age_s=gate.age(now),
        lag_records=lag_records,
        lag_global=max(0, node.parent.global_index - worker.applied_global_index) if lag_records else 0,
    )
