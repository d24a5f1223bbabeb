"""How a run ends: whether a quorum serves is not a matter of luck."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chaos.sim.drawing import draw
from chaos.sim.ending import Ending
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.parameters import Parameters
from chaos.sim.simulation import Simulation
from chaos.sim.stories import Stories
from chaos.sim.timeline import Timeline
from dispatcher.reading.scans import SCAN_CHUNK
from logboom import Client, Put
from logboom.settings import AdmissionSettings
from logboom.types import KIB, NodeId
from raftlog.entries.configuration import Configuration, Role, Seat

CROWD = 6
"""Of these, as many as have no place stand in a line all the time."""
WAIT_S = 60.0


def crowded(seed: int) -> Parameters:
    """There is room for two at a time, and whoever does not wait has no turn as long as others do."""
    drawn = draw(seed, seconds=3.0)
    admission = msgspec.structs.replace(
        drawn.settings.admission, node_ops=2, queue_requests=2 * CROWD, queue_bypass_ms=1, fair_share_percent=100
    )
    settings = msgspec.structs.replace(drawn.settings, admission=admission)
    drawn = replace(drawn, settings=settings, faults=(), stories=Stories(), blackout=None)
    return replace(drawn, partitions_change=False, begun_go=False, members_change=False, clients=1)


@pytest.mark.parametrize("seed", [3, 4])
def test_a_quorum_serves_though_others_are_always_in_line(seed: int) -> None:
    print("seed", seed)
    parameters = crowded(seed)
    simulation = Simulation(parameters, timeline=Timeline())
    process = simulation.loop.process("crowd")
    served = [0]

    async def ask(number: int) -> None:
        rng = random.Random(number)
        async with Client(list(simulation.seen.addresses), rng=rng, timeout=WAIT_S, admission_wait=WAIT_S) as client:
            while not simulation._clients[0][0].stopped:
                await client.submit(min(parameters.kv_partitions), Put(b"of the crowd", b""))
                served[0] += 1

    async def crowd() -> None:
        await asyncio.gather(*[ask(number) for number in range(CROWD)])

    simulation.loop.run_as(None, simulation.loop.spawn, process, crowd(), delay=1.0)
    with leftovers_unseen():
        outcome = simulation.play()
    assert outcome.failure is None
    assert served[0] > CROWD


def test_whoever_reads_what_was_damaged_waits_for_his_rate() -> None:
    """Seed 5100: the second piece of a state, which may be sent in six seconds, was given up after five."""
    drawn = draw(3, seconds=3.0)
    reads = msgspec.structs.replace(drawn.settings.reads, principal_bytes_per_s=4 * KIB)
    settings = msgspec.structs.replace(drawn.settings, reads=reads, admission=AdmissionSettings())
    drawn = replace(drawn, settings=settings, faults=(), stories=Stories(), blackout=None)
    drawn = replace(drawn, partitions_change=False, begun_go=False, members_change=False, clients=1)
    simulation = Simulation(drawn, timeline=Timeline())
    written = list[int]()

    async def write() -> None:
        partition = min(drawn.kv_partitions)
        async with Client(list(simulation.seen.addresses), rng=random.Random(1), timeout=WAIT_S) as client:
            for begin in range(0, SCAN_CHUNK + 100, 100):
                keys = [f"{number:030}".encode() for number in range(begin, begin + 100)]
                await client.submit(partition, [Put(key, b"") for key in keys])
                written.append(len(keys))
        simulation.nemesis.rotten.add("n1")

    simulation.loop.run_as(None, simulation.loop.spawn, simulation.loop.process("writer"), write(), delay=1.0)
    with leftovers_unseen():
        outcome = simulation.play()
    assert outcome.failure is None
    assert sum(written) > SCAN_CHUNK


@pytest.mark.parametrize("removing", [None, "n1", "n2", "n3", "n4"])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_quorum_is_one_too_without_whoever_may_be_about_to_be_removed(count: int, removing: str | None) -> None:
    """A request to remove it was on its way to the leader when the operator left."""
    names = [f"n{number}" for number in range(1, count + 1)]
    hosts: Any = [SimpleNamespace(name=name, may_run=True, retired=False) for name in names]
    seats = tuple(Seat(NodeId(name), f"{name}:1", f"{name}:2", Role.VOTER) for name in names)
    oracle: Any = SimpleNamespace(
        electorate=SimpleNamespace(may_count=lambda _: [Configuration(seats, (), 2, 5)]), rotten=set[str]()
    )
    nothing: dict[str, Any] = dict.fromkeys(("loop", "seen", "lose", "new_host", "note", "fail"))
    ending = Ending(
        draw(1),
        hosts,
        oracle=oracle,
        damaged=set(),
        forgetful=set(),
        rotten=set(),
        removing=lambda: removing,
        **nothing,
    )
    for seed in range(10):
        quorum = {host.name for host in ending._quorum(random.Random(seed))}
        left = set(names) - {removing}
        assert 2 * len(quorum) > count
        assert 2 * len(quorum & left) > len(left)
        if removing not in names:
            assert len(quorum) == count // 2 + 1
