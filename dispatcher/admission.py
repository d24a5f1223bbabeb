"""Admission: one atomic step over every gate, before anything is written. Sans-io.

A gate is a budget of operations or bytes, per partition and for the node, of requests that
are admitted and not yet applied. Refused means: nothing taken, nothing written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logboom.errors import Overloaded, PartitionFrozen, RecordTooLarge
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId
from ports.invariant import InvariantViolated, invariant


@dataclass(slots=True)
class _Use:
    operations: int = 0
    nbytes: int = 0


class Ticket:
    """What one request took. Every part is given back exactly once: applied, lost or failed."""

    __slots__ = ("_admission", "_parts")

    def __init__(self, admission: Admission, parts: dict[PartitionId, tuple[int, int]]) -> None:
        self._admission = admission
        self._parts = parts

    def release(self, partition_id: PartitionId) -> None:
        """Give one partition's part back."""
        taken = self._parts.pop(partition_id, None)
        if taken is None:
            raise InvariantViolated(f"budget of partition {partition_id} given back twice")
        self._admission.give_back(partition_id, *taken)


class Admission:
    """All gates of one node."""

    def __init__(self, settings: AdmissionSettings, partitions: Sequence[PartitionId]) -> None:
        self._settings = settings
        self._use = {p: _Use() for p in partitions}
        self._node = _Use()
        self._frozen: set[PartitionId] = set()
        self.admitted = 0
        self.refused = 0

    def admit(self, parts: Sequence[tuple[PartitionId, int, int]], now: float) -> Ticket:
        """Take (partition, operations, bytes) all at once.

        Raises Overloaded naming the gate, PartitionFrozen, or RecordTooLarge for what could never fit.
        """
        try:
            self._check(parts)
        except Overloaded:
            self.refused += 1
            raise
        taken: dict[PartitionId, tuple[int, int]] = {}
        for partition_id, operations, nbytes in parts:
            use = self._use[partition_id]
            use.operations += operations
            use.nbytes += nbytes
            self._node.operations += operations
            self._node.nbytes += nbytes
            taken[partition_id] = (operations, nbytes)
        self.admitted += 1
        return Ticket(self, taken)

    def _check(self, parts: Sequence[tuple[PartitionId, int, int]]) -> None:
        limits = self._settings
        for partition_id, operations, nbytes in parts:
            if partition_id in self._frozen:
                raise PartitionFrozen(
                    f"partition {partition_id} is frozen: it takes no writes", partition_id=partition_id
                )
            use = self._use[partition_id]
            self._gate("partition_ops", partition_id, use.operations, operations, limits.partition_ops)
            self._gate("partition_bytes", partition_id, use.nbytes, nbytes, limits.partition_bytes)
        operations, nbytes = sum(p[1] for p in parts), sum(p[2] for p in parts)
        self._gate("node_ops", None, self._node.operations, operations, limits.node_ops)
        self._gate("node_bytes", None, self._node.nbytes, nbytes, limits.node_bytes)

    def _gate(self, name: str, partition_id: PartitionId | None, used: int, wanted: int, maximum: int) -> None:
        where = "the node" if partition_id is None else f"partition {partition_id}"
        if wanted > maximum:
            raise RecordTooLarge(
                f"{where}: one request wants {wanted} of {name}, the whole budget is {maximum}",
                size=wanted,
                limit=maximum,
            )
        if used + wanted > maximum:
            raise Overloaded(
                f"{where}: {name} is used up ({used} of {maximum}); try again",
                partition_id=partition_id,
                limit=name,
                maximum=maximum,
                used=used,
                retry_after=self._settings.retry_after_ms / 1000,
            )

    def give_back(self, partition_id: PartitionId, operations: int, nbytes: int) -> None:
        """A ticket's part; call through the ticket."""
        use = self._use[partition_id]
        for each in (use, self._node):
            each.operations -= operations
            each.nbytes -= nbytes
            invariant(each.operations >= 0 and each.nbytes >= 0, "budget of partition {} below zero", partition_id)

    def add(self, partition_id: PartitionId) -> None:
        """A new partition."""
        self._use[partition_id] = _Use()

    def remove(self, partition_id: PartitionId) -> None:
        """It is gone, and everything that it took has been given back."""
        use = self._use.pop(partition_id)
        invariant(not use.operations, "partition {} is gone with {} operations admitted", partition_id, use.operations)
        self._frozen.discard(partition_id)

    def freeze(self, partition_id: PartitionId) -> None:
        """Admit nothing for this partition."""
        self._frozen.add(partition_id)

    def thaw(self, partition_id: PartitionId) -> None:
        """Admit again."""
        self._frozen.discard(partition_id)

    def frozen(self, partition_id: PartitionId) -> bool:
        """Is it?"""
        return partition_id in self._frozen

    def used(self, partition_id: PartitionId | None = None) -> tuple[int, int]:
        """Operations and bytes in use, of a partition or the node."""
        use = self._node if partition_id is None else self._use[partition_id]
        return use.operations, use.nbytes
