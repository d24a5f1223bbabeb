"""What is removed by age is compared with what was to be; and barriers that are answered in vain are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.retention import Aged, RetentionWatch, Row
from chaos.sim.waiting import in_vain
from logboom.errors import BarrierBlocked, BarrierTimeout

NOW_MS = 100_000
ENDS = [(1, 10), (2, 20), (3, 30)]
"""Made 50, 30 and 10 seconds ago."""


async def found(
    first: int,
    *,
    times: tuple[int, ...] = (50, 30, 10),
    lease: int | None = None,
    written: int = 3,
    idle: bool = False,
    rotten: tuple[str, ...] = (),
    void: tuple[int, ...] = (),
    held: int = 0,
    through: int = 30,
    **how: Any,
) -> list[str]:
    """What is wrong with a node that keeps records for 20 s, and whose log begins here after all that.

    ``written``: the segment that was written to when that began; then it was the third. ``idle``: nobody writes.
    ``held``: bytes that stay. ``through``: it was compacted to. ``times``: so many seconds ago the batches
    were made, by the clocks of those who led.
    """
    wrong = list[str]()
    digests = {(0, last): (at, b"%d" % last) for at, last in ENDS}
    leases = [] if lease is None else [SimpleNamespace(index=lease)]
    store: Any = SimpleNamespace(
        partition_id=0,
        first_available_index=1,
        committed_index=30,
        _names=dict.fromkeys(range((first - 1) // 10, 4), ""),
        _tentative=SimpleNamespace(segments_behind=lambda _: set()),
        _written_segment=written,
        _order=7,
        _synced_order=7 if idle else 6,
        _journaled=False,
        _job=None,
        _unwritten=SimpleNamespace(queued=False),
        _committed=SimpleNamespace(
            newest_in=lambda segment: 10 * segment + 10,
            columns=SimpleNamespace(start=0, through=lambda _: 3),
            nbytes=lambda *_: held,
        ),
        _leases=SimpleNamespace(_leases=leases),
    )

    async def remove(*_: object) -> None:
        store.first_available_index, store._written_segment = first, 3

    compaction = SimpleNamespace(_remove=remove)
    backend: Any = SimpleNamespace(
        raft=SimpleNamespace(propose=lambda routes, payload_bytes: None),
        snapshots=SimpleNamespace(compaction=compaction),
        clock=SimpleNamespace(wall_ms=lambda: NOW_MS, monotonic=lambda: 1.0),
        logs={0: store},
        partitioning=SimpleNamespace(kind=lambda _: SimpleNamespace(state_machine="log")),
        settings=SimpleNamespace(snapshot=SimpleNamespace(**{"retain_log_ms": 20_000, "retain_log_bytes": 0} | how)),
    )
    watch = RetentionWatch(lambda _: ENDS, digests, lambda invariant, _: wrong.append(invariant))
    watch.rotten, watch.voids = rotten, {(0, last) for last in void}
    watch.started(SimpleNamespace(name="n1"), backend)  # type: ignore[arg-type]
    for (_, last), ago in zip(ENDS, times, strict=True):
        backend.clock.wall_ms = lambda ago=ago: NOW_MS - 1000 * ago
        backend.raft.propose([SimpleNamespace(digest=b"%d" % last)], payload_bytes=1)
    backend.clock.wall_ms = lambda: NOW_MS
    await compaction._remove(None, 0, through)
    return wrong


async def test_what_is_old_goes_and_nothing_else() -> None:
    assert await found(21) == []
    assert await found(11) == ["OutdatedRemoved"]
    assert await found(1) == ["OutdatedRemoved"]
    assert await found(31) == ["RecordsKept"]


async def test_what_is_kept_for_its_bytes_stays_until_there_are_more() -> None:
    assert await found(11, retain_log_ms=0, retain_log_bytes=100, held=100) == []
    assert await found(11, retain_log_ms=0, retain_log_bytes=100, held=99) == ["RecordsKept"]
    assert await found(31, retain_log_bytes=100, held=99) == ["RecordsKept"]
    assert await found(21, retain_log_bytes=100, held=99) == []  # by age
    assert await found(21, retain_log_ms=0, retain_log_bytes=0) == []  # afterwards somebody looks


async def test_where_clocks_were_at_odds_what_is_behind_something_young_stays() -> None:
    assert await found(11, times=(50, 10, 30)) == []
    assert await found(31, times=(50, 10, 30)) == ["RecordsKept"]
    assert await found(1, times=(50, 10, 30)) == ["OutdatedRemoved"]
    assert await found(31, times=(50, 30, 40)) == []
    assert await found(21, times=(50, 30, 40), written=3) == ["OutdatedRemoved"]


async def test_what_is_still_to_come_says_nothing_either_way() -> None:
    assert await found(31, times=(50, -3600, 30)) == []
    assert await found(11, times=(50, -3600, 30)) == ["OutdatedRemoved"]
    assert await found(31, times=(50, 30, -3600)) == ["RecordsKept"]
    assert await found(31, times=(50, -3600, 10)) == ["RecordsKept"]
    assert await found(1, times=(-3600, -3600, 30), through=20) == []
    assert await found(1, times=(-3600, -3600, 30)) == ["OutdatedRemoved"]


async def test_nor_does_what_is_void() -> None:
    assert await found(21, void=(20,)) == []
    assert await found(11, void=(20,)) == []
    assert await found(11, times=(50, 30, 30), void=(20,)) == ["OutdatedRemoved"]


def test_whoever_has_found_something_old_keeps_that_in_mind_while_his_clock_goes_on() -> None:
    """What was still to come then is young later, in front of what is old."""
    rows = [Row(1_000, 10, void=False), Row(9_000, 20, void=False), Row(2_000, 30, void=False)]
    aged = Aged()
    assert aged.at_most(rows, 8_000, 8_000, 5_000) == 30
    assert aged.at_most(rows, 9_500, 9_500, 5_000) == 30
    assert Aged().at_most(rows, 9_500, 9_500, 5_000) == 10
    assert aged.at_most(rows, 9_400, 9_400, 5_000) == 10


async def test_what_may_be() -> None:
    assert await found(11, lease=11) == []
    assert await found(31, retain_log_bytes=1, held=1) == []
    assert await found(1, retain_log_ms=0) == []
    assert await found(11, written=1) == []  # full since what goes was chosen
    assert await found(11, written=1, idle=True) == ["OutdatedRemoved"]  # that could have been chosen, too
    assert await found(11, rotten=("n1", "n2")) == []  # how old what is rotten is nobody knows
    assert await found(11, rotten=("n2",)) == ["OutdatedRemoved"]


@pytest.mark.parametrize(
    ("error", "needed", "wrong"),
    [
        (BarrierTimeout("late", frontiers=[[0, 4], [1, 5]]), 2, False),
        (BarrierTimeout("late", frontiers=[[0, 4], [1, 5]]), 1, True),
        (BarrierTimeout("late", frontiers=[[0, 5], [1, 6]]), 2, True),
        (BarrierBlocked("held", blocked=[[0, "paused"]], frontiers=[[0, 1], [1, 1]]), 2, False),
        (BarrierBlocked("held", blocked=[[0, "paused"]], frontiers=[[0, 1], [1, 1]]), 1, True),
        (BarrierBlocked("held", blocked=[[0, "lost"]], watermarks=[]), 2, False),
        (BarrierBlocked("held", blocked=[[0, "paused"]], frontiers=[[0, 1]]), 1, False),  # the other is destroyed
    ],
)
def test_who_waits_is_not_told_in_vain(error: BarrierTimeout, needed: int, wrong: bool) -> None:
    assert bool(in_vain(error, {0: 5, 1: 5}, needed)) is wrong
