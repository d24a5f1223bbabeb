"""Workers that are slow, or stand still, and what must hold of the ladder of lag (docs/decisions/0020) meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from chaos.sim.host import Host, SimOffload
from chaos.sim.loop import SimLoop
from dispatcher.admission.ladder import Do, Rung, Step
from dispatcher.pipeline.backend import Backend
from dispatcher.pipeline.lagging import SOURCE
from dispatcher.pipeline.pending import PendingRequest
from dispatcher.requests.requests import SubmitReply
from logboom.errors import LogboomError
from partitions.apply.worker import ApplyWorker
from raftlog.entries.entry import Route

LONGER_S: Final = (0.0, 2.0, 6.0)
"""Than other faults: until a node gives leadership away it has to be slow for long."""
SLOWEST_S: Final = (0.3, 1.0, 3.0)
WHOLE_NODE: Final = 0.5
"""Share of these faults that all partitions of a node have."""

Fail = Callable[[str, str], None]


class SlowWorkers:
    """What the nemesis does to them."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._slowed: dict[ApplyWorker, tuple[Any, int]] = {}
        """Where each had its jobs done before, and how much it applied on the loop."""

    def slow(self, host: Host, rng: random.Random, *, stalled_s: float) -> list[ApplyWorker]:
        """One worker of a node, or all, from now on; nothing at all is applied for ``stalled_s``."""
        if host.node is None:
            return []
        workers = list(host.node.pipeline.workers.values())
        if rng.random() >= WHOLE_NODE:
            workers = [rng.choice(workers)]
        slow = SimOffload(self._loop, rng, slowest_s=rng.choice(SLOWEST_S))
        slow.stalled_until = self._loop.now + stalled_s
        for worker in workers:
            inside: Any = worker
            self._slowed.setdefault(worker, (inside._offload, inside._inline_bytes))  # noqa: SLF001 - the worker's thread
            inside._offload, inside._inline_bytes = slow, 0  # noqa: SLF001 - is slow
        return workers

    def restore(self, workers: Iterable[ApplyWorker]) -> None:
        """They are as fast as before; what is under way takes its time."""
        for worker in workers:
            if worker in self._slowed:
                inside: Any = worker
                inside._offload, inside._inline_bytes = self._slowed.pop(worker)  # noqa: SLF001 - see slow

    def restore_all(self) -> None:
        """Whoever is slow."""
        self.restore(list(self._slowed))


class LagWatch:
    """Looks at every step of every node's ladder. ``fail(invariant, story)`` ends the run."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self.steps: Counter[str] = Counter()
        """Of all nodes; and how many parts of receipts told that something is held."""

    def started(self, host: Host, backend: Backend) -> None:
        """From now on it is looked at."""
        ladder: Any = backend.lagging.ladder
        raft: Any = backend.raft
        pending: Any = backend.pending
        look, propose, answer = ladder.look, raft.propose, pending._answer  # noqa: SLF001 - an observer

        def looked(*args: Any, **more: Any) -> list[Step]:
            self._check_held(host, backend)  # as the last look has left it
            steps: list[Step] = look(*args, **more)
            for step in steps:
                self.steps[str(step.do)] += 1
                self._check_step(host, backend, step)
            return steps

        def proposed(routes: Sequence[Route], *, payload_bytes: int) -> None:
            for route in routes:
                if ladder.rung(route.partition_id) is Rung.FROZEN:
                    self._fail("FrozenRefuses", f"{host.name} takes {route}, and partition {route.partition_id} stalls")
            propose(routes, payload_bytes=payload_bytes)

        def answered(request: PendingRequest, reply: SubmitReply | LogboomError) -> None:
            if isinstance(reply, SubmitReply):
                self._check_told(host, backend, request, reply)
            answer(request, reply)

        ladder.look, raft.propose, pending._answer = looked, proposed, answered  # noqa: SLF001 - an observer

    def _check_step(self, host: Host, backend: Backend, step: Step) -> None:
        if step.do is Do.MOVE_LEADERSHIP:
            leads, voters = backend.raft.engine.is_leader, backend.members.voters
            others = set(voters) - {host.name}
            if not leads or not step.among or not others.issuperset(step.among):
                self._fail("LagMoves", f"{host.name} moves leadership to {step.among}; leads: {leads}, voters {voters}")
        elif step.partition_id is not None and step.do in (Do.FREEZE, Do.THROTTLE):
            worker = backend.workers[step.partition_id]
            if worker.idle:
                self._fail("LagHeld", f"{host.name} holds partition {step.partition_id}, where nothing waits: {step}")

    def _check_told(self, host: Host, backend: Backend, request: PendingRequest, reply: SubmitReply) -> None:
        """A receipt says of each of its partitions whether it is held."""
        ladder = backend.lagging.ladder
        rungs = {part.partition_id: ladder.rung(part.partition_id) for part in request.parts}
        due = {partition: str(rung) for partition, rung in rungs.items() if rung is not Rung.STEADY}
        self.steps.update(["held"] * len(due))
        if dict(reply.held) != due:
            self._fail("HeldTold", f"{host.name} answers with {reply.held}; what is held: {due}")

    def _check_held(self, host: Host, backend: Backend) -> None:
        """What is held is what the ladder says."""
        lagging, frozen = backend.lagging, backend.admission._frozen  # noqa: SLF001 - an observer
        rungs = {partition: lagging.ladder.rung(partition) for partition in backend.workers}
        due = {partition: str(rung) for partition, rung in rungs.items() if rung is not Rung.STEADY}
        if lagging.held != due:
            self._fail("LagHeld", f"{host.name} holds {lagging.held}, its ladder says {due}")
        for partition, rung in rungs.items():
            if (SOURCE in frozen.get(partition, ())) != (rung is Rung.FROZEN):
                self._fail("LagHeld", f"{host.name}: partition {partition} is {rung}, frozen: {frozen.get(partition)}")

    def checkpoint(self, host: Host, backend: Backend, *, damaged: bool) -> None:
        """That, and whatever is not applied is there."""
        self._check_held(host, backend)
        for partition, worker in backend.workers.items():
            first = worker.log.first_available_index
            if not damaged and not backend.rebuilding.fenced(partition) and first > worker.applied_index + 1:
                story = (
                    f"{host.name}: partition {partition} has applied {worker.applied_index}, its log begins at {first}"
                )
                self._fail("NothingEvicted", story)


def released(backend: Backend) -> bool:
    """Nothing is held on a node, or kept from readers."""
    ladder = backend.lagging.ladder
    return not backend.lagging.held and not any(map(ladder.withdrawn, backend.workers))
