"""One connection's barriers and watches: what is asked, what is told meanwhile, and that nothing is left behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any, ClassVar, cast

import pytest

from dispatcher.requests.requests import acknowledged_at
from dispatcher.sessions import waits as waits_module
from dispatcher.sessions.waits import Waits
from logboom.errors import (
    BarrierTimeout,
    InvalidRequest,
    LineageMismatch,
    LogboomError,
    NoSuchPartition,
    NotLeader,
    QuotaExceeded,
    Unavailable,
)
from logboom.settings import ClusterSettings, PartitionSettings
from logboom.types import Ack, Level, PartitionId
from logboom.wire import FLAG_MORE, Frame, Kind
from tests.unit.dispatcher.barrier_desk import A, B, C
from tests.unit.dispatcher.waits_world import World

D = PartitionId(3)


class TestBarriers:
    def test_the_answer_tells_where_each_partition_is(self) -> None:
        world = World()
        world.ask(Kind.BARRIER, {"targets": [[A, 3], [B, 5]], "level": "durable"})
        assert world.hurried == [A, B]
        world.barriers.durable(A, 4)
        world.barriers.durable(B, 5)
        [(request_id, kind, header, flags)] = world.sent
        assert (request_id, kind, flags) == (1, Kind.REACHED, 0)
        assert header["frontiers"] == [[A, 4], [B, 5]]
        assert [row[0] for row in header["watermarks"]] == [A, B]
        assert (header["cluster"], header["node"], header["global_index"]) == ("here", "n1", 42)

    def test_of_those_that_are_named_no_others_are_looked_at(self) -> None:
        """All were sorted, and a set made of them, for each request: a millisecond of the loop with ten thousand."""
        world = World()
        world.partition_ids = lambda: pytest.fail("looked at")  # type: ignore[method-assign]
        world.ask(Kind.BARRIER, {"targets": [[A, 3]], "level": "durable"})
        world.ask(Kind.BARRIER, {"global_index": 3, "partitions": [B]}, request_id=2)
        assert not world.failed

    def test_without_partitions_all_are_meant(self) -> None:
        world = World()
        world.ask(Kind.BARRIER, {"global_index": 1, "mode": 2})
        world.apply(A, 1)
        assert world.sent == []
        world.apply(C, 1)
        assert len(world.sent) == 1

    def test_all_is_not_all_but_one(self) -> None:
        """One that was just being opened here, of which something was committed, was left out."""
        world = World()

        def passed_over() -> None:
            raise Unavailable("partition 9 is being opened")

        world.partitioning.check_all = passed_over
        with pytest.raises(Unavailable, match="being opened"):
            world.ask(Kind.BARRIER, {"global_index": 1})
        world.ask(Kind.BARRIER, {"global_index": 0, "partitions": [A]})
        assert len(world.sent) == 1

    @pytest.mark.parametrize("scope", ["node", "leader", "quorum", "all"])
    @pytest.mark.parametrize("level", ["applied", "durable", "ordered"])
    def test_all_are_all_that_there_are_once_it_is_reached(self, scope: str, level: str) -> None:
        """One that was created in front of the index, and handed up after somebody had asked, was left out."""
        world = World()
        world.raft.admits = True
        world.barriers.others.set_members("n1", ["n1"], ["n1"])
        world.ask(Kind.BARRIER, {"global_index": 1, "scope": scope, "level": level})
        world.ask(Kind.BARRIER, {"global_index": 1, "scope": scope, "level": level, "partitions": [A, B, C]}, 2)
        world.ask(Kind.BARRIER, {"global_index": 1, "scope": scope, "level": level, "mode": 3}, 3)
        world.create(D)
        for partition in (A, B, C):
            world.apply(partition, 1)
        world.commit(1)
        assert sorted(request_id for request_id, *_ in world.sent) == [2, 3]
        [(request_id, error)] = world.failed
        assert (request_id, type(error), error.retryable) == (1, Unavailable, True)
        world.ask(Kind.BARRIER, {"global_index": 1, "scope": scope, "level": level})
        assert len(world.sent) == (3 if level == "ordered" else 2)
        world.apply(D, 1)
        assert world.sent[-1][2]["frontiers"] == [[p, 1] for p in (A, B, C, D)]
        assert len(world.barriers) == len(world.waits._over_all) == 0

    def test_of_one_that_is_being_opened_meanwhile_too(self) -> None:
        world, opening = World(), Unavailable("partition 9 is being opened")

        def passed_over() -> None:
            raise opening

        world.ask(Kind.BARRIER, {"global_index": 1})
        world.partitioning.check_all = passed_over
        for partition in (A, B, C):
            world.apply(partition, 1)
        assert (world.sent, world.failed) == ([], [(1, opening)])

    @pytest.mark.parametrize("moved", ["created", "nothing", "time", "cancel", "close"])
    def test_where_others_are_there_first_this_node_waits_for_what_is_ordered(self, moved: str) -> None:
        """Of partitions that were created in front of there it has not heard, hence asked nobody."""
        world = World()
        world.ordered = 0
        world.barriers.others.set_members("n1", ["n1", "n2", "n3"], ["n1", "n2", "n3"])
        world.ask(Kind.BARRIER, {"global_index": 1, "scope": "quorum", "progress_ms": 20})
        world.sent.clear()
        for node in ("n2", "n3"):
            world.barriers.others.heard(node, {"rows": [[p, 2, 1, "running"] for p in (A, B, C)]})
        assert (world.sent, world.failed, len(world.barriers), world.timers) == ([], [], 1, [])
        if moved == "created":
            world.create(D)
        if moved in ("created", "nothing"):
            world.ordered = 1
            world.commit(1)
        elif moved == "time":
            world.barriers.expire(100.0)
        else:
            world.waits.cancel(1) if moved == "cancel" else world.waits.close()
        told = {"created": [Unavailable], "time": [BarrierTimeout]}.get(moved, [])
        assert [type(error) for _, error in world.failed] == told
        answers = [header["frontiers"] for _, _, header, _ in world.sent]
        assert answers == ([[[A, 1], [B, 1], [C, 1]]] if moved == "nothing" else [])
        assert len(world.barriers) == len(world.waits._over_all) == 0

    @pytest.mark.parametrize(
        ("header", "error"),
        [
            ({}, InvalidRequest),
            ({"global_index": 1, "scope": "galaxy"}, InvalidRequest),
            ({"global_index": 1, "scope": ["node"]}, InvalidRequest),
            ({"global_index": 1, "level": "cooked"}, InvalidRequest),
            ({"global_index": 1, "mode": 0}, InvalidRequest),
            ({"global_index": 1, "mode": 4}, InvalidRequest),
            ({"global_index": 1, "mode": True}, InvalidRequest),
            ({"global_index": 1, "mode": "most"}, InvalidRequest),
            ({"global_index": 1, "partitions": []}, InvalidRequest),
            ({"global_index": 1, "partitions": [9]}, NoSuchPartition),
            ({"targets": []}, InvalidRequest),
            ({"targets": [[9, 1]]}, NoSuchPartition),
            ({"targets": [[0, 1], [0, 2]]}, InvalidRequest),
            ({"targets": [[0, -1]]}, InvalidRequest),
            ({"targets": [0]}, InvalidRequest),
            ({"targets": 3}, InvalidRequest),
            ({"global_index": 1, "cluster": "elsewhere"}, LineageMismatch),
            ({"global_index": 1, "cluster": 3}, LineageMismatch),
            ({"global_index": 1, "cluster": "here", "lineage": ""}, LineageMismatch),
            ({"global_index": 1, "lineage": "cd" * 16}, LineageMismatch),
            ({"global_index": 1, "lineage": 3}, LineageMismatch),
            ({"global_index": 1, "scope": "leader"}, NotLeader),
        ],
    )
    def test_what_cannot_be_is_refused(self, header: dict[str, Any], error: type[LogboomError]) -> None:
        world = World()
        with pytest.raises(error):
            world.ask(Kind.BARRIER, header)
        assert len(world.barriers) == 0

    def test_nobody_is_answered_before_the_node_has_recovered(self) -> None:
        world = World()
        world.is_recovered = False
        with pytest.raises(Unavailable):
            world.ask(Kind.BARRIER, {"global_index": 0})

    def test_a_number_is_not_used_twice_at_a_time(self) -> None:
        world = World()
        world.ask(Kind.BARRIER, {"global_index": 1})
        with pytest.raises(InvalidRequest):
            world.ask(Kind.BARRIER, {"global_index": 1})
        world.waits.cancel(1)
        assert len(world.barriers) == 0
        world.ask(Kind.BARRIER, {"global_index": 1})

    def test_who_waits_for_the_leader_hears_when_it_leads_no_longer(self) -> None:
        world = World()
        world.raft.admits = True
        world.ask(Kind.BARRIER, {"global_index": 1, "scope": "leader"})
        world.ask(Kind.BARRIER, {"global_index": 1}, 2)
        world.barriers.lost_leadership(lambda: NotLeader("gone", leader=None))
        assert [(number, type(error)) for number, error in world.failed] == [(1, NotLeader)]

    def test_the_principal_is_counted_over_its_connections(self) -> None:
        world = World(waiters_per_principal=2)
        other = Waits(cast("Any", world), world, world.named, later=world._later)
        world.ask(Kind.BARRIER, {"global_index": 1})
        other.barrier(Frame(Kind.BARRIER, 1, {"global_index": 1}), 100.0, "me")
        with pytest.raises(QuotaExceeded):
            world.ask(Kind.BARRIER, {"global_index": 1}, 2)
        world.ask(Kind.BARRIER, {"global_index": 1}, 2, principal="you")
        other.close()
        world.ask(Kind.BARRIER, {"global_index": 1}, 3)


class TestProgress:
    HEADER: ClassVar = {"targets": [[A, 5], [B, 5]], "progress_ms": 20}

    def told(self, world: World) -> list[Any]:
        told = [(header["frontiers"], header["reached"]) for _, kind, header, _ in world.sent]
        world.sent.clear()
        return told

    def test_what_has_moved_is_told_and_nothing_else(self) -> None:
        world = World()
        world.ask(Kind.BARRIER, self.HEADER)
        assert self.told(world) == [([[A, 0], [B, 0]], 0)]
        world.tick()
        assert self.told(world) == []
        world.apply(A, 2)
        world.apply(A, 7)
        world.tick()
        assert self.told(world) == [([[A, 7]], 1)]

    def test_the_answer_is_the_last_word(self) -> None:
        world = World()
        world.ask(Kind.BARRIER, self.HEADER)
        world.apply(A, 5)
        world.apply(B, 5)
        assert [(kind, flags) for _, kind, _, flags in world.sent] == [
            (Kind.BARRIER_PROGRESS, FLAG_MORE),
            (Kind.REACHED, 0),
        ]
        assert world.timers == []

    def test_who_does_not_read_is_told_the_newest_later(self) -> None:
        world = World()
        world.room = False
        world.ask(Kind.BARRIER, self.HEADER)
        for index in (1, 2, 3):
            world.apply(A, index)
            world.tick()
        assert world.sent == []
        world.room = True
        world.tick()
        assert self.told(world) == [([[A, 3], [B, 0]], 0)]

    @pytest.mark.parametrize("how", ["cancel", "close", "time"])
    def test_each_way_out_ends_it(self, how: str) -> None:
        world = World()
        world.ask(Kind.BARRIER, self.HEADER)
        if how == "cancel":
            world.waits.cancel(1)
        elif how == "close":
            world.waits.close()
        else:
            world.barriers.expire(100.0)
        assert (world.timers, len(world.barriers)) == ([], 0)

    def test_of_too_many_partitions_nothing_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waits_module, "TARGETS_MAX", 1)
        world = World()
        with pytest.raises(InvalidRequest):
            world.ask(Kind.BARRIER, {"global_index": 1, "progress_ms": 20})


class TestWatching:
    def test_first_all_and_then_what_has_changed(self) -> None:
        world = World()
        world.ask(Kind.WATCH, {"partitions": [A, B], "every_ms": 50})
        world.apply(A, 3)
        world.apply(C, 9)
        world.tick()
        world.tick()
        rows = [
            ([row[0] for row in h["watermarks"]], h["first"], h["minimum"], h["whole"]) for _, _, h, _ in world.sent
        ]
        assert rows == [([A, B], True, 0, True), ([A], False, 0, True)]
        world.apply(B, 2)
        world.tick()
        assert world.sent[-1][2]["minimum"] == 2

    def test_all_are_whichever_there_are(self) -> None:
        world = World()
        world.ask(Kind.WATCH, {})
        world.watermarks.remove(B)
        world.tick()
        world.watermarks.add(B)
        world.tick()
        assert [header["gone"] for _, _, header, _ in world.sent] == [[], [B], []]
        assert [row[0] for row in world.sent[-1][2]["watermarks"]] == [B]

    def test_one_that_was_named_and_is_gone_ends_it(self) -> None:
        world = World()
        world.ask(Kind.WATCH, {"partitions": [A, B]})
        world.watermarks.remove(B)
        world.tick()
        assert [(number, type(error)) for number, error in world.failed] == [(1, NoSuchPartition)]
        assert world.timers == []

    def test_who_does_not_read_gets_the_newest_later(self) -> None:
        world = World()
        world.ask(Kind.WATCH, {"partitions": [A]})
        world.room = False
        for index in (1, 2, 3):
            world.apply(A, index)
            world.tick()
        assert len(world.sent) == 1
        world.room = True
        world.tick()
        assert [row[3] for row in world.sent[-1][2]["watermarks"]] == [3]
        assert len(world.sent) == 2

    def test_many_rows_take_several_frames(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dispatcher.sessions.watching.FRAME_ROWS", 2)
        world = World()
        world.ask(Kind.WATCH, {})
        assert [(len(h["watermarks"]), h["first"], h["whole"]) for _, _, h, _ in world.sent] == [
            (2, True, False),
            (1, False, True),
        ]

    def test_a_partition_that_is_named_often_is_looked_at_once(self) -> None:
        """A list of a hundred thousand times the same was gone through a hundred times a second."""
        world = World()
        world.ask(Kind.WATCH, {"partitions": [A, B, A, A]})
        world.waits.watermarks(Frame(Kind.WATERMARKS, 2, {"partitions": [B, A, B]}))
        assert [[row[0] for row in header["watermarks"]] for _, _, header, _ in world.sent] == [[A, B], [B, A]]

    def test_they_have_a_bound_and_end_with_the_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waits_module, "WATCHES_MAX", 2)
        world = World()
        for number in (1, 2):
            world.ask(Kind.WATCH, {}, number)
        with pytest.raises(QuotaExceeded):
            world.ask(Kind.WATCH, {}, 3)
        world.waits.cancel(1)
        world.ask(Kind.WATCH, {}, 3)
        world.waits.close()
        assert world.timers == []


class TestAcknowledgement:
    CLUSTER = ClusterSettings(
        ack=Ack.DURABLE,
        overrides={"1": PartitionSettings(ack=Ack.COMMITTED), "2": PartitionSettings(linearizable=True)},
    )

    @pytest.mark.parametrize(
        ("asked", "partitions", "expected"),
        [
            (None, [0], Level.DURABLE),
            (None, [1], Level.COMMITTED),
            (None, [0, 1], Level.DURABLE),
            (None, [0, 2], Level.APPLIED),
            (Level.COMMITTED, [0], Level.COMMITTED),
            (Level.COMMITTED, [1, 2], Level.APPLIED),
            (Level.APPLIED, [1], Level.APPLIED),
            (None, [99], Level.DURABLE),
        ],
    )
    def test_the_request_says_or_else_the_partitions_do(
        self, asked: Level | None, partitions: list[int], expected: Level
    ) -> None:
        assert acknowledged_at(asked, [PartitionId(each) for each in partitions], self.CLUSTER) is expected

    def test_a_linearizable_cluster_is_so_for_partitions_to_come(self) -> None:
        cluster = ClusterSettings(ack=Ack.COMMITTED, linearizable=True)
        for asked in (None, Level.COMMITTED, Level.DURABLE):
            assert acknowledged_at(asked, [PartitionId(77)], cluster) is Level.APPLIED

    def test_nobody_has_chosen_anything(self) -> None:
        assert acknowledged_at(None, [A, B], ClusterSettings()) is Level.APPLIED


def test_what_a_watch_was_asked_with_is_not_kept_for_as_long_as_it_lasts() -> None:
    """Its header was: 64 of them on each connection, for ever, with whatever was in it."""

    class Junk:
        pass

    world, junk = World(), Junk()
    gone = weakref.ref(junk)
    world.ask(Kind.WATCH, {"every_ms": 100, "junk": junk})
    del junk
    gc.collect()
    assert gone() is None
    assert world.waits._watches
