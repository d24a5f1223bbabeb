"""Who waits and watches while all that happens: watermarks, asked for and followed; barriers of every scope."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from chaos.checkers.watermarks import Kept, Sample
from chaos.history import History
from logboom import Client
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import Watermark

ASK_S: Final = 0.3
PAUSE_S: Final = 0.1
BARRIER_S: Final = 3.0
RECENT: Final = 200
SCOPES: Final = ("node", "leader", "quorum", "all", "all")


@dataclass
class Waited:
    """What was told."""

    samples: list[Sample] = field(default_factory=list)
    """As nodes answered."""
    followed: list[Sample] = field(default_factory=list)
    """As streams told it."""
    kept: list[Kept] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _sample(node: str, mark: Watermark, asked_ns: int) -> Sample:
    applied = mark.applied_global_index
    return Sample(node, mark.partition_id, mark.log_index, mark.durable_index, mark.applied_index, applied, asked_ns)


class Waits:
    """``changes``: of the members so far, an odd number while there is one under way."""

    def __init__(
        self, cluster: LocalCluster, history: History, waited: Waited, rng: random.Random, changes: Callable[[], int]
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._waited = waited
        self._rng = rng
        self._changes = changes

    async def poll(self, stopped: asyncio.Event) -> None:
        """Every node's watermarks, again and again."""
        async with Client(self._cluster.endpoints, timeout=1.0) as client:
            while not stopped.is_set():
                for node in list(self._cluster.nodes):
                    asked = self._history.now_ns()
                    try:
                        marks = await client.watermarks(node=self._cluster.addresses[node], timeout=ASK_S)
                    except LogboomError:
                        continue
                    self._waited.samples += [_sample(node, mark, asked) for mark in marks]
                await asyncio.sleep(PAUSE_S)

    async def follow(self) -> None:
        """As a program that shows them; until cancelled."""
        async with Client(self._cluster.endpoints) as client:
            while True:
                try:
                    async for update in client.watermarks_stream(every=PAUSE_S):
                        self._waited.followed += [_sample(update.node_id, mark, 0) for mark in update.watermarks]
                        least = min((mark.applied_global_index for mark in update.watermarks), default=0)
                        if update.minimum != least:
                            self._waited.problems.append(
                                f"the least of {update.node_id} is said to be {update.minimum}"
                            )
                    self._waited.problems.append("a stream of watermarks has come to an end")
                except LogboomError as error:
                    if not error.retryable:
                        self._waited.problems.append(f"a stream of watermarks: {error}")
                    await asyncio.sleep(PAUSE_S)

    async def barriers(self, stopped: asyncio.Event) -> None:
        """Of what was acknowledged just now; and what it says must be so from then on."""
        async with Client(self._cluster.endpoints) as client:
            while not stopped.is_set():
                target = max((op.global_index for op in self._history.operations[-RECENT:]), default=0)
                scope, before = self._rng.choice(SCOPES), self._changes()
                nodes = tuple(self._cluster.nodes)
                address = self._rng.choice([self._cluster.addresses[each] for each in nodes])
                where = None if scope == "leader" or self._rng.random() < 0.5 else address
                try:
                    reached = await client.barrier(target, scope=scope, node=where, timeout=BARRIER_S)
                except LogboomError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if scope in ("node", "leader"):
                    nodes = (reached.node_id,)
                    marks = {int(mark.partition_id): int(mark.applied_global_index) for mark in reached.watermarks}
                else:
                    marks = {int(partition): int(index) for partition, index in reached.frontiers.items()}
                if before == self._changes() and not before % 2:  # else nobody knows whose majority it was
                    ended = self._history.now_ns()
                    self._waited.kept.append(Kept(scope, target, ended, nodes, marks))
                await asyncio.sleep(PAUSE_S)
