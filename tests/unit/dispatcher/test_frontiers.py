"""Barriers over several nodes: each hears of the others what it needs, and is never told too much."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dispatcher.barriers.exchange import Exchange
from dispatcher.barriers.frontiers import FRAME_ROWS, LEVELS, Frontiers, parse_told, parse_wanted
from dispatcher.barriers.goals import Want
from logboom.errors import BarrierTimeout, InvalidRequest, PartitionDestroyed, ProtocolError, QuotaExceeded
from logboom.types import GlobalLogIndex, Level, NodeId, PartitionId, Scope
from logboom.wire import Kind
from raftlog.entries.configuration import Configuration, Role, Seat
from tests.unit.dispatcher.barrier_desk import PARTITIONS, A, B, C, Desk, reached
from tests.unit.dispatcher.frontier_world import BOTH, N1, N2, N3, NODES, World, apply


class TestReaching:
    @pytest.mark.parametrize(("scope", "after"), [(Scope.QUORUM, 2), (Scope.ALL, 3)])
    @pytest.mark.parametrize("asked", NODES)
    def test_it_is_reached_when_enough_nodes_are_there(self, scope: Scope, after: int, asked: NodeId) -> None:
        world = World()
        _, answers = world[asked].wait(5, reach=scope)
        world.talk()
        for count, name in enumerate(NODES, 1):
            apply(world, name, 4)
            apply(world, name, 5)
            assert bool(answers) == (count >= after)
        assert reached(answers)

    @pytest.mark.parametrize("level", [Level.ORDERED, Level.DURABLE, Level.APPLIED, Level.SNAPSHOTTED])
    def test_each_level_counts_as_each_node_has_it(self, level: Level) -> None:
        world = World()
        _, answers = world[N1].wait(5, level=level, reach=Scope.QUORUM)
        world.talk()
        for name in (N2, N3):
            assert answers == []
            node = world[name]
            {
                Level.ORDERED: lambda node=node: node.commit(5),
                Level.DURABLE: lambda node=node: node.barriers.durable(A, 5),
                Level.APPLIED: lambda node=node: node.apply(A, 5),
                Level.SNAPSHOTTED: lambda node=node: node.barriers.snapshotted(A, 5),
            }[level]()
            world.talk()
        assert reached(answers)

    def test_what_others_had_reached_before_is_heard_of(self) -> None:
        world = World()
        for name in (N2, N3):
            world[name].apply(A, 9)
        _, answers = world[N1].wait(5, reach=Scope.QUORUM)
        assert answers == []
        world.talk()
        assert reached(answers)

    def test_two_majorities_of_two_partitions_need_not_be_the_same(self) -> None:
        world = World()
        _, answers = world[N1].wait(5, [A, B], reach=Scope.QUORUM)
        world.talk()
        for name, partition in ((N1, A), (N2, A), (N2, B), (N3, B)):
            assert answers == []
            apply(world, name, 5, partition)
        assert reached(answers)

    def test_a_timeout_tells_how_far_the_scope_was(self) -> None:
        world = World()
        _, answers = world[N1].wait(9, reach=Scope.QUORUM, deadline=1.0)
        world.talk()
        apply(world, N2, 9)
        world[N1].barriers.expire(1.0)
        assert isinstance(answers[0], BarrierTimeout)
        assert (answers[0].behind, answers[0].frontiers) == ([A], {A: 0})


class TestCost:
    def test_nobody_says_anything_when_nobody_waits(self) -> None:
        world = World()
        for name in NODES:
            apply(world, name, 5)
            world[name].commit(5)
        world.talk()
        assert world.frames == 0

    def test_what_is_below_the_target_is_not_told_and_what_is_above_is_told_once(self) -> None:
        world = World()
        world[N1].wait(50, reach=Scope.ALL)
        world.talk()
        asked = world.frames
        for index in range(1, 50):
            apply(world, N2, index)
        assert world.frames == asked
        for index in range(50, 99):
            apply(world, N2, index)
        assert world.frames == asked + 1

    def test_after_the_answer_nothing_is_left_anywhere(self) -> None:
        world = World()
        waiter, _ = world[N1].wait(5, PARTITIONS, reach=Scope.ALL)
        world.talk()
        assert [len(world[name].telling) for name in NODES] == [0, 3, 3]
        assert waiter is not None
        world[N1].barriers.cancel(waiter)
        world.talk()
        assert [len(world[name].telling) for name in NODES] == [0, 0, 0]
        assert [len(world[name].barriers) for name in NODES] == [0, 0, 0]
        assert len(world[N1].others) == 0

    def test_many_moves_between_two_looks_are_one_row(self) -> None:
        world = World()
        for target in (10, 20, 30):
            world[N1].wait(target, reach=Scope.ALL)
        world.talk()
        for index in range(10, 40):
            world[N2].apply(A, index)
        world.talk()
        assert world.rows == 1

    def test_more_than_fits_a_frame_is_asked_for_in_several(self) -> None:
        others = Frontiers()
        others.set_members(N1, NODES, NODES)
        count = 2 * FRAME_ROWS + 1
        others.want(Want(tuple((PartitionId(p), GlobalLogIndex(1)) for p in range(count))))
        sizes = []
        while N2 in others.due():
            sizes.append(len(others.ask(N2)["rows"]))
            others.asked(N2)
        assert sizes == [FRAME_ROWS, FRAME_ROWS, 1]

    def test_how_many_are_asked_for_has_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dispatcher.barriers.frontiers.ROWS_MAX", 2)
        world = World()
        world[N1].wait(5, [A, B], reach=Scope.ALL)
        with pytest.raises(QuotaExceeded):
            world[N1].wait(5, [A, C], reach=Scope.ALL)
        assert len(world[N1].barriers) == 1
        world[N1].wait(6, [A, B], reach=Scope.QUORUM)


class TestLooking:
    def test_who_wants_to_see_progress_hears_of_it_each_time_that_it_looks_and_only_then(self) -> None:
        world = World()
        waiter, _ = world[N1].wait(50, reach=Scope.QUORUM)
        world.talk()
        assert waiter is not None
        seen = []
        for index in (7, 9, 20):
            for name in (N2, N3):
                apply(world, name, index - 1)
            frames = world.frames
            for name in (N2, N3):
                apply(world, name, index)
            assert world.frames == frames
            world[N1].barriers.progress(waiter, float(index))
            world.talk()
            seen.append(world[N1].barriers.progress(waiter, float(index)).frontiers)
            world.talk()
        assert seen == [[(A, 7)], [(A, 9)], [(A, 20)]]

    def test_however_often_and_however_many_look_others_are_asked_ten_times_a_second(self) -> None:
        """Each time all nodes were, a hundred times a second, for each row that somebody waits for."""
        world = World()
        waiters = [world[N1].wait(target, reach=Scope.QUORUM)[0] for target in (50, 60)]
        world.talk()
        frames = world.frames
        for now in (1.0, 1.01, 1.02, 1.09):
            for waiter in waiters:
                assert waiter is not None
                world[N1].barriers.progress(waiter, now)
                world.talk()
        once = world.frames - frames
        assert once == 4, "two nodes, and their answers"
        assert waiters[0] is not None
        world[N1].barriers.progress(waiters[0], 1.11)
        world.talk()
        assert world.frames - frames == 2 * once

    def test_looking_frees_what_it_took(self) -> None:
        world = World()
        waiter, _ = world[N1].wait(50, reach=Scope.ALL)
        assert waiter is not None
        for now in range(3):
            world[N1].barriers.progress(waiter, float(now))
            world.talk()
        assert [len(world[name].barriers) for name in NODES] == [1, 1, 1]
        world[N1].barriers.cancel(waiter)
        world.talk()
        assert [len(world[name].barriers) for name in NODES] == [0, 0, 0]


class TestLinks:
    def test_a_new_link_is_asked_anew(self) -> None:
        world = World()
        world.sever(N1, N2)
        world.sever(N1, N3)
        _, answers = world[N1].wait(5, reach=Scope.QUORUM)
        for name in (N2, N3):
            apply(world, name, 5)
        assert answers == []
        world.mend(N1, N2)
        world.talk()
        assert answers == []
        world.mend(N1, N3)
        world.talk()
        assert reached(answers)

    def test_what_a_node_has_said_stays_true_when_it_is_gone(self) -> None:
        world = World()
        _, answers = world[N1].wait(5, reach=Scope.QUORUM)
        world.talk()
        apply(world, N2, 5)
        world.sever(N1, N2)
        world[N1].apply(A, 5)
        assert reached(answers)

    def test_a_node_that_is_gone_is_told_nothing_more(self) -> None:
        world = World()
        world[N1].wait(5, reach=Scope.ALL)
        world.talk()
        world.sever(N1, N2)
        assert len(world[N2].barriers) == 0

    def test_a_node_that_recovers_says_nothing_until_it_has(self) -> None:
        world = World()
        world[N2].shows = False
        _, answers = world[N1].wait(5, reach=Scope.QUORUM)
        world.talk()
        apply(world, N3, 5)
        apply(world, N2, 5)
        world[N2].telling.tick()
        world.talk()
        assert answers == []
        world[N2].shows = True
        world[N2].telling.tick()
        world.talk()
        assert reached(answers)

    def test_a_partition_that_is_not_there_yet_is_told_of_once_it_is(self) -> None:
        world = World()
        world[N2].watermarks.remove(B)
        _, answers = world[N1].wait(5, [B], reach=Scope.QUORUM)
        world.talk()
        apply(world, N1, 5, B)
        world[N2].watermarks.add(B)
        world[N2].telling.tick()
        apply(world, N2, 5, B)
        assert reached(answers)


class TestMembers:
    def test_whoever_is_removed_counts_no_longer_and_a_new_one_does(self) -> None:
        world = World()
        world.members((N1, N2), (N1, N2))
        _, answers = world[N1].wait(5, reach=Scope.QUORUM)
        world.talk()
        apply(world, N1, 5)
        apply(world, N3, 5)
        assert answers == []
        world.members(NODES, NODES)
        world.talk()
        assert reached(answers)

    def test_a_majority_that_lost_its_members_is_none(self) -> None:
        """Both were there once, one of them does not count any more when the other partition gets there."""
        world = World()
        _, answers = world[N1].wait(5, [A, B], reach=Scope.QUORUM)
        world.talk()
        apply(world, N2, 5, A)
        apply(world, N3, 5, A)
        world.members((N1, N2), (N1, N2))
        apply(world, N1, 5, B)
        apply(world, N2, 5, B)
        assert answers == []
        apply(world, N1, 5, A)
        assert reached(answers)

    def test_a_learner_counts_among_all_and_for_no_quorum(self) -> None:
        world = World()
        world.members(NODES, (N1, N2))
        told = {scope: world[N1].wait(5, reach=scope)[1] for scope in BOTH}
        world.talk()
        apply(world, N1, 5)
        apply(world, N3, 5)
        assert told == {scope: [] for scope in BOTH}
        apply(world, N2, 5)
        assert all(map(reached, told.values()))

    def test_with_nobody_known_nothing_is_reached(self) -> None:
        desk = Desk()
        desk.apply(A, 5)
        _, answers = desk.wait(5, reach=Scope.QUORUM)
        assert answers == []


def test_one_that_moved_and_was_destroyed_before_anybody_was_told() -> None:
    """Found by the simulator (seed 8): a KeyError in a timer."""
    world = World()
    for partition in (A, B):
        world[N1].wait(5, [partition], reach=Scope.ALL)
    world.talk()
    world[N2].apply(A, 5)
    world[N2].apply(B, 5)
    world[N2].barriers.ended(A, lambda: PartitionDestroyed("gone"))
    world[N2].watermarks.remove(A)
    header = world[N2].telling.tell(N1)
    assert [row[0] for row in header["rows"]] == [B]
    world.talk()
    assert world[N2].telling.due() == []


ROW = [3, 2, 5, 9, True]


@pytest.mark.parametrize(
    "row",
    [
        3,
        [],
        ROW[:4],
        [*ROW, 1],
        [-1, 2, 5, 9, True],
        [3, 4, 5, 9, True],
        [3, 2, "5", 9, True],
        [3, 2, 5, 1 << 62, True],
        [3, 2, 5, 9, 1],
    ],
)
def test_bad_rows_of_what_is_wanted_cut_the_link(row: object) -> None:
    assert parse_wanted({"rows": [ROW]}) == [(3, Level.APPLIED, 5, 9, True)]
    for header in ({"rows": [row]}, {}, {"rows": 3}):
        with pytest.raises(ProtocolError):
            parse_wanted(header)


@pytest.mark.parametrize(
    "row", [[3, 2, 5], [3, 4, 5, "running"], [3, 2, -5, "running"], [3, 2, 5, "dreaming"], [3, 2, 5, 7]]
)
def test_bad_rows_of_what_is_told_cut_the_link(row: object) -> None:
    assert parse_told({"rows": [[3, 1, 5, "paused"]]}) == [(3, Level.DURABLE, 5, "paused")]
    with pytest.raises(ProtocolError):
        parse_told({"rows": [row]})
    with pytest.raises(ProtocolError):
        parse_told({"rows": [[3, 1, 5, "paused"]] * (FRAME_ROWS + 1)})


def test_levels_between_nodes_are_those_that_are_written_down() -> None:
    assert [str(level) for level in LEVELS] == ["ordered", "durable", "applied", "snapshotted"]


def test_new_members_measure_those_who_wait_anew() -> None:
    desk = Desk()
    exchange = Exchange(
        node_id=N1,
        barriers=desk.barriers,
        watermarks=desk.watermarks,
        links=lambda: SimpleNamespace(send=None),
        may_show=lambda _: True,
        hurry=lambda _: None,
    )
    exchange.asking.poke = lambda: None
    exchange.members_changed(configuration(NODES))
    desk.apply(A, 5)
    _, answers = desk.wait(5, reach=Scope.QUORUM)
    exchange.members_changed(configuration((N1, N2)))
    assert answers == []
    exchange.members_changed(configuration((N1,)))
    assert reached(answers)


def configuration(voters: tuple[NodeId, ...]) -> Configuration:
    return Configuration(tuple(Seat(node, "p:1", "c:1", Role.VOTER) for node in voters))


async def test_nodes_of_an_earlier_release_are_asked_nothing() -> None:
    """They would cut the link."""
    desk, sent, knows = Desk(), [], {N2}
    links = SimpleNamespace(
        send=lambda peer, kind, _: (sent.append((peer, kind)), True)[1], speaks=lambda peer, _: peer in knows
    )
    exchange = Exchange(
        node_id=N1,
        barriers=desk.barriers,
        watermarks=desk.watermarks,
        links=lambda: links,
        may_show=lambda _: True,
        hurry=lambda _: None,
    )
    exchange.asking.set_members(N1, NODES, NODES)
    desk.wait(5, reach=Scope.QUORUM)
    exchange.tick()
    assert sent == [(N2, Kind.FRONTIERS_WANTED)]
    knows.add(N3)
    exchange.tick()
    assert sent[1:] == [(N3, Kind.FRONTIERS_WANTED)]
    exchange.close()


def test_more_than_there_is_ever_room_for_is_not_to_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.barriers.frontiers.ROWS_MAX", 2)
    frontiers = Frontiers()
    with pytest.raises(InvalidRequest, match="at most 2"):
        frontiers.want(Want(tuple((PartitionId(p), GlobalLogIndex(1)) for p in range(3)), reach=Scope.ALL))
    assert len(frontiers) == 0
