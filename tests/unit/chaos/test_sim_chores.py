"""What is asked for seldom is looked at when all is quiet: every node has done it, and each says what is so."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim import drawing
from chaos.sim.chores import _is_through
from chaos.sim.drawing import draw
from chaos.sim.host import Host
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.simulation import Simulation
from chaos.sim.timeline import Timeline
from chaos.sim.waiting import Waited, Waits
from dispatcher.upkeep.rebuilding import Rebuilding

FIRST = {"global_index": 20, "raft_index": 200}


def host(*sets: int, base: int, taking: bool = False, leases: tuple[int, ...] = (), given: tuple[int, ...] = ()) -> Any:
    """A node with these sets, a journal that begins there, and those that fetch some of them."""
    metas = [SimpleNamespace(global_index=index, raft_index=10 * index) for index in sets]
    snapshots = SimpleNamespace(
        store=SimpleNamespace(sets=lambda: metas, newest=metas[-1] if metas else None),
        taking=SimpleNamespace(progress=lambda: object() if taking else None),
        serving=SimpleNamespace(_leases=dict.fromkeys(leases, 1.0), _given=dict(enumerate(given))),
    )
    pipeline = SimpleNamespace(
        snapshots=snapshots,
        raft=SimpleNamespace(journal=SimpleNamespace(base_index=base)),
        recovered=lambda: True,
        workers={0: None},
        members=SimpleNamespace(voters=("n1", "n2", "n3"), ids=("n1", "n2", "n3")),
    )
    return SimpleNamespace(name="n1", node=SimpleNamespace(pipeline=pipeline))


def test_a_node_is_through_once_it_has_the_set_and_its_journal_begins_there() -> None:
    assert _is_through(host(20, 30, base=200), FIRST)
    assert _is_through(host(25, 30, base=250), FIRST)
    assert not _is_through(host(20, 30, base=199), FIRST)
    assert not _is_through(host(10, 15, base=200), FIRST)
    assert not _is_through(host(20, 30, base=200, taking=True), FIRST)
    assert not _is_through(host(base=200), FIRST)
    assert not _is_through(SimpleNamespace(node=None), FIRST)  # type: ignore[arg-type]


def test_or_where_somebody_still_fetches_a_set() -> None:
    assert _is_through(host(10, 20, 30, base=100, leases=(10,)), FIRST)
    assert _is_through(host(10, 20, 30, base=100, given=(10,)), FIRST)
    assert not _is_through(host(10, 20, 30, base=99, leases=(10,)), FIRST)
    assert not _is_through(host(20, 30, base=100, leases=(10,)), FIRST)  # that is gone


def test_a_snapshot_is_that_of_the_node_itself() -> None:
    hosts = [host(20, base=1), host(20, 30, base=1), host(30, base=1)]
    for number, each in enumerate(hosts, 1):
        each.name = f"n{number}"
    waits = Waits(hosts, {}, {"n3"})
    for name, scope, target, sound in (
        ("n1", "node", 20, True),
        ("n1", "node", 21, False),
        ("n2", "node", 30, True),
        ("n2", "quorum", 30, True),
        ("n2", "all", 30, False),
        ("n3", "node", 99, True),  # it has another disk
        ("n2", "quorum", 31, False),
    ):
        assert (waits.check(Waited(name, {0: target}, "snapshotted", scope)) == "") is sound, (name, scope, target)


def test_states_rot_beside_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else a seed does is what it was."""
    seeds = range(1, 60)
    rots = {seed: draw(seed) for seed in seeds if "rot_state" in draw(seed).kinds}
    assert rots
    monkeypatch.setattr(drawing, "STATES_ROT", 0.0)
    for seed, drawn in rots.items():
        others = tuple(fault for fault in drawn.faults if fault.kind != "rot_state")
        kinds = tuple(kind for kind in drawn.kinds if kind != "rot_state")
        assert replace(drawn, faults=others, kinds=kinds) == draw(seed)
        assert len(drawn.faults) - len(others) >= drawing.STATES_ROT_MIN


def test_sets_are_lost_beside_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """As states rot."""
    losing = {seed: drawn for seed in range(1, 60) if "lose_sets" in (drawn := draw(seed)).kinds}
    assert losing
    monkeypatch.setattr(drawing, "SETS_LOST", 0.0)
    for seed, drawn in losing.items():
        others = tuple(fault for fault in drawn.faults if fault.kind != "lose_sets")
        kinds = tuple(kind for kind in drawn.kinds if kind != "lose_sets")
        assert replace(drawn, faults=others, kinds=kinds) == draw(seed)
        assert len(drawn.faults) - len(others) >= drawing.SETS_LOST_MIN


def rotten(seed: int) -> Simulation:
    """Short, and in the end what one node has saved of a state rots, where nobody has read it yet."""
    drawn = draw(seed, seconds=3.0)
    stories = replace(drawn.stories, restores=False)
    drawn = replace(drawn, faults=(), stories=stories, blackout=None, members_change=False)
    simulation = Simulation(drawn, timeline=Timeline())

    def strike() -> None:
        victim: Host = simulation.hosts[0]
        for partition in drawn.kv_partitions:
            if victim.state_files.rot(victim.path("partitions", str(partition), "state"), random.Random(seed)):
                simulation.oracle.rotten.add(victim.name)

    for at in (2.0, 2.9):
        simulation.loop.run_as(None, strike, delay=at)
    return simulation


@pytest.mark.parametrize("mended", [True, False])
def test_what_is_damaged_comes_back(monkeypatch: pytest.MonkeyPatch, mended: bool) -> None:
    if not mended:
        monkeypatch.setattr(Rebuilding, "damaged", lambda *_: lambda: False)
    with leftovers_unseen():
        failure = rotten(4).play().failure
    if mended:
        assert failure is None
    else:
        assert failure is not None
        assert failure.invariant == "Liveness"
        assert "what is damaged comes back" in failure.story
