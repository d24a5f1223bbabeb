"""A void that is asked for: what has changed while the members were asked."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from dispatcher.pipeline.voiding import Voiding
from dispatcher.reading.feeds import FeedRequest
from dispatcher.reading.tail import Tail
from logboom.errors import CorruptData, InvalidRequest, NotLeader, Unavailable, Voided
from logboom.types import GlobalLogIndex, Level, NodeId, PartitionId, PartitionLogIndex
from logboom.wire import Kind
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from raftlog.entries.lifecycle import Change
from raftlog.entries.parent_state import ParentState
from raftlog.entries.voids import Void, Voids
from raftlog.links.lacks import Lack
from raftlog.repair.repair import ASK_AGAIN_S
from raftlog.repair.seals import Seals
from raftlog.repair.standing import Standing
from tests.unit.dispatcher import reading_world
from tests.unit.partitions.batches import chain
from tests.unit.partitions.holes_world import GONE, commit, with_hole
from tests.unit.partitions.mending_world import flush, open_log
from tests.unit.raftlog.holes_world import A, World, route

P, DIGEST = PartitionId(3), b"d" * 32


async def test_who_may_not_propose_any_more_once_all_have_answered_seals_nothing() -> None:
    """Sealed and not proposed, the batch was refused by all when somebody brought it: its partition stayed lost."""
    sealed: list[bytes] = []
    asked: list[bool] = []
    raft = SimpleNamespace(
        admits=True,
        engine=SimpleNamespace(term=7),
        repair=SimpleNamespace(
            seals=Seals(lambda digest, _: sealed.append(digest)),
            ask_all=lambda _, *, void: asked.append(void),
        ),
        propose_control=lambda _: pytest.fail("proposed"),
    )
    voiding: Any = Voiding(SimpleNamespace(raft=raft))  # type: ignore[arg-type]
    hole = SimpleNamespace(first_index=4, last_index=5, digest=DIGEST, global_index=9)
    voiding.declaring._known = lambda *_: None
    voiding.declaring._hole_at = lambda *_: (SimpleNamespace(digest=DIGEST), hole)

    async def ask(*_: object, **__: object) -> dict[str, Lack]:
        raft.admits = False  # of the same term still: another lead is being handed over, or another batch is damaged
        return {"n1": Lack.ABSENT, "n2": Lack.ABSENT}

    voiding.declaring._ask = ask
    with pytest.raises(NotLeader):
        await voiding.void(P, 4, yes=True, deadline=0.0)
    assert sealed == []
    assert asked == [False], "nor do others keep their seals"


@pytest.mark.parametrize(
    ("yes", "whole", "renewed", "said"),
    [
        (False, True, [], "n1 has a snapshot that stands for the batch: it is not lost$"),
        (True, True, [(P, 5)], "it is not lost; start n1 again, which goes on from there$"),
        (True, False, [(P, 5)], "the snapshot of n1 that stood for the batch is damaged: ask again$"),
    ],
)
async def test_what_a_set_of_its_own_has_is_not_void_and_the_next_start_goes_on_from_that(
    yes: bool, whole: bool, renewed: list[tuple[PartitionId, int]], said: str
) -> None:
    """What it did was thrown away though it was on the disk; whoever was given that set had it."""
    asked: list[bool] = []

    def own(_: object, *, sets: bool) -> Lack:
        return Lack.COMPACTED if sets else Lack.DAMAGED

    async def run(job: Callable[[], bool]) -> bool:
        return job()

    seals = Seals(lambda *_: None)

    def ask_all(_: object, *, void: bool) -> int:
        assert (DIGEST in seals) == void, "nobody is asked anything else meanwhile"
        asked.append(void)
        return 1

    repair = SimpleNamespace(own=own, ask_all=ask_all, said=lambda *_: {}, seals=seals)
    raft = SimpleNamespace(
        admits=True,
        engine=SimpleNamespace(term=7),
        repair=repair,
        propose_control=lambda _: pytest.fail("proposed"),
    )
    pipeline = SimpleNamespace(
        raft=raft,
        node_id="n1",
        clock=SimpleNamespace(monotonic=lambda: 0.0),
        payloads=SimpleNamespace(holds=lambda _: False),
        offload=SimpleNamespace(run=run),
    )
    voiding: Any = Voiding(pipeline)  # type: ignore[arg-type]
    found = list[tuple[PartitionId, int]]()
    voiding.declaring.renew = lambda *which: found.append(which) or whole
    voiding.declaring._known = lambda *_: None
    hole = SimpleNamespace(first_index=4, last_index=5, digest=DIGEST, global_index=9)
    voiding.declaring._hole_at = lambda *_: (SimpleNamespace(last_index=5, digest=DIGEST), hole)
    with pytest.raises(InvalidRequest, match=said):
        await voiding.void(P, 4, yes=yes, deadline=0.0)
    assert (asked, found, DIGEST in seals) == ([True, False] if yes else [False], renewed, False)


class Covered(World):
    """Nobody has the batch, and A has a set: it says so when sets count."""

    def send(self, peer: NodeId, kind: Kind, header: dict[str, Any], body: list[Any]) -> bool:
        counts = header.get("void") or header.get("sets", 0) & 1
        lack = Lack.COMPACTED if peer == A and counts else Lack.ABSENT
        self.say(peer, lack, term=header["term"], asked=header["asked"])
        return super().send(peer, kind, header, body)


async def test_asked_again_the_same_is_said_of_what_another_node_has_in_a_set() -> None:
    """Later there was no hole, though the partition was lost; who only looked was shown that nobody had it."""
    world = Covered()
    world.standing = Standing(4, NodeId("me"), True)
    world.misses(5, committed=True)
    for _ in range(4):
        world.now += ASK_AGAIN_S
        world.repair.work()
    hole = SimpleNamespace(first_index=5, last_index=5, digest=route(5).digest, global_index=9)
    raft = SimpleNamespace(admits=True, engine=SimpleNamespace(term=4), repair=world.repair)
    pipeline = SimpleNamespace(
        raft=raft,
        node_id="me",
        logs={PartitionId(0): SimpleNamespace(place_of=lambda *_: hole)},
        clock=SimpleNamespace(monotonic=lambda: world.now),
        payloads=world.payloads,
        parent=SimpleNamespace(voids=Voids()),
    )
    voiding: Any = Voiding(pipeline)  # type: ignore[arg-type]
    told = set[str]()
    for yes in (False, True, False, True):
        with pytest.raises(InvalidRequest) as refused:
            await voiding.void(PartitionId(0), 5, yes=yes, deadline=1e9)
        told.add(refused.value.message)
        for _ in range(4):
            world.now += ASK_AGAIN_S
            world.repair.work()
    (story,) = told
    assert "a has a snapshot that stands for the batch" in story
    assert "transfer leadership to a" in story


class Node:
    """One that is handed up a void: somebody's state has what the batch did."""

    def __init__(self, worker: Any, store: PartitionLog | None = None) -> None:
        self.stepped_over: list[bytes] = []
        self.remaking = False
        self.workers: dict[PartitionId, Any] = {} if worker is None else {P: worker}
        stepped = SimpleNamespace(
            void=lambda _, digest: self.stepped_over.append(digest),
            hole=None,
            excuse=lambda _: None,
            excuse_through=lambda _: None,
        )
        pipeline = SimpleNamespace(
            logs={P: stepped if store is None else store},
            workers=self.workers,
            pending=SimpleNamespace(voided=lambda *_: None),
            rebuilding=SimpleNamespace(is_remaking=lambda _: self.remaking),
            raft=SimpleNamespace(
                admits=False,
                repair=SimpleNamespace(seals=Seals(lambda *_: None), holes={}),
                mending=SimpleNamespace(voided=lambda _: None),
            ),
            parent=ParentState(),
        )
        self.parent = pipeline.parent
        self.raft = pipeline.raft
        self.voiding = Voiding(pipeline)  # type: ignore[arg-type]
        pipeline.moved = lambda _: None
        if store is None:
            self.carries_out(4, 5, DIGEST, 9)

    def carries_out(self, first: int, last: int, digest: bytes, global_index: int, *, applied: bool = True) -> None:
        row = P, PartitionLogIndex(first), PartitionLogIndex(last), digest, GlobalLogIndex(global_index), 12, applied
        self.voiding._carry_out(Void(*row))


