"""Writing a snapshot set, on a thread: state after state as they are dumped, no faster than the settings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.upkeep.gathering import Gathering
from logboom.errors import Unavailable
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import RaftIndex, Term
from ports.clock import Clock
from ports.invariant import InvariantViolated
from raftlog.entries.lifecycle import kind_of
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

NAP_S: Final = 0.25
"""Between two looks whether the node is being closed."""


class SetWriting:
    """What one node's sets are written with."""

    def __init__(
        self,
        *,
        settings: SnapshotSettings,
        cluster: ClusterSettings,
        lineage: Callable[[], str],
        store: SnapshotStore,
        clock: Clock,
        sleep: Callable[[float], None],
        spare_bytes: int,
    ) -> None:
        """``sleep`` waits, on the thread. ``spare_bytes``: of the disk are left to the logs."""
        self._settings = settings
        self._cluster = cluster
        self._lineage = lineage
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._spare_bytes = spare_bytes
        self.closed = False
        """The node is shutting down: what is being written is given up."""

    def write(self, gathering: Gathering) -> SetMeta:
        """Blocking. The set, or another node's of that index. Raises whatever a dump does, and leaves nothing then."""
        parent = gathering.parent
        if self.closed:
            raise Unavailable("the node is shutting down")
        for known in self._store.sets():
            if known.global_index == parent.global_index:
                gathering.came = True
                return known  # fetched from another node meanwhile
        writer = self._store.begin(parent.global_index, self._pace())
        try:
            for partition_id in sorted(gathering.dumps):
                with gathering.take(partition_id) as dump:
                    kind = kind_of(self._cluster, parent.lifecycle, partition_id)
                    writer.add(partition_id, kind.state_machine, dump)
            gathering.check()
            written = writer.finish()
            meta = SetMeta(
                cluster=self._cluster.id,
                global_index=parent.global_index,
                raft_index=RaftIndex(parent.raft_index),
                raft_term=Term(gathering.raft_term),
                parent=parent.encode(),
                partitions=written.partitions,
                states_bytes=written.states_bytes,
                states_digest=written.states_digest,
                created_ms=self._clock.wall_ms(),
                lineage=self._lineage(),
            )
            self._store.complete(writer, meta)
        except InvariantViolated:
            raise  # it stops the node, whatever else goes wrong
        except Exception:  # a dump of a user's machine may raise anything
            self._store.abandon(writer)
            raise
        return meta

    def _pace(self) -> Callable[[int], None]:
        began, total = self._clock.monotonic(), 0

        def pace(nbytes: int) -> None:
            nonlocal total
            total += nbytes
            self._store.check_room(self._spare_bytes)
            ahead = total / self._settings.bytes_per_s - (self._clock.monotonic() - began)
            while ahead > 0 or self.closed:
                if self.closed:
                    raise Unavailable("the node is shutting down")
                self._sleep(min(ahead, NAP_S))
                ahead -= NAP_S

        return pace
