"""How writes to a partition are answered, set while it has data: by whom, since when, and who is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from dispatcher.pipeline.agreement import Agreement
from dispatcher.pipeline.choosing import WAITERS_MAX, Acknowledgement, Choosing
from dispatcher.pipeline.submitting import Submitting
from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest, acknowledged_at
from dispatcher.sessions import admin
from logboom.errors import (
    DeadlineExceeded,
    IncompatibleVersion,
    InvalidRequest,
    LogboomError,
    NoSuchPartition,
    NotLeader,
    PartitionDestroyed,
    PartitionPaused,
    Unavailable,
    UnknownOutcome,
)
from logboom.settings import ClusterSettings, PartitionSettings, RaftSettings
from logboom.types import PARTITION_SETTINGS, Ack, Level, NodeId, PartitionId
from raftlog.entries.agreed import agreeing
from raftlog.entries.chosen import NOTHING, Chosen
from raftlog.entries.lifecycle import ID_MAX, Lifecycle
from tests.unit.dispatcher.pending_desk import PRODUCER, RECORDS, Desk
from tests.unit.dispatcher.stage import KV, Stage

A, B, C = map(PartitionId, range(3))
DURABLE = Chosen(Ack.DURABLE)
LINEARIZABLE = Chosen(linearizable=True)


class Leader(Stage):
    """Of three nodes, of which some may be of a release before; it is agreed on what a set needs, unless said."""

    def __init__(self, *, earlier: tuple[str, ...] = (), agreed: bool = True) -> None:
        super().__init__()
        self.node_id = NodeId("n1")
        self.members = SimpleNamespace(
            ids=(NodeId("n2"), NodeId("n3")), seats=[SimpleNamespace(node=n) for n in ("n1", "n2", "n3")]
        )
        self.raft.links = SimpleNamespace(
            connected=lambda _: True, speaks=lambda node, _: node not in earlier, knew=lambda *_: False
        )
        self.raft.engine = SimpleNamespace(term=5)
        self.raft.fatal = lambda error: pytest.fail(str(error))
        self.settings = SimpleNamespace(raft=RaftSettings())
        self.agreement = Agreement(cast(Any, self))
        self.anew: list[PartitionId] = []
        self.pending = SimpleNamespace(acknowledge_anew=self.anew.append)
        self.choosing = Choosing(cast(Any, self), missing=self.partitioning.missing)
        self.clock = SimpleNamespace(monotonic=lambda: 0.0)
        for partition_id in self.workers:
            self.opened(partition_id)
        if agreed:
            self.parent.control(2, 1, agreeing([PARTITION_SETTINGS]))

    def opened(self, partition_id: PartitionId) -> None:
        self.workers[partition_id] = SimpleNamespace(is_paused=False)

    def choose(self, partition: int, chosen: Chosen = DURABLE, *, token: int = 1) -> Any:
        return self.choosing.choose(PartitionId(partition), chosen, token.to_bytes(16, "big"), self.told.append)

    def hand_up(self) -> str:
        return self.choosing.handed_up(self.proposed.pop(0))

    def leader_address(self) -> str:
        return "n2:7"


class TestChoosing:
    def test_it_counts_and_is_told_once_it_is_handed_up(self) -> None:
        leader = Leader()
        leader.choose(B)
        assert (leader.told, leader.choosing.of(B)) == ([], Acknowledgement(B, Ack.APPLIED, linearizable=False))
        assert leader.hand_up() == ""
        assert leader.told == [Acknowledgement(B, Ack.DURABLE, linearizable=False)] == [leader.choosing.of(B)]
        assert leader.anew == [B]
        assert leader.choosing.of(A).ack is Ack.APPLIED

    def test_where_nothing_is_applied_whoever_waits_for_that_now_is_told(self) -> None:
        leader, told = Leader(), list[PartitionId]()
        leader.submitting.paused = told.append
        for is_paused in (False, True):
            leader.workers[B] = SimpleNamespace(is_paused=is_paused)
            leader.choose(B, LINEARIZABLE)
            leader.hand_up()
            assert told == [B] * is_paused
            assert leader.anew == [B] * (1 + is_paused)

    def test_nor_is_another_partition_of_his_request_applied(self) -> None:
        """It was paused before; he waited for its commit until now, and would have waited for nothing."""
        leader, desk = Leader(), Desk()
        leader.cluster = ClusterSettings(partitions=2, ack=Ack.COMMITTED)
        desk.pending._level_of = lambda asked, partitions: acknowledged_at(
            asked, partitions, leader.cluster, leader.parent.chosen
        )
        leader.pending = desk.pending  # type: ignore[assignment]
        leader.submitting.paused = lambda p: desk.pending.paused(
            p, lambda: PartitionPaused("p", partition_id=p, outcome="unknown")
        )
        leader.workers[B].is_paused = True
        _, both = desk.submit(None, [A, B])  # type: ignore[arg-type]
        _, elsewhere = desk.submit(None, [B])  # type: ignore[arg-type]
        leader.choose(A, LINEARIZABLE)
        leader.hand_up()
        assert [(type(each), each.fields["partition_id"]) for each in both] == [(PartitionPaused, B)]  # type: ignore[union-attr]
        assert elsewhere == []

    def test_who_follows_takes_it_as_well(self) -> None:
        leader, follower = Leader(), Leader()
        leader.choose(B, LINEARIZABLE)
        follower.raft.admits = False
        follower.choosing.handed_up(leader.proposed[0])
        leader.hand_up()
        assert follower.choosing.of(B) == leader.choosing.of(B) == (B, Ack.APPLIED, True)
        assert follower.parent.encode() == leader.parent.encode()
        assert follower.told == []

    def test_each_hears_of_what_counts_behind_his_own(self) -> None:
        leader = Leader()
        leader.choose(B, DURABLE, token=1)
        leader.choose(B, Chosen(Ack.COMMITTED, linearizable=True), token=2)
        leader.hand_up()
        leader.hand_up()
        assert leader.told == [(B, Ack.DURABLE, False), (B, Ack.COMMITTED, True)]

    def test_who_asks_again_with_his_token_is_told_of_the_first_if_that_is_under_way(self) -> None:
        leader = Leader()
        leave = leader.choose(B)
        leave()
        leader.choose(B)
        assert len(leader.proposed) == 1
        leader.hand_up()
        assert leader.told == [(B, Ack.DURABLE, False)]
        leader.choose(B)  # he has not heard of it
        leader.hand_up()
        assert leader.told == [(B, Ack.DURABLE, False)] * 2

    @pytest.mark.parametrize(("partition", "chosen"), [(A, DURABLE), (B, LINEARIZABLE)])
    def test_who_asks_for_something_else_with_a_token_that_is_under_way_is_not_told_of_that(
        self, partition: PartitionId, chosen: Chosen
    ) -> None:
        """It was not proposed, and he was told that it counts."""
        leader = Leader()
        leader.choose(B)
        leader.choose(partition, chosen)
        leader.hand_up()
        assert leader.told == [(B, Ack.DURABLE, False)]
        leader.hand_up()
        assert leader.told[1:] == [leader.choosing.of(partition)]
        assert leader.parent.chosen[partition] == (DURABLE if partition == A else DURABLE.then(LINEARIZABLE))

    @pytest.mark.parametrize("partition", [2, 9])
    def test_one_that_there_is_not(self, partition: int) -> None:
        leader = Leader()
        leader.recovery.remove(A)
        with pytest.raises(NoSuchPartition):
            leader.choose(partition)
        assert not leader.proposed

    def test_one_that_is_destroyed(self) -> None:
        leader = Leader()
        leader.recovery.remove(A)
        leader.workers[B] = None
        leader.partitioning.destroy(B, lambda _: None)
        leader.choose(B)  # behind that
        leader.commit()
        del leader.workers[B]
        assert "does not exist" in leader.hand_up()
        assert [type(each) for each in leader.told] == [PartitionDestroyed]
        assert leader.anew == []
        with pytest.raises(PartitionDestroyed):
            leader.choose(B)

    def test_only_who_leads_proposes(self) -> None:
        leader = Leader()
        leader.raft.admits = False
        with pytest.raises(NotLeader):
            leader.choose(B)
        assert not leader.proposed

    def test_what_was_lost_nobody_knows(self) -> None:
        leader = Leader()
        leader.choose(B)
        leader.choosing.lost_leadership()
        assert [type(each) for each in leader.told] == [UnknownOutcome]
        leader.hand_up()  # the next leader had it
        assert leader.choosing.of(B).ack is Ack.DURABLE
        assert len(leader.told) == 1

    def test_so_many_wait_and_no_more(self) -> None:
        leader = Leader()
        leave = [leader.choose(B, token=number) for number in range(WAITERS_MAX)]
        leave[0]()  # what was proposed is still under way
        with pytest.raises(Unavailable, match="many wait"):
            leader.choose(B, token=WAITERS_MAX)
        leader.hand_up()
        leader.choose(B, token=1)
        for token in (1, WAITERS_MAX):
            with pytest.raises(Unavailable, match="many wait"):
                leader.choose(B, token=token)

    def test_not_while_a_member_is_of_an_earlier_release(self) -> None:
        leader = Leader(earlier=("n3",), agreed=False)
        with pytest.raises(IncompatibleVersion, match="n3: of an earlier release"):
            leader.choose(B)
        with pytest.raises(IncompatibleVersion, match="n3: of an earlier release"):
            leader.partitioning.create(KV, bytes(16), leader.told.append, DURABLE)
        leader.partitioning.create(KV, bytes(16), leader.told.append)
        assert [fields.keys() & {"ack", "linearizable"} for fields in leader.proposed] == [set()]

    def test_it_is_agreed_on_when_somebody_first_sets_something(self) -> None:
        leader = Leader(agreed=False)
        with pytest.raises(Unavailable, match="being agreed on"):
            leader.choose(B)
        assert leader.proposed == [agreeing([PARTITION_SETTINGS])]
        leader.parent.control(2, 5, leader.proposed.pop())
        leader.choose(B)
        leader.hand_up()
        assert leader.told == [(B, Ack.DURABLE, False)]

    @pytest.mark.parametrize("why", ["room", "capacity", "log"])
    def test_nothing_is_agreed_on_for_a_creation_that_is_refused(self, why: str) -> None:
        """It closed the way back to an earlier release, for nothing."""
        leader = Leader(agreed=False)
        refuses = Mock(side_effect=InvalidRequest("no"))
        if why == "room":
            leader.rooms.check_room = refuses
        elif why == "capacity":
            leader.partitioning.capacity.check = refuses  # type: ignore[method-assign]
        else:
            leader.parent.lifecycle = Lifecycle(next_id=ID_MAX)
        with pytest.raises(InvalidRequest):
            leader.partitioning.create(KV, bytes(16), leader.told.append, DURABLE)
        assert leader.proposed == []

    def test_nor_for_one_whose_machine_cannot_be_opened(self) -> None:
        leader = Leader(agreed=False)
        leader.trial = lambda _: None
        leader.offload.submit = lambda job, done: leader.jobs.append(lambda: done(None, ValueError("no")))
        leader.partitioning.create(KV, bytes(16), leader.told.append, DURABLE)
        assert [str(each) for each in leader.work()] == ["it cannot be opened: ValueError('no')"]
        assert leader.proposed == []

    def test_a_machine_is_tried_before_it_is_agreed_on_that_one_is_created_with_it(self) -> None:
        leader = Leader(agreed=False)
        leader.trial = lambda _: setattr(leader, "trial", None)
        leader.partitioning.create(KV, bytes(16), leader.told.append, DURABLE)
        assert leader.proposed == []
        leader.work()
        assert [str(each) for each in leader.told] == ["partition_settings is being agreed on; try again"]
        assert leader.proposed == [agreeing([PARTITION_SETTINGS])]

    def test_a_partition_is_created_with_it(self) -> None:
        leader = Leader()
        leader.partitioning.create(KV, bytes(16), leader.told.append, Chosen(Ack.COMMITTED, linearizable=True))
        leader.commit()
        assert leader.work() == [C]
        assert leader.choosing.of(C) == (C, Ack.COMMITTED, True)
        leader.choose(C, Chosen(linearizable=False))
        leader.hand_up()
        assert leader.choosing.of(C) == (C, Ack.COMMITTED, False)


class TestAsking:
    """ADMIN ``set_partition``, and ``create_partition`` with the same fields."""

    @staticmethod
    async def act(leader: Leader, *, within: float = 5.0, **header: Any) -> Any:
        asked = {"action": "set_partition", "partition": 1, "token": bytes(16), "ack": "durable", **header}
        return await admin.act(cast(Any, leader), {k: v for k, v in asked.items() if v is not None}, within)

    async def test_the_answer_says_what_counts(self) -> None:
        leader = Leader()
        loop = asyncio.get_running_loop()
        leader.raft.propose_control = lambda fields: loop.call_soon(leader.choosing.handed_up, fields)
        assert await self.act(leader, linearizable=True) == {"partition": 1, "ack": "durable", "linearizable": True}
        assert await self.act(leader, ack=None, linearizable=False) == {
            "partition": 1,
            "ack": "durable",
            "linearizable": False,
        }

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"ack": None}, "say what to set"),
            ({"ack": "snapshotted"}, "ack must be committed, durable or applied"),
            ({"ack": 3}, "ack must be"),
            ({"ack": b"durable"}, "ack must be"),
            ({"linearizable": "yes"}, "linearizable must be bool"),
            ({"linearizable": 1}, "linearizable must be bool"),
            ({"token": b"short"}, "token must have 16 bytes"),
            ({"token": None}, "token is missing"),
            ({"partition": None}, "partition is missing"),
            ({"partition": "1"}, "partition must be int"),
        ],
    )
    async def test_what_is_no_request(self, wrong: dict[str, Any], says: str) -> None:
        leader = Leader()
        with pytest.raises(InvalidRequest, match=says):
            await self.act(leader, **wrong)
        assert not leader.proposed

    @pytest.mark.parametrize("wrong", [{"ack": "soon"}, {"linearizable": 1}])
    async def test_nor_is_a_creation_with_what_cannot_be(self, wrong: dict[str, Any]) -> None:
        leader = Leader()
        leader.cluster = ClusterSettings(partitions=2)
        with pytest.raises(InvalidRequest):
            await self.act(leader, action="create_partition", **wrong)
        assert not leader.proposed

    async def test_who_leads_is_told_and_a_deadline_kept(self) -> None:
        leader = Leader()
        with pytest.raises(DeadlineExceeded, match="ask again") as late:
            await self.act(leader, within=0.0)
        assert late.value.outcome == "unknown"
        leader.raft.admits = False
        with pytest.raises(NotLeader) as other:
            await self.act(leader)
        assert other.value.fields["leader"] == "n2:7"


class TestAnswering:
    """What counts for a request is what the log says in front of it."""

    CLUSTER = ClusterSettings(ack=Ack.COMMITTED, overrides={"1": PartitionSettings(linearizable=True)})

    @pytest.mark.parametrize(
        ("asked", "partitions", "expected"),
        [
            (None, [0], Level.DURABLE),
            (Level.COMMITTED, [0], Level.COMMITTED),
            (Level.APPLIED, [0], Level.APPLIED),
            (None, [1], Level.COMMITTED),
            (Level.DURABLE, [1], Level.DURABLE),
            (Level.COMMITTED, [2], Level.APPLIED),
            (None, [3], Level.COMMITTED),
            (None, [0, 1, 3], Level.DURABLE),
            (Level.COMMITTED, [0, 1, 2], Level.APPLIED),
        ],
    )
    def test_the_log_counts_before_the_settings(
        self, asked: Level | None, partitions: list[int], expected: Level
    ) -> None:
        chosen = {A: DURABLE, B: Chosen(Ack.COMMITTED, linearizable=False), C: LINEARIZABLE}
        assert acknowledged_at(asked, list(map(PartitionId, partitions)), self.CLUSTER, chosen) is expected

    @staticmethod
    def desk(chosen: dict[PartitionId, Chosen], cluster: ClusterSettings) -> Desk:
        desk = Desk()
        desk.pending._level_of = lambda asked, partitions: acknowledged_at(asked, partitions, cluster, chosen)
        return desk

    @pytest.mark.parametrize("asked", [None, Level.COMMITTED, Level.DURABLE])
    def test_a_request_that_was_proposed_before_and_is_behind_it(self, asked: Level | None) -> None:
        chosen = dict[PartitionId, Chosen]()
        desk = self.desk(chosen, ClusterSettings(ack=Ack.COMMITTED))
        (first,), in_front = desk.submit(asked, [A])  # type: ignore[arg-type]
        desk.commit(*first, 1)
        (second,), behind = desk.submit(asked, [A])  # type: ignore[arg-type]
        (other,), elsewhere = desk.submit(asked, [B])  # type: ignore[arg-type]
        chosen[A] = LINEARIZABLE
        desk.pending.acknowledge_anew(A)
        for number, (partition, last) in enumerate((second, other), 2):
            desk.commit(partition, last, number)
            desk.sync(partition, last)
        desk.sync(A, 2)
        assert [len(in_front), len(behind), len(elsewhere)] == [1, 0, 1]
        assert desk.pending.awaits_applied(A)
        desk.apply(*first)
        desk.apply(*second)
        assert [type(each) for each in behind] == [SubmitReply]
        assert not desk.pending.awaits_applied(A)
        desk.apply(*other)
        assert desk.used == (0, 0)

    def test_a_request_that_says_nothing_waits_for_less_where_less_is_said(self) -> None:
        chosen = dict[PartitionId, Chosen]()
        desk = self.desk(chosen, ClusterSettings())
        ends, said = desk.submit(Level.APPLIED, [A, B])
        more, silent = desk.submit(None, [A, B])  # type: ignore[arg-type]
        chosen[A] = chosen[B] = Chosen(Ack.COMMITTED)
        desk.pending.acknowledge_anew(B)
        for number, (partition, last) in enumerate([*ends, *more], 1):
            desk.commit(partition, last, number)
        assert (len(said), len(silent)) == (0, 1)
        for partition, last in [*ends, *more]:
            desk.apply(partition, last)
        assert len(said) == 1
        assert not desk.pending.awaits_applied(A)
        assert not desk.pending.awaits_applied(B)

    def test_what_is_lost_after_it_was_set_anew_leaves_nobody_waiting(self) -> None:
        chosen = dict[PartitionId, Chosen]()
        desk = self.desk(chosen, ClusterSettings(ack=Ack.COMMITTED))
        _, told = desk.submit(None, [A])  # type: ignore[arg-type]
        chosen[A] = LINEARIZABLE
        desk.pending.acknowledge_anew(A)
        assert desk.pending.awaits_applied(A)
        desk.pending.lost()
        assert not desk.pending.awaits_applied(A)
        assert [type(each) for each in told] == [UnknownOutcome]


@pytest.mark.parametrize(("known", "expected"), [(True, None), (False, Level.DURABLE)])
def test_a_leader_of_an_earlier_release_is_told_what_a_request_waits_for(known: bool, expected: Level | None) -> None:
    """It would take what says nothing for whatever it does itself where nothing is set."""
    passed: list[SubmitRequest] = []
    pipeline: Any = SimpleNamespace(
        node_id="n1",
        forwarding=SimpleNamespace(forward=lambda leader, request, done: passed.append(request) or True),
        raft=SimpleNamespace(engine=SimpleNamespace(leader="n2"), links=SimpleNamespace(speaks=lambda *_: known)),
        level_of=lambda asked, partitions: Level.DURABLE if (asked, partitions) == (None, [A]) else asked,
    )
    request = SubmitRequest(PRODUCER, 0, False, None, 9.0, (SubmitPart(A, 0, 0, RECORDS),), 4, forward=True)
    submitting: Any = SimpleNamespace(_pipeline=pipeline)
    Submitting._redirect(submitting, request, pytest.fail)
    Submitting._redirect(submitting, request._replace(wait=Level.COMMITTED), pytest.fail)
    assert [each.wait for each in passed] == [expected, Level.COMMITTED]


def test_an_error_has_an_outcome() -> None:
    """Whoever is refused by a leader knows that nothing was set."""
    leader = Leader(earlier=("n2",), agreed=False)
    with pytest.raises(LogboomError) as refused:
        leader.choose(B, NOTHING.then(DURABLE))
    assert (refused.value.outcome, refused.value.retryable) == ("not_applied", False)
