"""The partition logs, as the parent log sees them (raftlog.payloads.Payloads)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

import structlog

from logboom.errors import CorruptData
from logboom.types import DurabilityMode, PartitionId
from partitions.batch import parse_batch
from partitions.log import ChainBroken, PartitionLog
from partitions.reading import DamagedBatch
from raftlog.entry import Route
from raftlog.lacks import Lack
from raftlog.payloads import DamagedPayload

log = structlog.get_logger(__name__)


class PartitionPayloads:
    """``appended`` is told which log has queued writes."""

    def __init__(self, logs: Mapping[PartitionId, PartitionLog], appended: Callable[[PartitionLog], None]) -> None:
        self._logs = logs
        self._appended = appended
        self.received = 0
        self.chain_gaps = 0

    def holds(self, route: Route) -> bool:
        """See Payloads."""
        return self._log(route.partition_id).holds(route.last_index, route.digest)

    def lack(self, route: Route) -> Lack:
        """See Payloads."""
        store = self._log(route.partition_id)
        if store.is_lost(route.last_index, route.digest):
            return Lack.DAMAGED
        return Lack.COMPACTED if route.last_index < store.first_available_index else Lack.ABSENT

    def receive(self, raw: memoryview) -> Route | None:
        """See Payloads."""
        batch = parse_batch(raw)
        header = batch.header
        store = self._log(header.partition_id)
        try:
            if not store.append(batch):
                return None
        except ChainBroken:
            # Its predecessor was lost on the way; the gate will ask from there on.
            self.chain_gaps += 1
            return None
        self.received += 1
        self._appended(store)
        return Route(header.partition_id, header.term, batch.last_index, batch.digest)

    def size(self, route: Route) -> int:
        """See Payloads."""
        found = self._log(route.partition_id).find(route.last_index, route.digest)
        return found.length if found is not None else 0

    def read(self, route: Route) -> bytes:
        """See Payloads."""
        try:
            return self._log(route.partition_id).read_batch(route.last_index, route.digest)
        except DamagedBatch as error:
            raise DamagedPayload(str(error), route) from error

    def write_again(self, acknowledged: Iterable[Route], carried: AbstractSet[bytes]) -> None:
        """See Payloads."""
        ahead = [store for store in self._logs.values() if store.mode is DurabilityMode.WRITE_AHEAD]
        found = {digest for store in ahead for digest in store.found_last()}
        proven = {route.digest for route in acknowledged if route.digest in found} - carried
        for store in self._logs.values():
            store.write_again(lambda ref: ref.digest in proven)

    def lose(self, route: Route) -> bool:
        """See Payloads."""
        return self._log(route.partition_id).lose(route.last_index, route.digest)

    def _log(self, partition_id: PartitionId) -> PartitionLog:
        try:
            return self._logs[partition_id]
        except KeyError:
            raise CorruptData(f"a routing entry names partition {partition_id}, which does not exist") from None
