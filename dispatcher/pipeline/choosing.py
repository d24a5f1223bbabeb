"""How writes to one partition are answered, set while it has data (docs/decisions/0041-partition-settings.md).

The leader proposes it; every node takes it in the parent log's order. It counts for every write behind it there,
whenever that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from dispatcher.pipeline.surroundings import Surroundings
from logboom.errors import InvalidRequest, LogboomError, NotLeader, Unavailable, UnknownOutcome
from logboom.types import PARTITION_SETTINGS, Ack, PartitionId
from raftlog.entries.chosen import Choice, Chosen, acknowledgement

log = structlog.get_logger(__name__)

WAITERS_MAX: Final = 1024
"""And entries that are proposed and not handed up, whether anybody still waits for them or not."""


class Acknowledgement(NamedTuple):
    """What counts for writes to a partition now."""

    partition_id: PartitionId
    ack: Ack
    linearizable: bool


Done = Callable[[Acknowledgement | LogboomError], None]


class Choosing:
    """Proposes how writes to one partition are answered, on the leader, and takes what was set."""

    def __init__(self, pipeline: Surroundings, *, missing: Callable[[PartitionId], LogboomError]) -> None:
        """``missing`` tells why this node does not serve a partition."""
        self._pipeline = pipeline
        self._missing = missing
        self._waiting: dict[Choice, list[Done]] = {}
        """Who is to be answered, by what was proposed here."""

    def of(self, partition_id: PartitionId) -> Acknowledgement:
        """As far as the parent log is handed up here."""
        pipeline = self._pipeline
        return Acknowledgement(partition_id, *acknowledgement(pipeline.cluster, pipeline.parent.chosen, partition_id))

    def choose(self, partition_id: PartitionId, chosen: Chosen, token: bytes, done: Done) -> Callable[[], None]:
        """Leader only. ``done`` gets what counts from then on, once it does. The same again with its ``token``: one.

        Returns the way to wait no longer: what was proposed goes on without.

        Raises NotLeader, NoSuchPartition, Unavailable, or IncompatibleVersion while a member does not know of it.
        """
        pipeline = self._pipeline
        if not pipeline.raft.admits:
            raise NotLeader("this node does not lead", leader=None)
        if partition_id not in pipeline.workers:
            raise self._missing(partition_id)
        pipeline.agreement.check(PARTITION_SETTINGS)
        if max(len(self._waiting), sum(map(len, self._waiting.values()))) >= WAITERS_MAX:
            raise Unavailable("many wait for settings already; try again", retry_after=1.0)
        choice = Choice(partition_id, pipeline.cluster.partitions, chosen, token)
        if choice not in self._waiting:
            pipeline.raft.propose_control(choice.fields())
        self._waiting.setdefault(choice, []).append(done)
        return partial(self._leave, choice, done)

    def _leave(self, choice: Choice, done: Done) -> None:
        """What was proposed goes on, and stays here until it is handed up or lost."""
        if done in self._waiting.get(choice, ()):
            self._waiting[choice].remove(done)

    def handed_up(self, fields: Mapping[str, Any]) -> str:
        """A control entry of ``raftlog.entries.chosen``; why it has no effect, empty: it has. Raises CorruptData."""
        choice = Choice.parse(fields)
        partition_id, parent = choice.partition_id, self._pipeline.parent
        refused = parent.choose(choice)
        if refused:
            log.warning("partition_set_refused", partition=partition_id, reason=refused)
            lives = parent.lifecycle.lives(partition_id, self._pipeline.cluster.partitions)
            self._answer(choice, InvalidRequest(refused) if lives else self._missing(partition_id))
            return refused
        now = self.of(partition_id)
        log.info("partition_set", partition=partition_id, ack=str(now.ack), linearizable=now.linearizable)
        self._pipeline.pending.acknowledge_anew(partition_id)
        for paused in [p for p, worker in self._pipeline.workers.items() if worker.is_paused]:
            self._pipeline.submitting.paused(paused)  # more may wait for that than before, of several partitions' too
        self._answer(choice, now)
        return ""

    def _answer(self, choice: Choice, answer: Acknowledgement | LogboomError) -> None:
        for done in self._waiting.pop(choice, ()):
            done(answer)

    def lost_leadership(self) -> None:
        """What was proposed may be handed up, or not."""
        for choice in list(self._waiting):
            self._answer(choice, UnknownOutcome("leadership was lost before it was committed; ask again"))