def at(index: int) -> Any:
    return SimpleNamespace(applied_index=index, damage=None)


@pytest.mark.parametrize(
    ("worker", "stepped_over"), [(None, []), (at(3), []), (at(5), [DIGEST])], ids=["being opened", "behind", "there"]
)
def test_what_others_have_applied_is_stepped_over_by_nobody_who_may_lack_it(
    worker: Any, stepped_over: list[bytes]
) -> None:
    """A partition that was just being opened stepped over it: its state differed from then on."""
    node = Node(worker)
    assert node.stepped_over == stepped_over
    assert (node.voiding.set_needed() is None) == bool(stepped_over)


def test_of_one_that_is_destroyed_before_it_was_open_no_snapshot_is_needed() -> None:
    node = Node(None)
    node.parent.change(Change(P, P + 1))
    assert node.voiding.set_needed() is None


@pytest.mark.parametrize("remade", [3, 5])
def test_nor_while_the_state_is_made_anew(remade: int) -> None:
    """How far it will be nobody knew, and what had been damaged was taken for it."""
    node = Node(None)
    node.remaking, node.workers[P] = True, at(5)
    node.voiding.look_again(P)
    assert node.stepped_over == []
    node.remaking, node.workers[P] = False, at(remade)
    node.voiding.look_again(P)
    assert node.stepped_over == [DIGEST] * (remade == 5)
    assert (node.voiding.set_needed() is None) == (remade == 5)


