"""The cluster as a client sees it: which partitions there are; retries within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from logboom.client.attempts import BACKOFF_MIN_S, Attempts
from logboom.client.connection import NodeConnection
from logboom.client.known import is_inside
from logboom.client.pool import CONNECT_S, Pool
from logboom.errors import (
    DeadlineExceeded,
    LineageMismatch,
    LogboomError,
    NoSuchPartition,
    NotLeader,
    PartitionDestroyed,
    Unavailable,
    UnknownOutcome,
)
from logboom.types import Token, lineage_shown
from logboom.wire import Kind

T = TypeVar("T")
There = frozenset[int] | None  # which partitions there are, as whoever leads has said it; None: he was not asked


class Cluster(Pool):
    """Shared by everything that a client does."""

    async def refresh_partitions(
        self,
        at: NodeConnection,
        *,
        linearizable: bool = False,
        at_least: int = 0,
        named: bool = False,
        follows: bool = False,
        timeout: float = CONNECT_S,
    ) -> None:
        """Ask a node which partitions there are: a leader, if that must be so now; or as of an index.

        ``named``: it is this node's word that is wanted. ``follows``: it follows whoever leads, as it has just said.
        ``timeout``: how long it may take until a node knows of that. Raises what a request may raise.
        """
        asked = {"action": "partitions", "linearizable": linearizable, "at_least": at_least}
        frame = await at.request(Kind.ADMIN, {**asked, "timeout_ms": max(1, int(timeout * 1000))})
        heard = at_least > 0 and "partitions_at" in at.welcome.get("features", ())
        wanted = named or heard or is_inside(at.welcome)
        self._learn_partitions(frame.header, sure=linearizable or follows, wanted=wanted)
        self._changed = False

    async def acquaint(self, *, deadline: float) -> None:
        """Have a node say which partitions there are, whatever it knows; unless WELCOME has said it."""

        async def ask(node: NodeConnection) -> None:
            if not self.partitions:
                await self.refresh_partitions(node, linearizable=self._changed)

        if not self.partitions:
            await self.retry(self.leader if self._changed else self.any, ask, deadline=deadline)

    async def know_partitions(self, *, deadline: float) -> None:
        """The same; but what a node says that follows nobody counts only where nobody leads."""
        await self.acquaint(deadline=deadline)
        if self._provisional and self.now >= self._nobody_until:
            try:
                await self._ask_leader(deadline=min(deadline, self.now + CONNECT_S), or_follower=True)
            except (Unavailable, NotLeader, UnknownOutcome, DeadlineExceeded):
                self._nobody_until = self.now + CONNECT_S

    async def know_keys(self, *, deadline: float) -> None:
        """How many partitions keys are routed over: as one says that leads, or that follows whoever does."""
        await self.acquaint(deadline=deadline)
        if self._keys_provisional:
            await self._ask_leader(deadline=deadline, or_follower=True)

    async def _ask_leader(self, *, deadline: float, or_follower: bool = False) -> None:
        """Which partitions there are now. Where nobody leads: raises Unavailable, NotLeader or DeadlineExceeded.

        ``or_follower``: as a node knows them that names whoever leads, as it might in a WELCOME by now: from here that
        one may be out of reach, and this is not passed on.
        """

        async def ask(node: NodeConnection) -> None:
            try:
                await self.refresh_partitions(node, linearizable=True)
            except NotLeader as error:
                if not or_follower or not error.fields.get("leader"):
                    raise
                self.heard(error)
                await self.refresh_partitions(node, follows=True)

        await self.retry(self.leader, ask, deadline=deadline)

    async def at_leader(
        self,
        call: Callable[[NodeConnection], Awaitable[T]],
        *,
        deadline: float,
        same: bool = True,
        failed: LogboomError | None = None,
    ) -> T:
        """``call`` (a write) at the leader, again after every retryable error, until the deadline.

        ``same``: also where a node has ended it by its own limit, see ``Attempts``.
        """
        attempts = Attempts(self, deadline=deadline, writes=True, same=same)
        return await self.retry(self.leader, call, deadline=deadline, failed=failed, attempts=attempts)

    async def retry(
        self,
        connect: Callable[[], Awaitable[NodeConnection]],
        call: Callable[[NodeConnection], Awaitable[T]],
        *,
        deadline: float,
        grace: float = 0.0,
        failed: LogboomError | None = None,
        at: NodeConnection | None = None,
        attempts: Attempts | None = None,
    ) -> T:
        """Jittered exponential backoff; a redirect is followed at once (but not for ever).

        ``grace``: seconds that an answer given at the deadline has to arrive. ``failed``: an attempt that was made
        before, ``at`` whom; ``attempts``: it was one of these, or they are of a write.
        """
        attempts = attempts or Attempts(self, deadline=deadline, writes=False)
        there: There = None
        if isinstance(failed, NoSuchPartition):
            failed, there = await self.check_missing(failed, there=None, deadline=deadline)
        while True:
            if failed is not None and (pause := attempts.failed(failed, at)):
                await asyncio.sleep(pause)
            at = None
            try:
                async with asyncio.timeout_at(deadline + grace):
                    at = await connect()
                    return await call(at)
            except TimeoutError:
                raise attempts.too_late(sent=at is not None) from failed
            except LogboomError as error:
                failed = error
                if isinstance(error, NoSuchPartition):
                    failed, there = await self.check_missing(error, there=there, deadline=deadline)

    async def meet(self, *, deadline: float) -> None:
        """Have a node say, once, what this cluster is. Raises what ``any`` raises, when the deadline has passed."""

        async def said(node: NodeConnection) -> None:
            if self.lineage is None:
                raise Unavailable(f"{node.address} joins, and has not heard yet which history of the cluster this is")

        if self.lineage is None:
            await self.retry(self.any, said, deadline=deadline)

    async def check_token(self, token: Token, *, deadline: float) -> None:
        """Raises LineageMismatch for one of another cluster, or of another history of this one."""
        await self.meet(deadline=deadline)
        if self.id != token.cluster:
            raise LineageMismatch(
                f"an index of cluster {token.cluster!r} says nothing about {self.id!r}",
                cluster=token.cluster,
                expected=self.id,
            )
        if self.lineage not in (None, token.lineage):
            raise LineageMismatch(
                f"an index of another history of this cluster ({lineage_shown(token.lineage)}) says nothing about this "
                f"one ({lineage_shown(self.lineage)}): it was restored",
                cluster=token.lineage,
                expected=self.lineage,
            )

    async def check_missing(
        self, error: NoSuchPartition, *, there: There, deadline: float
    ) -> tuple[LogboomError, There]:
        """Whether NoSuchPartition is final: a node may not have heard yet of a partition that was just created.

        Whoever leads has. Returns the error to go on with, which is retryable if there is such a partition, and which
        partitions the leader named: given back as ``there``, so that it is asked once. (``self.partitions`` may be
        overwritten meanwhile by older news.)
        """
        if isinstance(error, PartitionDestroyed):
            return error, there
        if there is None:
            try:
                await self._ask_leader(deadline=min(deadline, self.now + CONNECT_S))
            except LogboomError as why:
                if not why.retryable and not isinstance(why, DeadlineExceeded):
                    return error, None
                story = f"{error.message}, as one node says; nobody who leads could be asked: {why.message}"
                return Unavailable(story, retry_after=BACKOFF_MIN_S), None
            there = frozenset(row[0] for row in self.partitions)
        if error.fields.get("partition_id") not in there:
            return error, there
        return Unavailable(error.message, retry_after=BACKOFF_MIN_S), there
