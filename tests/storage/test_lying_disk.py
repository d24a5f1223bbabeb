"""One write is lost, or lands elsewhere, although its sync succeeds: found out, or nothing relied on it yet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.sim.disk import LOST, SimDisk, WriteFate, misdirect
from logboom.errors import CorruptData, IncompatibleVersion, LogboomError
from tests.storage.journal_world import JournalWorld, open_journal
from tests.storage.partition_world import PartitionWorld, held, open_log, raw
from tests.storage.world import Make, World, empty

SEED, STEPS = 5, 30


class NoRestarts(random.Random):
    """A process that restarts looks at its files by itself: here that comes at the end."""

    def random(self) -> float:
        return super().random() * 0.89


def lied_to(make: Make, suffix: str, *, elsewhere: bool) -> Iterator[tuple[World, int, int, bool]]:
    """The first write does not do what it should, then the second...: world, write, offset, whether it is the last."""
    writes, number = 1, 0
    while number < writes:
        count, struck, world = 0, 0, make(empty(SEED), SEED)
        world.rng = NoRestarts(SEED)

        def fate(path: Path, offset: int, length: int, number: int = number) -> WriteFate | None:
            nonlocal count, struck
            if not path.name.endswith(suffix):
                return None
            count += 1
            if count != number + 1:
                return None
            struck = offset
            return misdirect(random.Random(number).randrange(0, offset + 512, 8)) if elsewhere else LOST

        world.disk.write_fault = fate
        try:
            world.play(STEPS)
        except LogboomError:
            yield world, number, struck, False  # it noticed while it ran
        else:
            yield world, number, struck, number == count - 1
        writes, number = count, number + 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_journal_refuses_what_lost_a_write_that_others_followed(elsewhere: bool) -> None:
    outcomes: Counter[str] = Counter()
    for world, number, offset, last in lied_to(JournalWorld, ".journal", elsewhere=elsewhere):
        assert isinstance(world, JournalWorld)
        where = f"seed {SEED}, write {number} at {offset}"
        disk = SimDisk.of(world.disk.image(), random.Random(0))
        try:
            journal = open_journal(disk)
        except (CorruptData, IncompatibleVersion):
            outcomes["refused"] += 1
            continue
        found = world._found(journal)
        assert last or found == world.synced, f"{where}: {found} records of {world.synced} without a word"
        outcomes["the last one" if found < world.synced else "harmless"] += 1
    print(outcomes)
    assert outcomes["refused"] > 20


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_partition_log_serves_no_other_bytes(elsewhere: bool) -> None:
    outcomes: Counter[str] = Counter()
    for world, number, offset, _ in lied_to(PartitionWorld, ".log", elsewhere=elsewhere):
        assert isinstance(world, PartitionWorld)
        where = f"seed {SEED}, write {number} at {offset}"
        disk = SimDisk.of(world.disk.image(), random.Random(0))
        try:
            log = open_log(disk, world.directory, world.partition, world.mode)
        except (CorruptData, IncompatibleVersion):
            outcomes["refused"] += 1
            continue
        assert held(log) <= world.made.keys(), f"{where}: a batch that nobody made"
        for digest in held(log):
            batch = world.made[digest]
            try:
                assert log.read_batch(batch.last_index, digest) == raw(batch), f"{where}: other bytes"
            except CorruptData:
                outcomes["found out by its reader"] += 1
        outcomes["missing, for the journal to see"] += bool(world.durable - held(log))
        outcomes["a header is written again"] += any(damage.offset == 0 for damage in log.damage)
    print(outcomes)
    assert sum(outcomes.values()) > 15
    assert outcomes["a header is written again"] > 3