OTHER = b"e" * 32


def test_what_another_void_steps_over_makes_up_for_none_that_others_have_applied() -> None:
    """The first was forgotten: the node waited for nothing, and its partition was lost there over all starts."""
    node = Node(at(3))
    node.carries_out(8, 8, OTHER, 13, applied=False)
    assert node.stepped_over == [OTHER]
    lacks = node.voiding.set_needed()
    assert lacks is not None
    assert (lacks.behind, "ends at 5" in lacks.story) == (8, True)
    node.carries_out(4, 5, DIGEST, 9, applied=False)  # whoever had it applied is lost, too
    assert (node.stepped_over, node.voiding.set_needed()) == ([OTHER, DIGEST], None)


def test_a_state_that_has_what_several_did_steps_over_all_of_them() -> None:
    node = Node(None)
    node.carries_out(8, 8, OTHER, 13)
    lacks = node.voiding.set_needed()
    assert lacks is not None
    assert (lacks.behind, "ends at 5" in lacks.story) == (8, True), "a set from behind the first"
    node.workers[P] = at(9)
    node.voiding.look_again(P)
    assert (node.stepped_over, node.voiding.set_needed()) == ([DIGEST, OTHER], None)


def test_one_of_several_is_stepped_over_where_the_state_has_no_more() -> None:
    node = Node(None)
    node.carries_out(8, 8, OTHER, 13)
    node.workers[P] = at(5)
    node.voiding.look_again(P)
    lacks = node.voiding.set_needed()
    assert lacks is not None
    assert (node.stepped_over, lacks.behind) == ([DIGEST], 12)


def test_what_lies_behind_one_that_others_have_applied_is_durable_and_it_is_lost_all_the_same() -> None:
    """Those who had applied it could apply nothing behind it, and so never gave the set that this node waits for."""
    _, log, batches = with_hole()
    before, gone = batches[GONE - 1].last_index, batches[GONE]
    node = Node(at(before), log)
    node.carries_out(gone.header.first_index, gone.last_index, gone.digest, GONE + 1)
    assert log.durable_index == batches[-1].last_index
    hole = node.voiding.hole_of(P)
    assert hole is not None
    assert (hole.first_index, hole.digest) == (gone.header.first_index, gone.digest)
    with pytest.raises(DamagedBatch):
        log.read_committed(after_index=before, through_index=1 << 40, max_bytes=1)
    node.workers[P] = at(gone.last_index)
    assert node.voiding.lacks(P, gone.digest)
    node.voiding.look_again(P)
    assert not node.voiding.lacks(P, gone.digest)
    assert node.voiding.hole_of(P) is None
    with pytest.raises(Voided):
        log.read_committed(after_index=before, through_index=1 << 40, max_bytes=1)


