"""What is damaged here and whole at a peer comes back from there, by digest."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.disk import Image, SimDisk
from logboom.errors import CorruptData
from logboom.types import NodeId
from logboom.wire import Frame, Kind
from raftlog.repair.repair import Repair
from raftlog.repair.wanted import Wanted
from tests.storage.flips import Recovered, Store, recovered, stored
from tests.storage.partition_world import raw

SIZES = [0, 20, 300, 1, 700, 90, 600, 7, 2000, 30, 4, 900]


class Wire:
    """All ends of some links; frames wait until ``deliver``."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, str, Frame]] = []
        self.ends: dict[str, Repair] = {}
        self.now = 0.0

    def links(self, node: str) -> Any:
        def send(peer: str, kind: Kind, header: dict[str, Any], buffers: Sequence[Any] = ()) -> bool:
            if peer in self.ends:
                self.frames.append((node, peer, Frame(kind, 0, header, memoryview(b"".join(buffers)))))
            return peer in self.ends

        return SimpleNamespace(
            send=send,
            connected=self.ends.__contains__,
            queued=lambda _: 0,
            left_bytes=lambda _: 0,
            ups=Counter(),
        )

    def add(self, node: str, others: str, start: Recovered) -> Repair:
        """``others``: a letter each, some of which may come later."""

        def submit(job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
            try:
                result = job()
            except CorruptData as error:
                done(None, error)
            else:
                done(result, None)

        self.ends[node] = Repair(
            peers=[NodeId(other) for other in others],
            links=self.links(node),
            payloads=start.payloads,
            journal=start.journal,
            offload=SimpleNamespace(submit=submit),  # type: ignore[arg-type]
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            damaged=lambda damage: start.payloads.lose(damage.route),  # type: ignore[arg-type]
        )
        return self.ends[node]

    def deliver(self) -> None:
        while self.frames:
            sender, node, frame = self.frames.pop(0)
            self.ends[node].on_frame(NodeId(sender), frame)


def mend(damaged: Recovered, whole: Recovered) -> None:
    """Until nothing is missing any more."""
    wire = Wire()
    ours = wire.add("a", "b", damaged)
    wire.add("b", "a", whole)
    ours.missing(damaged.wanted)
    for _ in range(100):
        ours.work()
        wire.deliver()
        damaged.group.flush()
        wire.now += 1
        if not ours.active:
            return
    raise AssertionError(f"{len(ours._missing)} batches are still missing")


def fresh(store: Store) -> SimDisk:
    return SimDisk.of(store.image, random.Random(0))


def offset_of(store: Store, number: int) -> int:
    return 64 + sum(batch.nbytes for batch in store.batches[:number]) + 60


def check_all_there(store: Store, image: Image) -> None:
    start = recovered(store, SimDisk.of(image, random.Random(0)))
    assert not start.missing
    for number, batch in enumerate(store.batches, 1):
        assert start.log.read_batch(batch.last_index, batch.digest) == raw(batch)
        start.log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)
    read = start.log.read_committed(after_index=0, through_index=start.log.committed_index, max_bytes=1 << 20)
    assert [(b.header, b.records) for b in read] == [(b.header, b.records()) for b in store.batches]
    start.log.close()


@pytest.mark.parametrize("seed", range(12))
def test_damaged_batches_come_back_and_survive_a_power_loss(seed: int) -> None:
    """Each batch in turn, and with it as many others as chance wants."""
    rng, store = random.Random(seed), stored(SIZES, segment_bytes=1 << 16)
    chosen = {seed, *rng.sample(range(len(SIZES)), rng.choice((0, 1, 4)))}
    disk = fresh(store)
    for number in chosen:
        disk.flip(store.file(".log"), offset_of(store, number), 1 + rng.randrange(255))
    start = recovered(store, disk)
    assert {route.digest for route in start.missing} == {store.batches[number].digest for number in chosen}
    assert not start.may_lead
    mend(start, recovered(store, fresh(store)))
    disk.power_loss()
    check_all_there(store, disk.image())


def test_a_whole_log_that_is_gone_comes_back() -> None:
    store = stored(SIZES, segment_bytes=1 << 16)
    disk = fresh(store)
    disk.remove(store.file(".log"))
    start = recovered(store, disk)
    assert len(start.missing) == len(SIZES)
    mend(start, recovered(store, fresh(store)))
    disk.power_loss()
    check_all_there(store, disk.image())


