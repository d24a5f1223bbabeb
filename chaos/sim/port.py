"""A bound port in the simulated network, which accepts by itself and has no descriptors to run out of."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from server.world.accepting import CLOSE_S, Port


class SimPort(Port):
    """See Port."""

    _server: Any = None

    async def bind(self, host: str, port: int, backlog: int) -> str:
        """See Port."""
        self._server = await self._loop.create_server(self._make, host, port, backlog=backlog)
        bound, number = self._server.sockets[0].getsockname()[:2]
        return f"{bound}:{number}"

    def stop(self) -> None:
        """See Port."""
        self._server.close()

    async def ended(self) -> None:
        """See Port."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._server.wait_closed()
