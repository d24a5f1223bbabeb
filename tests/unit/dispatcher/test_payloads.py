"""What a node says of batches whose partition it has no more."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from dispatcher.pipeline.payloads import PartitionPayloads
from logboom.errors import CorruptData, IndexCompacted, LogboomError, PartitionDestroyed
from logboom.types import NodeId, PartitionId, PartitionLogIndex, Term
from logboom.wire import Frame, Kind
from ports.seldom import LINES, Seldom
from raftlog.entries.entry import ROUTE, Route, pack_routes
from raftlog.journal.journal import Journal
from raftlog.links.feed import Feeds
from raftlog.links.lacks import Lack, unpack
from raftlog.links.payloads import DamagedPayload
from raftlog.repair.repair import Repair
from tests.unit.partitions.holes_world import GONE as GONE_BATCH
from tests.unit.partitions.holes_world import with_hole
from tests.unit.raftlog.world import MemoryDisk

PEER = NodeId("n2")
GONE, NOT_YET = PartitionId(1), PartitionId(7)


def route(partition_id: PartitionId) -> Route:
    return Route(partition_id, Term(1), PartitionLogIndex(3), partition_id.to_bytes(16, "little"))


@pytest.fixture
def payloads() -> PartitionPayloads:
    return PartitionPayloads({}, lambda _: None, gone=lambda each: each == GONE)


def journal_of(*routes: Route) -> Journal:
    journal = Journal.open(
        disk=MemoryDisk(), directory=Path("/j"), cluster_id="c", random_bytes=random.Random(0).randbytes
    )
    for index, each in enumerate(routes, 2):
        journal.add(pack_routes([each]), index, 1)
    journal.flush()
    return journal


class Wire:
    def __init__(self) -> None:
        self.sent: list[tuple[Kind, dict[str, Any]]] = []
        self.seldom = Seldom(lambda: 0.0)
        self.room: int | None = None
        """So many frames."""
        self.bodies = list[Any]()

    def send(self, _: NodeId, kind: Kind, header: dict[str, Any], body: list[Any]) -> bool:
        if not self.has_room(PEER):
            return False
        self.sent.append((kind, header))
        self.bodies += body
        return True

    def has_room(self, _: NodeId) -> bool:
        return self.room is None or len(self.sent) < self.room

    def congested(self, _: NodeId) -> bool:
        return False

    def queued(self, _: NodeId) -> int:
        return 0

    left_bytes = queued
    ups: ClassVar[Counter[str]] = Counter()


def submit(job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
    """At once; as the real one, ``done`` gets what was raised."""
    try:
        result, failure = job(), None
    except (LogboomError, OSError) as error:
        result, failure = None, error
    done(result, failure)


def test_who_asks_for_a_batch_of_a_destroyed_partition_is_told_that_it_is_removed(payloads: PartitionPayloads) -> None:
    """Else it asks for ever, and never learns that a snapshot is what it needs."""
    wire = Wire()
    repair = Repair(
        peers=[PEER],
        links=wire,  # type: ignore[arg-type]
        payloads=payloads,
        journal=journal_of(),
        offload=SimpleNamespace(submit=submit),  # type: ignore[arg-type]
        clock=SimpleNamespace(monotonic=lambda: 0.0),  # type: ignore[arg-type]
        damaged=lambda _: None,
    )
    body = b"".join(ROUTE.pack(*route(each)) for each in (GONE, NOT_YET))
    repair.on_frame(PEER, Frame(Kind.FETCH, 0, {"term": 1, "asked": 1}, memoryview(body)))
    [(kind, header)] = wire.sent
    assert kind is Kind.FETCHED
    assert dict(unpack(header)) == {route(GONE): Lack.COMPACTED, route(NOT_YET): Lack.UNKNOWN}


def test_of_a_partition_that_it_has_never_heard_of_it_has_nothing_and_says_so() -> None:
    """Nobody can tell it: whoever lacks a batch of it waits for this answer before anybody may lead."""
    touched = PartitionId(8)
    payloads = PartitionPayloads({}, lambda _: None, untouched=lambda each: each != touched)
    assert payloads.lack(route(NOT_YET)) is Lack.ABSENT
    assert payloads.lack(route(touched)) is Lack.UNKNOWN, "it may find it once it opens it"


def test_what_it_cannot_read_it_calls_by_its_name(payloads: PartitionPayloads) -> None:
    with pytest.raises(PartitionDestroyed):
        payloads.read(route(GONE))
    with pytest.raises(CorruptData, match="7 is not here"):
        payloads.read(route(NOT_YET))


@pytest.mark.parametrize("removed", [PartitionDestroyed("p", partition_id=1), IndexCompacted("i", first=9)])
def test_a_feed_outlives_what_is_removed_while_it_reads(payloads: PartitionPayloads, removed: LogboomError) -> None:
    wire, journal = Wire(), journal_of(route(GONE))

    def read(_: Route) -> bytes:
        raise removed

    payloads.read = read  # type: ignore[method-assign]
    feeds = Feeds(
        peers=[PEER],
        journal=journal,
        payloads=payloads,
        links=wire,  # type: ignore[arg-type]
        offload=SimpleNamespace(submit=submit),  # type: ignore[arg-type]
        advanced=lambda _: None,
        damaged=lambda _: None,
    )
    feeds.rewind(PEER, held=1)
    feeds.pump(term=1, settled=True)
    assert (feeds.state(PEER), feeds.sendable(PEER), wire.sent) == ("catching_up", 1, [])


def test_what_a_feed_cannot_read_for_days_is_said_now_and_then(payloads: PartitionPayloads) -> None:
    """It is tried again with each turn of the loop."""
    wire, tries = Wire(), list[Route]()

    def read(each: Route) -> bytes:
        tries.append(each)
        raise OSError(5, "Input/output error")

    payloads.read = read  # type: ignore[method-assign]
    feeds = Feeds(
        peers=[PEER],
        journal=journal_of(route(NOT_YET)),
        payloads=payloads,
        links=wire,  # type: ignore[arg-type]
        offload=SimpleNamespace(submit=submit),  # type: ignore[arg-type]
        advanced=lambda _: None,
        damaged=lambda _: None,
    )
    feeds.rewind(PEER, held=1)
    with capture_logs() as lines:
        for _ in range(100):
            feeds.pump(term=1, settled=True)
    assert len(tries) == 100
    assert [line["event"] for line in lines] == ["catch_up_read_failed"] * LINES


def test_what_lies_in_front_of_what_cannot_be_read_is_sent_and_damage_is_told(payloads: PartitionPayloads) -> None:
    """A sector that nobody could read kept a follower from all that it lacked: a chunk was read as a whole or not."""
    wire, moved, damaged = Wire(), list[NodeId](), list[Route]()
    routes = [route(PartitionId(each)) for each in range(10, 20)]
    bad, lost = routes[6], routes[2]
    why: Exception | None = OSError(5, "Input/output error")

    def read(each: Route) -> bytes:
        if each == bad and why is not None:
            raise why
        return each.digest

    payloads.read = read  # type: ignore[method-assign]
    payloads.is_hole = lambda each: each in (lost, routes[8])  # type: ignore[method-assign]
    feeds = Feeds(
        peers=[PEER],
        journal=journal_of(*routes),
        payloads=payloads,
        links=wire,  # type: ignore[arg-type]
        offload=SimpleNamespace(submit=submit),  # type: ignore[arg-type]
        advanced=moved.append,
        damaged=damaged.append,
    )
    feeds.rewind(PEER, held=1)
    feeds.pump(term=1, settled=True)
    assert wire.bodies == [each.digest for each in routes[:6] if each != lost]
    assert [[r for r, _ in unpack(header)] for kind, header in wire.sent if kind is Kind.FETCHED] == [[lost]]
    assert (feeds.sendable(PEER), moved, damaged) == (7, [PEER], [])
    for _ in range(3):
        feeds.pump(term=1, settled=True)
    assert (feeds.sendable(PEER), len(wire.bodies), moved) == (7, 5, [PEER])
    why = DamagedPayload("cannot be read", bad)
    feeds.pump(term=1, settled=True)
    assert [each.route for each in damaged] == [bad]
    why = None  # it is back
    feeds.pump(term=1, settled=True)
    assert wire.bodies[5:] == [each.digest for each in routes[6:] if each != routes[8]]
    assert (feeds.sendable(PEER), moved) == (11, [PEER, PEER])


def test_what_a_full_link_did_not_take_is_sent_later_and_what_it_took_is_not_sent_again(
    payloads: PartitionPayloads,
) -> None:
    """It filled up with the same batches again and again: the follower behind it never came to the end."""
    wire, reads, moved = Wire(), list[Route](), list[NodeId]()
    routes = [route(PartitionId(each)) for each in range(10, 20)]

    def read(each: Route) -> bytes:
        reads.append(each)
        return each.digest

    payloads.read = read  # type: ignore[method-assign]
    feeds = Feeds(
        peers=[PEER],
        journal=journal_of(*routes),
        payloads=payloads,
        links=wire,  # type: ignore[arg-type]
        offload=SimpleNamespace(submit=submit),  # type: ignore[arg-type]
        advanced=moved.append,
        damaged=lambda _: None,
    )
    feeds.rewind(PEER, held=1)
    for room in range(0, 12, 3):
        wire.room = room
        feeds.pump(term=1, settled=False)
        assert (feeds.sendable(PEER), moved) == (1, []), "entries follow their payload"
    wire.room = None
    feeds.pump(term=1, settled=False)
    assert (feeds.sendable(PEER), moved) == (11, [PEER])
    assert wire.bodies == [each.digest for each in routes]
    assert reads == routes
    feeds.rewind(PEER, held=1)
    wire.room = len(wire.sent) + 4
    feeds.pump(term=1, settled=False)
    feeds.rewind(PEER, held=8)  # it says what it has: the rest of what was read is pointless
    wire.room = None
    feeds.pump(term=1, settled=False)
    assert wire.bodies[10:] == [each.digest for each in (*routes[:4], *routes[7:])]


@pytest.mark.parametrize("applied", [False, True])
def test_what_has_turned_up_and_waits_to_be_written_is_not_denied(*, applied: bool) -> None:
    """A leader that had just got it called it damaged, as all others did, and it was declared void."""
    _, log, batches = with_hole()
    gone, absent = batches[GONE_BATCH], Route(NOT_YET, Term(1), batches[-1].last_index, b"x" * 16)
    payloads = PartitionPayloads({NOT_YET: log}, lambda _: None, applied=lambda *_: applied)
    lost = Route(NOT_YET, Term(1), gone.last_index, gone.digest)
    denied = Lack.APPLIED if applied else Lack.DAMAGED
    assert payloads.lack(lost) is denied
    assert log.append(gone)
    assert (payloads.holds(lost), payloads.lack(lost)) == (False, Lack.UNKNOWN)
    job = log.take()
    assert job is not None
    job.run()
    assert payloads.lack(lost) is Lack.UNKNOWN, "nobody has been told that it is written"
    job.done()
    assert payloads.holds(lost)
    assert payloads.lack(absent) is (Lack.APPLIED if applied else Lack.ABSENT)


@pytest.mark.parametrize(("applied", "unneeded"), [(True, True), (True, False), (False, True), (None, True)])
def test_a_log_begins_behind_what_its_state_has_and_no_start_looks_for(applied: bool | None, *, unneeded: bool) -> None:
    _, log, batches = with_hole()
    gone = batches[GONE_BATCH]
    log.excuse(gone.last_index)
    route = Route(NOT_YET, Term(1), gone.last_index, gone.digest)
    asked = list[tuple[PartitionId, int]]()

    def needs_not(partition_id: PartitionId, last_index: int) -> bool:
        asked.append((partition_id, last_index))
        return unneeded

    payloads = PartitionPayloads({NOT_YET: log}, lambda _: None, applied=lambda *_: applied, unneeded=needs_not)
    payloads.begin_behind(route)
    payloads.begin_behind(route._replace(partition_id=GONE))
    assert asked == ([(NOT_YET, gone.last_index)] if applied else [])
    first = gone.last_index + 1 if applied and unneeded else 1
    assert log.first_available_index == first
    assert (payloads.lack(route) is Lack.COMPACTED) == (first > 1)


def test_what_nobody_had_of_any_partition_is_named_as_the_log_knows_it() -> None:
    logs: Any = {
        GONE: SimpleNamespace(lost=list),
        NOT_YET: SimpleNamespace(lost=lambda: [(3, bytes(16)), (9, b"d" * 16)]),
    }
    routes = PartitionPayloads(logs, lambda _: None).lost()
    assert [(each.partition_id, each.last_index, each.digest) for each in routes] == [
        (NOT_YET, 3, bytes(16)),
        (NOT_YET, 9, b"d" * 16),
    ]
