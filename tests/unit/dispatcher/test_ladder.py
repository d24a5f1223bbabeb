"""Partitions and nodes that apply more slowly than is committed, and what is done about them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from dispatcher.admission.ladder import TOLD_MAX, Do, Ladder, Rung, Seen, Standing, Step, parse_standing, standing_of
from logboom.errors import ProtocolError
from logboom.settings import LagSettings
from logboom.types import NodeId, PartitionId

N1, N2, N3 = map(NodeId, ("n1", "n2", "n3"))
VOTERS = (N1, N2, N3)
SETTINGS = LagSettings(slow_ms=1_000, stalled_ms=3_000, chronic_ms=10_000, move_again_ms=60_000)
P0, P1 = PartitionId(0), PartitionId(1)
WELL = Standing(0, frozenset(), 4)


class World:
    """One node's ladder, looked at every half second."""

    def __init__(self, settings: LagSettings = SETTINGS, *, leads: bool = False, partitions: int = 4) -> None:
        self.ladder = Ladder(settings, N1)
        self.now, self.leads, self.partitions = 100.0, leads, partitions
        self.others: Mapping[NodeId, Standing] = {N2: WELL, N3: WELL}

    def look(self, *behind: Seen, recovering: tuple[PartitionId, ...] = ()) -> list[Do]:
        return [step.do for step in self.steps(*behind, recovering=recovering)]

    def steps(self, *behind: Seen, recovering: tuple[PartitionId, ...] = ()) -> list[Step]:
        self.now += 0.5
        for node, standing in self.others.items():
            self.ladder.heard(node, standing, self.now)
        return self.ladder.look(
            self.now, behind, partitions=self.partitions, voters=VOTERS, leads=self.leads, recovering=recovering
        )

    def during(self, seconds: float, *behind: Seen) -> list[Do]:
        return [do for _ in range(round(seconds * 2)) for do in self.look(*behind)]


def still(partition: PartitionId = P0) -> Seen:
    return Seen(partition, 100, 0)


def test_what_waits_too_long_is_throttled_and_released_when_it_is_well_again() -> None:
    world = World()
    committed = applied = 0
    done: list[Do] = []
    for step in range(12):  # ten records a look come in, five are applied: what waits grows older
        committed, applied = committed + 10, applied + 5
        done += world.look(Seen(P0, committed, applied))
        assert world.ladder.age_ms(P0, world.now) <= 500 * (step + 1)
    assert done == [Do.THROTTLE]
    assert world.ladder.rung(P0) is Rung.THROTTLED
    assert world.look(Seen(P0, committed + 10, committed)) == [Do.RELEASE]
    assert world.ladder.rung(P0) is Rung.STEADY


def test_between_slow_and_well_nothing_changes() -> None:
    world = World()
    world.during(1.5, Seen(P0, 10, 0))
    assert world.look(Seen(P0, 20, 0)) == []
    assert world.look(Seen(P0, 30, 19)) == []  # the oldest is 500 ms old: not below half of slow
    assert world.ladder.rung(P0) is Rung.THROTTLED


def test_what_applies_nothing_is_frozen_and_thawed_when_it_has_caught_up() -> None:
    world = World()
    assert world.during(4, still()) == [Do.THROTTLE, Do.FREEZE]
    assert world.ladder.rung(P0) is Rung.FROZEN
    assert world.look(Seen(P0, 100, 50)) == []  # it moves, and is far behind
    assert world.look() == [Do.RELEASE]
    assert world.ladder.steps == {"throttle": 1, "freeze": 1, "release": 1}


def test_who_applies_something_is_not_stalled() -> None:
    world = World()
    assert world.during(0.5, Seen(P0, 1_000, 0)) == []
    done = [do for k in range(20) for do in world.look(Seen(P0, 1_000, k + 1))]
    assert done == [Do.THROTTLE]


def test_idle_time_before_is_no_stall() -> None:
    world = World()
    world.during(30)
    assert world.during(0.5, Seen(P0, 1, 0)) == []


