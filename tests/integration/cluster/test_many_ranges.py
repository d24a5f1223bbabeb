"""A producer with as many separate ranges as are remembered, and a floor that has settled them."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from logboom import Add, Client, Record
from logboom.errors import DeadlineExceeded, QuotaExceeded
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

REFUSED_S = 3.0
"""It is tried again all the while, and the last try may be on its way when that is over: then the error names the one
before."""
REFUSED = "(would be one range too many|ranges of this producer)"


async def test_it_is_not_refused_for_good(tmp_path: Path) -> None:
    """What was refused raised no floor: nothing that it wrote took effect any more, committed or not."""
    settings = {"apply.producer_ranges_max": 4}
    with LocalCluster(partitions=1, directory=tmp_path, settings=settings) as cluster:
        async with Client(cluster.endpoints, timeout=30) as client:
            numbers = client._submitter.sequences(0)
            slow = numbers.take(1)  # one that is under way for ever, and others that are given up

            async def add(timeout: float = 30.0) -> None:
                numbers.settle(numbers.take(1))
                await client.submit(0, Add(b"n", 1), wait="applied", timeout=timeout)

            for _ in range(4):
                await add()
            with pytest.raises((QuotaExceeded, DeadlineExceeded), match=REFUSED):
                await add(REFUSED_S)
            numbers.settle(slow)
            for _ in range(3):
                await add()
            assert await client.get(0, b"n") == (7,)


async def test_who_waits_for_the_commit_alone_hears_of_it_too(tmp_path: Path) -> None:
    """It was answered when it was committed, and refused when it was to be applied."""
    with LocalCluster(partitions=1, directory=tmp_path, settings={"apply.producer_ranges_max": 4}) as cluster:
        async with Client(cluster.endpoints, timeout=30) as client:
            numbers = client._submitter.sequences(0)
            slow = numbers.take(1)
            for _ in range(4):
                numbers.settle(numbers.take(1))
                await client.submit(0, Add(b"n", 1), wait="committed")
            numbers.settle(numbers.take(1))
            with pytest.raises((QuotaExceeded, DeadlineExceeded), match=REFUSED):
                await client.submit(0, Add(b"n", 1), wait="committed", timeout=REFUSED_S)
            assert await client.get(0, b"n") == (4,)
            numbers.settle(slow)
            await client.submit(0, Add(b"n", 1), wait="applied")
            assert await client.get(0, b"n") == (5,)


MINE = b"makes-its-own-16"


async def test_who_numbers_himself_leaves_gaps_for_ever(tmp_path: Path) -> None:
    """He was refused for good once there were too many ranges, though each write had been answered before the next."""
    with LocalCluster(partitions=1, directory=tmp_path, settings={"apply.producer_ranges_max": 4}) as cluster:
        async with Client(cluster.endpoints, timeout=30) as client:
            for _ in range(2):
                for sequence in range(0, 22, 2):
                    await client.submit(0, Add(b"n", 1), producer_id=MINE, sequence=sequence, floor=sequence)
                assert await client.get(0, b"n") == (11,)


async def test_who_has_come_to_the_end_of_it_goes_on_with_a_floor(tmp_path: Path) -> None:
    with LocalCluster(partitions=1, directory=tmp_path, settings={"apply.producer_ranges_max": 4}) as cluster:
        async with Client(cluster.endpoints, timeout=30) as client:
            for sequence in range(0, 10, 2):  # what begins at the floor of 0 is no range
                await client.submit(0, Add(b"n", 1), producer_id=MINE, sequence=sequence)
            with pytest.raises((QuotaExceeded, DeadlineExceeded), match="`floor`"):
                await client.submit(0, Add(b"n", 1), producer_id=MINE, sequence=10, timeout=REFUSED_S)
            for sequence in (10, 12, 4, 8):
                await client.submit(0, Add(b"n", 1), producer_id=MINE, sequence=sequence, floor=min(sequence, 10))
            await client.submit(0, Add(b"n", 1), producer_id=MINE, sequence=9, floor=5)
            assert await client.get(0, b"n") == (7,)  # nothing below 10 was to come any more: 9 is taken for done


async def test_of_equal_numbers_in_a_log_the_lowest_index_has_what_was_submitted(tmp_path: Path) -> None:
    """What a node orders in front of a request, for its floor to count, has an old number and a new record."""
    with LocalCluster(partitions=1, directory=tmp_path, settings={"apply.producer_ranges_max": 4}) as cluster:
        async with Client(cluster.endpoints, timeout=30) as client:
            log = await client.create_partition(state_machine="log")
            for sequence in range(0, 30, 2):
                floor = sequence if sequence % 10 == 0 else 0
                record = Record(b"%d" % sequence)
                await client.submit(log, record, producer_id=MINE, sequence=sequence, floor=floor)
            found: dict[int, list[bytes]] = {}
            async with aclosing(client.tail(log, start=1, follow=True)) as batches:  # a node may lack the last one yet
                while 28 not in found:
                    batch = await anext(batches)
                    for place, record in enumerate(batch.records.records()):
                        found.setdefault(batch.sequence + place, []).append(record.payload)
            assert {sequence: records[0] for sequence, records in found.items()} == {
                sequence: b"%d" % sequence for sequence in range(0, 30, 2)
            }
            assert any(len(set(records)) > 1 for records in found.values()), "nothing had to be ordered"
