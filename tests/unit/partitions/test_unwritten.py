"""Where batches come to lie that are not written yet: no segment has more records, or bytes, than it is to have."""

from __future__ import annotations

from itertools import groupby

import pytest

from logboom.settings import LogSettings
from partitions.log.unwritten import Unwritten
from tests.unit.partitions.compaction_world import chain

BATCHES = chain(20)
SIZES = [batch.header.record_count for batch in BATCHES]
"""One record, two, three, and so again."""
MOST = 3


def segments(unwritten: Unwritten) -> list[int]:
    """How many records each segment gets, of these batches."""
    refs = [unwritten.append(batch, order=at) for at, batch in enumerate(BATCHES)]
    return [sum(ref.last_index - ref.first_index + 1 for ref in rows) for _, rows in groupby(refs, lambda r: r.segment)]


def test_a_segment_has_so_many_records_and_no_more() -> None:
    found = segments(Unwritten(LogSettings(segment_records=MOST), {}))
    assert found == [MOST] * (sum(SIZES) // MOST)


@pytest.mark.parametrize(("had", "segment"), [(MOST, 2), (0, 1)])
def test_what_its_file_had_at_the_start_counts(had: int, segment: int) -> None:
    names: dict[int, str] = {}
    first = Unwritten(LogSettings(segment_records=MOST), names).append(BATCHES[0], order=0)
    after = Unwritten(LogSettings(segment_records=MOST), names)
    after.begin(segment=first.segment, offset=first.offset + BATCHES[0].header.nbytes, records=had)
    assert after.append(BATCHES[1], order=1).segment == segment


@pytest.mark.parametrize("bound", [{"segment_records": 1}, {"segment_bytes": 1}])
def test_what_is_larger_than_a_segment_has_one_of_its_own(bound: dict[str, int]) -> None:
    unwritten = Unwritten(LogSettings(**bound), {})  # type: ignore[arg-type]
    assert segments(unwritten) == SIZES
    assert [write.segment for write in unwritten.take()] == list(range(1, len(BATCHES) + 1))
