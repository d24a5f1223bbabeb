"""The middle of a run in which the cluster is stopped, and goes on in another history: restored, or recovered.

What clients were told of the first one holds as far as the second one begins with it, and not beyond.
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from chaos.checkers import linearizable
from chaos.history import Operation, of_kind
from chaos.sim.clients import SimClient
from chaos.sim.ending import Ending
from chaos.sim.host import Host
from chaos.sim.loop import Process, SimLoop
from chaos.sim.nemesis import Nemesis
from chaos.sim.network import SimNetwork
from chaos.sim.oracle import Oracle
from chaos.sim.parameters import Parameters
from chaos.sim.restoring import Restoring
from chaos.sim.seen import Seen
from raftlog.entries.configuration import Configuration

REGISTERS: Final = ("get", "put", "cas")
WRITES_S: Final = 3.0
AGAIN: Final = 100
"""Added to the numbers of clients of the second history."""


class SecondHistory:
    """A part of ``Simulation``, which has all of this."""

    parameters: Parameters
    loop: SimLoop
    network: SimNetwork
    hosts: list[Host]
    oracle: Oracle
    nemesis: Nemesis
    seen: Seen
    restoring: Restoring
    _rng: random.Random
    _ending: Ending
    _clients: list[tuple[SimClient, Process]]
    _haunting: asyncio.Future[None] | None

    @abstractmethod
    def _watch(self, begins: Configuration) -> None: ...

    @abstractmethod
    def _start_client(self, number: int) -> None: ...

    @abstractmethod
    def _task_ended(self, task: asyncio.Task[None]) -> None: ...

    @abstractmethod
    def _report(self, invariant: str, host: Host | None, problems: Sequence[str]) -> None: ...

    async def _begin_again(self) -> float:
        """Faults up to a moment; then another history begins. When that was."""
        restoring = self.restoring
        restoring.start(self.seen)
        copying = asyncio.ensure_future(restoring.backing_up.go_on())
        copying.add_done_callback(self._task_ended)
        faults = [fault for fault in self.parameters.faults if fault.at < restoring.at]
        await asyncio.gather(self.nemesis.play(faults), asyncio.sleep(restoring.at))
        copying.cancel()
        await asyncio.wait([copying])
        self.nemesis.heal()
        await self.nemesis.ended()
        for host in self.hosts:
            host.start()
        await self._ending.within("a backup is taken", restoring.backing_up.at_least_one())
        await asyncio.sleep(self._rng.uniform(0.0, WRITES_S))  # which are given up
        self.oracle.checkpoint()
        self._stop_all()
        if not self._recover():
            self._restore()
        for number in range(1, self.parameters.clients + 1):
            self._start_client(AGAIN + number)
        restoring.start(self.seen)
        self._haunting = asyncio.ensure_future(restoring.haunt())
        self._haunting.add_done_callback(self._task_ended)
        return restoring.at

    def _stop_all(self) -> None:
        self.restoring.stop()
        for _, process in self._clients:
            self.loop.kill(process)
            self.network.process_ended(process, silently=False)
        self._clients.clear()
        for host in self.hosts:
            host.kill(power=False)

    def _restore(self) -> None:
        """All nodes, from one set."""
        meta = self.restoring.backing_up.choose()
        self.restoring.restore(meta)
        begins = Configuration.of_settings(self.parameters.settings.cluster.members)
        self._second(begins, meta.raft_index, meta.global_index, self.hosts, given_up="fail")

    def _recover(self) -> bool:
        """In some: one node is left, and goes on with what it has, alone."""
        broken = self.nemesis.damaged | self.nemesis.forgetful
        recovered = self.restoring.recover([h for h in self.hosts if h.may_run and h.name not in broken])
        if recovered is None:
            return False
        terms = self.oracle.witness.terms
        held = [e[1] for e in recovered.entries if e[1] < len(terms) and terms[e[1]] == e[2]]
        raft_index = max([recovered.base_index, *held])
        global_index = sum(len(row[1]) for at, row in self.oracle.committed.items() if at <= raft_index)
        # What it has and nobody had committed may be what a client was told of when it sent that again.
        self._second(recovered.alone, raft_index, global_index, [recovered.host], given_up="info")
        self.nemesis.victims.clear()  # nobody has another copy
        return True

    def _second(
        self, begins: Configuration, raft_index: int, global_index: int, hosts: Sequence[Host], *, given_up: str
    ) -> None:
        self._report(
            "LinearizableRead",
            None,
            give_up(self.seen, global_index, given_up, self.oracle.witness.committed_after(global_index)),
        )
        addresses = {host.member.client_address: host.name for host in hosts}
        before, injected = self.oracle, self.nemesis.injected
        for invariant, story in self.seen.last_word():
            self._report(invariant, None, [story])
        self.seen = self.seen.second(addresses, global_index)
        self._watch(begins)
        self.nemesis.injected = injected
        self.oracle.inherit(before, raft_index, global_index, keeps=hosts[0].name if len(hosts) == 1 else "")
        for host in hosts:
            host.may_run = True
            host.start()

    async def _restored_ends(self) -> None:
        if self._haunting is not None:
            self._haunting.cancel()
            await asyncio.wait([self._haunting])
        self.restoring.leave()


def give_up(seen: Seen, global_index: int, outcome: str, since_s: float) -> list[str]:
    """What was acknowledged behind that index has this outcome from now on; what nobody was told of may be there.

    ``since_s``: when something was committed behind it. What was sent before may have been ordered up to there, and is
    told of as of later, as it was sent again.

    Registers are of one history alone: theirs is looked at now. What is wrong with it.
    """
    operations = seen.history.operations
    problems = linearizable.registers(of_kind(operations, *REGISTERS))
    operations[:] = [op for op in operations if op.f not in REGISTERS]
    for op in operations:
        if op.outcome == "ok" and op.global_index > global_index:
            op.outcome = "info" if produced(op) or op.start_ns < since_s * 1e9 else outcome
        elif op.outcome == "fail" and op.global_index > global_index:
            op.outcome = "info"  # an answer said that it was not done, and the second history may answer otherwise
    return problems


def produced(op: Operation) -> bool:
    """By the one who goes through all of it again, and is told in the end that each is there."""
    return op.process == 0 and op.key.startswith("p")
