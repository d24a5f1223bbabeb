"""What a nemesis does to a disk, the states on it feel, too."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from chaos.sim.disk_faults import DiskFaults
from chaos.sim.state_file import StateFiles
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE

DIRECTORY = Path("/n1/partitions/0/state")


def host() -> Any:
    return SimpleNamespace(name="n1", disk=SimDisk(random.Random(1)), state_files=StateFiles(random.Random(1)))


@pytest.mark.parametrize(("fault", "number"), [("_disk_full", errno.ENOSPC), ("_eio", errno.EIO)])
@pytest.mark.parametrize("seed", range(6))
async def test_a_state_cannot_be_saved_while_it_lasts(fault: str, number: int, seed: int) -> None:
    nemesis: Any = SimpleNamespace(faulty=set(), _power_may_fail=lambda _: True)
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
    assert nemesis.faulty == {"n1"}
    lasts.cancel()


async def test_and_can_when_it_is_over() -> None:
    machine = host()
    file = machine.state_files.open(DIRECTORY, ApplySettings())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    nemesis: Any = SimpleNamespace()
    await DiskFaults._hooked(nemesis, machine, full, 0.0)
    file.write({b"k": b"v"}, {}, NOWHERE)
    assert machine.state_files.fault is None
