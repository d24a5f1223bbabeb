"""One node is left, and begins again alone: ``logboom recover``, killed at any of its calls to the disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from chaos.sim.blocking import PlugPulled, dies_at, offline_world
from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from chaos.sim.parameters import Parameters
from logboom.errors import InvalidRequest
from raftlog.entries.configuration import Configuration
from raftlog.journal.journal import Journal
from raftlog.journal.membership import parse
from server.directory.data_dir import MANIFEST
from server.directory.manifest import Manifest, decode
from server.offline.looking import LookingDisk
from server.offline.recover import recover

CRASHES: Final = 0.7
"""How often a command is killed, and how often with the power, whether it was done or not."""
CRASHES_MAX: Final = 3
POWER: Final = 0.6
CALLS: Final = (1, 25)
ONLY_VOTER: Final = "only voter"


class Recovered(NamedTuple):
    """A node that is left, before it is started."""

    host: Host
    alone: Configuration
    """Of which it is the only member."""
    entries: list[tuple[Any, int, int]]
    """Of its journal, which begins behind ``base_index``."""
    base_index: int
    lineage: str


class Recovering:
    """``fail(invariant, story)`` ends the run."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        loop: SimLoop,
        rng: random.Random,
        note: Callable[[str], None],
        fail: Callable[[str, str], None],
    ) -> None:
        self._parameters = parameters
        self._loop = loop
        self._rng = rng
        self._note = note
        self._fail = fail

    def recover(self, host: Host) -> Recovered | None:
        """None: it cannot."""
        world = offline_world(host.disk, self._loop, self._rng)
        before = host.disk.image().files
        try:
            found = recover(host.settings, act=False, world=world)
        except InvalidRequest as error:
            self._note(f"{host.name} cannot go on alone: {error}")
            return None
        host.disk.kill()
        if host.disk.image().files != before:
            self._fail("RecoverWhole", f"{host.name} is another after it was only looked at")
        self._killed_again_and_again(host)
        lineage = _manifest(host).lineage or ""
        if lineage in ("", found.lineage):
            self._fail("OneHistory", f"{host.name} is of {lineage!r} after it was recovered")
        journal = Journal.open(
            disk=LookingDisk(host.disk),
            directory=host.path("journal"),
            cluster_id=host.settings.cluster.id,
            random_bytes=self._rng.randbytes,
        )
        entries, base = list(journal.after(journal.base_index)), int(journal.base_index)
        journal.close()
        host.disk.kill()
        alone = parse(*entries[-1])
        if alone is None or alone.voters != (host.name,):
            self._fail("RecoverWhole", f"{host.name}: its journal ends with {alone}")
        self._note(f"{host.name} is recovered: {lineage}, {found.last_index} entries")
        return Recovered(host, alone or Configuration(), entries, base, lineage)

    def _killed_again_and_again(self, host: Host) -> None:
        """What was begun is gone on with, until the node is its cluster's only voter."""
        world, power = offline_world(host.disk, self._loop, self._rng), not self._parameters.write_behind
        for crashes in range(CRASHES_MAX + 1):
            dies = self._rng.random() < CRASHES and crashes < CRASHES_MAX
            host.disk.hook = dies_at(self._rng.randint(*CALLS)) if dies else None
            killed = False
            try:
                recover(host.settings, act=True, world=world)
            except PlugPulled:
                killed = True
            except InvalidRequest as error:
                if not crashes or ONLY_VOTER not in str(error):
                    self._fail("RecoverWhole", f"{host.name}: {error}")
                return
            finally:
                host.disk.hook = None
            (host.disk.power_loss if power and self._rng.random() < POWER else host.disk.kill)()
            if not killed:
                break
        try:
            recover(host.settings, act=False, world=world)
        except InvalidRequest as error:
            if ONLY_VOTER not in str(error):
                self._fail("RecoverWhole", f"{host.name} after it was recovered: {error}")
        else:
            self._fail("RecoverWhole", f"{host.name} was recovered, and is as it was")
        host.disk.kill()


def _manifest(host: Host) -> Manifest:
    path = host.path(MANIFEST)
    return decode(host.disk.read_file(path), path=str(path))
