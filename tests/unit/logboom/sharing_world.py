"""Barriers of one client, and a node that answers them when the test says so."""

from __future__ import annotations

import asyncio
from typing import Any

from logboom import Client
from logboom.errors import BarrierTimeout, LogboomError
from logboom.types import BarrierResult
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session, until

REACHED: dict[str, Any] = {
    "node": "n1",
    "watermarks": [[0, 9, 9, 9, 0, 9, "running"]],
    "frontiers": [[0, 9]],
    "global_index": 9,
}
NOT_YET = BarrierTimeout(
    "not yet", target=9, behind=[0], watermarks=[[0, 3, 3, 3, 0, 3, "running"]], frontiers=[[0, 3]]
)


class Held:
    """A node that answers barriers when the test says so."""

    def __init__(self, node: FakeNode) -> None:
        self.asked: list[tuple[Session, Frame]] = []
        self._node = node
        node.answers[Kind.BARRIER] = lambda session, frame: self.asked.append((session, frame))

    @property
    def headers(self) -> list[dict[str, Any]]:
        return [frame.header for _, frame in self.asked]

    async def come(self, count: int) -> None:
        await until(lambda: len(self.asked) >= count)
        assert len(self.asked) == count

    def reach(self, number: int = -1) -> None:
        session, frame = self.asked[number]
        session.send(frame, Kind.REACHED, REACHED)

    def fail(self, error: LogboomError, number: int = -1) -> None:
        session, frame = self.asked[number]
        session.fail(frame, error)


def ask(boom: Client, **how: Any) -> asyncio.Task[BarrierResult]:
    return asyncio.create_task(boom.barrier(how.pop("target", 9), **{"partitions": [0], **how}))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def left(boom: Client) -> bool:
    """Requests that are not over, or somebody who looks after them."""
    return bool(len(boom._sharing)) or boom._sharing._look is not None