@pytest.mark.parametrize("level", [Level.DURABLE, Level.APPLIED])
@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("void", [True, False])
def test_whoever_reads_up_to_it_is_told_that_no_more_comes_here(*, void: bool, follow: bool, level: Level) -> None:
    """He waited in front of it for ever, since what is behind it is durable; or was told that the log ends there.

    Then he was told that nobody has it, and that this is final: it is void, and others go on behind it.
    """
    _, log, batches = with_hole()
    before, gone = batches[GONE - 1].last_index, batches[GONE]
    worker = SimpleNamespace(
        applied_index=before, damage=SimpleNamespace(last_index=gone.last_index, digest=gone.digest)
    )
    node, world, client = Node(worker, log), reading_world.World(1), reading_world.Client()
    node.raft.repair.holes = {gone.digest: 1}
    if void:
        node.carries_out(gone.header.first_index, gone.last_index, gone.digest, GONE + 1)
    elif level is Level.APPLIED:
        log.excuse(gone.last_index)  # its state was made anew from a snapshot in front of it
    world.logs[P], world.applied[P], world.lost = log, before, {gone.digest}
    world.hole_of = node.voiding.hole_of  # type: ignore[method-assign,assignment]
    world.lacks_void = node.voiding.lacks  # type: ignore[method-assign,assignment]
    Tail(world, P, FeedRequest(credit=1 << 20, follow=follow, level=level), **client.how()).move()
    while world.jobs:
        world.work()
    assert reading_world.indexes(client) == [*range(1, before + 1)]
    (end,) = client.ends
    if void:
        assert isinstance(end, Unavailable)
        assert end.fields["retry_after"] > 0
    else:
        assert isinstance(end, CorruptData)
        assert end.fields == {"first_index": gone.header.first_index, "last_index": gone.last_index}


def test_one_that_turns_up_after_all_holds_up_nothing() -> None:
    _, log, batches = with_hole()
    node, gone = Node(at(batches[GONE - 1].last_index), log), batches[GONE]
    node.carries_out(gone.header.first_index, gone.last_index, gone.digest, GONE + 1)
    assert log.append(gone)
    flush(log)
    assert node.voiding.hole_of(P) is None
    assert node.voiding.set_needed() is not None, "it is still to be applied"
    node.workers[P] = at(gone.last_index)
    assert node.voiding.set_needed() is None


@pytest.mark.parametrize("turned", [False, True])
def test_of_many_each_is_looked_at_once(*, turned: bool) -> None:
    """For each of them all were: declared void one after the other, or heard of at a start, they held the loop."""
    node, excused = Node(at(3)), list[int]()
    store: Any = node.voiding._pipeline.logs[P]
    store.excuse = excused.append
    store.holds = lambda last, _: last == 5  # it has turned up
    store.place_of = lambda last, _: last
    many = range(10, 60)
    for index in reversed(many) if turned else many:
        node.carries_out(index, index, b"%16d" % index, index)
    assert sorted(excused) == [*many]
    assert node.voiding.hole_of(P) == 10, "the first of those that hold it up"


def test_the_log_of_one_that_is_not_open_goes_on_once_it_is_known_what_its_state_has() -> None:
    """Else the journal came to begin behind what a state that nobody has looked at may lack."""
    _, log, batches = with_hole()
    node, gone = Node(None, log), batches[GONE]
    node.carries_out(gone.header.first_index, gone.last_index, gone.digest, GONE + 1)
    assert log.durable_index == batches[GONE - 1].last_index
    node.workers[P] = at(0)
    node.voiding.look_again(P)
    assert log.durable_index == batches[-1].last_index


def test_what_the_state_has_holds_up_nothing_though_something_in_front_is_not_synced_yet() -> None:
    """Nobody looked again once that was synced: the node was lost until it was started anew."""
    log, batches = open_log(SimDisk(random.Random(1))), chain(7)
    for number, batch in enumerate(batches):
        assert log.concede(batch.last_index, batch.digest) if number == GONE else log.append(batch)
    commit(log, batches)
    node = Node(at(batches[GONE].last_index), log)
    node.voiding.look_again(P)
    flush(log)
    assert (node.voiding.hole_of(P), log.durable_index) == (None, batches[-1].last_index)
