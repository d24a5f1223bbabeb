"""Whose files are damaged may end for that, and need not be read: as long as it has those files, and no longer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.history import Operation
from chaos.sim import afterwards, disk_faults
from chaos.sim.afterwards import Afterwards
from chaos.sim.disk import SimDisk
from chaos.sim.disk_faults import HEARD_S, DiskFaults
from chaos.sim.drawing import draw
from chaos.sim.leftovers import throw_away
from chaos.sim.loop import SimLoop
from chaos.sim.members import Operator
from chaos.sim.simulation import Simulation
from chaos.sim.timeline import Timeline
from chaos.transfers import ACCOUNTS, BEGINS_WITH
from logboom.errors import CorruptData


class Faults(DiskFaults):
    """Of one victim, ``n1``; its disk is looked at by nobody."""

    over = False
    _all = ()

    def __init__(self, victim: Any) -> None:
        self.damaged, self.forgetful, self.may_forget, self.rotten = set(), set(), set(), set()
        self.disk_lost = self.struck = self._note = lambda _: None
        self.victim = victim

    def _victim(self, rng: random.Random) -> Any:
        return self.victim

    def _others(self, host: Any) -> list[Any]:
        return []

    def _power_may_fail(self, host: Any) -> bool:
        return True

    def _restart(self, host: Any) -> None: ...

    async def _down(self, hosts: Any, duration: float, *, power: bool) -> None: ...


def test_an_empty_disk_has_not_rotted(loop: SimLoop) -> None:
    victim: Any = SimpleNamespace(name="n1", lose_disk=lambda: None)
    faults = Faults(victim)
    faults._rots(victim)
    assert faults.rotten == {"n1"}
    loop.run_until_complete(faults._lose_disk(victim, 1.0, random.Random(1)))
    assert (faults.rotten, faults.damaged) == (set(), {"n1"})  # what it had promised then is gone all the same


@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_a_disk_that_is_put_back_is_as_good_as_it_was(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(disk_faults, "_identity", lambda _: (None, b"directory"))
    monkeypatch.setattr(disk_faults, "_reached", lambda *_: 1)
    victim: Any = SimpleNamespace(
        name="n1", disk=SimpleNamespace(hook=None), copy=lambda _: (None, None), put_back=lambda _: None
    )
    faults = Faults(victim)
    if when == "before":
        faults._rots(victim)
    if when == "after":
        loop.run_as(None, faults._rots, victim, delay=0.1)
    loop.run_until_complete(faults._put_back(victim, 1.0, random.Random(1)))
    assert faults.rotten == ({"n1"} if when == "before" else set())
    assert faults.damaged == {"n1"}


def test_lost_sets_are_gone_or_of_no_use(loop: SimLoop) -> None:
    """And nothing else is."""
    found, killed = set[tuple[int, ...]](), list[bool]()
    for seed in range(8):
        disk = SimDisk(random.Random(seed))
        disk.make_directory(Path("/n1/snapshots"))
        paths = [Path("/n1/snapshots") / f"7.{kind}" for kind in ("set", "states", "states.fetch")]
        for path in paths:
            disk.replace_file(path, b"content")
        victim: Any = SimpleNamespace(
            name="n1", disk=disk, path=lambda name: Path("/n1", name), kill=lambda *, power: killed.append(power)
        )
        loop.run_until_complete(Faults(victim)._lose_sets(victim, 1.0, random.Random(seed)))
        found.add(tuple(len(disk.stable(path)) if disk.exists(path) else -1 for path in paths))
    assert (found, killed) == ({(-1, -1, 7), (0, 7, 7)}, [False] * 8)


async def test_an_operators_new_disk_has_not_rotted() -> None:
    class Asked(Exception):
        pass

    async def stop(_: object) -> None:
        raise Asked

    host = SimpleNamespace(name="n1", lose_disk=lambda: None, member=SimpleNamespace(client_address="a"))
    operator: Any = SimpleNamespace(
        _host=lambda _: host,
        _nemesis=SimpleNamespace(victims=["n1"], damaged=set(), rotten={"n1"}),
        _witness=SimpleNamespace(lost_disk=lambda _: None),
        _seen=SimpleNamespace(addresses={}),
        done={"lost disks": 0},
        _something=stop,
    )
    with pytest.raises(Asked):
        await Operator._lose_disk(operator, "n1")
    assert operator._nemesis.rotten == set()


@contextmanager
def simulation() -> Iterator[Simulation]:
    """That has not begun."""
    made = Simulation(draw(2, seconds=2.0), timeline=Timeline())
    yield made
    throw_away(made.loop)


@pytest.mark.parametrize("rotten", [True, False])
def test_who_has_another_disk_does_not_end_for_damage(rotten: bool) -> None:
    with simulation() as run:
        host = run.hosts[0]
        run.nemesis.damaged.add(host.name)
        if rotten:
            run.nemesis.rotten.add(host.name)
        run._node_ended(host, CorruptData("what is not there"))
        failure = run.outcome.failure
        assert host.may_run is not rotten
        assert (None if failure is None else failure.invariant) == (None if rotten else "NoSelfStop")


@pytest.mark.parametrize(
    ("life", "after_s", "may"), [(3, 1.0, True), (3, HEARD_S + 1.0, False), (2, 1.0, False), (None, 1.0, False)]
)
def test_only_who_has_just_heard_of_an_error_of_its_disk_may_stop_itself(
    life: int | None, after_s: float, *, may: bool
) -> None:
    with simulation() as run:
        host = run.hosts[0]
        if life is not None:
            host.starts = life
            run.nemesis._reports(host)
        host.starts = 3
        run.loop.run_until_complete(asyncio.sleep(after_s))
        run._node_ended(host, OSError("a write has failed"))
        failure = run.outcome.failure
        assert (None if failure is None else failure.invariant) == (None if may else "NoSelfStop")


class Machine:
    """A state: what it says of each counter, or that it is damaged."""

    def __init__(self, state: dict[bytes, tuple[int, ...]] | None) -> None:
        self._state = state

    def scan(self, **_: object) -> Any:
        if self._state is None:
            raise CorruptData("bits have changed")
        return [([*self._state.items()], 0)]


def after(
    monkeypatch: pytest.MonkeyPatch,
    states: dict[int, dict[bytes, tuple[int, ...]] | None],
    *,
    rotten: bool,
    keys: tuple[str, str] = ("a", "b"),
) -> list[str]:
    """What is wrong with a node that has these, where two counters were acknowledged: one in 0, the other in 1."""
    monkeypatch.setattr(afterwards, "read_all", lambda _: ([], {}))
    node: Any = SimpleNamespace(
        machines={p: Machine(state) for p, state in states.items()},
        logs={p: SimpleNamespace(partition_id=p, first_available_index=1) for p in states},
        pipeline=SimpleNamespace(partitioning=SimpleNamespace(kind=lambda _: SimpleNamespace(state_machine="kv"))),
    )
    ops = [Operation(1, "add", key, 1, 0, 1, "ok", partition=p) for p, key in enumerate(keys)]
    seen: Any = SimpleNamespace(history=SimpleNamespace(operations=ops), doomed=set(), together=[ops], again=False)
    found: list[str] = []
    checks = Afterwards(
        None,  # type: ignore[arg-type]
        [SimpleNamespace(name="n1", node=node, may_run=True)],  # type: ignore[list-item]
        seen=seen,
        oracle=SimpleNamespace(differing=lambda *_: []),  # type: ignore[arg-type]
        rotten={"n1"} if rotten else set(),
        report=lambda invariant, _, problems: found.extend([invariant] * len(problems)),
    )
    checks.check()
    return found


def test_what_is_damaged_hides_nothing_of_the_other_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    one: dict[bytes, tuple[int, ...]] = {b"b": (1,)}
    assert after(monkeypatch, {0: None, 1: one}, rotten=True) == []
    assert after(monkeypatch, {0: None, 1: {}}, rotten=True) == ["I8"]
    assert after(monkeypatch, {0: None, 1: one}, rotten=False) == ["NoServeCorrupt"]


def test_a_command_in_another_partition_or_in_two_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert after(monkeypatch, {0: {b"a": (1,)}, 1: {b"b": (1,)}}, rotten=False) == []
    assert after(monkeypatch, {0: {b"a": (1,), b"b": (1,)}, 1: {b"b": (1,)}}, rotten=False) == ["I8"]
    assert after(monkeypatch, {0: {b"a": (1,), b"b": (1,)}, 1: {}}, rotten=False) == ["I8", "I8", "Atomic"]


def test_accounts_that_were_opened_are_on_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state without any passed: whoever has moved something has opened them before."""
    opened: dict[bytes, tuple[int, ...]] = dict.fromkeys(ACCOUNTS, (BEGINS_WITH,))
    moved: dict[bytes, tuple[int, ...]] = {b"t1-moved-1": (1,)}
    other: dict[bytes, tuple[int, ...]] = {b"b": (1,)}
    keys = "t1-moved-1", "b"
    assert after(monkeypatch, {0: moved | opened, 1: other}, rotten=False, keys=keys) == []
    assert after(monkeypatch, {0: moved, 1: other | opened}, rotten=False, keys=keys) == ["TransfersWhole"]
