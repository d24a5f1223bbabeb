"""Lines that carry little: bytes come in pieces, at that pace; a leader leads on while a large batch is on its way."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest

from chaos.sim import nemesis
from chaos.sim.clients import SimClient
from chaos.sim.drawing import draw
from chaos.sim.drawn_faults import LEADER, Fault
from chaos.sim.network import PIECE_BYTES, NetworkProfile
from chaos.sim.parameters import Parameters
from chaos.sim.runner import run
from chaos.sim.stories import Stories
from logboom import Put
from logboom.errors import LogboomError
from logboom.settings import AdmissionSettings, NetSettings, RaftSettings
from logboom.types import KIB
from tests.unit.chaos.sim_world import CALM, End, World

PACE = 1_000.0
ALL_LINES, ONE_HOST = 1, 2
"""Dice of a fault."""
BATCH_BYTES = 7 * KIB


def test_what_is_written_comes_in_pieces_at_the_lines_pace() -> None:
    world = World(CALM)
    sent = random.Random(1).randbytes(5_000)

    async def story() -> tuple[End, End, list[int]]:
        world.network.thin["a", "b"] = PACE
        ours, theirs = await world.pair()
        for at in range(0, len(sent), 1_250):
            ours.transport.write(sent[at : at + 1_250])
        theirs.transport.write(bytes(5_000))
        had = []
        for _ in range(6):
            await asyncio.sleep(1.0)
            had.append(len(theirs.data))
        return ours, theirs, had

    ours, theirs, had = world.play(story())
    assert had == pytest.approx([PACE, 2 * PACE, 3 * PACE, 4 * PACE, 5_000, 5_000], abs=2 * PIECE_BYTES)
    assert (bytes(theirs.data), theirs.pieces > 5_000 / PIECE_BYTES, len(ours.data)) == (sent, True, 5_000)


def test_what_waits_goes_fast_once_the_line_is_as_before() -> None:
    world = World(NetworkProfile(delay_max_s=0.01, split=0.5))

    async def story() -> tuple[int, End]:
        world.network.thin["a", "b"] = PACE
        ours, theirs = await world.pair()
        ours.transport.write(bytes(50_000))
        await asyncio.sleep(1.0)
        before = len(theirs.data)
        world.network.thin.clear()
        await asyncio.sleep(2.0)
        return before, theirs

    before, theirs = world.play(story())
    assert before <= PACE
    assert len(theirs.data) == 50_000


def test_some_seeds_have_thin_lines() -> None:
    drawn = [draw(seed) for seed in range(200)]
    thin = [each for each in drawn if any(fault.kind == "thin_lines" for fault in each.faults)]
    assert 20 < len(thin) < 60
    assert all("thin_lines" in each.kinds for each in thin)


def over_thin_lines(seed: int, *, dice: int) -> Parameters:
    """Half a minute in which nothing is wrong but that."""
    drawn = draw(seed, seconds=32.0)
    raft = RaftSettings(
        heartbeat_ms=100, election_min_ms=400, election_max_ms=800, election_patience_ms=1_600, fallback_ms=1_200
    )
    changed = msgspec.structs.replace(
        drawn.settings, raft=raft, net=NetSettings(), admission=AdmissionSettings(signals=())
    )
    return replace(
        drawn,
        settings=changed,
        network=NetworkProfile(),
        faults=(Fault(2.0, "thin_lines", LEADER, 29.0, dice),),
        kinds=("thin_lines",),
        stories=Stories(),
        blackout=None,
        members_change=False,
        partitions_change=False,
        waits=False,
        reads_log=False,
        narrow=False,
        clients=2,
    )


@pytest.mark.parametrize("dice", [ALL_LINES, ONE_HOST])
def test_a_leader_leads_on_while_a_batch_is_on_its_way(monkeypatch: pytest.MonkeyPatch, dice: int) -> None:
    """A batch takes two seconds, and nobody bears a silence of more than 1.6."""
    written = []

    async def write(client: SimClient) -> None:
        with suppress(LogboomError):
            await client.client.submit(0, Put(b"large", bytes(BATCH_BYTES)))
            written.append(client)

    monkeypatch.setattr(SimClient, "_write", write)
    monkeypatch.setattr(nemesis, "THIN_BYTES", (2 * KIB,))
    outcome = run(over_thin_lines(3, dice=dice)).outcome
    assert outcome.failure is None, outcome.failure
    assert outcome.elections == 1
    assert len(written) > 5
