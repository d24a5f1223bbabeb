"""Whoever began the cluster alone loses its disk when all is quiet: by all that it has then, it alone votes.

Its own file names nobody else. It has to be called by the others before it begins a second cluster. Not while there are
faults: where lines are cut nobody may call it in time, and it may commit something alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from chaos.sim.electorate import Electorate
from chaos.sim.host import Host
from chaos.sim.parameters import Parameters

DICE: Final = 0xF0D5
SHARE: Final = 0.5
AWAY_S: Final = (1.5, 5.0)
"""It takes so long to put another disk into a machine: who had a connection to it knows by then that there is none."""
MANY: Final = 3
"""Voters: of fewer the others are no majority, and nobody would take it back."""


class Founder:
    """Of one run. ``lose(host)``: it is down, and has an empty disk."""

    def __init__(
        self,
        parameters: Parameters,
        hosts: Sequence[Host],
        electorate: Electorate,
        *,
        lose: Callable[[Host], None],
        note: Callable[[str], None],
    ) -> None:
        self._parameters = parameters
        self._hosts = hosts
        self._electorate = electorate
        self._lose = lose
        self._note = note
        self._rng = random.Random(parameters.seed ^ DICE)

    def loses_its_disk(self, broken: set[str]) -> Host | None:
        """Who does, if anybody. ``broken``: whose files are damaged: what the founder has may be the only good copy."""
        if not self._parameters.begins_alone or self._rng.random() >= SHARE:
            return None
        host, newest = self._hosts[0], self._electorate.newest
        others = [each for each in self._hosts if each.name in newest.voters and each is not host]
        if host.name not in newest.voters or len(newest.voters) < MANY or broken.intersection(newest.ids):
            return None
        return host if all(each.up for each in (host, *others)) else None

    async def play(self, host: Host, converged: Callable[[], Awaitable[None]]) -> None:
        """Until it has everything, and votes."""
        self._note(f"{host.name}, which began the cluster, loses its disk")
        self._lose(host)
        await asyncio.sleep(self._rng.uniform(*AWAY_S))
        host.start()
        await converged()
