"""States that rot under running nodes, in the simulator: nobody reads them, watermarks never go back, all converge."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from chaos.sim.drawing import draw
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.simulation import Simulation
from chaos.sim.timeline import Timeline
from logboom.errors import CorruptData
from logboom.settings import ScrubSettings


@pytest.mark.parametrize("seed", [1, 4, 6])
@pytest.mark.parametrize("faults", [False, True], ids=["quiet", "faults"])
def test_a_state_that_rots_is_made_anew_while_everything_goes_on(seed: int, faults: bool) -> None:
    print("seed", seed)
    with leftovers_unseen():
        _play(seed, faults=faults)


def _play(seed: int, *, faults: bool) -> None:
    drawn = draw(seed, seconds=15.0)
    settings = msgspec.structs.replace(drawn.settings, scrub=ScrubSettings(pause_ms=500, bytes_per_s=1 << 24))
    stories = replace(drawn.stories, restores=False)  # what rots would be gone
    drawn = replace(drawn, settings=settings, stories=stories, faults=drawn.faults if faults else ())
    simulation = Simulation(drawn, timeline=Timeline())
    rng, struck, fenced = random.Random(seed), list[Any](), list[str]()

    def strike() -> None:
        """One partition of one node at a time."""
        for host in simulation.hosts:
            if host.node is None or not host.up:
                continue
            for partition in drawn.kv_partitions:
                key = host.state_files.rot(host.path("partitions", str(partition), "state"), rng)
                if key is not None:
                    simulation.oracle.rotten.add(host.name)
                    struck.append((host, partition))
                    return
        simulation.loop.run_as(None, strike, delay=0.1)

    def look() -> None:
        for host, partition in struck:
            try:
                if host.node is not None:  # another one, if it was killed meanwhile
                    host.node.pipeline.rebuilding.check(partition)
            except CorruptData as error:
                fenced.append(str(error))
        simulation.loop.run_as(None, look, delay=0.002)

    for at in (5.0, 9.0):
        simulation.loop.run_as(None, strike, delay=at)
    simulation.loop.run_as(None, look, delay=5.0)
    outcome = simulation.play()
    assert outcome.failure is None
    assert struck
    assert fenced
