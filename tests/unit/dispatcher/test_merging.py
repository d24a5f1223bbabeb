"""What of many logs comes next, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dispatcher.reading.merging import Lost, Merge, Picked, Run, Window
from logboom.errors import CorruptData
from logboom.types import PartitionId, PartitionLogIndex
from partitions.log.chunks import Place
from partitions.log.columns import NOWHERE_SEGMENT
from partitions.log.reading import DamagedBatch

A, B = PartitionId(0), PartitionId(1)


def place(global_index: int, *, segment: int = 1, offset: int = 0, length: int = 10) -> Place:
    return Place(global_index, global_index, segment, offset, length)


class Log:
    """One partition's places, which the test changes."""

    def __init__(self, *places: Place) -> None:
        self.places = list(places)
        self.lost: dict[int, DamagedBatch] = {}

    def place(self, position: int) -> Place | None:
        return self.places[position] if position < len(self.places) else None

    def lost_at(self, position: int) -> DamagedBatch | None:
        return self.lost.get(position)


def picked(window: Window | None) -> list[int]:
    return [] if window is None else [each.place.global_index for each in window.picked]


def test_what_lies_back_to_back_is_one_read() -> None:
    rows: Sequence[tuple[PartitionId, Place]] = [
        (A, place(1, offset=100)),
        (B, place(2, offset=0)),
        (A, place(3, offset=110)),
        (A, place(4, offset=130)),  # behind a gap
        (B, place(5, offset=10, segment=2)),
        (A, place(6, offset=140)),
    ]
    window = Window([Picked(p, number, each) for number, (p, each) in enumerate(rows)], 60, 3)
    assert window.runs() == [Run(A, 0, [0, 2]), Run(B, 1, [1]), Run(A, 3, [3, 5]), Run(B, 4, [4])]
    assert window.behind(4) == Window(window.picked[4:], 20, 2)


def test_a_window_holds_what_fits_and_one_batch_at_least() -> None:
    log = Log(place(1, length=50), place(2, length=10), place(3, length=15), place(4, segment=2, length=1))
    merge = Merge({A: log}, {A: 0})
    windows = [merge.plan(horizon=9, bytes_max=25, segments_max=1) for _ in range(4)]
    assert [picked(window) for window in windows] == [[1], [2, 3], [4], []]
    assert [(window.nbytes, window.segments) for window in windows if window] == [(50, 1), (25, 1), (1, 1)]


def test_what_is_void_is_counted_and_stepped_over_and_what_has_turned_up_is_not() -> None:
    nowhere = place(2, segment=NOWHERE_SEGMENT)
    log, other = Log(place(1), nowhere, place(3, segment=NOWHERE_SEGMENT), place(4)), Log(place(5))
    merge = Merge({A: log, B: other}, {A: 0, B: 0})
    assert picked(merge.plan(horizon=1, bytes_max=100, segments_max=9)) == [1]
    log.places[1] = place(2)  # it had been looked at as one that is nowhere
    assert picked(merge.plan(horizon=9, bytes_max=100, segments_max=9)) == [2, 4, 5]
    assert merge.voids == 1


def test_what_is_neither_here_nor_void_is_stepped_over_by_nobody() -> None:
    digest, last = bytes(16), PartitionLogIndex(2)
    log = Log(place(1), place(2, segment=NOWHERE_SEGMENT), place(3))
    log.lost[1] = DamagedBatch("lost", last_index=last, digest=digest, segment=NOWHERE_SEGMENT, path="", offset=0)
    merge = Merge({A: log}, {A: 0})
    assert picked(merge.plan(horizon=9, bytes_max=100, segments_max=9)) == [1]
    for _ in range(2):
        with pytest.raises(Lost) as caught:
            merge.plan(horizon=9, bytes_max=100, segments_max=9)
        assert (caught.value.partition_id, caught.value.damage) == (A, log.lost[1])
    log.lost.clear()
    log.places[1] = place(2)
    assert picked(merge.plan(horizon=9, bytes_max=100, segments_max=9)) == [2, 3]
    assert merge.voids == 0


@pytest.mark.parametrize("again", [2, 1])
def test_what_comes_in_front_of_what_was_given_away_is_no_answer(again: int) -> None:
    log, late = Log(place(2)), Log()
    merge = Merge({A: log, B: late}, {A: 0, B: 0})
    assert picked(merge.plan(horizon=9, bytes_max=100, segments_max=9)) == [2]
    late.places.append(place(again))
    with pytest.raises(CorruptData, match="was safe to give away"):
        merge.plan(horizon=9, bytes_max=100, segments_max=9)
