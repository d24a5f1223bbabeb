"""The simulator's operator, when he is killed."""

import asyncio
import random
from types import SimpleNamespace

from chaos.sim.members import Operator


class Suspended:
    def __await__(self):
        yield


def test_a_killed_operator_closes_nothing():
    """His coroutine is collected whenever Python comes to it, outside any loop: it must not await then."""
    loop = asyncio.new_event_loop()
    seen = SimpleNamespace(addresses={"127.0.0.1:1": "n1"})
    operator = SimpleNamespace(_seen=seen, _to=None, _rng=random.Random(1), _loop=loop)

    async def call(client):
        await Suspended()

    asked = Operator._asked(operator, call, loop.create_future())
    asked.send(None)
    asked.close()
    loop.close()
