"""Nodes of the simulator that are stopped in order: they end in time, with nothing open, and come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from chaos.sim.drawing import draw
from chaos.sim.parameters import Parameters
from chaos.sim.simulation import Simulation
from chaos.sim.stories import Stories
from chaos.sim.timeline import Timeline
from raftlog.journal.journal import Journal
from server.node import Node


def calm(seconds: float = 12.0) -> Parameters:
    """Little happens, and nothing goes wrong, but that nodes are stopped."""
    drawn = draw(3, seconds=seconds)
    return replace(drawn, stories=Stories(orderly=True), faults=(), clients=1, think_s=4.0)


def test_nodes_are_stopped_and_come_back() -> None:
    simulation = Simulation(calm(), timeline=Timeline())
    assert simulation.play().failure is None
    assert simulation.orderly.stops


def test_what_stays_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "close", lambda _: None)
    failure = Simulation(calm(), timeline=Timeline()).play().failure
    assert failure is not None
    assert (failure.invariant, ".journal" in failure.story) == ("StopsInOrder", True)


def test_who_does_not_come_to_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Node, "close", never)
    failure = Simulation(calm(30.0), timeline=Timeline()).play().failure
    assert failure is not None
    assert (failure.invariant, "within 15 s" in failure.story) == ("StopsInOrder", True)
