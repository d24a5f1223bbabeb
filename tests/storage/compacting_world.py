"""A partition log below which the parent journal is cut off: places saved, a base written, old segments removed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import IndexCompacted
from logboom.settings import LogSettings
from logboom.types import DurabilityMode, GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from tests.storage.partition_world import build, check_held, raw
from tests.storage.world import World

BASE = struct.Struct("<QQ16s")


class Kept(NamedTuple):
    """What is promised."""

    durable: frozenset[bytes]
    base: int
    """So many batches were committed at the base of the journal."""
    keep_from: int
    """Every committed batch that ends here or behind it is still to be read."""


class CompactingWorld(World):
    """The journal is one file here, replaced as a whole: how many batches were committed, and the last one."""

    directory = Path("/n/partitions/3")
    journal = Path("/n/base")
    partition = PartitionId(3)

    def __init__(self, disk: SimDisk, seed: int) -> None:
        super().__init__(disk, seed)
        self.made: dict[bytes, Batch] = {}
        self.chain: list[Batch] = []
        """Committed."""
        self.pending: list[Batch] = []
        """Appended behind it, and not committed yet."""
        self.durable: set[bytes] = set()
        self.base = 0
        self.keep_from = 1
        self.term = 1

    def _log(self, disk: SimDisk) -> tuple[PartitionLog, int]:
        count, base = 0, LogBase()
        if disk.exists(self.journal):
            count, last, digest = BASE.unpack(disk.read_file(self.journal))
            base = LogBase(PartitionLogIndex(last), digest, GlobalLogIndex(count))
        log = PartitionLog.open(
            disk=disk,
            directory=self.directory,
            partition_id=self.partition,
            settings=LogSettings(segment_bytes=2048, segment_ms=1 << 39, open_files_max=2),
            mode=DurabilityMode.WRITE_AHEAD,
            base=base,
        )
        return log, count

    def open(self) -> None:
        self.disk.sync_directory(self.journal.parent)  # who renamed it may have been killed before it could
        self.log, self.base = self._log(self.disk)
        self.log.write_again(lambda _: False)
        known = self.base
        while known < len(self.chain) and self.log.holds(self.chain[known].last_index, self.chain[known].digest):
            self._commit(self.chain[known], known + 1)
            known += 1
        lost = {batch.digest for batch in self.chain[known:]}
        assert not self.durable & lost, "what was durable and committed is gone"
        del self.chain[known:]
        self.pending = []
        self._note()

    def _commit(self, batch: Batch, number: int) -> None:
        self.log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)

    def step(self) -> None:
        fate = self.rng.random()
        if fate < 0.45:
            self._append()
        elif fate < 0.7:
            self._flush()
        elif fate < 0.8:
            self._snapshot()
        elif fate < 0.85:
            self._compact()
        elif fate < 0.88:
            self._mend()
        elif fate < 0.94:
            self.term += 1  # another leader: some of it loses its place
            del self.pending[self.rng.randrange(len(self.pending) + 1) :]
        else:
            self.disk.kill()
            self.open()

    def _append(self) -> None:
        previous = (self.pending or self.chain or [None])[-1]
        batch = build(self.rng, self.partition, previous, self.term)
        self.made[batch.digest] = batch
        assert self.log.append(batch)
        self.pending.append(batch)

    def _flush(self, *, carried: bool = True) -> None:
        job = self.log.take()
        if job is None:
            return
        journaled = carried and self.rng.random() < 0.4  # the journal has it, which is not looked at here
        if journaled:
            job.redo()
        job.run()
        job.done()
        for batch in self.pending[: self.rng.randrange(len(self.pending) + 1)]:
            self._commit(batch, len(self.chain) + 1)
            self.chain.append(self.pending.pop(0))
        if not journaled:
            self._note()

    def _snapshot(self) -> None:
        if len(self.chain) <= self.base:
            return
        count = self.rng.randrange(self.base, len(self.chain)) + 1
        last = self.chain[count - 1]
        self.log.save_places(last.last_index)()
        self._note(through=count)
        if self.rng.random() < 0.2:
            return  # as if a crash had come before the journal's base
        self.disk.replace_file(self.journal, BASE.pack(count, last.last_index, last.digest))
        self.base = count
        self.mark()

    def _compact(self) -> None:
        if self.base:
            last = self.chain[self.base - 1].last_index
            keep_from = self.rng.choice([self.rng.randrange(1, last + 2), last + 1])
            self.mark()
            sealing = self.log.sealing(keep_from) if self.rng.random() < 0.7 else None
            if sealing is not None:
                sealing()
            job = self.log.compact(keep_from, ends=self.rng.random() < 0.3)
            ends = {batch.digest for batch in self.chain}
            self.durable -= {
                digest  # lost a conflict: may go with its segment
                for digest in self.durable - ends
                if self.made[digest].last_index <= self.log.committed_index
            }
            self.keep_from = max(self.keep_from, keep_from)
            self.mark()
            job()

    def _mend(self) -> None:
        """A batch is thought damaged, and comes from a peer again."""
        here = [batch for batch in self.chain if self.log.find(batch.last_index, batch.digest) is not None]
        if here:
            bad = self.rng.choice(here)
            if self.log.lose(bad.last_index, bad.digest):
                assert self.log.append(bad)
                self._flush(carried=False)

    def _note(self, *, through: int | None = None) -> None:
        """Everything up to there is durable; None: everything that was written."""
        some = self.made.values() if through is None else self.chain[:through]
        self.durable |= {b.digest for b in some if self.log.is_durable(b.last_index, b.digest)}
        self.mark()

    def promise(self) -> Kept:
        return Kept(frozenset(self.durable), self.base, self.keep_from)

    def verify(self, disk: SimDisk, promise: Kept, *, again: bool = False) -> tuple[set[bytes], int]:
        log, count = self._log(disk)
        assert count >= promise.base, "the base went back"
        held = check_held(log, self.made)
        durable = [self.made[digest] for digest in promise.durable]
        committed = self.chain[count - 1].last_index if count else 0
        assert log.committed_index == log.durable_index == committed
        gone = [batch for batch in durable if batch.last_index > committed and batch.digest not in held]
        assert not gone, f"{len(gone)} durable batches are gone"
        first = log.first_available_index
        assert first <= max(1, promise.keep_from), "more is gone than may be"
        wanted = [batch for batch in self.chain[:count] if batch.last_index >= first]
        for number, batch in enumerate(self.chain[count:], count + 1):
            if batch.digest not in held:
                break
            log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)
            wanted.append(batch)
        read = log.read_committed(after_index=first - 1, through_index=1 << 40, max_bytes=1 << 30)
        assert [batch.header for batch in read] == [batch.header for batch in wanted]
        assert [batch.records for batch in read] == [batch.records() for batch in wanted]
        for batch in wanted[:1]:
            assert log.read_batch(batch.last_index, batch.digest) == raw(batch)
        if first > 1:
            with pytest.raises(IndexCompacted):
                log.read_committed(after_index=first - 2, through_index=first, max_bytes=1)
        log.close()
        return held, first
