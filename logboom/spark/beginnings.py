"""Where logs begin on one node or another: each removes records for itself. No Spark in here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from logboom.client import Client
from logboom.errors import IndexCompacted, LogboomError, PartitionDestroyed, Unavailable, Voided
from logboom.spark.connection import Session, all_or_none
from logboom.spark.options import ReadOptions
from logboom.spark.shares import Share
from logboom.spark.times import PROBES_MAX


@dataclass(slots=True)
class Held:
    """What a node has of what is wanted of some logs."""

    gone: dict[int, int] = field(default_factory=dict)
    """By partition, the first offset that it has, where something in front of that is wanted and was removed."""
    passed: dict[int, int] = field(default_factory=dict)
    """The same, where what was removed lies in front of the global index that is read from."""
    behind: set[int] = field(default_factory=set)
    """Partitions whose log ends in front of what is wanted: it says nothing about them."""

    def lacks(self, wanted: Iterable[Share]) -> int:
        """So many of the records that are wanted."""
        return sum(self._lacks(share) for share in wanted)

    def _lacks(self, share: Share) -> int:
        if share.partition_id in self.behind:
            return share.rows
        return min(self.gone.get(share.partition_id, share.start), share.end + 1) - share.start


def held_by(node: str, wanted: Sequence[Share], start_global: int, session: Session, *, timeout: float) -> Held:
    """What a node has of shares, from a global index on. Raises DeadlineExceeded, PartitionDestroyed, TimeoutError."""
    found = Held()

    async def first(client: Client, partition: int, **where: Any) -> int | None:
        # A credit of one byte: one batch.
        batches = client.tail(partition, **where, follow=False, node=node, credit=1, on_void=_refuse)
        async with aclosing(batches):
            async for batch in batches:
                return int(batch.first_index)
        return None

    async def look(client: Client, share: Share, gate: asyncio.Semaphore) -> None:
        partition = share.partition_id
        async with gate:
            try:
                if await first(client, partition, start=share.start) is None:
                    found.behind.add(partition)
            except Voided:  # its reader says so
                return
            except IndexCompacted as removed:
                try:
                    await first(client, partition, start_global=start_global)
                except IndexCompacted:
                    found.gone[partition] = int(removed.first)
                    return
                except Voided:
                    pass
                found.passed[partition] = int(removed.first)

    async def all_of(client: Client) -> None:
        gate = asyncio.Semaphore(PROBES_MAX)
        async with asyncio.timeout(timeout):
            await all_or_none(look(client, share, gate) for share in wanted)

    session.run(all_of)
    return found


def holder(
    options: ReadOptions, node: str | None, wanted: Sequence[Share], start_global: int, session: Session, *, turn: int
) -> tuple[str, Held]:
    """The first node that has all that is wanted; else the one that lacks least of it, and what nobody has.

    ``node``: the only one to be asked. ``turn``: says who is asked first. Raises Unavailable if no node can be asked,
    PartitionDestroyed.
    """
    timeout = options.target.request_timeout_ms / 1000
    if node is not None:
        return _choose([node], wanted, start_global, session, timeout)
    members = list(session.run(lambda client: client.members()).values())
    at = turn % max(1, len(members))
    try:
        return _choose([*members[at:], *members[:at]], wanted, start_global, session, timeout)
    except Unavailable:  # from here they may have other addresses
        return _choose(options.target.endpoints.split(","), wanted, start_global, session, timeout)


def _choose(
    nodes: Sequence[str], wanted: Sequence[Share], start_global: int, session: Session, timeout: float
) -> tuple[str, Held]:
    said: dict[str, Held] = {}
    failed: Exception | None = None
    for node in nodes:
        try:
            held = held_by(node, wanted, start_global, session, timeout=timeout / len(nodes))
        except PartitionDestroyed:
            raise
        except (LogboomError, TimeoutError) as error:  # another may answer
            failed = error
            continue
        if not held.lacks(wanted):
            return node, held
        said[node] = held
    if not said:
        raise Unavailable(f"no node says where its logs begin: {failed}") from failed
    node = min(said, key=lambda each: said[each].lacks(wanted))
    return node, _without_those_to_come(said[node], list(said.values()))


def _without_those_to_come(held: Held, others: Sequence[Held]) -> Held:
    """Of a log of which one node has nothing yet, and the others have removed it, it is gone."""
    gone = dict(held.gone)
    for partition in held.behind:
        firsts = [each.gone[partition] for each in others if partition in each.gone]
        if firsts and all(partition in each.gone or partition in each.behind for each in others):
            gone[partition] = min(firsts)
    return Held(gone, held.passed, held.behind - gone.keys())


def _refuse(gap: Voided) -> None:
    raise gap
