"""What was lost and is given again may lie where it lay before: that the first copy was synced proves nothing of it."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from dispatcher.pipeline.payloads import PartitionPayloads
from logboom.settings import LogSettings
from logboom.types import DurabilityMode, PartitionLogIndex, Term
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from partitions.log.open_segment import DOUBTED
from raftlog.entries.entry import Route, pack_routes
from raftlog.journal.journal import Journal
from raftlog.repair.recovery import recover
from tests.unit.partitions.batches import P, flush
from tests.unit.partitions.compaction_world import chain
from tests.unit.raftlog.store import failing_syncs

JOURNAL, LOG = Path("/n1/journal"), Path("/n1/partitions/3")
COUNT = 4


class Node:
    """A journal and the log of one partition, through starts."""

    def __init__(self, disk: SimDisk, segment_bytes: int, mode: DurabilityMode = DurabilityMode.WRITE_AHEAD) -> None:
        self.disk = disk
        self.journal = Journal.open(
            disk=disk, directory=JOURNAL, cluster_id="c", random_bytes=random.Random(0).randbytes
        )
        settings = LogSettings(segment_bytes=segment_bytes)
        self.log = PartitionLog.open(disk=disk, directory=LOG, partition_id=P, settings=settings, mode=mode)
        self.errors: list[OSError] = []
        self.payloads = PartitionPayloads({P: self.log}, lambda _: None, fatal=self.errors.append)

    def flush(self) -> None:
        """As the group sync would."""
        if self.log.take() is not None:
            job: Any = self.log._job
            job.run()
            job.done()

    def recover(self) -> list[Route]:
        found: Any = recover(self.journal, self.payloads, self)  # type: ignore[arg-type]
        return [wanted.route for wanted in found.missing]

    def write(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.log.append(batch)
            flush(self.log)
            self.note(batch)
        self.acknowledge()

    def note(self, batch: Batch) -> None:
        self.journal.add(pack_routes([route_of(batch)]), self.journal.last_index + 1, 1)
        self.journal.flush()

    def acknowledge(self) -> None:
        self.journal.acknowledged(self.journal.last_index)
        self.journal.setCurrentTerm(2, "n2")  # the next record has it
        self.journal.flush()

    def lose(self, batch: Batch, *, zeroed: bool) -> None:
        """The disk does, of a node that has ended."""
        ref = self.log.find(batch.last_index, batch.digest)
        assert ref is not None
        path = self.log._path(ref.segment)
        self.close()
        if zeroed:
            file = self.disk.open(path)
            file.write([bytes(ref.length)], offset=ref.offset)
            file.sync()
            file.close()
        else:
            self.disk.flip(path, ref.offset + 90, 1)

    def close(self) -> None:
        self.log.close()
        self.journal.close()


def route_of(batch: Batch) -> Route:
    return Route(P, Term(1), PartitionLogIndex(batch.last_index), batch.digest)


@pytest.mark.parametrize("zeroed", [False, True])
@pytest.mark.parametrize("segments", ["one", "another"])
@pytest.mark.parametrize("seed", range(4))
def test_a_copy_of_the_last_one_whose_sync_failed_is_written_again(seed: int, segments: str, *, zeroed: bool) -> None:
    """It counted as synced, since the first one had been acknowledged: the next loss of power took it for good."""
    disk, batches = SimDisk(random.Random(seed)), chain(COUNT)
    nbytes = 1 << 20 if segments == "one" else 64 + sum(batch.nbytes for batch in batches)
    node = Node(disk, nbytes)
    node.write(batches)
    node.lose(batches[-1], zeroed=zeroed)

    mending = Node(disk, nbytes if segments == "one" else nbytes - 1)  # it goes into the next one
    assert mending.recover() == [route_of(batches[-1])]
    mending.payloads.receive(memoryview(b"".join(batches[-1].buffers)))
    disk.hook = failing_syncs(0 if segments == "one" else 3)
    with pytest.raises(OSError, match=str(errno.EIO)):
        mending.flush()
    disk.hook = None
    disk.kill()

    again = Node(disk, nbytes)
    assert again.recover() == []
    assert not disk.exists(LOG / DOUBTED)
    disk.power_loss()
    after = Node(disk, nbytes)
    assert after.recover() == []
    assert after.log.write_again(lambda _: True) == 0
    after.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("seed", range(2))
def test_a_node_with_a_full_disk_starts_and_takes_the_copy_when_there_is_room_to_doubt_it(
    seed: int, number: int
) -> None:
    """It ended with 5, at every start, and gave no room back either."""
    disk, batches = SimDisk(random.Random(seed)), chain(COUNT)
    node = Node(disk, 1 << 20)
    node.write(batches)
    node.lose(batches[-1], zeroed=True)
    raw = memoryview(b"".join(batches[-1].buffers))

    disk.hook = full(number)
    mending = Node(disk, 1 << 20)
    assert mending.recover() == [route_of(batches[-1])]
    for _ in range(3):
        assert mending.payloads.receive(raw) is None
        assert not mending.payloads.holds(route_of(batches[-1]))
    disk.hook = None
    assert mending.payloads.receive(raw) == route_of(batches[-1])
    assert disk.exists(LOG / DOUBTED)
    disk.hook = failing_syncs(0)
    with pytest.raises(OSError, match=str(errno.EIO)):
        mending.flush()
    disk.hook = None
    disk.kill()

    again = Node(disk, 1 << 20)
    assert again.recover() == []
    assert not disk.exists(LOG / DOUBTED)
    disk.power_loss()
    after = Node(disk, 1 << 20)
    assert after.recover() == []
    after.close()


def test_whatever_else_the_disk_says_of_it_ends_the_start() -> None:
    disk, batches = SimDisk(random.Random(1)), chain(COUNT)
    node = Node(disk, 1 << 20)
    node.write(batches)
    node.lose(batches[-1], zeroed=True)
    disk.hook = full(errno.EIO)
    with pytest.raises(OSError, match="injected"):
        Node(disk, 1 << 20).recover()


def test_whatever_else_it_says_of_it_later_ends_the_node_and_not_the_link_that_brought_a_copy() -> None:
    disk, batches = SimDisk(random.Random(1)), chain(COUNT)
    node = Node(disk, 1 << 20)
    node.write(batches)
    node.lose(batches[-1], zeroed=True)
    disk.hook = full(errno.ENOSPC)
    mending = Node(disk, 1 << 20)
    assert mending.recover() == [route_of(batches[-1])]
    disk.hook = full(errno.EIO)
    assert mending.payloads.receive(memoryview(b"".join(batches[-1].buffers))) is None
    (error,) = mending.errors
    assert error.errno == errno.EIO
    assert not mending.payloads.holds(route_of(batches[-1]))


def full(number: int) -> Any:
    def hook(_: str, path: Path, __: int) -> None:
        if path.name.startswith(DOUBTED):
            raise OSError(number, "injected", str(path))

    return hook


def test_nothing_is_proven_as_long_as_something_is_lacking() -> None:
    disk, batches = SimDisk(random.Random(1)), chain(COUNT)
    node = Node(disk, 1 << 20)
    node.write(batches)
    node.lose(batches[-1], zeroed=False)
    for _ in range(3):
        node = Node(disk, 1 << 20)
        assert node.recover() == [route_of(batches[-1])]
        assert disk.exists(LOG / DOUBTED)
        node.close()


@pytest.mark.parametrize(("mode", "acknowledged"), [("write_behind", True), ("write_ahead", False)])
def test_what_is_lost_and_was_not_promised_casts_no_doubt(mode: DurabilityMode, *, acknowledged: bool) -> None:
    disk, batches = SimDisk(random.Random(1)), chain(COUNT)
    node = Node(disk, 1 << 20, DurabilityMode(mode))
    node.write(batches[:-1])
    node.note(batches[-1])
    if acknowledged:
        node.acknowledge()
    node.close()
    node = Node(disk, 1 << 20, DurabilityMode(mode))
    assert node.recover() == [route_of(batches[-1])]
    assert not disk.exists(LOG / DOUBTED)
    node.close()
