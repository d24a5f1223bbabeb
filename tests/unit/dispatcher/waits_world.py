"""A node that is asked to wait."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from dispatcher.admission.places import Places
from dispatcher.sessions.named import Named
from dispatcher.sessions.waits import Waits
from logboom.errors import LogboomError, NoSuchPartition
from logboom.types import PartitionId
from logboom.wire import Frame, FrameDecoder, Kind
from tests.unit.dispatcher.barrier_desk import Desk


class World(Desk):
    """A connection whose client reads or does not, and timers that the test lets pass."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.room = True
        self.is_recovered = True
        self.hurried: list[PartitionId] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.sent: list[tuple[int, Kind, dict[str, Any], int]] = []
        self.failed: list[tuple[int, LogboomError]] = []
        self.raft = SimpleNamespace(admits=False)
        self.partitioning = SimpleNamespace(
            check_all=lambda: None, opening=SimpleNamespace(nothing_through=lambda: None)
        )
        self.leaderless = SimpleNamespace(for_long=False)
        self.now = 0.0
        self.ordered = 42
        self.cluster = SimpleNamespace(id="here")
        self.lineage: str | None = "ab" * 16
        self.clock = SimpleNamespace(monotonic=lambda: self.now)
        self.node_id = "n1"
        self.is_open = True
        self.watched = Places("partitions are followed")
        self.writes = 0
        """How often something was handed to the connection."""
        self.named = Named(cast("Any", self))
        self.waits = Waits(cast("Any", self), self, self.named, later=self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> Any:
        entry = (seconds, call)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: entry in self.timers and self.timers.remove(entry))

    def tick(self) -> None:
        timers, self.timers = self.timers, []
        for _, call in timers:
            call()

    def ask(self, kind: Kind, header: dict[str, Any], request_id: int = 1, *, principal: Any = "me") -> None:
        frame = Frame(kind, request_id, header)
        if kind is Kind.BARRIER:
            self.waits.barrier(frame, 100.0, principal)
        else:
            self.waits.watch(frame, principal)

    # -- the session

    @property
    def connection(self) -> Any:
        return SimpleNamespace(send=self._written)

    def _written(self, buffers: list[bytes], *, frames: int = 1) -> None:
        self.writes += 1
        found = FrameDecoder(frame_bytes_max=1 << 20).feed(b"".join(buffers))
        assert len(found) == frames
        for frame in found:
            self.sent.append((frame.request_id, frame.kind, frame.header, frame.flags))

    def reply(self, request_id: int, kind: Kind, header: dict[str, Any], *, flags: int = 0) -> None:
        self.sent.append((request_id, kind, header, flags))

    def fail(self, request_id: int, error: LogboomError) -> None:
        self.failed.append((request_id, error))

    def has_room(self) -> bool:
        return self.room

    def reached(self) -> None:
        """Nobody counts."""

    # -- the node

    voiding = SimpleNamespace(check_blocked=lambda want: want)

    def partition_ids(self) -> list[PartitionId]:
        return [mark.partition_id for mark in self.watermarks.all()]

    @property
    def workers(self) -> list[PartitionId]:
        return [mark.partition_id for mark in self.watermarks.all()]

    def create(self, partition: PartitionId) -> None:
        self.watermarks.add(partition)
        self.applied_at[partition] = 0

    def missing(self, partition: int) -> LogboomError:
        return NoSuchPartition(f"no {partition}", partition_id=partition)

    def look(self) -> None:
        pass

    def recovered(self, partitions: object = None) -> bool:
        return self.is_recovered

    def leader_address(self) -> str:
        return "n2:1"

    def global_commit_index(self) -> int:
        return self.ordered

    def hurry(self, partitions: Any) -> None:
        self.hurried += sorted(partitions)
