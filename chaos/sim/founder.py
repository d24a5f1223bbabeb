"""Whoever began the cluster loses its disk when all is quiet.

Not while there are faults: where lines are cut nobody may call it in time, and it may commit something alone.

One that began it alone votes alone by all that it has then, and its own file names nobody else: it has to be called by
the others before it begins a second cluster. In some seeds the cluster has shrunk to the first node before, and has
grown to two: what that is fed goes through times at which it voted alone, whoever has begun the cluster with it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from chaos.sim.electorate import Electorate
from chaos.sim.host import Host
from chaos.sim.loop import SimLoop
from chaos.sim.parameters import Parameters
from chaos.sim.seen import Seen
from logboom import Client
from logboom.errors import LogboomError

DICE: Final = 0xF0D5
SHARE: Final = 0.5
SETS: Final = 0.5
"""How often that one is given a snapshot set of the time when it voted alone."""
AWAY_S: Final = (1.5, 5.0)
"""It takes so long to put another disk into a machine: who had a connection to it knows by then that there is none."""
MANY: Final = 3
"""Voters: of fewer the others are no majority, and do not take it back, but feed it as it is."""
ASK_S: Final = 4.0
AGAIN_S: Final = 0.2


class Founder:
    """Of one run. ``lose(host)``: it is down, and has an empty disk. ``new_host`` makes the machine with a number."""

    def __init__(
        self,
        parameters: Parameters,
        hosts: Sequence[Host],
        electorate: Electorate,
        *,
        loop: SimLoop,
        seen: Seen,
        lose: Callable[[Host], None],
        new_host: Callable[[int], Host],
        note: Callable[[str], None],
    ) -> None:
        self._parameters = parameters
        self._hosts = hosts
        self._electorate = electorate
        self._loop = loop
        self._seen = seen
        self._lose = lose
        self._new_host = new_host
        self._note = note
        self._rng = random.Random(parameters.seed ^ DICE)

    def loses_its_disk(self, broken: set[str]) -> Host | None:
        """Who does, if anybody. ``broken``: whose files are damaged: what the founder has may be the only good copy."""
        loses = self._parameters.begins_alone and self._rng.random() < SHARE
        shrinks = self._parameters.shrinks
        host, newest = self._hosts[0], self._electorate.newest
        others = [each for each in self._hosts if each.name in newest.voters and each is not host]
        if host.name not in newest.voters or broken.intersection(newest.ids) or not (loses or shrinks):
            return None
        if not shrinks and len(newest.voters) < MANY:
            return None
        return host if all(each.up for each in (host, *others)) else None

    async def play(self, host: Host, converged: Callable[[], Awaitable[None]]) -> None:
        """Until it has everything, and votes."""
        if self._parameters.shrinks:
            await self._shrink_and_grow(host)
            await converged()
        self._note(f"{host.name}, which began the cluster, loses its disk")
        self._lose(host)
        await asyncio.sleep(self._rng.uniform(*AWAY_S))
        host.start()
        await converged()

    async def _shrink_and_grow(self, host: Host) -> None:
        """All others go, one after the other, and one comes."""
        self._note(f"{host.name} is left alone, and another one comes")
        for name in [each for each in self._electorate.newest.ids if each != host.name]:
            await self._ask(lambda client, name=name: client.remove_member(name))  # type: ignore[misc]
            gone = next(each for each in self._hosts if each.name == name)
            self._seen.addresses.pop(gone.member.client_address, None)
            gone.retire()
        for _ in range(2 if self._rng.random() < SETS else 0):  # the first one is behind where journals begin then
            await self._ask(lambda client: client.create_snapshot())
        other = self._new_host(len(self._hosts) + 1)
        other.start()
        peer, address = other.member.peer_address, other.member.client_address
        await self._ask(lambda client: client.add_member(other.name, peer_address=peer, client_address=address))
        self._seen.addresses[address] = other.name
        while other.name not in self._electorate.newest.voters:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, call: Callable[[Client], Awaitable[Any]]) -> None:
        """Again until it is done, each time as another process: like a command."""
        done = False

        async def asked() -> None:
            nonlocal done
            client = Client(list(self._seen.addresses), rng=random.Random(self._rng.getrandbits(64)), timeout=ASK_S)
            try:
                await call(client)
                done = True
            except LogboomError as error:
                self._seen.refused("an operator", error)
            finally:
                await client.close()
                self._loop.run_as(None, ended.set_result, None)

        while not done:
            ended: asyncio.Future[None] = self._loop.create_future()
            self._loop.spawn(self._loop.process("operator"), asked())
            await ended
            await asyncio.sleep(AGAIN_S)
