"""How far logs go: watermarks, as whoever leads has them, or the node that was named. No Spark in here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final

from logboom.client import Client
from logboom.errors import DeadlineExceeded, InvalidRequest, NoSuchPartition, Unavailable
from logboom.spark.connection import Session, all_or_none
from logboom.spark.options import ReadOptions
from logboom.spark.times import PROBES_MAX
from logboom.types import Watermark, watermark_of

log: Final = logging.getLogger("logboom.spark")
STILL: Final = frozenset(("paused", "damaged", "lost"))
"""States of partitions that stand still, until somebody does something about it."""
SHOWN_S: Final = 2.0
"""For all partitions to be shown where they are asked for, before some are left out."""
APART_S: Final = 0.5
"""For one that stands still, once all together could not be shown."""


class LeftOut(Enum):
    """Which partitions ``marks`` does without, with a line in the log, once ``SHOWN_S`` are over."""

    NOTHING = auto()
    STILL = auto()
    """What stands still, and cannot be shown for that: since its node was started it was never as far as before."""
    HIDDEN = auto()
    """What stands still like that, and what is not open yet, or not as far as before."""


def marks(options: ReadOptions, session: Session, *, left_out: LeftOut = LeftOut.NOTHING) -> list[Watermark]:
    """Of those partitions that the options name, or all that users see, as far as there are any now.

    The leader's, with every committed record, or the node's asked. They are asked for by name: one that is being opened
    where they are asked for is waited for, not left out, and one that nobody wants keeps nobody from the others.
    """
    patience = None
    if left_out is not LeftOut.NOTHING:
        patience = min(SHOWN_S, options.target.request_timeout_ms / 1000 / 2)
    check_node(options, session)
    node, wanted = options.node, _wanted(options)
    while True:
        # Whoever believes that somebody leads may be wrong, and not know yet what was created or committed since.
        session.refresh(node=node)
        shown = session.run(lambda client: client.partitions())
        asked = [p for p in shown if wanted is None or p in wanted]
        if not asked:
            return []
        try:
            try:
                return session.run(partial(_marks, asked, node, patience))
            except (Unavailable, DeadlineExceeded) as error:
                if left_out is LeftOut.NOTHING:
                    raise
                found = session.run(partial(_some, asked, node, left_out))
                log.warning("%d of %d partitions are read: %s", len(found), len(asked), error)
                return found
        except NoSuchPartition:  # since it was said to be there
            continue


async def _marks(partitions: Sequence[int], node: str | None, timeout: float | None, client: Client) -> list[Watermark]:
    return await client.watermarks(partitions, node=node, linearizable=node is None, timeout=timeout)


async def _some(partitions: Sequence[int], node: str | None, left_out: LeftOut, client: Client) -> list[Watermark]:
    """Watermarks of those of them that can be shown."""
    states = await _states(node, client)
    still = [p for p in partitions if states.get(p) in STILL]
    others = [p for p in partitions if p not in frozenset(still) and (left_out is LeftOut.STILL or p in states)]
    found = await _marks(others, node, None, client) if others else []
    gate = asyncio.Semaphore(PROBES_MAX)

    async def ask(partition: int) -> None:
        async with gate:
            try:
                found.extend(await _marks([partition], node, APART_S, client))
            except (Unavailable, DeadlineExceeded) as error:
                log.debug("partition %d: %s", partition, error)

    await all_or_none(ask(p) for p in still)
    return sorted(found, key=lambda mark: mark.partition_id)


async def _states(node: str | None, client: Client) -> Mapping[int, str]:
    """States of all that can be shown at the node, or where they are led from, and of all that stand still there."""
    said = await client.status(node=node)
    if node is None and said["leader"] not in (None, said["node"]):
        said = await client.status(node=said["leader"])
    return {mark.partition_id: mark.state for mark in map(watermark_of, said["partitions"])}


def check_node(options: ReadOptions, session: Session) -> None:
    """Raises InvalidRequest where the options name a node that is no member."""
    if options.node is not None and ":" not in options.node:
        members = session.run(lambda client: client.members())
        if options.node not in members:
            raise InvalidRequest(f"option node takes a node's id or address; {options.node!r} is none of {members}")


def _wanted(options: ReadOptions) -> frozenset[int] | None:
    """Partitions that the options name; None: all."""
    if options.partitions is None:
        return None
    offsets = (options.start, options.end)
    return frozenset(options.partitions).union(*(each for each in offsets if isinstance(each, Mapping)))
