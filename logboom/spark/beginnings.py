"""Where logs begin on one node or another: each removes records for itself. No Spark in here."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from logboom.client import Client
from logboom.errors import IndexCompacted, LogboomError, PartitionDestroyed, Unavailable, Voided
from logboom.spark.connection import Session, all_or_none
from logboom.spark.options import ReadOptions
from logboom.spark.shares import Share
from logboom.spark.times import PROBES_MAX

GLANCE_S: Final = 5.0
"""A node that is asked for this or that, and says nothing in this time, is left for another."""
STAGGER_S: Final = 0.2
"""The next node is asked beside one that has not answered in this time."""


@dataclass(slots=True)
class Held:
    """What a node has of what is wanted of some logs."""

    gone: dict[int, int] = field(default_factory=dict)
    """By partition, the first offset that it has, where something in front of that is wanted and was removed."""
    passed: dict[int, int] = field(default_factory=dict)
    """By partition, the first offset that it has, where what was removed lies in front of the global index that is read
    from."""
    behind: set[int] = field(default_factory=set)
    """Partitions whose log ends in front of what is wanted: it says nothing about them."""

    def lacks(self, wanted: Iterable[Share]) -> int:
        """How many of the records that are wanted it does not have."""
        return sum(self._lacks(share) for share in wanted)

    def _lacks(self, share: Share) -> int:
        if share.partition_id in self.behind:
            return share.rows
        return max(0, min(self.gone.get(share.partition_id, share.start), share.end + 1) - share.start)

    def has_removed(self, wanted: Iterable[Share]) -> bool:
        """Some of it: unlike what it is behind in, that does not come any more."""
        return any(self.gone.get(share.partition_id, 0) > share.start for share in wanted if share.rows)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which node to read from."""

    node: str
    held: Held
    lost: Mapping[int, int] = field(default_factory=dict)
    """By partition, the first offset that any node has, where something in front of that is wanted."""

    @property
    def elsewhere(self) -> dict[int, int]:
        """The first that this node has, where others have more: none of them has all that the others have, nor will."""
        return {p: first for p, first in self.held.gone.items() if first > self.lost.get(p, 0)}


def held_by(
    node: str, wanted: Sequence[Share], start_global: int, session: Session, *, timeout: float, alone: bool
) -> Held:
    """What a node has of shares, from a global index on. Raises DeadlineExceeded, PartitionDestroyed, TimeoutError.

    ``alone``: no other may be asked, and it has all of the time.
    """
    return session.run(lambda client: _held(client, node, wanted, start_global, timeout, alone=alone))


async def _held(
    client: Client, node: str, wanted: Sequence[Share], start_global: int, timeout: float, *, alone: bool
) -> Held:
    found = Held()

    async def first(partition: int, **where: Any) -> int | None:
        # A credit of one byte: one batch.
        batches = client.tail(partition, **where, follow=False, node=node, credit=1, on_void=_refuse)
        async with aclosing(batches):
            async for batch in batches:
                return int(batch.first_index)
        return None

    async def look(share: Share) -> None:
        partition = share.partition_id
        try:
            if await first(partition, start=share.start) is None:
                found.behind.add(partition)
        except Voided:  # its reader says so
            return
        except IndexCompacted as removed:
            try:
                await first(partition, start_global=start_global)
            except IndexCompacted:
                found.gone[partition] = int(removed.first)
                return
            except Voided:
                pass
            found.passed[partition] = int(removed.first)

    gate, clock = asyncio.Semaphore(PROBES_MAX), asyncio.get_running_loop().time
    glance, end = timeout if alone else _glance(timeout), clock() + timeout

    async def in_turn(share: Share) -> None:
        async with gate:
            await look(share)
        if not silent.expired():
            silent.reschedule(min(end, clock() + glance))

    async with asyncio.timeout(glance) as silent:
        await all_or_none(in_turn(share) for share in wanted)
    return found


def holder(
    options: ReadOptions, node: str | None, wanted: Sequence[Share], start_global: int, session: Session, *, turn: int
) -> Choice:
    """The first node that has all that is wanted; else of those that answer the one to read from.

    ``node``: the only one to be asked. ``turn``: says who is asked first. Whoever does not answer keeps nobody from the
    others. Raises Unavailable if none does, PartitionDestroyed.
    """
    timeout = options.target.request_timeout_ms / 1000

    async def choose(client: Client) -> Choice:
        if node is not None:
            return await _choose(client, [node], [], wanted, start_global, timeout, alone=True)
        members = list((await client.members()).values())
        at = turn % max(1, len(members))
        # From here members may have other addresses.
        given = [each for each in options.target.endpoints.split(",") if each not in members]
        return await _choose(client, [*members[at:], *members[:at]], given, wanted, start_global, timeout, alone=False)

    return session.run(choose)


async def _choose(
    client: Client,
    nodes: Sequence[str],
    else_these: Sequence[str],
    wanted: Sequence[Share],
    start_global: int,
    timeout: float,
    *,
    alone: bool,
) -> Choice:
    stagger = min(STAGGER_S, _glance(timeout) / 4)
    said: dict[str, Held] = {}
    failed: Exception | None = None
    asked: dict[str, asyncio.Task[Held]] = {}
    waiting = [*nodes, *else_these]
    try:
        while True:
            if waiting and waiting[0] not in nodes and said:
                waiting.clear()
            if waiting:
                each = waiting.pop(0)
                asked[each] = asyncio.ensure_future(_held(client, each, wanted, start_global, timeout, alone=alone))
            if not asked:
                break
            patience = stagger if waiting else None
            await asyncio.wait(asked.values(), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for each in [name for name, task in asked.items() if task.done()]:
                try:
                    held = asked.pop(each).result()
                except PartitionDestroyed:
                    raise
                except (LogboomError, TimeoutError) as error:  # another may answer
                    failed = error
                    continue
                if not held.lacks(wanted):
                    return Choice(each, held)
                said[each] = held
    finally:
        for task in asked.values():
            task.cancel()
        await asyncio.gather(*asked.values(), return_exceptions=True)
    if not said:
        raise Unavailable(f"no node says where its logs begin: {failed}") from failed
    return _best(said, wanted)


def _best(said: Mapping[str, Held], wanted: Sequence[Share]) -> Choice:
    """Of nodes that lack something: one that has removed nothing that others have, though it be behind; or most."""
    lost = _lost(said.values())
    rest = [replace(each, start=max(each.start, lost.get(each.partition_id, 0))) for each in wanted]
    node = min(said, key=lambda each: (said[each].has_removed(rest), said[each].lacks(rest)))
    return Choice(node, said[node], lost)


def _lost(nodes: Collection[Held]) -> dict[int, int]:
    """What each has removed, or is behind in: of what all others have removed, one that is behind says nothing."""
    found = dict[int, int]()
    for partition in {p for held in nodes for p in held.gone}:
        if all(partition in held.gone or partition in held.behind for held in nodes):
            found[partition] = min(held.gone[partition] for held in nodes if partition in held.gone)
    return found


def _glance(timeout: float) -> float:
    return min(GLANCE_S, timeout / 2)


def _refuse(gap: Voided) -> None:
    raise gap
