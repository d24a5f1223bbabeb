"""How far logs go: watermarks, as whoever leads has them, or the node that was named. No Spark in here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final

from logboom.client import Client
from logboom.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NoSuchPartition,
    NotLeader,
    Unavailable,
    UnknownOutcome,
)
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
"""For one that is asked for apart, once all together could not be shown; longer, if no answer comes."""
NO_ANSWER: Final = (DeadlineExceeded, NotLeader, UnknownOutcome)
"""Whoever leads has not said in time whether it can be shown."""
NAMED_MAX: Final = 16
"""Partitions that a line of the log names."""


class LeftOut(Enum):
    """Which partitions ``marks`` does without, with a line in the log, once ``SHOWN_S`` are over."""

    NOTHING = auto()
    STILL = auto()
    """What stands still, and cannot be shown for that: since its node was started it was never as far as before."""
    HIDDEN = auto()
    """The same of whatever else does not run, and what is not open yet, or not as far as before."""


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
            except (Unavailable, *NO_ANSWER) as error:
                if left_out is LeftOut.NOTHING:
                    raise
                found = session.run(partial(_some, asked, node, left_out))
                log.warning("%d of %d partitions are read%s: %s", len(found), len(asked), _but(asked, found), error)
                return found
        except NoSuchPartition:  # since it was said to be there
            continue


async def _marks(partitions: Sequence[int], node: str | None, timeout: float | None, client: Client) -> list[Watermark]:
    return await client.watermarks(partitions, node=node, linearizable=node is None, timeout=timeout)


async def _some(partitions: Sequence[int], node: str | None, left_out: LeftOut, client: Client) -> list[Watermark]:
    """Watermarks of those of them that can be shown."""
    states = await _states(node, client)
    if left_out is LeftOut.STILL:
        apart = [p for p in partitions if states.get(p) in STILL]
        others = [p for p in partitions if p not in frozenset(apart)]
    else:
        apart = [p for p in partitions if states.get(p, "running") != "running"]
        others = [p for p in partitions if states.get(p) == "running"]
    found = await _marks(others, node, None, client) if others else []
    gate = asyncio.Semaphore(PROBES_MAX)

    async def ask(partition: int) -> None:
        async with gate:
            found.extend(await _shown(partition, node, client))

    await all_or_none(ask(p) for p in apart)
    return sorted(found, key=lambda mark: mark.partition_id)


async def _shown(partition: int, node: str | None, client: Client) -> list[Watermark]:
    """Of one that may not be shown there; nothing: it is refused. Without an answer it is asked for again, longer."""
    now = asyncio.get_running_loop().time
    late, patience = now() + client.timeout, APART_S
    while True:
        try:
            return await _marks([partition], node, patience, client)
        except (Unavailable, *NO_ANSWER) as error:
            # It may have been refused before, and the last attempt have been under way when the time was over.
            if isinstance(error, Unavailable) or isinstance(error.__cause__, Unavailable):
                log.debug("partition %d: %s", partition, error)
                return []
            if now() >= late:
                raise
        patience = min(2 * patience, max(0.0, late - now()))


async def _states(node: str | None, client: Client) -> Mapping[int, str]:
    """States of all that can be shown at the node, or whoever leads, and of all that do not run there.

    Who leads nobody else is asked: of a node that the others do not let in, or that is cut off, states are its own.
    """
    if node is None:
        node = (await client.member_list())["node"]
    said = await client.status(node=node)
    return {mark.partition_id: mark.state for mark in map(watermark_of, said["partitions"])}


def _but(asked: Sequence[int], found: Sequence[Watermark]) -> str:
    """Which are left out, for people."""
    there = {mark.partition_id for mark in found}
    missing = [str(p) for p in asked if p not in there]
    if not missing:
        return ""
    more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    return f", without {', '.join(missing[:NAMED_MAX])}{more}"


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
