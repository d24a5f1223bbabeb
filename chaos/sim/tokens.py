"""Clients hand on what they know: whoever is given a token reads at least that, of any node, in every way there is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from chaos.sim.waiting import Waited
from logboom import Client
from logboom.errors import LogboomError
from logboom.types import Token

if TYPE_CHECKING:
    from chaos.sim.seen import Seen

READ_S: Final = 2.0
ERROR_PAUSE_S: Final = 0.2
OWN: Final = 0.3
"""Share of those who read themselves what they were told."""

Read = Callable[[Client, int, bytes, Token, str], Awaitable[bool]]


class Handing:
    """One client's. ``acknowledged``: partition, key and index of what it added last."""

    def __init__(
        self,
        client: Client,
        *,
        seen: Seen,
        rng: random.Random,
        acknowledged: Callable[[], tuple[int, str, int] | None],
        reached: Callable[[Waited], None],
    ) -> None:
        self._client = client
        self._seen = seen
        self._rng = rng
        self._acknowledged = acknowledged
        self._reached = reached

    async def step(self) -> None:
        """Somebody else, or this client at any node, is to read what it has written."""
        try:
            await self._hand_on()
        except LogboomError as error:
            self._seen.refused("who was given a token", error)
            await asyncio.sleep(ERROR_PAUSE_S)  # whoever is down, or behind for too long, has nothing to say

    async def _hand_on(self) -> None:
        known = self._acknowledged()
        if known is None:
            return
        partition, name, index = known
        token, address = await self._client.token(), self._rng.choice(list(self._seen.addresses))
        read = self._rng.choice([_get, _scan, _view, _bounded, self._barrier])
        if token.global_index < index:
            self._seen.problems.append(("TokenKept", f"{token} of a client that was told of {index}"))
        if self._rng.random() < OWN:
            how, key = "of its own session", name.encode()
            found = await self._client.get(partition, key, at_least="session", node=address, timeout=READ_S) == (1,)
        else:
            stranger = Client([address], rng=random.Random(self._rng.getrandbits(64)), timeout=READ_S)
            try:
                how, found = read.__name__, await read(stranger, partition, name.encode(), token, address)
            finally:
                await stranger.close()
        if not found and partition not in self._seen.doomed:
            story = f"{name} of partition {partition} was acknowledged at {index}; {address} at least {token}, {how}"
            self._seen.problems.append(("TokenKept", f"{story}: it is not there"))

    async def _barrier(self, client: Client, partition: int, _: bytes, token: Token, address: str) -> bool:
        """Whether it is true is looked up on the node."""
        reached = await client.barrier(token, partitions=[partition], node=address, timeout=READ_S)
        self._reached(Waited(reached.node_id, {partition: token.global_index}))
        return True


async def _get(client: Client, partition: int, key: bytes, token: Token, address: str) -> bool:
    return await client.get(partition, key, at_least=token, node=address, timeout=READ_S) == (1,)


async def _scan(client: Client, partition: int, key: bytes, token: Token, address: str) -> bool:
    rows = client.scan(partition, start=key, end=key + b"\0", at_least=token, node=address, timeout=READ_S)
    return [row async for row in rows] == [(key, (1,))]


async def _view(client: Client, partition: int, key: bytes, token: Token, address: str) -> bool:
    rows = client.scan_view([partition], start=key, end=key + b"\0", at_least=token, node=address, timeout=READ_S)
    return [(row.key, row.value) async for row in rows] == [(key, (1,))]


async def _bounded(client: Client, partition: int, key: bytes, token: Token, address: str) -> bool:
    """Both of it counts: the token, however old what is there may be."""
    found = await client.get(partition, key, at_least=token, max_staleness=60.0, node=address, timeout=READ_S)
    return found == (1,)
