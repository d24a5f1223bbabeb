"""One run: a seed, a world, faults, then quiet; and everything that must hold during and after it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chaos.history import History
from chaos.sim.afterwards import Afterwards
from chaos.sim.asking import Asking
from chaos.sim.backing_up import small_files
from chaos.sim.blackout import Blackout
from chaos.sim.clients import SimClient
from chaos.sim.drawn_settings import member_of
from chaos.sim.ending import Ending, Stops
from chaos.sim.followers import Followers
from chaos.sim.forbidden import Forbidden, real_world_forbidden
from chaos.sim.histories import SecondHistory
from chaos.sim.host import Host, NotClosed
from chaos.sim.leftovers import throw_away
from chaos.sim.loop import EPOCH_S, Process, SimLoop, StandsStill
from chaos.sim.members import Operator
from chaos.sim.nemesis import Nemesis
from chaos.sim.network import SimNetwork
from chaos.sim.oracle import Oracle
from chaos.sim.orderly import Orderly
from chaos.sim.parameters import Parameters
from chaos.sim.restoring import Restoring
from chaos.sim.seen import Seen
from chaos.sim.tasks import Tasks
from chaos.sim.timeline import Timeline
from dispatcher.upkeep.installing import InstallDue
from logboom.errors import CorruptData, LogboomError
from logboom.settings import Settings
from ports.invariant import InvariantViolated
from raftlog.entries.configuration import Configuration
from server.directory.rejoin import RejoinDue

NODES: Final = frozenset(member_of(number).id for number in range(1, 100))
"""Those that the cluster begins with, and all that may come."""
CHECKPOINT_S: Final = 5.0
RESTART_S: Final = 0.3
FOLLOWERS: Final = 0xF0110
RESTORING: Final = 0x12E5702E
ORDERLY: Final = 0x02DE21
TASKS: Final = 0x7A5C5
ASKING: Final = 0xA5C1
BLACKOUT: Final = 0xB1ACC0


@dataclass(slots=True)
class Failure:
    """What broke, and when."""

    invariant: str
    story: str
    at: float


@dataclass(slots=True)
class Outcome:
    """What a run has shown."""

    seed: int
    simulated_s: float = 0.0
    events: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """Errors that clients were told, by code."""
    faults: Counter[str] = field(default_factory=Counter)
    elections: int = 0
    commits: int = 0
    shared: int = 0
    """Requests that shared a batch with others."""
    snapshots: int = 0
    """Sets, each counted once, on however many nodes it was taken."""
    installs: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    """Of the members."""
    created: int = 0
    """Partitions."""
    destroyed: int = 0
    lag: Counter[str] = field(default_factory=Counter)
    """Steps of the nodes' ladders, and parts of receipts that said that something is held."""
    trace_hash: str = ""
    failure: Failure | None = None


