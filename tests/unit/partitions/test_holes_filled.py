"""What other threads see of a batch that nobody has while it is committed, filled, or declared void."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from logboom.errors import Voided
from logboom.types import PartitionId
from partitions.log import log_reading
from partitions.log.batch import parse_batch
from partitions.log.committed import Committed
from partitions.log.holes import refuse_gap
from partitions.log.reading import DamagedBatch
from tests.unit.partitions.batches import chain
from tests.unit.partitions.holes_world import GONE, digests, with_hole
from tests.unit.partitions.mending_world import flush, grown


def test_what_nobody_has_is_void_to_no_other_thread_while_it_is_committed_or_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was, for a moment: a node that was given the log then kept it as void for good."""
    seen: list[bool] = []

    def watched(name: str) -> None:
        inner = getattr(Committed, name)

        def run(committed: Committed, *args: Any) -> None:
            seen.append(committed.is_void(gone.last_index, gone.digest))
            inner(committed, *args)
            seen.append(committed.is_void(gone.last_index, gone.digest))

        monkeypatch.setattr(Committed, name, run)

    gone = chain(7)[GONE]
    watched("lose")
    watched("_move")
    _, log, batches = with_hole()
    log.append(batches[GONE])
    flush(log)
    assert seen == [False] * 4
    assert digests(log) == [each.digest for each in batches]


def interrupted_by(monkeypatch: pytest.MonkeyPatch, step: str, what: Callable[[], None]) -> None:
    """The loop does something between this step of another thread and its next one, once."""
    inner = getattr(Committed, step)

    def run(committed: Committed, *args: Any) -> Any:
        found = inner(committed, *args)
        monkeypatch.setattr(Committed, step, inner)
        what()
        return found

    monkeypatch.setattr(Committed, step, run)


@pytest.mark.parametrize("step", ["position", "is_lost"])
def test_nor_while_another_thread_looks_at_it(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, log, batches = with_hole()

    def fill() -> None:
        assert log.append(batches[GONE])
        flush(log)

    interrupted_by(monkeypatch, step, fill)
    assert log.void_behind(batches[GONE - 1].last_index) is None
    assert digests(log) == [each.digest for each in batches]


@pytest.mark.parametrize("moment", ["begin", "ref", "is_lost"])
@pytest.mark.parametrize("way", ["committed", "raw", "chunk"])
def test_a_reader_whose_hole_is_filled_before_he_is_told_why_comes_back_for_it(
    way: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He was told that it is void, and went on behind it."""
    _, log, batches = with_hole()
    after = batches[GONE - 1].last_index

    def fill() -> None:
        assert log.append(batches[GONE])
        flush(log)

    def refuse(partition_id: PartitionId, committed: Committed, position: int) -> NoReturn:
        if moment == "begin":
            fill()
        else:
            interrupted_by(monkeypatch, moment, fill)
        refuse_gap(partition_id, committed, position)

    def read() -> bytes:
        if way == "committed":
            return digests(log, after)[0]
        if way == "raw":
            (found,) = log.read_raw(after_index=after, through_index=1 << 40, max_bytes=1)
            return parse_batch(found.raw).digest
        chunk = log.chunks.after(after, through_index=1 << 40, max_bytes=1, max_records=9)
        assert chunk is not None
        return next(chunk.batches()).header.digest

    monkeypatch.setattr(log_reading, "refuse_gap", refuse)
    with pytest.raises(DamagedBatch) as caught:
        read()
    assert (caught.value.last_index, caught.value.digest) == (batches[GONE].last_index, batches[GONE].digest)
    assert not log.lose(caught.value.last_index, caught.value.digest, at=caught.value.place), "it is not damaged"
    assert read() == batches[GONE].digest


def test_raw_batches_are_read_where_they_lay_when_they_were_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What had turned up since was looked for in a segment that does not exist."""
    _, log, batches = with_hole()
    after = batches[GONE - 1].last_index

    def fill() -> None:
        assert log.append(batches[GONE])
        flush(log)

    interrupted_by(monkeypatch, "ref", fill)
    with pytest.raises(DamagedBatch):
        log.read_raw(after_index=after, through_index=1 << 40, max_bytes=1)
    assert len(log.read_raw(after_index=after, through_index=1 << 40, max_bytes=1)) == 1


def test_what_is_declared_void_while_it_is_looked_at_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked for in a segment that does not exist."""
    _, log, batches = grown()
    gone = batches[GONE]
    assert log.lose(gone.last_index, gone.digest)
    interrupted_by(monkeypatch, "is_nowhere", lambda: log.void(gone.last_index, gone.digest))
    with pytest.raises(Voided):
        digests(log, batches[GONE - 1].last_index)


def test_what_is_removed_while_it_is_looked_at_is_not_void(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had asked got an error that says that it is gone."""
    _, log, batches = with_hole()
    gone, before = batches[GONE], batches[GONE - 1].last_index
    log.void(gone.last_index, gone.digest)
    assert log.void_behind(before) is not None
    last = log.find(batches[-1].last_index, batches[-1].digest)
    assert last is not None
    interrupted_by(monkeypatch, "is_lost", lambda: log._committed.forget([last.segment]))
    assert log.void_behind(before) is None
    assert log.first_available_index == batches[-1].last_index + 1
