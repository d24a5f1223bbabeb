"""Whoever asks this and that of nodes leaves nothing behind that a run would have to end with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.sim.drawing import draw
from chaos.sim.nemesis import Nemesis
from chaos.sim.runner import run
from chaos.sim.stories import Stories

SEED = 3
ON_ITS_WAY_S = 0.003


def test_a_pause_that_comes_when_all_is_healed_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by seed 120: it was on its way when all were told to go on, and he who had sent it had left."""
    heal, paused = Nemesis.heal, list[str]()

    def healed(nemesis: Nemesis) -> None:
        heal(nemesis)
        for host in nemesis._hosts:
            if host.node is not None:
                for worker in host.node.pipeline.workers.values():
                    nemesis._loop.run_as(host.process, worker.pause, delay=ON_ITS_WAY_S)
                    paused.append(host.name)

    monkeypatch.setattr(Nemesis, "heal", healed)
    drawn = draw(SEED, seconds=3.0)
    drawn = replace(drawn, stories=Stories(), kinds=(*drawn.kinds, "pause_partition"))
    outcome = run(drawn).outcome
    assert paused
    assert outcome.failure is None, f"seed {SEED}"
