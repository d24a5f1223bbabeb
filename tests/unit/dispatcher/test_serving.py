"""What a node gives of its log while its own disk is behind the others'."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from chaos.sim.disk import SimDisk
from dispatcher.upkeep.serving import OFFER_AGAIN_S, Piece, SnapshotServing
from logboom.errors import CorruptData, IndexCompacted, InvalidRequest, Unavailable
from logboom.types import GlobalLogIndex, NodeId, PartitionLogIndex
from logboom.wire import Frame, Kind
from partitions.log.holes import Hole
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from tests.unit.dispatcher.installing_world import G, Inline, Source, Target, Wire
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import append, chain, commit, grown, open_log

BATCHES = chain(4)
N2, N3, N_TARGET = NodeId("n2"), NodeId("n3"), NodeId("t")
LAST = BATCHES[-1]


@pytest.fixture
def log() -> PartitionLog:
    """Others have synced its last batch, which is committed; its own write of it is under way."""
    made = open_log(SimDisk(random.Random(1)))
    append(made, BATCHES[:-1])
    made.append(LAST)
    assert made.take() is not None
    commit(made, BATCHES)
    assert (made.durable_index, made.committed_index) == (BATCHES[-2].last_index, LAST.last_index)
    return made


def read(log: PartitionLog, kind: Kind, after: int) -> Piece:
    serving = SnapshotServing(
        store=SimpleNamespace(sets=list),  # type: ignore[arg-type]
        logs={P: log},
        links=None,  # type: ignore[arg-type]
        clock=SimpleNamespace(monotonic=lambda: 0.0),  # type: ignore[arg-type]
        offload=None,  # type: ignore[arg-type]
        damaged=lambda *_: None,
        handed_up=lambda: 1 << 40,
    )
    header: dict[str, Any] = {"global_index": 0, "partition": int(P), "after": after, "through": 1 << 40}
    return serving._job(Frame(kind, 7, header))()


@pytest.mark.parametrize("kind", [Kind.LOG_READ, Kind.LOG_FETCH])
def test_what_is_not_written_yet_is_neither_given_nor_called_damaged(log: PartitionLog, kind: Kind) -> None:
    piece = read(log, kind, 0)
    assert b"".join(piece.body) == b"".join(bytes(part) for batch in BATCHES[:-1] for part in batch.buffers)


def test_a_reader_gets_nothing_yet_and_a_node_asks_another_one(log: PartitionLog) -> None:
    after = BATCHES[-2].last_index
    assert read(log, Kind.LOG_READ, after).header["rows"] == []
    with pytest.raises(Unavailable, match="durable up to"):
        read(log, Kind.LOG_FETCH, after)


def test_where_a_log_begins_is_told_as_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: the index was of before a compaction, the digest of afterwards."""
    _, made, batches = grown()
    made.save_places(batches[-1].last_index)()
    read_raw = made.read_raw

    def removed_just_before(**options: int) -> Any:
        made.compact(batches[20].header.first_index)()
        return read_raw(**options)

    monkeypatch.setattr(made, "read_raw", removed_just_before)
    header = read(made, Kind.LOG_FETCH, 0).header
    assert header["rows"] == []
    assert made.holds(header["first"] - 1, header["before"])
    assert header["first"] > 1


