"""A client's connection that is congested: everyone who waits for room is told of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from dispatcher.service import ClientService, Session
from ports.net import Connection


class Congested:
    congested = True


async def test_two_scans_that_wait_for_room_both_go_on() -> None:
    """Found by reading: the second one took the place of the first, which waited for ever."""
    service = SimpleNamespace(backend=None, sessions=set())
    session = Session(cast(ClientService, service))
    connection: Any = Congested()
    session.opened(cast(Connection, connection))
    scans = [asyncio.ensure_future(session._uncongested()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(scan.done() for scan in scans)
    connection.congested = False
    session.drained()
    async with asyncio.timeout(1):
        await asyncio.gather(*scans)
