"""What a leader is about to put into its journal, in the order in which it was proposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from logboom.types import MIB
from raftlog.entries.entry import Route, pack_control, pack_requests, pack_routes

ENTRY_PAYLOAD_BYTES_MAX: Final = 4 * MIB
"""Payload behind one Raft entry (one request may exceed it): what a catch-up reads at once."""

_Request = tuple[Sequence[Route], int]


class Proposals:
    """Requests share Raft entries of up to ``entry_bytes_max``; a control entry stands alone."""

    def __init__(self, *, entry_bytes_max: int) -> None:
        self._entry_bytes_max = entry_bytes_max
        self._queue: list[_Request | bytes] = []

    def __len__(self) -> int:
        return len(self._queue)

    def request(self, routes: Sequence[Route], payload_bytes: int) -> None:
        """One request's routes, which stay together."""
        self._queue.append((routes, payload_bytes))

    def control(self, fields: Mapping[str, Any]) -> None:
        """A control entry of its own."""
        self._queue.append(pack_control(fields))

    def clear(self) -> None:
        """Nobody leads any more."""
        self._queue.clear()

    def take(self) -> list[bytes]:
        """Raft commands of everything proposed so far."""
        queue, self._queue = self._queue, []
        commands: list[bytes] = []
        requests: list[_Request] = []
        for each in queue:
            if isinstance(each, bytes):
                commands += [*self._packed(requests), each]
                requests = []
            else:
                requests.append(each)
        return commands + self._packed(requests)

    def _packed(self, requests: list[_Request]) -> list[bytes]:
        packs = pack_requests(
            requests, entry_bytes_max=self._entry_bytes_max, payload_bytes_max=ENTRY_PAYLOAD_BYTES_MAX
        )
        return [pack_routes(routes) for routes in packs]