def test_a_peer_whose_copy_is_damaged_too_does_not_send_it() -> None:
    store = stored(SIZES, segment_bytes=1 << 16)
    disk, other = fresh(store), fresh(store)
    disk.flip(store.file(".log"), offset_of(store, 3), 1)
    start, peer = recovered(store, disk), recovered(store, other)
    other.flip(store.file(".log"), offset_of(store, 3), 1)  # after it was opened: it does not know yet
    with pytest.raises(AssertionError, match="1 batches are still missing"):
        mend(start, peer)
    route = start.missing[0]
    assert not start.log.holds(route.last_index, route.digest)


def test_a_committed_batch_that_nobody_has_is_told_and_looked_for_until_somebody_has_it() -> None:
    store = stored([*SIZES, 3000, *SIZES], segment_bytes=4096)
    disk, other = fresh(store), fresh(store)
    start, peer, third = (recovered(store, each) for each in (disk, other, fresh(store)))
    for each in (disk, other):
        each.flip(store.file(".log"), offset_of(store, 4), 1)
    route = store.routes[4]
    assert start.payloads.lose(route)
    wire = Wire()
    ours, others = wire.add("a", "b", start), wire.add("b", "a", peer)
    ours.damaged(Wanted(route, None))
    ours.work()
    wire.deliver()
    assert not ours.work(), "the other has only just found it damaged: whether its state has it applied it says next"
    wire.now += 1
    ours.work()
    wire.deliver()
    assert ours.work(), "nobody has it: there is a hole, and everything else goes on"
    assert [lost for lost, _ in ours.lost()] == [route]
    assert ours.active, "it is looked for all the same"
    assert not others.active
    peer.payloads.receive(memoryview(third.payloads.read(route)))
    peer.group.flush()
    wire.now += 1
    ours.work()
    wire.deliver()
    start.group.flush()
    assert ours.work()
    assert ours.lost() == []


def test_many_that_nobody_has_do_not_keep_others_from_coming_back() -> None:
    store = stored([20] * 60, segment_bytes=1 << 16)
    disk, other = fresh(store), fresh(store)
    start, peer = recovered(store, disk), recovered(store, other)
    gone, rest = store.routes[:40], store.routes[40:]
    for number in range(40):
        other.flip(store.file(".log"), offset_of(store, number), 1)
    wire = Wire()
    ours = wire.add("a", "b", start)
    wire.add("b", "a", peer)
    for route in store.routes:
        start.log.commit(last_index=route.last_index, digest=route.digest, global_index=route.last_index, term=1)
        assert start.payloads.lose(route)
        ours.damaged(Wanted(route, None))
    for _ in range(30):
        ours.work()
        wire.deliver()
        start.group.flush()
        wire.now += 1
    assert [start.payloads.holds(route) for route in store.routes] == [False] * 40 + [True] * 20
    assert {route.digest for route, _ in ours.lost()} == {route.digest for route in gone}
    assert all(bytes(start.payloads.read(route)) for route in rest)


def test_a_chain_comes_back_in_order_from_who_comes_later_than_one_who_has_none_of_it() -> None:
    """It was asked for what lay behind what the first one had been asked for: none of that could be taken, for good."""
    store = stored([20] * 40, segment_bytes=1 << 16)
    disk, none = fresh(store), fresh(store)
    for each in (disk, none):
        each.remove(store.file(".log"))
    start, whole = recovered(store, disk), recovered(store, fresh(store))
    wire = Wire()
    ours = wire.add("a", "bc", start)
    wire.add("b", "ac", recovered(store, none))
    ours.missing(start.wanted)
    for away in (True, False):
        for _ in range(4):
            ours.work()
            wire.deliver()
            start.group.flush()
            wire.now += 1
        assert ours.active is away
        if away:
            wire.add("c", "ab", whole)
    disk.power_loss()
    check_all_there(store, disk.image())


def test_damage_found_by_a_reader_is_mended_and_stays_so() -> None:
    """In a sealed segment, which no start looks through."""
    store = stored([*SIZES, 3000, *SIZES], segment_bytes=4096)
    disk = fresh(store)
    disk.flip(store.file(".log"), offset_of(store, 4), 1)
    start = recovered(store, disk)
    route = store.routes[4]
    assert not start.missing
    with pytest.raises(CorruptData):
        start.payloads.read(route)
    assert start.payloads.lose(route)
    assert not start.payloads.holds(route)
    start.wanted.append(Wanted(route, None))
    mend(start, recovered(store, fresh(store)))
    assert bytes(start.payloads.read(route)) == raw(store.batches[4])
    disk.power_loss()
    check_all_there(store, disk.image())
