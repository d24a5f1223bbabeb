"""Looks at what is left to apply now and then, and carries out what ``dispatcher.admission.ladder`` says.

Nodes tell each other how they stand in PROGRESS frames. A step is logged when it is done, and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from dispatcher.admission.budgets import Verdict
from dispatcher.admission.ladder import Do, Ladder, Rung, Seen, Step, standing_of
from dispatcher.pipeline.surroundings import Surroundings
from logboom.errors import LogboomError, Unavailable
from logboom.types import NodeId, PartitionId
from logboom.wire import Kind

log = structlog.get_logger(__name__)

SOURCE: Final = "lag"
"""Whose freezes and verdicts these are: others' stay."""
RELIEVE_AGAIN_S: Final = 5.0
"""Who was asked to lead may not have been able to: nothing is admitted meanwhile, so not as seldom as for lag."""


class Lagging:
    """Carries out for one node what its ladder says."""

    def __init__(self, pipeline: Surroundings) -> None:
        self._pipeline = pipeline
        self._settings = pipeline.settings.lag
        self.ladder = Ladder(self._settings, pipeline.node_id)
        self.held: dict[PartitionId, str] = {}
        """Partitions that are throttled or frozen here for that, and which: receipts tell."""
        self._relieved_at = -1e9
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Look, and again, until closed."""
        self._tick()

    def _tick(self) -> None:
        if not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._settings.look_ms / 1000, self._tick)
            self._look()

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def heard(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """A PROGRESS frame. Raises ProtocolError."""
        standing = standing_of(header)
        if standing is not None:
            self.ladder.heard(peer, standing, self._pipeline.clock.monotonic())

    def ended(self, partition_id: PartitionId) -> None:
        """It is destroyed."""
        self.ladder.forget(partition_id)
        self.held.pop(partition_id, None)

    def withdrawn(self, partition_id: PartitionId) -> bool:
        """Other replicas answer for it. One that leads has to: nobody else can."""
        return self.ladder.withdrawn(partition_id) and not self._pipeline.raft.engine.is_leader

    def check(self, partition_id: PartitionId) -> None:
        """Raises Unavailable if this replica does not serve the partition."""
        if self.withdrawn(partition_id):
            late_s = self.ladder.age_ms(partition_id, self._pipeline.clock.monotonic()) / 1000
            raise Unavailable(
                f"partition {partition_id} is {late_s:.0f} s behind on this node, and others are not: ask another",
                retry_after=0.05,
            )

    def _look(self) -> None:
        pipeline, members = self._pipeline, self._pipeline.members
        seen = [
            Seen(p, pipeline.logs[p].committed_index, worker.applied_index)
            for p, worker in pipeline.workers.items()
            if not worker.idle
        ]
        recovery = pipeline.recovery
        # One that never recovers, since it stands still, must not keep all others, and itself, from being looked at.
        recovering = () if recovery.over else {p for p in pipeline.workers if not recovery.of([p])}
        steps = self.ladder.look(
            pipeline.clock.monotonic(),
            seen,
            partitions=len(pipeline.workers),
            voters=members.voters,
            leads=pipeline.raft.engine.is_leader,
            recovering=recovering,
        )
        for step in steps:
            self._carry_out(step, not_moved=lambda: self.ladder.not_moved(pipeline.clock.monotonic()))
        if any(step.do is Do.RELEASE for step in steps):
            pipeline.submitting.eased()
        told = {"durable": [], "lag": self.ladder.standing.row()}
        for peer in pipeline.raft.engine.connected_peers:
            pipeline.raft.links.send(peer, Kind.PROGRESS, told)

    def relieve(self, among: tuple[NodeId, ...], reason: str) -> None:
        """This node leads and can take nothing: one of these does so, as soon as one may be asked again."""
        now = self._pipeline.clock.monotonic()
        if now - self._relieved_at >= RELIEVE_AGAIN_S:
            self._relieved_at = now
            self.ladder.steps[Do.MOVE_LEADERSHIP] += 1
            self._carry_out(Step(Do.MOVE_LEADERSHIP, reason, among=among))

    def _carry_out(self, step: Step, *, not_moved: Callable[[], None] = lambda: None) -> None:
        to = list(step.among) or step.node
        log.warning("lag", step=str(step.do), partition=step.partition_id, to=to, reason=step.reason)
        if step.do is Do.MOVE_LEADERSHIP:
            self._hand_over(step, not_moved)
        if step.partition_id is None:
            return
        partition_id, admission = step.partition_id, self._pipeline.admission
        if step.do is Do.THROTTLE:
            withheld = 1 - self._settings.throttle_percent / 100
            admission.judge(partition_id, Verdict(SOURCE, withheld), source=SOURCE)
            self.held[partition_id] = Rung.THROTTLED
        elif step.do is Do.FREEZE:
            admission.freeze(partition_id, f"it applies nothing here: {step.reason}", by=SOURCE)
            self.held[partition_id] = Rung.FROZEN
        elif step.do is Do.RELEASE:
            admission.thaw(partition_id, by=SOURCE)
            admission.judge(partition_id, None, source=SOURCE)
            del self.held[partition_id]
        self._pipeline.look_again(partition_id)

    def _hand_over(self, step: Step, not_moved: Callable[[], None]) -> None:
        def done(error: LogboomError | None) -> None:
            if error is not None:
                log.info("not_handed_over", error=error.message)
                not_moved()

        try:
            self._pipeline.raft.members.transfer.begin(None, done, among=step.among)
        except LogboomError as error:
            done(error)

    def status(self) -> dict[str, Any]:
        """For STATUS."""
        ladder = self.ladder
        return {
            "worst_ms": ladder.standing.worst_ms,
            "held": [[p, state] for p, state in sorted(self.held.items())],
            "withdrawn": [p for p in sorted(ladder.standing.behind) if self.withdrawn(p)],
            "steps": dict(ladder.steps),
        }
