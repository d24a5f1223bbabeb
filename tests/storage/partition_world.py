"""A partition log on its own: appends, conflicts, segment rolls, both durability modes, restarts."""

from __future__ import annotations

import random
from pathlib import Path

from chaos.sim.disk import SimDisk
from logboom.records import RecordBlock
from logboom.settings import LogSettings
from logboom.types import NO_DIGEST, DurabilityMode, PartitionId, ProducerId, Term
from partitions.log.batch import Batch, build_batch
from partitions.log.log import PartitionLog
from tests.storage.world import World

SIZES = (0, 1, 20, 20, 90, 300, 600, 1500)
Promise = frozenset[bytes]


def build(rng: random.Random, partition: PartitionId, previous: Batch | None, term: int) -> Batch:
    """A batch like no other, some larger than a sector."""
    payloads = [rng.randbytes(rng.choice(SIZES)) for _ in range(rng.choice((1, 1, 2, 5)))]
    return build_batch(
        partition_id=partition,
        first_index=previous.last_index + 1 if previous is not None else 1,
        term=Term(term),
        timestamp_ms=rng.getrandbits(40),
        producer=ProducerId(rng.randbytes(16)),
        epoch=0,
        sequence=0,
        floor=0,
        dense=False,
        records=RecordBlock.from_columns(payloads=payloads),
        previous_digest=previous.digest if previous is not None else NO_DIGEST,
    )


def raw(batch: Batch) -> bytes:
    return b"".join(batch.buffers)


def open_log(disk: SimDisk, directory: Path, partition: PartitionId, mode: DurabilityMode) -> PartitionLog:
    return PartitionLog.open(
        disk=disk,
        directory=directory,
        partition_id=partition,
        settings=LogSettings(segment_bytes=4096, segment_ms=0, open_files_max=2),
        mode=mode,
    )


def held(log: PartitionLog) -> set[bytes]:
    return {ref.digest for ref in log._tentative.all()}


def check_held(log: PartitionLog, made: dict[bytes, Batch]) -> set[bytes]:
    """All that a log says to hold is what was once made, and can be read."""
    found = held(log)
    assert found <= made.keys(), "a batch that nobody made (NoPhantom)"
    for digest in found:
        assert log.read_batch(made[digest].last_index, digest) == raw(made[digest]), "other bytes (NoServeCorrupt)"
    return found


class PartitionWorld(World):
    directory = Path("/n/partitions/3")
    partition = PartitionId(3)
    mode = DurabilityMode.WRITE_AHEAD

    def __init__(self, disk: SimDisk, seed: int) -> None:
        super().__init__(disk, seed)
        self.made: dict[bytes, Batch] = {}
        self.durable: set[bytes] = set()
        self.term = 1
        self.tip: Batch | None = None

    def open(self) -> None:
        self.log = open_log(self.disk, self.directory, self.partition, self.mode)
        self.log.write_again(lambda _: False)  # as RaftLog.recover; without a journal nothing is proven
        ends = [batch for digest, batch in self.made.items() if self.log.holds(batch.last_index, digest)]
        self.tip = ends[-1] if ends else None
        self._note()

    def step(self) -> None:
        fate = self.rng.random()
        if fate < 0.55:
            self._append()
        elif fate < 0.9:
            self._flush()
        elif fate < 0.95:
            self.term += 1  # another leader: what is not durable may lose its place
            self.tip = self.rng.choice([None, *self.made.values()]) if self.rng.random() < 0.5 else self.tip
            if self.tip is not None and not self.log.holds(self.tip.last_index, self.tip.digest):
                self.tip = None
        else:
            self.disk.kill()
            self.open()

    def _append(self) -> None:
        batch = build(self.rng, self.partition, self.tip, self.term)
        self.made[batch.digest] = batch
        assert self.log.append(batch)
        self.tip = batch

    def _flush(self) -> None:
        if self.rng.random() < 0.3:
            self.log.request_sync()
        job = self.log.take()
        if job is None:
            return
        if self.rng.random() < 0.5:
            self._append()  # while the job is under way
        job.run()
        job.done()
        self._note()

    def _note(self) -> None:
        durable = {d for d, b in self.made.items() if self.log.is_durable(b.last_index, d)}
        assert self.durable <= durable, "what was durable is so no more"
        self.durable = durable
        self.mark()

    def promise(self) -> Promise:
        return frozenset(self.durable)

    def verify(self, disk: SimDisk, promise: Promise, *, again: bool = False) -> set[bytes]:
        log = open_log(disk, self.directory, self.partition, self.mode)
        found = check_held(log, self.made)
        assert promise <= found, f"{len(promise - found)} durable batches are gone (NoTruncateAcked)"
        self._serve(log, found)
        log.close()
        return found

    def _serve(self, log: PartitionLog, found: set[bytes]) -> None:
        """Commit the longest chain there is and read it back."""
        chain: list[Batch] = []
        ends = [self.made[digest] for digest in sorted(found)]
        by_end = {batch.digest: batch for batch in ends}
        for end in sorted(ends, key=lambda b: -b.last_index):
            chain, at = [end], end
            while at.header.previous_digest in by_end:
                at = by_end[at.header.previous_digest]
                chain.insert(0, at)
            if at.header.previous_digest == NO_DIGEST:
                break
        else:
            return
        for number, batch in enumerate(chain, 1):
            log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)
        read = log.read_committed(after_index=0, through_index=log.committed_index, max_bytes=1 << 30)
        assert [batch.header for batch in read] == [batch.header for batch in chain]
        assert [batch.records for batch in read] == [batch.records() for batch in chain]


class WriteBehindWorld(PartitionWorld):
    mode = DurabilityMode.WRITE_BEHIND