@pytest.mark.parametrize("off", [{"slow_ms": 0, "stalled_ms": 0}])
def test_zero_is_never(off: dict[str, int]) -> None:
    world = World(LagSettings(chronic_ms=0, **off), leads=True)
    assert world.during(600, still()) == []


def test_a_replica_that_is_chronically_behind_alone_stops_serving_and_returns() -> None:
    world = World()
    assert world.during(11, still()) == [Do.THROTTLE, Do.FREEZE]
    assert not world.ladder.withdrawn(P0)
    assert world.during(1, still()) == [Do.WITHDRAW]
    assert world.ladder.withdrawn(P0)
    assert not world.ladder.withdrawn(P1)
    assert set(world.look(Seen(P0, 200, 100))) == {Do.RELEASE, Do.RETURN}  # what waits is young
    assert not world.ladder.withdrawn(P0)


@pytest.mark.parametrize(
    "others",
    [
        {N2: Standing(9_000, frozenset({P0}), 4), N3: WELL},
        {N2: Standing(9_000, frozenset({P0}), 4), N3: Standing(9_000, frozenset({P0}), 4)},
        {N3: WELL},
        {},
    ],
    ids=["one behind too", "both", "one unheard", "nobody heard"],
)
def test_a_replica_serves_on_unless_a_majority_is_fine(others: dict[NodeId, Standing]) -> None:
    world = World()
    world.others = others
    assert Do.WITHDRAW not in world.during(60, still())


def test_a_leader_that_is_behind_as_a_whole_hands_over_once_in_a_while() -> None:
    world = World(leads=True, partitions=2)
    rows = still(P0), still(P1)
    done = world.during(13, *rows)
    assert done.count(Do.MOVE_LEADERSHIP) == 1
    assert done.count(Do.REPORT) == 1
    assert Do.MOVE_LEADERSHIP not in world.during(50, *rows)
    assert world.during(15, *rows).count(Do.MOVE_LEADERSHIP) == 1


def moves_after(world: World) -> float:
    """Seconds until leadership is offered."""
    began = world.now
    while Do.MOVE_LEADERSHIP not in world.look(still(P0), still(P1)):
        assert world.now < began + 1_000
    return world.now - began


@pytest.mark.parametrize(("move_again_ms", "again_s"), [(300_000, 30), (5_000, 5)])
def test_where_nobody_took_over_others_are_asked_again_soon(move_again_ms: int, again_s: float) -> None:
    """Found by review: one that was away for a moment left a leader that stands still at it for five minutes."""
    world = World(msgspec.structs.replace(SETTINGS, move_again_ms=move_again_ms), leads=True, partitions=2)
    moves_after(world)
    world.ladder.not_moved(world.now)
    assert moves_after(world) == again_s
    assert moves_after(world) == move_again_ms / 1_000, "somebody has"


def test_every_one_that_could_lead_is_named() -> None:
    """One alone may be without the log: it was asked again and again, and nobody else."""
    world = World(leads=True, partitions=2)
    named = [step.among for _ in range(26) for step in world.steps(still(P0), still(P1)) if step.among]
    assert named == [(N2, N3)]


def test_a_leader_with_one_withdrawn_partition_hands_over() -> None:
    world = World(leads=True, partitions=100)
    assert Do.MOVE_LEADERSHIP in world.during(13, still())


def test_leadership_stays_when_the_others_are_no_better() -> None:
    world = World(leads=True, partitions=2)
    behind = Standing(9_000, frozenset({P0, P1}), 2)
    for world.others in ({N2: behind, N3: behind}, {N2: behind}, {}):
        assert Do.MOVE_LEADERSHIP not in world.during(60, still(P0), still(P1))


def test_two_that_are_behind_are_no_odd_one_out() -> None:
    world = World(leads=True, partitions=2)
    world.others = {N2: Standing(9_000, frozenset({P0, P1}), 2), N3: WELL}
    assert not {Do.REPORT, Do.MOVE_LEADERSHIP} & set(world.during(60, still(P0), still(P1)))


