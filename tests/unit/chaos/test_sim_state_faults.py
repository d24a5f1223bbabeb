"""What a nemesis does to a disk, the states on it feel, too."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim import disk_faults
from chaos.sim.disk import SimDisk
from chaos.sim.disk_faults import DiskFaults
from chaos.sim.loop import SimLoop
from chaos.sim.state_file import StateFiles
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE

DIRECTORY = Path("/n1/partitions/0/state")


def host() -> Any:
    return SimpleNamespace(
        name="n1", starts=3, disk=SimDisk(random.Random(1)), state_files=StateFiles(random.Random(1))
    )


@pytest.mark.parametrize(("fault", "number"), [("_disk_full", errno.ENOSPC), ("_eio", errno.EIO)])
@pytest.mark.parametrize("seed", range(6))
async def test_a_state_cannot_be_saved_while_it_lasts(fault: str, number: int, seed: int) -> None:
    nemesis: Any = SimpleNamespace(faulty={}, _loop=SimpleNamespace(now=7.0), _power_may_fail=lambda _: True)
    nemesis._reports = lambda host: DiskFaults._reports(nemesis, host)
    nemesis._hooked = lambda *args: DiskFaults._hooked(nemesis, *args)
    machine = host()
    file = machine.state_files.open(DIRECTORY, ApplySettings())
    lasts = asyncio.create_task(getattr(DiskFaults, fault)(nemesis, machine, 60.0, random.Random(seed)))
    await asyncio.sleep(0)

    def save() -> None:
        for _ in range(30):  # EIO comes with one of the next calls
            file.write({b"k": b"v"}, {}, NOWHERE)

    with pytest.raises(OSError, match=r"[Ee]rror|space") as caught:
        save()
    assert caught.value.errno == number
    assert nemesis.faulty == {"n1": (3, 7.0)}
    lasts.cancel()


async def test_a_disk_fails_once_or_for_as_long_as_that_lasts() -> None:
    async def failures(seed: int) -> int:
        nemesis: Any = SimpleNamespace(_reports=lambda _: None, _power_may_fail=lambda _: True)
        nemesis._hooked = lambda *args: DiskFaults._hooked(nemesis, *args)
        machine, failed = host(), 0
        file = machine.state_files.open(DIRECTORY, ApplySettings())
        lasts = asyncio.create_task(DiskFaults._eio(nemesis, machine, 60.0, random.Random(seed)))
        await asyncio.sleep(0)
        for _ in range(30):
            try:
                file.write({b"k": b"v"}, {}, NOWHERE)
            except OSError:
                failed += 1
        lasts.cancel()
        return failed

    found = [await failures(seed) for seed in range(20)]
    assert set(found) > {1}
    assert min(each for each in found if each != 1) > 5


async def test_and_can_when_it_is_over() -> None:
    machine = host()
    file = machine.state_files.open(DIRECTORY, ApplySettings())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    nemesis: Any = SimpleNamespace()
    await DiskFaults._hooked(nemesis, machine, full, 0.0)
    file.write({b"k": b"v"}, {}, NOWHERE)
    assert machine.state_files.fault is None


@pytest.mark.parametrize("ends", ["", "anew", "over"])
def test_no_disk_is_put_back_to_what_it_was_before_its_node_began_anew(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It may begin anew while those who lag fall behind. What is from before that is refused by all, for good.

    Or all faults are over by then: whoever has what they lack was killed in the middle of the end, and stayed away.
    """
    directory, done = [b"first"], list[str]()
    monkeypatch.setattr(disk_faults, "LATE_SHARE", 1.0)
    monkeypatch.setattr(disk_faults, "_identity", lambda _: (None, directory[0]))
    monkeypatch.setattr(disk_faults, "_reached", lambda *_: 1)
    monkeypatch.setattr(disk_faults, "_heard", lambda *_: 2)

    class Faults(DiskFaults):
        over = False

        def __init__(self) -> None:
            self.damaged, self.forgetful, self.disk_lost = set(), set(), lambda _: None
            self.rotten, self.may_forget = set(), set()
            self._all, self._note = [victim, *others], lambda _: None
            self.struck = lambda _: None
            self._network = SimpleNamespace(cut=lambda *_: done.append("cut"), heal=lambda *_: done.append("heal"))  # type: ignore[assignment]

        def _victim(self, rng: random.Random) -> Any:
            return victim

        def _others(self, host: Any) -> list[Any]:
            return others

        def _power_may_fail(self, host: Any) -> bool:
            return True

        def _restart(self, host: Any) -> None:
            done.append("restart")

        async def _down(self, hosts: Any, duration: float, *, power: bool) -> None: ...

    def copied(_: random.Random) -> Any:
        # Once the others have heard enough, and while some of them are made to lag.
        if ends == "anew":
            loop.run_as(None, directory.__setitem__, 0, b"second", delay=disk_faults.SINCE_S[1] + 0.4)
        if ends == "over":
            loop.run_as(None, setattr, faults, "over", True, delay=disk_faults.SINCE_S[1] + 0.4)
        return None, None

    monkeypatch.setattr(disk_faults, "SINCE_S", (3.0, 3.0))
    victim: Any = SimpleNamespace(
        name="n1", disk=SimpleNamespace(hook=None), copy=copied, put_back=lambda _: done.append("put back")
    )
    others: Any = [SimpleNamespace(name=name, kill=lambda **_: None) for name in ("n2", "n3")]
    faults = Faults()
    loop.run_until_complete(faults._put_back(victim, 1.0, random.Random(3)))
    assert done.count("cut") == done.count("heal") > 0
    assert ("put back" in done) is not bool(ends)
    assert faults.damaged == (set() if ends else {"n1"})
