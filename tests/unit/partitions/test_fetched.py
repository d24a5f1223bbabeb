"""Where the batches are that a log was filled with: saved by another thread, while the log goes on."""

from __future__ import annotations

from typing import Any

import pytest

from partitions.log.columns import Columns
from partitions.log.places import Rows
from tests.unit.partitions.batches import chain
from tests.unit.partitions.compaction_world import COUNT, append, base_at, commit, digests, grown, open_log

MORE = chain(COUNT + 10)
HAS = 25


@pytest.mark.parametrize("meanwhile", ["nothing", "some are committed", "all are committed, and more"])
def test_they_are_gathered_by_the_job_and_not_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """All that is known of where a log's batches are was copied on the loop, for each log, and each was looked for."""
    disk, log, _ = grown(count=HAS)
    append(log, MORE[HAS:])
    done, part, find = list[str](), Columns.part, log.find

    def copied(columns: Columns, begin: int, end: int, *, step: int = 0) -> Columns:
        done.append("copied")
        return part(columns, begin, end, step=step)

    def found(last_index: int, digest: bytes) -> Any:
        done.append("looked for")
        return find(last_index, digest)

    monkeypatch.setattr(Columns, "part", copied)
    monkeypatch.setattr(log, "find", found)
    rows = Rows((b.last_index, 10 * number, b.digest) for number, b in enumerate(MORE[HAS:COUNT], HAS + 1))
    job = log.save_fetched(rows, through_index=MORE[COUNT - 1].last_index)
    assert done == [], "on the loop"
    if meanwhile != "nothing":
        commit(log, MORE[HAS:30] if meanwhile == "some are committed" else MORE[HAS:], start=HAS)
    job()
    assert "copied" in done
    log.close()
    again = open_log(disk, base_at(MORE, COUNT))
    assert digests(again) == [batch.digest for batch in MORE[:COUNT]]
    assert [again.position_at_global(10 * number + 10) for number in range(COUNT)] == list(range(COUNT))
