"""A producer with as many separate ranges as are remembered, and a floor that has settled them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex, ProducerId
from partitions.apply.dedupe import Dedupe

PRODUCER = ProducerId(b"m" * 16)


def header(sequence: int, floor: int = 0) -> Any:
    return SimpleNamespace(producer=PRODUCER, epoch=0, sequence=sequence, record_count=1, floor=floor, dense=False)


@pytest.mark.parametrize("floor", [0, 1, 3, 4, 5, 6, 7, 8, 99])
@pytest.mark.parametrize("first", [8, 9, 100])
def test_what_is_sent_again_has_no_effect_and_what_follows_has(floor: int, first: int) -> None:
    dedupe = Dedupe(ApplySettings(producer_ranges_max=3))
    for index, sequence in enumerate((1, 3, 7), 1):
        batch = header(sequence=sequence)
        dedupe.record(batch, dedupe.decide(batch), GlobalLogIndex(index))
    dedupe.commit()
    batch = header(sequence=first, floor=floor)
    again = dedupe.makes_room(PRODUCER, 0, (first, first + 1), floor)
    refused = dedupe.decide(batch).refused is not None
    if again is None:
        assert not refused or floor < 2
        return
    assert refused
    for each in (dedupe, Dedupe(ApplySettings())):  # also where the producer has been forgotten since
        decision = each.decide(header(sequence=again, floor=floor))
        assert (decision.refused, decision.skip) == (None, ((0, 1),))
    copy = header(sequence=again, floor=floor)
    dedupe.record(copy, dedupe.decide(copy), GlobalLogIndex(9))
    dedupe.commit()
    assert dedupe.decide(batch).refused is None


def test_nothing_is_sent_again_where_the_floor_has_not_settled_enough() -> None:
    """More ranges are known than are remembered now: the setting was less strict before."""
    dedupe = Dedupe(ApplySettings(producer_ranges_max=10))
    for index, sequence in enumerate((1, 3, 5, 7, 9), 1):
        batch = header(sequence=sequence)
        dedupe.record(batch, dedupe.decide(batch), GlobalLogIndex(index))
    dedupe.commit()
    dedupe._settings = ApplySettings(producer_ranges_max=3)
    assert dedupe.makes_room(PRODUCER, 0, (12, 13), 4) is None  # leaves three, and this one
    assert dedupe.makes_room(PRODUCER, 0, (12, 13), 6) == 5
