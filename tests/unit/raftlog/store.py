"""A partition log as the parent log's tests need one: batches of 64 bytes in one file, synced with the group."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from chaos.sim.disk import DroppedPages
from logboom.types import NO_DIGEST, PartitionId, PartitionLogIndex, Term
from ports.sync import Redo
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import Tail
from raftlog.links.lacks import Lack
from tests.unit.raftlog.no_holes import NoHoles
from tests.unit.raftlog.world import MemoryDisk


class Store(NoHoles):
    """Payloads: a synced file of batches, each `partition, index, digest, previous` and a body."""

    def __init__(self, disk: MemoryDisk, path: Path) -> None:
        self.file = disk.open(path, create=True)
        self.appended: Callable[[Store], None] = lambda _: None
        self.batches: dict[tuple[int, int, bytes], bytes] = {}
        self.queue: list[bytes] = []
        raw, offset = self.file.read(offset=0, length=1 << 30), 0
        while offset + 64 <= len(raw) and any(raw[offset : offset + 64]):
            if hashlib.blake2b(raw[offset : offset + 48], digest_size=16).digest() != raw[offset + 48 : offset + 64]:
                break
            self._keep(raw[offset : offset + 64])
            offset += 64
        self.end = offset
        self.file.sync()
        self.journaled = self.sync_requested = self.behind = False
        self.records = 0

    def adopt(self, donor: Store, tails: dict[PartitionId, Tail]) -> None:
        """What a snapshot brings: the donor's batches that lead to ``tails``, on stable storage."""
        for partition, tail in tails.items():
            index, digest, chain = tail.last_index, tail.digest, list[bytes]()
            while index and (partition, index, digest) not in self.batches:
                chain.append(donor.batches[partition, index, digest])
                index, digest = PartitionLogIndex(index - 1), chain[-1][16:32]
            for raw in reversed(chain):
                self._keep(raw)
                self.file.write([raw], offset=self.end)
                self.end += 64
        self.file.sync()

    def _keep(self, raw: bytes) -> Route:
        partition, index = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:16], "little")
        self.batches[partition, index, raw[48:64]] = raw
        return Route(PartitionId(partition), Term(0), PartitionLogIndex(index), raw[48:64])

    def make(self, partition: int, tail: Tail, salt: int) -> tuple[Route, bytes]:
        head = partition.to_bytes(8, "little") + (tail.last_index + 1).to_bytes(8, "little") + tail.digest
        head += salt.to_bytes(16, "little")
        raw = head + hashlib.blake2b(head, digest_size=16).digest()
        return self.append(raw), raw

    def append(self, raw: bytes) -> Route:
        route = self._keep(raw)
        self.queue.append(raw)
        self.appended(self)
        return route

    def holds(self, route: Route) -> bool:
        return (route.partition_id, route.last_index, route.digest) in self.batches

    def lack(self, route: Route) -> Lack:
        return Lack.ABSENT

    def write_again(self, proven: object, doubtful: object) -> None:
        """This disk never drops pages."""

    def doubt(self, lacking: object) -> None:
        """Nor does it lose any."""

    def lose(self, route: Route, *, at: object = None) -> bool:
        return self.batches.pop((route.partition_id, route.last_index, route.digest), None) is not None

    def receive(self, raw: memoryview, *, behind: bytes = b"") -> Route | None:
        batch = bytes(raw)
        partition, index = int.from_bytes(batch[:8], "little"), int.from_bytes(batch[8:16], "little")
        if (partition, index, batch[48:64]) in self.batches:
            return None
        previous = batch[16:32]
        if previous not in (NO_DIGEST, behind) and (partition, index - 1, previous) not in self.batches:
            return None
        return self.append(batch)

    def size(self, route: Route) -> int:
        return 64

    def read(self, route: Route) -> bytes:
        return self.batches[route.partition_id, route.last_index, route.digest]

    # SyncTarget and SyncJob in one
    def take(self) -> Store | None:
        if not self.queue and not self.sync_requested:
            return None
        self.writing, self.queue, self.begun = self.queue, [], False
        self.journaled, self.must_sync, self.sync_requested = False, self.sync_requested, False
        return self

    def request_sync(self) -> bool:
        self.sync_requested = self.behind
        return self.sync_requested

    def redo(self) -> Sequence[Redo]:
        if self.must_sync:
            return ()
        self.journaled = True
        return [Redo(raw[48:64], [raw]) for raw in self.writing]

    @property
    def pending_bytes(self) -> int:
        return 64 * len(self.writing)

    def begin(self) -> None:
        self.file.write(self.writing, offset=self.end)
        self.end += 64 * len(self.writing)
        self.begun = True

    def run(self) -> None:
        if not self.begun:
            self.begin()
        if not self.journaled:
            self.file.sync()

    def done(self) -> None:
        self.behind = self.journaled


def failing_syncs(after: int) -> Callable[[str, Path, int], None]:
    left = after

    def hook(operation: str, path: Path, size: int) -> None:
        nonlocal left
        if operation == "sync":
            left -= 1
            if left < 0:
                raise DroppedPages

    return hook
