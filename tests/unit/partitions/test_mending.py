"""A damaged batch is lost, appended once more, and read at its new place; before and after a restart."""

from __future__ import annotations

import pytest

from partitions.log.batch import parse_batch
from partitions.log.reading import DamagedBatch
from tests.unit.partitions.batches import chain, make
from tests.unit.partitions.mending_world import COUNT, commit, damage, flush, grown, open_log, read


@pytest.mark.parametrize("number", range(COUNT))
def test_a_damaged_batch_comes_back_at_another_place(number: int) -> None:
    disk, log, batches = grown()
    bad = batches[number]
    damage(disk, log, bad)
    with pytest.raises(DamagedBatch) as caught:
        read(log, bad.header.first_index - 1)
    assert (caught.value.last_index, caught.value.digest) == (bad.last_index, bad.digest)
    assert log.lose(bad.last_index, bad.digest)
    assert not log.lose(bad.last_index, bad.digest), "lost twice"
    assert not log.holds(bad.last_index, bad.digest)
    copy = parse_batch(memoryview(b"".join(bytes(b) for b in bad.buffers)))
    assert log.append(copy)
    assert not log.append(copy), "appended twice"
    assert not log.holds(bad.last_index, bad.digest), "held before it is written"
    flush(log)
    assert log.holds(bad.last_index, bad.digest)
    assert read(log) == [b.digest for b in batches]
    assert log.committed_index == batches[-1].last_index

    disk.power_loss()
    again = open_log(disk)
    commit(again, batches)
    assert read(again) == [b.digest for b in batches], "the old copy was preferred"


@pytest.mark.parametrize("more", [(), (COUNT - 1,)], ids=["one", "two"])
@pytest.mark.parametrize("number", range(COUNT - 2))
def test_what_is_whole_in_front_of_a_damaged_batch_is_read(number: int, more: tuple[int, ...]) -> None:
    """It was not applied before the damage was mended, and for good where nobody had that batch."""
    disk, log, batches = grown()
    for each in (number, *more):
        damage(disk, log, batches[each])
    if number:
        assert read(log) == [b.digest for b in batches[:number]]
    with pytest.raises(DamagedBatch) as caught:
        read(log, batches[number].header.first_index - 1)
    assert caught.value.digest == batches[number].digest
    assert read(log, batches[number].last_index) == [b.digest for b in batches[number + 1 : COUNT - len(more)]]


def test_a_tentative_batch_can_be_lost_and_comes_back() -> None:
    _, log, batches = grown()
    more = chain(COUNT + 1)[-1]
    log.append(more)
    assert not log.lose(more.last_index, more.digest), "not written yet: memory has it whole"
    flush(log)
    assert log.lose(more.last_index, more.digest)
    assert not log.holds(more.last_index, more.digest)
    assert log.append(more)
    flush(log)
    commit(log, [])
    log.commit(last_index=more.last_index, digest=more.digest, global_index=COUNT + 1, term=1)
    assert read(log) == [*(b.digest for b in batches), more.digest]


def test_a_committed_batch_is_lost_beside_one_of_an_old_leader_that_came_too_late() -> None:
    disk, log, batches = grown()
    bad = batches[0]
    assert log.append(make(1, bytes(16), [b"of a leader that lost"])), "it ends where the committed one does"
    flush(log)
    damage(disk, log, bad)
    assert log.lose(bad.last_index, bad.digest)
    assert not log.holds(bad.last_index, bad.digest), "nobody would fetch it"
    assert log.is_lost(bad.last_index, bad.digest)
    assert log.append(bad)
    flush(log)
    assert read(log) == [b.digest for b in batches]
