"""One replica's worker stands still under load, in the simulator: the cluster gets by without it, and takes it back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chaos.sim.drawing import draw
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.simulation import Simulation
from chaos.sim.stories import Stories
from chaos.sim.timeline import Timeline
from dispatcher.admission.ladder import Do, Standing, Step
from dispatcher.pipeline.lagging import Lagging
from logboom.errors import LogboomError, Unavailable
from logboom.settings import LagSettings
from logboom.types import NodeId

LAG = LagSettings(look_ms=100, slow_ms=300, stalled_ms=600, chronic_ms=1_500, move_again_ms=3_000)
STRIKE_S, RELEASE_S, END_S = 4.0, 12.0, 16.0


class Story:
    """A partition's worker on the node that leads is paused for a while."""

    def __init__(self, seed: int) -> None:
        drawn = draw(seed, seconds=END_S)
        settings = msgspec.structs.replace(drawn.settings, lag=LAG)
        drawn = replace(drawn, stories=Stories(), blackout=None)
        still = replace(drawn, partitions_change=False, begun_go=False, members_change=False)
        self.drawn = replace(still, settings=settings, faults=(), kinds=("pause_partition",))
        self.simulation = Simulation(self.drawn, timeline=Timeline())
        self.backend: Any = None
        """Of the node whose worker it is."""
        self.left: Any = None
        self.states: list[str] = []
        self.led: list[bool] = []
        self.began = 0.0
        self.refused: list[LogboomError] = []

    def play(self) -> Any:
        loop = self.simulation.loop
        loop.run_as(None, self._strike, delay=STRIKE_S)
        loop.run_as(None, self._release, delay=RELEASE_S)
        loop.run_as(None, self._look, delay=END_S - 0.2)
        return self.simulation.play()

    @property
    def partition(self) -> int:
        return min(self.drawn.kv_partitions)

    def _strike(self) -> None:
        leaders = [h for h in self.simulation.hosts if h.node is not None and h.node.pipeline.raft.admits]
        if not leaders:
            self.simulation.loop.run_as(None, self._strike, delay=0.1)
            return
        self.began, self.backend = self.simulation.loop.now, leaders[0].node.pipeline
        self.backend.workers[self.partition].pause()
        self._watch()

    def _watch(self) -> None:
        backend = self.backend
        self.led.append(backend.raft.engine.is_leader)
        state = backend.lagging.held.get(self.partition)
        self.states += [state] if state is not None and self.states[-1:] != [state] else []
        try:
            backend.lagging.check(self.partition)
        except Unavailable as error:
            self.refused.append(error)
        if self.simulation.loop.now - self.began < END_S - STRIKE_S - 0.5:
            self.simulation.loop.run_as(None, self._watch, delay=0.05)

    def _release(self) -> None:
        self.backend.workers[self.partition].resume()

    def _look(self) -> None:
        backend, partition = self.backend, self.partition
        self.left = (
            dict(backend.lagging.held),
            backend.lagging.withdrawn(partition),
            backend.admission.frozen(partition),
        )


@pytest.mark.parametrize("seed", [1, 2, 5, 8])
def test_a_worker_that_stands_still_is_worked_around(seed: int) -> None:
    print("seed", seed)
    with leftovers_unseen():
        story = Story(seed)
        outcome = story.play()
    assert outcome.failure is None
    alone = story.drawn.nodes == 1
    assert story.states == ["throttled", "frozen"]
    assert story.led[0]
    assert alone or not all(story.led), "leadership stayed where a worker stands still"
    assert alone or any("ask another" in error.message for error in story.refused)
    assert story.left == ({}, False, False)
    steps = story.backend.lagging.ladder.steps
    assert steps["withdraw"] == steps["return"]
    assert steps["freeze"] == 1


def test_leadership_is_asked_for_again_only_after_a_while() -> None:
    asked, now = list[str](), [100.0]
    transfer = SimpleNamespace(begin=lambda _, __, among: asked.extend(among))
    pipeline: Any = SimpleNamespace(
        settings=SimpleNamespace(lag=LAG),
        node_id="n1",
        clock=SimpleNamespace(monotonic=lambda: now[0]),
        raft=SimpleNamespace(members=SimpleNamespace(transfer=transfer)),
    )
    lagging = Lagging(pipeline)
    for moment, to in ((100.0, "n2"), (104.9, "n3"), (105.0, "n3"), (105.1, "n2")):
        now[0] = moment
        lagging.relieve((to,), "its disk is full")  # type: ignore[arg-type]
    assert asked == ["n2", "n3"]


@pytest.mark.parametrize("how", ["refused", "given up", "done", "relieved"])
def test_the_ladder_is_told_where_nobody_took_over(how: str) -> None:
    """Of what it wanted itself: it waited for five minutes, as after a leader that has gone."""
    told, now = list[float](), [100.0]
    step = Step(Do.MOVE_LEADERSHIP, "behind", among=(NodeId("n2"),))

    def begin(_: None, done: Any, among: Any) -> None:
        if how == "refused":
            raise Unavailable("n2 would have to be connected")
        now[0] += 3
        done(None if how == "done" else Unavailable("n2 did not take over in time"))

    pipeline: Any = SimpleNamespace(
        settings=SimpleNamespace(lag=LAG),
        node_id="n1",
        clock=SimpleNamespace(monotonic=lambda: now[0]),
        members=SimpleNamespace(voters=("n1", "n2")),
        logs={},
        workers={},
        recovery=SimpleNamespace(over=True),
        raft=SimpleNamespace(
            members=SimpleNamespace(transfer=SimpleNamespace(begin=begin)),
            engine=SimpleNamespace(is_leader=True, connected_peers=()),
        ),
    )
    lagging = Lagging(pipeline)
    steps = [] if how == "relieved" else [step]
    lagging.ladder = SimpleNamespace(  # type: ignore[assignment]
        look=lambda *_, **__: steps, not_moved=told.append, standing=Standing(0, frozenset(), 0), steps=Counter()
    )
    if how == "relieved":
        lagging.relieve((NodeId("n2"),), "its disk is full")
    lagging._look()
    assert told == {"refused": [100.0], "given up": [103.0]}.get(how, [])
