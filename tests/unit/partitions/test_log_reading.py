"""Readers are on other threads: whatever they see of a commit under way must be whole."""

import pytest

from logboom.records import RecordBlock
from logboom.settings import LogSettings
from logboom.types import DurabilityMode, PartitionId, ProducerId
from partitions.log.batch import build_batch
from partitions.log.log import PartitionLog
from server.world.disk_os import OsDisk


class Watched:
    """A column that lets a reader in right after every append to it."""

    def __init__(self, column, read):
        self.column, self.read = column, read

    def append(self, value):
        self.column.append(value)
        self.read()

    def __iadd__(self, more):
        self.column += more
        self.read()
        return self

    def __getitem__(self, key):
        return self.column[key]

    def __len__(self):
        return len(self.column)


def _append(log, first, previous):
    batch = build_batch(
        partition_id=PartitionId(0),
        first_index=first,
        term=1,
        timestamp_ms=0,
        producer=ProducerId(bytes(16)),
        epoch=0,
        sequence=first,
        floor=0,
        dense=False,
        records=RecordBlock.from_columns(payloads=[b"x%d" % first]),
        previous_digest=previous,
    )
    log.append(batch)
    job = log.take()
    job.run()
    job.done()
    return batch.digest


@pytest.mark.parametrize("column", ["last", "global_index", "segment", "offset", "length", "digests"])
def test_a_reader_sees_a_commit_under_way_whole_or_not_at_all(tmp_path, column):
    log = PartitionLog.open(
        disk=OsDisk(),
        directory=tmp_path / "0",
        partition_id=PartitionId(0),
        settings=LogSettings(segment_bytes=1 << 20),
        mode=DurabilityMode.WRITE_AHEAD,
    )
    first = _append(log, 1, bytes(16))
    log.commit(last_index=1, digest=first, global_index=1, term=1)
    second = _append(log, 2, first)
    seen = []

    def read():
        found = log.read_committed(after_index=0, through_index=1 << 40, max_bytes=1 << 20)
        seen.append([(batch.last_index, batch.global_index) for batch in found])

    columns = log._committed.columns
    setattr(columns, column, Watched(getattr(columns, column), read))
    log.commit(last_index=2, digest=second, global_index=7, term=1)
    read()
    log.close()
    assert all(view in ([(1, 1)], [(1, 1), (2, 7)]) for view in seen)
    assert seen[-1] == [(1, 1), (2, 7)]


def test_a_batch_is_found_at_each_moment_of_its_commit(tmp_path, monkeypatch):
    """It was nowhere for a moment: whoever read it then, for another node, said that it is not here."""
    log = PartitionLog.open(
        disk=OsDisk(),
        directory=tmp_path,
        partition_id=PartitionId(0),
        settings=LogSettings(segment_bytes=4096),
        mode=DurabilityMode.WRITE_AHEAD,
    )
    digest, seen = _append(log, 1, bytes(16)), []

    def watched(step):
        def taken(*args):
            seen.append(log.read_batch(1, digest))
            step(*args)
            seen.append(log.read_batch(1, digest))

        return taken

    monkeypatch.setattr(log._tentative, "commit", watched(log._tentative.commit))
    monkeypatch.setattr(log._committed, "append", watched(log._committed.append))
    log.commit(last_index=1, digest=digest, global_index=1, term=1)
    log.close()
    assert len(seen) == 4
    assert len(set(seen)) == 1
