"""Having a lost batch declared void: what an operator asks of the leader (docs/decisions/0018-void.md).

It asks all members anew, so that who lacks the batch seals it, and proposes the void once all have said that they do
not have it. What comes of it when it is ordered is ``voiding``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import structlog

from dispatcher.pipeline.surroundings import Surroundings
from logboom.errors import InvalidRequest, LogboomError, NotLeader, Unavailable, UnknownOutcome
from logboom.types import PartitionId, Term
from partitions.log.holes import Hole
from ports.timers import wait
from raftlog.entries.entry import Route
from raftlog.entries.voids import Void
from raftlog.links.lacks import Lack

log = structlog.get_logger(__name__)

POLL_S: Final = 0.01
ASK_AGAIN_S: Final = 0.25
WAITERS_MAX: Final = 256


class Declaring:
    """The leader's side of ``partitions void``, and who waits for which."""

    def __init__(self, pipeline: Surroundings, awaited: Callable[[PartitionId], list[Void]]) -> None:
        """``awaited``: what is void in a partition and, though others have what it did, not in the state here."""
        self._pipeline = pipeline
        self._awaited = awaited
        self._waiting: dict[bytes, list[asyncio.Future[None]]] = {}
        """Who had a batch declared void, by its digest."""
        self.renew: Callable[[PartitionId, int], bool] = lambda _partition, _index: False
        """Have the state made anew at the next start, from a set that has what it lacks up to an index. Blocking.

        False: those that have it are damaged, and stand for nothing any more. Set by whoever made this.
        """

    async def void(self, partition_id: PartitionId, index: int, *, yes: bool, deadline: float) -> dict[str, Any]:
        """Declare the lost batch that holds record ``index`` void; without ``yes`` only say what that would be.

        Raises NotLeader; InvalidRequest if there is no such hole, or somebody has the batch, or a snapshot has what
        it did; Unavailable if not all members have answered in time.
        """
        self._check_leads()
        known = self._known(partition_id, index)
        route, hole = self._hole_at(partition_id, index)
        if hole is None:
            if known is None:
                raise InvalidRequest(
                    f"partition {partition_id} has no hole at {index}: only a batch that no member has can be void"
                )
            return _row(known, {}, done=True)
        term = self._pipeline.raft.engine.term
        with self._asking(route) if yes else nullcontext():
            said = await self._ask(route, term, void=yes, deadline=deadline)
            compacted = [node for node, lack in said.items() if lack is Lack.COMPACTED]
            if compacted:
                raise InvalidRequest(await self._instead(partition_id, route.last_index, compacted, yes=yes))
            applied = Lack.APPLIED in said.values()
            void = Void(partition_id, hole.first_index, hole.last_index, hole.digest, hole.global_index, 0, applied)
            if yes:
                self._propose(void, said)
        if yes:
            await self._carried_out(hole.digest, deadline)
        return _row(void, said, done=yes)

    @contextmanager
    def _asking(self, route: Route) -> Iterator[None]:
        """Whoever lacks it seals it; in the end it is proposed, or he is told to take it again: it may turn up."""
        repair = self._pipeline.raft.repair
        try:
            with repair.seals.asking(route.digest):
                yield
        finally:
            if route.digest not in repair.seals:  # nor does somebody else still ask
                repair.ask_all(route, void=False)

    def _propose(self, void: Void, said: Mapping[str, Lack]) -> None:
        self._check_leads()  # in this very step: a batch that is sealed, and not proposed, nobody would take any more
        self._pipeline.raft.repair.seals.put(void.digest, on=True)
        if void.digest not in self._waiting:
            log.warning("void_proposed", **shown(void), said={str(n): str(lack) for n, lack in said.items()})
            self._pipeline.raft.propose_control(void.fields())

    async def _instead(self, partition_id: PartitionId, index: int, compacted: list[str], *, yes: bool) -> str:
        """What becomes of a batch that these have in a snapshot; ``yes``: and have it become so, where that is here."""
        own, story = self._pipeline.node_id, "has a snapshot that stands for the batch: it is not lost"
        if own not in compacted:
            story += "; whoever lacks it takes it from there. If it stays lost, transfer leadership to "
            return f"{', '.join(compacted)} {story}{compacted[0]} and ask again"
        if not yes:
            return f"{', '.join(compacted)} {story}"
        if not await self._pipeline.offload.run(lambda: self.renew(partition_id, index)):
            return f"the snapshot of {own} that stood for the batch is damaged: ask again"
        return f"{', '.join(compacted)} {story}; start {own} again, which goes on from there"

    def _check_leads(self) -> None:
        if not self._pipeline.raft.admits:
            raise NotLeader("this node does not lead", leader=None)
        if sum(map(len, self._waiting.values())) >= WAITERS_MAX:
            raise Unavailable("many wait for batches to be void already; try again", retry_after=1.0)

    def _known(self, partition_id: PartitionId, index: int) -> Void | None:
        found = [v for v in self._pipeline.parent.voids.of(partition_id) if v.first_index <= index <= v.last_index]
        return found[-1] if found else None

    def _hole_at(self, partition_id: PartitionId, index: int) -> tuple[Route, Hole | None]:
        store = self._pipeline.logs[partition_id]
        for wanted in list(self._pipeline.raft.repair.holes.values()):
            route = wanted.route
            hole = store.place_of(route.last_index, route.digest) if route.partition_id == partition_id else None
            if hole is not None and hole.first_index <= index <= hole.last_index:
                return route, hole
        for awaiting in self._awaited(partition_id):  # once nobody has it applied any more, it can be void for all
            if awaiting.first_index <= index <= awaiting.last_index:
                route = Route(partition_id, Term(0), awaiting.last_index, awaiting.digest)
                return route, store.place_of(awaiting.last_index, awaiting.digest)
        return Route(partition_id, Term(0), store.committed_index, b""), None

    async def _ask(self, route: Route, term: int, *, void: bool, deadline: float) -> dict[str, Lack]:
        """What all members, this one included, say now. Raises InvalidRequest if one has it."""
        pipeline = self._pipeline
        repair, clock = pipeline.raft.repair, pipeline.clock
        since = repair.ask_all(route, void=void)
        again = clock.monotonic() + ASK_AGAIN_S
        while True:
            await wait(POLL_S)
            if pipeline.raft.engine.term != term:
                self._check_leads()
                raise UnknownOutcome("leadership moved while the members were asked; ask again")
            if pipeline.payloads.holds(route):
                raise InvalidRequest(f"the batch that ends at {route.last_index} has turned up: there is no hole")
            said = {pipeline.node_id: repair.own(route, sets=True), **repair.said(route.digest, since)}
            known: dict[str, Lack] = {
                node: lack for node, lack in said.items() if lack is not None and lack is not Lack.UNKNOWN
            }
            if len(known) == len(said):
                return known
            now = clock.monotonic()
            if now >= deadline:
                silent = ", ".join(sorted(said.keys() - known.keys()))
                raise Unavailable(f"{silent} must say first whether it has the batch: nothing is void", retry_after=1.0)
            if now >= again:
                repair.ask_all(route, void=void)
                again = now + ASK_AGAIN_S

    async def _carried_out(self, digest: bytes, deadline: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(digest, []).append(done)
        try:
            async with asyncio.timeout(max(0.0, deadline - self._pipeline.clock.monotonic())):
                await done
        except TimeoutError:
            raise UnknownOutcome("the void was not ordered in time; ask again") from None
        finally:
            left = self._waiting.get(digest, [])
            if done in left:
                left.remove(done)
            if not left:
                self._waiting.pop(digest, None)

    def lost_leadership(self) -> None:
        """What was proposed may be ordered, or not."""
        self.answer(None, UnknownOutcome("leadership was lost before the void was committed; ask again"))

    def answer(self, digest: bytes | None, error: LogboomError | None) -> None:
        """What became of a void, to those who wait for it; None: of all of them. No error: it is carried out."""
        for each in list(self._waiting) if digest is None else [digest]:
            for waiting in self._waiting.pop(each, ()):
                if waiting.done():
                    continue
                if error is None:
                    waiting.set_result(None)
                else:
                    waiting.set_exception(error)


def shown(void: Void) -> dict[str, Any]:
    """For the log."""
    return {**void._asdict(), "digest": void.digest.hex()}


def _row(void: Void, said: Mapping[str, Lack], *, done: bool) -> dict[str, Any]:
    """For an ADMIN_REPLY."""
    return {
        "partition": void.partition_id,
        "first_index": void.first_index,
        "last_index": void.last_index,
        "digest": void.digest,
        "global_index": void.global_index,
        "applied": void.applied,
        "said": {str(node): str(lack) for node, lack in said.items()},
        "void": done,
    }
