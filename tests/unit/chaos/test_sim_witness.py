"""Every node has its turn at being asked what it would know after a power loss; what it had acknowledged it has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim import struck
from chaos.sim.witness import Witness
from logboom.types import DurabilityMode, PartitionId, PartitionLogIndex, Term
from raftlog.entries.entry import Route, pack_routes

ROUTE = Route(PartitionId(3), Term(1), PartitionLogIndex(5), b"d" * 16)


@pytest.mark.parametrize("count", range(7))
def test_everybody_is_looked_at(count: int) -> None:
    node = SimpleNamespace(pipeline=SimpleNamespace(workers={}))
    hosts: Any = [SimpleNamespace(name=f"n{k}", node=node) for k in range(count)]
    electorate: Any = None
    witness, asked = Witness(hosts, electorate, lambda *_: None), list[str]()
    witness._check_power_loss = lambda host: asked.append(host.name)  # type: ignore[method-assign]
    for _ in range(2 * count):
        witness.checkpoint()
    assert asked == [host.name for host in hosts]


class World:
    """One host, which had acknowledged entry 4; its batch was missed once, by another."""

    def __init__(self) -> None:
        self.broken = list[str]()
        self.on_disk = self.found = self.void = False
        ref = SimpleNamespace(previous_digest=bytes(16))
        log = SimpleNamespace(mode=DurabilityMode.WRITE_AHEAD, find=lambda *_: ref if self.found else None)
        pipeline = SimpleNamespace(workers={}, logs={ROUTE.partition_id: log})
        disk = SimpleNamespace(keeps=lambda *_: self.on_disk)
        node = SimpleNamespace(pipeline=pipeline)
        self.host: Any = SimpleNamespace(name="n1", node=node, disk=disk, path=Path)
        self.journal: Any = SimpleNamespace(
            base_index=3, last_index=4, entry=lambda _: (b"", 4, 1), after=lambda _: [(pack_routes([ROUTE]), 4, 1)]
        )
        self.backend: Any = SimpleNamespace(
            raft=SimpleNamespace(journal=self.journal, engine=SimpleNamespace(term_at=lambda _: 1)),
            logs=pipeline.logs,
            payloads=SimpleNamespace(holds=lambda _: self.found, is_hole=lambda _: self.void),
        )
        electorate: Any = None
        self.witness = Witness([self.host], electorate, lambda invariant, _: self.broken.append(invariant))
        self.witness._check_power_loss = lambda _: None  # type: ignore[method-assign]

    def starts(self) -> list[str]:
        """What that breaks."""
        self.witness._check_kept(self.host, self.backend, floor=4, before=self.journal)
        broken, self.broken = self.broken, []
        return broken


def test_who_has_what_nobody_had_on_its_disk_again_may_not_lose_it_again() -> None:
    """One node had missed it, once: from then on everybody might lose it."""
    world = World()
    assert world.starts() == ["AcknowledgedKept"]
    world.witness._holes.conceded("n2", ROUTE)
    assert world.starts() == []
    for world.found, world.on_disk in ((False, False), (True, False), (False, False), (True, True)):
        assert world.starts() == []  # not synced: a power loss may take it
        world.witness.checkpoint()
    world.found = False
    assert world.starts() == ["AcknowledgedKept"]
    world.void = True
    assert world.starts() == ["AcknowledgedKept"], "that a log says so is not enough"
    world.witness.voids.add((ROUTE.partition_id, ROUTE.last_index))
    assert world.starts() == []


@pytest.mark.parametrize("lost", [False, True], ids=["missed", "disk"])
async def test_who_misses_it_again_or_has_lost_its_disk_need_not_have_it(lost: bool) -> None:
    world = World()
    world.found = world.on_disk = True
    world.witness._holes.conceded("n1", ROUTE)
    world.witness.checkpoint()
    if lost:
        world.witness.lost_disk(world.host)
    else:
        world.witness._holes.conceded("n1", ROUTE)
    world.found = False
    assert world.starts() == []


def test_a_journal_that_was_damaged_is_set_aside_once() -> None:
    world, backend = (
        World(),
        SimpleNamespace(raft=SimpleNamespace(members=SimpleNamespace(membership=SimpleNamespace()))),
    )
    log = backend.raft.members.membership

    def forgets(token: bytes | None) -> tuple[bool, list[str]]:
        log.rejoining = None if token is None else SimpleNamespace(token=token)
        world.broken.clear()
        return world.witness._has_forgotten(world.host, backend), world.broken  # type: ignore[arg-type]

    world.witness.forgetful.add("n1")
    world.witness.may_forget.add("n1")
    assert forgets(b"first") == (True, [])
    assert forgets(b"first") == (False, [])  # it has not been taken back yet
    assert forgets(None) == (False, [])
    assert forgets(b"second") == (True, ["AcknowledgedKept"])
    world.witness.may_forget.add("n1")
    assert forgets(b"third") == (True, [])


def test_who_was_struck_has_to_have_what_is_committed_well_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = SimpleNamespace(get_running_loop=lambda: SimpleNamespace(time=lambda: now[0]))
    monkeypatch.setattr(struck, "asyncio", clock)
    seen, later = struck.Struck(), ROUTE._replace(last_index=PartitionLogIndex(6))
    seen.now("n1")
    now[0] += struck.UNDER_WAY_S
    seen.committed(ROUTE)
    now[0] += 0.1
    seen.committed(later)
    seen.committed(ROUTE)  # on another node
    assert (seen.excused(ROUTE), seen.excused(later)) == ({"n1"}, set())
    seen.now("n2")
    assert seen.excused(later) == {"n2"}