class Simulation(SecondHistory):
    """``play`` once."""

    def __init__(self, parameters: Parameters, *, timeline: Timeline, until: float | None = None) -> None:
        self.parameters = parameters
        self.timeline = timeline
        self.outcome = Outcome(parameters.seed)
        self._until = until
        self._rng = random.Random(parameters.seed ^ 0x5EED)
        self.loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
        self.network = SimNetwork(self.loop, self._fork(), parameters.network)
        self.network.nodes = NODES
        self.hosts = [self._host(parameters.of_node(k)) for k in range(parameters.nodes)]
        members = parameters.settings.cluster.members
        addresses = {member.client_address: member.id for member in members}
        self.seen = Seen(History(lambda: int(self.loop.now * 1e9)), addresses)
        self._watch(Configuration.of_settings(members))
        self._clients: list[tuple[SimClient, Process]] = []
        self._operator = self._make_operator() if parameters.members_change else None
        self._haunting: asyncio.Future[None] | None = None
        self.followers = Followers(
            parameters,
            self.hosts,
            loop=self.loop,
            network=self.network,
            rng=random.Random(parameters.seed ^ FOLLOWERS),
            seen=self.seen,
            ends=self.oracle.ends,
            fail=self.fail,
        )
        self.restoring = Restoring(
            parameters,
            self.hosts,
            loop=self.loop,
            network=self.network,
            rng=random.Random(parameters.seed ^ RESTORING),
            note=timeline.note,
            fail=self.fail,
        )
        self.orderly = Orderly(
            self.hosts,
            rng=random.Random(parameters.seed ^ ORDERLY),
            power_may_fail=lambda host: not parameters.write_behind or host.name in self.nemesis.victims,
            note=timeline.note,
        )
        shared: dict[str, Any] = {"loop": self.loop, "network": self.network, "seen": self.seen, "fail": self.fail}
        self.tasks = Tasks(parameters, rng=random.Random(parameters.seed ^ TASKS), **shared)
        self.asking = Asking(parameters, rng=random.Random(parameters.seed ^ ASKING), **shared)

    def _watch(self, begins: Configuration) -> None:
        """A history of the cluster begins: who breaks things, and who looks at it."""
        parameters, timeline = self.parameters, self.timeline
        self.oracle = Oracle(self.hosts, begins, self.fail)
        self.nemesis = Nemesis(
            parameters,
            self.hosts,
            self.network,
            self.loop,
            note=timeline.note,
            replace_client=self._replace_client,
        )
        self.oracle.witness.damaged = self.nemesis.damaged
        self.oracle.witness.rotten = self.oracle.retention.rotten = self.nemesis.rotten
        self.oracle.witness.forgetful = self.nemesis.forgetful
        self.oracle.witness.may_forget = self.nemesis.may_forget
        self.oracle.rotten = self.nemesis.states_rotten
        self.seen.parameters, self.seen.voids = parameters, self.oracle.voids
        self.seen.created_at = self.oracle.created_at
        self.seen.begins, self.seen.committed = self.oracle.beginnings.of, self.oracle.newest
        self.seen.rotten = lambda: bool(self.nemesis.rotten or self.oracle.rotten)
        self.nemesis.struck = self.oracle.witness.struck.now
        self.nemesis.disk_lost = self.oracle.witness.lost_disk
        self.blackout = Blackout(
            self.hosts,
            self.loop,
            down=self.nemesis.blackout,
            forget=self.seen.doomed.update,
            note=timeline.note,
            rng=random.Random(parameters.seed ^ BLACKOUT),
        )
        self._ending = Ending(
            parameters,
            self.hosts,
            loop=self.loop,
            oracle=self.oracle,
            seen=self.seen,
            damaged=self.nemesis.damaged,
            forgetful=self.nemesis.forgetful,
            rotten=self.nemesis.rotten,
            removing=lambda: None if self._operator is None else self._operator.removing,
            lose=lambda host: self.nemesis.change_at_once(host, host.lose_disk),
            new_host=self._new_host,
            note=timeline.note,
            fail=self.fail,
        )

    def _fork(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _host(self, settings: Settings) -> Host:
        return Host(
            settings.node.id,
            loop=self.loop,
            network=self.network,
            rng=self._fork(),
            settings=settings,
            slowest_s=self.parameters.slowest_s,
            ended=self._node_ended,
            started=self._node_started,
            orderly=self.parameters.orderly,
        )

    def _new_host(self, number: int) -> Host:
        self.hosts.append(self._host(self.parameters.of_joining(number)))
        return self.hosts[-1]

    def _make_operator(self) -> Operator:
        return Operator(
            self.parameters,
            self.hosts,
            loop=self.loop,
            rng=self._fork(),
            seen=self.seen,
            nemesis=self.nemesis,
            witness=self.oracle.witness,
            new_host=self._new_host,
            fail=self.fail,
        )

    # -- failing

    def fail(self, invariant: str, story: str) -> None:
        """The first failure ends the run."""
        if self.outcome.failure is None:
            self.outcome.failure = Failure(invariant, story, self.loop.now - EPOCH_S)
            self.timeline.note(f"FAILED {invariant}: {story}")
        self.loop.halted = True

    def _on_error(self, process: Process | None, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if process is not None and process.name.startswith("n") and isinstance(error, InvariantViolated):
            self.fail("InvariantViolated", f"{process.name}: {error}")
        else:
            self.fail("NothingUnhandled", f"{process}: {context.get('message')}: {error!r}; {self._ending.standing()}")

    def _node_started(self, host: Host) -> None:
        self.oracle.started(host)
        self.restoring.started(host)
        self.tasks.started(host)

    def _node_ended(self, host: Host, error: BaseException) -> None:
        self.timeline.note(f"{host.name} stops itself: {error!r}")
        if isinstance(error, InstallDue | RejoinDue):
            self.outcome.installs += isinstance(error, InstallDue)
            self.loop.run_as(None, host.start, delay=RESTART_S)
            return
        if isinstance(error, CorruptData) and host.name in self.nemesis.rotten:
            host.may_run = False
            return
        if isinstance(error, InvariantViolated):
            self.fail("InvariantViolated", f"{host.name}: {error}")
        elif isinstance(error, NotClosed):
            self.fail("StopsInOrder", str(error))
        elif isinstance(error, Forbidden):
            self.fail("NoRealWorld", f"{host.name}: {error}")
        elif not self.nemesis.may_stop_itself(host) or not isinstance(error, OSError | LogboomError):
            self.fail("NoSelfStop", f"{host.name} stopped without a fault of its disk: {error!r}")
        self.loop.run_as(None, host.start, delay=RESTART_S)

    # -- clients

    def _start_client(self, number: int) -> None:
        process = self.loop.process(f"c{number}")

        async def live() -> None:
            client = SimClient(
                number,
                parameters=self.parameters,
                seen=self.seen,
                rng=self._fork(),
                barrier_reached=self.oracle.barrier_reached,
            )
            self._clients.append((client, process))
            await client.run()
            self.loop.kill(process)

        self.loop.spawn(process, live())

    def _replace_client(self, index: int) -> None:
        client, process = self._clients[index]
        self.loop.kill(process)
        self.network.process_ended(process, silently=False)
        self._clients.pop(index)
        self._start_client(client.number + 10)

    # -- the run

    def play(self) -> Outcome:
        """Run it all. A failure is in the outcome."""
        self.loop.on_error = self._on_error
        self.loop.after_instant = self._instant
        self.timeline.attach(self.loop, self.fail)
        with real_world_forbidden() as refused, self.timeline.logging(), small_files():
            try:
                self.loop.run_until_complete(self._story())
                if self.outcome.failure is None and not self.loop.halted:
                    self._check_history()
            except StandsStill as error:
                self.fail("Liveness", str(error))
        if refused:  # also what a broad ``except`` has swallowed
            self.fail("NoRealWorld", "; ".join(refused[:3]))
        outcome = self.outcome
        outcome.simulated_s = self.loop.now - EPOCH_S
        outcome.events = self.loop.events
        outcome.operations = Counter(op.outcome for op in self.seen.history.operations)
        outcome.refusals = self.seen.refusals
        outcome.faults = self.nemesis.injected
        outcome.elections = self.oracle.elections
        outcome.commits = len(self.oracle.committed)
        outcome.shared = self.oracle.shared
        outcome.snapshots = self.oracle.snapshots
        outcome.created, outcome.destroyed = len(self.seen.created), len(self.seen.gone)
        outcome.lag = self.oracle.lag.steps
        if self._operator is not None:
            outcome.changes = self._operator.done
        outcome.trace_hash = f"{self.loop.trace & (1 << 64) - 1:016x}"
        shown = replace(outcome)
        throw_away(self.loop)  # what that says, and whom it tells, is of no run
        return shown

    def _instant(self) -> None:
        self.oracle.instant()
        if self._until is not None and self.loop.now - EPOCH_S >= self._until:
            self.loop.halted = True

    async def _story(self) -> None:
        parameters = self.parameters
        for host in self.hosts:
            host.start()
        for number in range(1, parameters.clients + 1):
            self._start_client(number)
        if parameters.follows:
            self.followers.start()
        if parameters.writes_tasks:
            self.tasks.start()
        if parameters.asks:
            self.asking.start()
        checks = asyncio.ensure_future(self._checkpoints())
        checks.add_done_callback(self._task_ended)
        moves = asyncio.ensure_future(self._operator.play()) if self._operator is not None else None
        dark = None if parameters.blackout is None else asyncio.ensure_future(self.blackout.play(parameters.blackout))
        stops = asyncio.ensure_future(self.orderly.play()) if parameters.orderly else None
        for task in filter(None, (moves, dark, stops)):
            task.add_done_callback(self._task_ended)
        begun = await self._begin_again() if parameters.restores else 0.0
        faults = [replace(fault, at=fault.at - begun) for fault in parameters.faults if fault.at >= begun]
        await asyncio.gather(self.nemesis.play(faults), asyncio.sleep(parameters.seconds - begun))
        if parameters.restores:
            await self._restored_ends()
        if moves is not None:
            moves.cancel()  # in the middle of whatever it is
            await asyncio.wait([moves])
        if self._operator is not None:
            self._operator.leave()
        if stops is not None:
            stops.cancel()
            self.orderly.leave()
        self.asking.leave()
        self.timeline.note("healing a quorum")
        self.network.profile = replace(self.network.profile, crowd_s=0.0)
        self.nemesis.heal()
        if dark is not None:
            for host in self.hosts:
                host.start()
            await self._ending.within("what is lost is void", self.blackout.settled())
            dark.cancel()
        clients: list[tuple[Stops, Process]] = [*self._clients]
        if parameters.writes_tasks:
            clients.append((self.tasks, self.tasks.process))
        await self._ending.play(clients, self._fork)
        if parameters.follows:
            await self._ending.within("followers have all there is", self.followers.caught_up(), self.followers.lacks)
            self.followers.leave()
        checks.cancel()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.loop.call_exception_handler({"message": "the run's own task failed", "exception": task.exception()})

    async def _checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            if self.nemesis.over:
                self.nemesis.resume()
            self.oracle.checkpoint()
            for invariant, story in self.seen.problems:
                self.fail(invariant, story)

    # -- afterwards

    def _check_history(self) -> None:
        for invariant, story in self.seen.last_word():
            self.fail(invariant, story)
        Afterwards(
            self.parameters,
            self.hosts,
            seen=self.seen,
            oracle=self.oracle,
            rotten=self.nemesis.rotten | self.oracle.rotten,
            report=self._report,
        ).check()

    def _report(self, invariant: str, host: Host | None, problems: Sequence[str]) -> None:
        if problems:
            where = "" if host is None else f"{host.name}: "
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.fail(invariant, f"{where}{problems[0]}{more}")