def test_leadership_goes_only_to_where_nothing_is_behind() -> None:
    world = World(leads=True, partitions=2)
    little = Standing(9_000, frozenset({PartitionId(9)}), 20)
    world.others = {N2: little, N3: little}
    done = world.during(60, still(P0), still(P1))
    assert Do.REPORT in done
    assert Do.MOVE_LEADERSHIP not in done


def test_whoever_is_behind_again_is_reported_again() -> None:
    world = World()
    bad = Standing(9_000, frozenset(map(PartitionId, range(4))), 4)
    for _ in range(2):
        world.others = {N2: WELL, N3: bad}
        assert world.during(30) == [Do.REPORT]
        world.others = {N2: WELL, N3: WELL}
        assert world.during(1) == []


def test_a_follower_that_is_behind_is_reported_and_moves_nothing() -> None:
    world = World(leads=True)
    world.others = {N2: WELL, N3: Standing(9_000, frozenset(map(PartitionId, range(4))), 4)}
    assert world.during(30) == [Do.REPORT]


def test_what_was_heard_long_ago_says_nothing() -> None:
    world = World(leads=True, partitions=2)
    world.during(1, still(P0), still(P1))
    world.others = {}
    assert Do.MOVE_LEADERSHIP not in world.during(60, still(P0), still(P1))


def test_ages_are_never_too_low_however_many_batches_wait() -> None:
    world = World()
    for k in range(1, 1_000):
        world.look(Seen(P0, k, 0))
    assert world.ladder.age_ms(P0, world.now) == 499_000
    world.look(Seen(P0, 1_000, 500))
    assert world.ladder.age_ms(P0, world.now) >= 249_500


def test_a_destroyed_partition_is_forgotten() -> None:
    world = World()
    world.during(4, still())
    world.ladder.forget(P0)
    assert world.look() == []
    assert world.ladder.rung(P0) is Rung.STEADY


def test_a_standing_survives_the_wire() -> None:
    for standing in (WELL, Standing(12, frozenset({P0, P1}), 4)):
        assert parse_standing(standing.row()) == standing
    many = Standing(5, frozenset(map(PartitionId, range(TOLD_MAX + 1))), 2 * TOLD_MAX)
    assert parse_standing(many.row()).behind == frozenset(range(2 * TOLD_MAX))
    assert standing_of({"durable": []}) is None
    assert standing_of({"lag": WELL.row()}) == WELL


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        [0, 0, 0],
        [0, 0, 0, 0],
        [-1, 0, 0, []],
        [0, 0, 0, [True]],
        [0, 1 << 39, 9, []],
        [0, 1, 0, [0] * (TOLD_MAX + 1)],
    ],
)
def test_a_standing_that_is_none_is_refused(row: object) -> None:
    with pytest.raises(ProtocolError):
        parse_standing(row)


def test_with_all_of_them_behind_elsewhere_none_is_fine_there_whatever_its_id() -> None:
    """Ids do not end with the number of partitions, once some are destroyed: the others' were taken to be fine."""
    young = PartitionId(5_000)
    world = World(partitions=TOLD_MAX + 1)
    row = [60_000, TOLD_MAX + 1, TOLD_MAX + 1, list(range(4_900, 4_900 + TOLD_MAX))]
    world.others = {N2: parse_standing(row), N3: parse_standing(row)}
    assert Do.WITHDRAW not in world.during(60, still(young))


def test_what_is_applied_again_after_a_start_may_take_its_time_and_not_stand_still() -> None:
    world = World()
    done = [do for n in range(20) for do in world.look(Seen(P0, 1_000, n), recovering=(P0,))]
    assert done == [], "slow, and no wonder"
    assert world.ladder.standing.behind == {P0}, "it is no place to hand leadership over to"
    done = [do for _ in range(8) for do in world.look(Seen(P0, 1_000, 19), recovering=(P0,))]
    assert done == [Do.FREEZE]
    assert world.look() == [Do.RELEASE]
    assert not world.ladder.standing.behind