def test_what_turns_up_while_it_is_read_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer had neither it nor a reason, and whoever was being given a set gave up all of it."""
    source = Source("a", Wire(), lost=(2,))
    gone = source.batches[2]

    def turns_up(after: int) -> Any:
        monkeypatch.undo()
        found = source.log.lost_behind(after)
        append(source.log, [gone])
        return found

    monkeypatch.setattr(source.log, "lost_behind", turns_up)
    with pytest.raises(Unavailable, match="ask again"):
        read(source.log, Kind.LOG_FETCH, source.batches[1].last_index)
    rows = read(source.log, Kind.LOG_FETCH, source.batches[1].last_index).header["rows"]
    assert len(rows) == len(source.batches) - 2


@pytest.mark.parametrize(("handed_up", "offered"), [(9, 30), (10, 10), (29, 20), (30, 30), (99, 30)])
def test_the_newest_set_is_offered_whose_logs_are_here(handed_up: int, offered: int) -> None:
    """After a start a leader of two could not give the logs of its newest set before the other one had that set."""
    sent: list[Any] = []
    sets = [SimpleNamespace(global_index=index, raft_index=index) for index in (10, 20, 30)]
    serving = SnapshotServing(
        store=SimpleNamespace(sets=lambda: sets),  # type: ignore[arg-type]
        logs={},
        links=SimpleNamespace(send=lambda _, kind, header: sent.append((kind, header))),  # type: ignore[arg-type]
        clock=SimpleNamespace(monotonic=lambda: 0.0),  # type: ignore[arg-type]
        offload=None,  # type: ignore[arg-type]
        damaged=lambda *_: None,
        handed_up=lambda: handed_up,
    )
    serving.offer(NodeId("n2"))
    serving.offer(NodeId("n2"))  # not so soon again
    assert sent == [(Kind.SNAPSHOT_OFFER, {"global_index": offered, "raft_index": offered})]


class Asked:
    """A node that is asked by others and by clients; what it tells whom."""

    def __init__(self, *, sets: tuple[int, ...] = (), fails: Exception | None = None, hold_s: float = 0.0) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.ups: Counter[NodeId] = Counter()
        self.damaged: list[Any] = []
        self.lost: list[Hole | None] = []
        """What the log says is lost, whenever it is asked; behind that nothing is."""
        self.fails = fails
        self.now = 0.0
        self.acknowledged: dict[NodeId, int] = {}
        self.short_of_room = False
        self.sets = list(sets)
        log = SimpleNamespace(
            durable_index=9,
            read_raw=self._read,
            beginning=(1, b"", 0),
            void_behind=lambda _: None,
            lost_behind=lambda _: self.lost.pop(0) if self.lost else None,
        )
        self.serving = SnapshotServing(
            store=SimpleNamespace(  # type: ignore[arg-type]
                sets=lambda: [SimpleNamespace(global_index=index, raft_index=index) for index in self.sets]
            ),
            logs={P: log},  # type: ignore[dict-item]
            links=SimpleNamespace(send=self._send, ups=self.ups),  # type: ignore[arg-type]
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            offload=Inline(),  # type: ignore[arg-type]
            damaged=lambda *what: self.damaged.append(what),
            handed_up=lambda: 1 << 40,
            hold_s=hold_s,
            acknowledged=self.acknowledged.get,
            short_of_room=lambda: self.short_of_room,
        )

    async def given(self, peer: str, index: int) -> None:
        """This node asks for a piece of this set, and gets it."""
        frame = self.frame(Kind.LOG_FETCH, global_index=index)
        self.serving.on_frame(NodeId(peer), frame)
        await asyncio.sleep(0)

    def held(self, now: float, *asked: int) -> int | None:
        """The oldest that is kept when these sets have just been asked for, and older ones are about to be removed."""
        self.now = now
        for index in asked:
            frame = self.frame(Kind.SNAPSHOT_READ, global_index=index, file="states", offset=0)
            self.serving._job(frame)
        return min(self.serving.held_back(), default=None)

    def _read(self, **_: int) -> list[Any]:
        if self.fails is not None:
            raise self.fails
        return []

    def _send(self, peer: str, kind: Kind, header: dict[str, Any], body: Any = (), *, request_id: int = 0) -> bool:
        self.sent.append((peer, kind, header, request_id))
        return True

    def frame(self, kind: Kind, **header: Any) -> Frame:
        return Frame(kind, 7, {"global_index": 0, "partition": int(P), "after": 0, "through": 9, **header})


DAMAGE = DamagedBatch("bits", last_index=PartitionLogIndex(3), digest=bytes(16), segment=1, path="1.seg", offset=0)


async def test_what_turns_up_while_it_is_asked_for_leaves_no_answer_without_a_reason() -> None:
    """Whoever fetched took that for a node that talks nonsense."""
    asked, hole = Asked(fails=DAMAGE), Hole(PartitionLogIndex(1), PartitionLogIndex(3), bytes(16), GlobalLogIndex(5))
    asked.lost = [hole]
    await asked.given("n2", 0)
    (_, kind, header, _) = asked.sent[-1]
    assert (kind, header["error"]["code"]) == (Kind.LOG_CHUNK, "unavailable"), "it is there when it is asked for again"


@pytest.mark.parametrize(("sets", "offers"), [((), 0), ((10,), 1)])
async def test_a_node_that_wants_a_set_is_offered_one_if_there_is_any(sets: tuple[int, ...], offers: int) -> None:
    asked = Asked(sets=sets)
    asked.serving.on_frame(NodeId("n2"), Frame(Kind.SNAPSHOT_WANTED, 0, {}))
    assert [kind for _, kind, *_ in asked.sent] == [Kind.SNAPSHOT_OFFER] * offers


def test_that_there_is_none_to_offer_is_said_once() -> None:
    """Who waits for one asks again and again, and waited for ever without a word."""
    asked = Asked()
    with capture_logs() as lines:
        for _ in range(3):
            asked.now += OFFER_AGAIN_S
            asked.serving.offer(NodeId("n2"))
        assert [(line["event"], line["peer"]) for line in lines] == [("no_snapshot_to_offer", "n2")]
        asked.sets = [10]
        asked.serving.offer(NodeId("n2"))
        asked.sets = []
        asked.serving.offer(NodeId("n2"))
    assert [line["event"] for line in lines] == ["no_snapshot_to_offer"] * 2


@pytest.mark.parametrize(
    ("fails", "code", "told"), [(DAMAGE, "corrupt_data", [(P, DAMAGE)]), (OSError("bits"), "unavailable", [])]
)
async def test_what_cannot_be_read_is_answered_and_damage_is_seen_to(fails: Exception, code: str, told: Any) -> None:
    asked = Asked(fails=fails)
    asked.serving.on_frame(NodeId("n2"), asked.frame(Kind.LOG_FETCH))
    await asyncio.sleep(0)
    ((peer, kind, header, number),) = asked.sent
    assert (peer, kind, header["error"]["code"], number) == ("n2", Kind.LOG_CHUNK, code, 7)
    assert asked.damaged == told


@pytest.mark.parametrize("fails", [None, DAMAGE])
async def test_whoever_is_started_again_while_it_is_read_is_not_given_what_its_process_of_before_had_asked(
    fails: Exception | None,
) -> None:
    """Found by review: each process counts its questions anew, and takes what comes under that number for an answer."""
    asked = Asked(fails=fails)
    asked.serving.on_frame(N2, asked.frame(Kind.LOG_FETCH))
    asked.ups[N2] += 1
    await asyncio.sleep(0)
    assert asked.sent == []
    assert asked.damaged == ([] if fails is None else [(P, fails)]), "it is damaged, whoever asked"


def test_who_asks_again_and_again_holds_a_set_back_for_so_long_and_no_longer() -> None:
    """Found by review: a client, or a node that joins and is restarted again and again, kept all logs for ever."""
    asked = Asked(sets=(10, 20), hold_s=60.0)
    assert asked.held(0.0, 10) == asked.held(900.0, 10) == 10, "its time is not over"
    asked.sets.append(30)
    assert asked.held(1_000.0, 10) == asked.held(1_020.0, 10) == 10
    assert asked.held(1_050.5) is None, "nobody asks any more"
    assert asked.held(1_059.9, 10, 20) == 10
    with capture_logs() as lines:
        assert asked.held(1_060.0, 10, 20) == 20
    assert [(each["event"], each["global_index"]) for each in lines] == [("snapshot_held_too_long", 10)]
    assert asked.held(1_061.0, 10) == 20
    asked.sets.remove(10)
    assert asked.held(1_200.0, 20, 30) == 20
    assert not asked.serving._held_since, "of what is gone nothing is remembered"


def test_without_a_bound_it_is_held_as_long_as_anybody_asks() -> None:
    asked = Asked(sets=(10, 20, 30))
    assert {asked.held(now, 10) for now in (0.0, 29.0, 1e6, 1e9)} == {10}


LATER = 31.0
"""The last piece was given so long ago: its receiver may be loading."""


class TestMembers:
    async def test_what_one_has_been_given_is_kept_until_its_log_has_come_as_far_as_others_begin(self) -> None:
        """With states that took long to load it came back to a log that began later, and was given all of it anew."""
        asked = Asked(sets=(10, 20, 30))
        asked.acknowledged[N2] = 1
        await asked.given("n2", 10)
        assert asked.held(LATER) == asked.held(1e6) == 10
        asked.acknowledged[N2] = 10  # it is there, and what came since is still on its way
        assert asked.held(1e6) == 10
        asked.acknowledged[N2] = 20
        assert asked.held(1e6) is None
        asked.sets.append(40)
        assert asked.held(1e6) is None, "as any other that lags"

    async def test_the_oldest_of_all_counts(self) -> None:
        asked = Asked(sets=(10, 20, 30, 40))
        asked.acknowledged |= {N2: 1, N3: 1}
        await asked.given("n3", 20)
        await asked.given("n2", 10)
        assert asked.held(LATER) == 10
        asked.acknowledged[N2] = 99
        assert asked.held(LATER) == 20
        await asked.given("n3", 30)
        asked.acknowledged[N3] = 1
        assert asked.held(2 * LATER + 1) == 30, "it has begun with a newer one"

    async def test_each_has_its_own_kept(self) -> None:
        asked = Asked(sets=(10, 20, 30, 40, 50))
        asked.acknowledged |= {N2: 1, N3: 1}
        await asked.given("n3", 30)
        await asked.given("n2", 10)
        asked.now = LATER
        assert asked.serving.held_back() == {10, 30}

    async def test_one_that_is_no_member_any_more_and_a_node_that_does_not_lead_hold_nothing_back(self) -> None:
        asked = Asked(sets=(10, 20, 30))
        await asked.given("n2", 10)
        assert asked.held(0.0) == 10
        assert asked.held(LATER) is None
        asked.acknowledged[N2] = 1
        assert asked.held(LATER) == 10, "it leads now"

    async def test_one_that_never_comes_back_is_waited_for_so_long_and_no_longer(self) -> None:
        asked = Asked(sets=(10, 20, 30), hold_s=60.0)
        asked.acknowledged[N2] = 1
        await asked.given("n2", 10)
        assert asked.held(LATER) == asked.held(LATER + 59) == 10
        with capture_logs() as lines:
            assert asked.held(LATER + 60) is None
        assert [(each["event"], each["global_index"]) for each in lines] == [("snapshot_held_too_long", 10)]
        assert asked.held(LATER + 61) is None

    async def test_nor_where_nobody_could_write(self) -> None:
        asked = Asked(sets=(10, 20, 30))
        asked.acknowledged[N2] = 1
        await asked.given("n2", 10)
        asked.short_of_room = True
        assert asked.held(0.0) == 10, "it asks"
        assert asked.held(LATER) is None

    async def test_of_sets_that_are_gone_nothing_is_remembered(self) -> None:
        asked = Asked(sets=(10, 20, 30))
        asked.acknowledged[N2] = 1
        await asked.given("n2", 10)
        asked.sets.remove(10)
        assert asked.held(LATER) is None
        assert not asked.serving._given


async def test_a_client_is_told_the_same() -> None:
    asked = Asked(fails=DAMAGE)
    with pytest.raises(DamagedBatch):
        await asked.serving.read(asked.frame(Kind.LOG_READ))
    assert asked.damaged == [(P, DAMAGE)]
    for wrong in ({"partition": 99}, {"after": -1}, {"through": "x"}):
        with pytest.raises(InvalidRequest):
            await asked.serving.read(asked.frame(Kind.LOG_READ, **wrong))
    asked.fails = None
    assert (await asked.serving.read(asked.frame(Kind.LOG_READ))).header["rows"] == []


def rot(source: Source, offset: int) -> None:
    name = next(each for each in source.disk.list(Path("/s/snapshots")) if each.endswith(".states"))
    source.disk.flip(Path("/s/snapshots") / name, offset, 1)


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_set_that_was_given_whole_and_is_asked_for_anew_is_doubted(*, damaged: bool) -> None:
    """It was given, again and again, to whoever needed it, and passed for one that has what its batches did."""
    wire = Wire()
    source, target = Source("a", wire, big=100), Target(wire)
    if damaged:
        rot(source, 5000)
    source.serving.offer(N_TARGET)
    await target.ended()
    assert (bool(target.store.sets()), source.doubted) == (not damaged, [G] if damaged else [])


async def test_so_it_is_where_another_node_has_it_whole_which_is_asked_from_then_on() -> None:
    """Whoever had given the rotten one was never asked again: it stayed, and passed for whole."""
    wire = Wire()
    rotten, whole, target = Source("a", wire, big=100), Source("b", wire, big=100), Target(wire)
    rot(rotten, 5000)
    rotten.serving.offer(N_TARGET)
    await target.ended()
    whole.serving.offer(N_TARGET)
    await target.ended()
    assert ([meta.global_index for meta in target.store.sets()], len(target.ready)) == ([G], 1)
    assert (rotten.doubted, whole.doubted) == ([G], [])


async def test_so_it_is_of_who_gave_a_part_of_it() -> None:
    wire = Wire()
    rotten, other, target = Source("a", wire), Source("b", wire), Target(wire)
    rot(rotten, 5000)

    def cut(frame: Frame) -> Frame:
        wire.down.discard("a")
        if frame.kind is Kind.SNAPSHOT_FETCH and frame.header["offset"] == 1 << 20:
            wire.down.add("a")  # for this one answer
            target.installing.peer_down(NodeId("a"))
        return frame

    wire.spoil = cut
    rotten.serving.offer(N_TARGET)
    await target.ended()
    gave = {peer for peer, _, kind, header in wire.log if kind is Kind.SNAPSHOT_CHUNK and header["total"] > 1 << 20}
    assert gave == {"a", "b"}
    assert (rotten.doubted, other.doubted) == ([G], [G]), "it may be either"


async def test_who_was_given_a_part_and_begins_anew_as_after_a_start_doubts_nothing() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)

    def ends(frame: Frame) -> Frame:
        if frame.kind is Kind.SNAPSHOT_FETCH and frame.header["offset"] == 1 << 20:
            wire.down.add("t")
        return frame

    wire.spoil = ends
    source.serving.offer(N_TARGET)
    while "t" not in wire.down:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await target.installing.close()
    wire.spoil, wire.down = lambda frame: frame, set()
    again = Target(wire, target.disk)
    source.now += OFFER_AGAIN_S
    source.serving.offer(N_TARGET)
    await again.ended()
    assert ([meta.global_index for meta in again.store.sets()], source.doubted) == ([G], [])


async def test_a_set_that_cannot_be_given_is_doubted() -> None:
    wire = Wire()
    source = Source("a", wire, big=100)
    rot(source, 3)
    for kind in (Kind.SNAPSHOT_FETCH, Kind.SNAPSHOT_READ):
        frame = Frame(kind, 7, {"global_index": int(G), "file": "states", "offset": 0})
        if kind is Kind.SNAPSHOT_FETCH:
            source.serving.on_frame(N_TARGET, frame)
            await asyncio.sleep(0.01)
        else:
            with pytest.raises(CorruptData):
                await source.serving.read(frame)
    assert source.doubted == [G, G]
    source.store.drop(G)
    with pytest.raises(IndexCompacted):
        await source.serving.read(frame)
    assert source.doubted == [G, G], "it is gone"
