"""How much space a log asks for ahead of what it writes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from logboom.settings import LogSettings
from logboom.types import KIB, MIB, NO_DIGEST, DurabilityMode
from partitions.log.log import PartitionLog
from server.world.disk_os import OsDisk, OsFile
from tests.unit.partitions.batches import P, flush, make


def grown(path: Path, sizes: list[int], **settings: int) -> None:
    log = PartitionLog.open(
        disk=OsDisk(),
        directory=path,
        partition_id=P,
        settings=LogSettings(**settings),  # type: ignore[arg-type]
        mode=DurabilityMode.WRITE_AHEAD,
    )
    head = NO_DIGEST
    for number, size in enumerate(sizes, 1):
        batch = make(number, head, [bytes(size)], sequence=number)
        log.append(batch)
        flush(log)
        head = batch.digest
    log.close()


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    really = OsFile.allocate

    def allocate(file: OsFile, size: int) -> None:
        found.append(size)
        really(file, size)

    monkeypatch.setattr(OsFile, "allocate", allocate)
    return found


def test_of_a_few_small_ones_it_is_little(tmp_path: Path, reserved: list[int]) -> None:
    grown(tmp_path, [1000] * 10)
    assert reserved == [64 * KIB]


def test_of_large_ones_the_next_few_fit_as_well(tmp_path: Path, reserved: list[int]) -> None:
    """It was a power of two: four of a little over 256 KiB asked three times, and a sync waits for each."""
    grown(tmp_path, [256 * KIB] * 10)
    assert len(reserved) == 2
    assert reserved[0] <= MIB + 64 * KIB


def test_of_a_long_log_it_is_four_mebibytes_at_a_time(tmp_path: Path, reserved: list[int]) -> None:
    grown(tmp_path, [MIB] * 30)
    steps = [after - before for before, after in pairwise(reserved[3:])]
    assert steps
    assert all(4 * MIB <= step <= 6 * MIB for step in steps)


def test_no_more_than_a_segment_has(tmp_path: Path, reserved: list[int]) -> None:
    grown(tmp_path, [300 * KIB] * 4, segment_bytes=MIB)
    assert max(reserved) == MIB
