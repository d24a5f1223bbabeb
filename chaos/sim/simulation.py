"""One run: a seed, a world, faults, then quiet; and everything that must hold during and after it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.checkers import exactly_once, linearizable
from chaos.history import History, Operation, of_kind
from chaos.sim.clients import Seen, SimClient
from chaos.sim.forbidden import Forbidden, real_world_forbidden
from chaos.sim.host import Host
from chaos.sim.loop import EPOCH_S, Process, SimLoop, StandsStill
from chaos.sim.nemesis import Nemesis
from chaos.sim.network import SimNetwork
from chaos.sim.oracle import Oracle
from chaos.sim.parameters import Parameters
from chaos.sim.timeline import Timeline
from dispatcher.installing import InstallDue
from logboom import Add, Client, Record
from logboom.errors import CorruptData, LogboomError
from ports.invariant import InvariantViolated

CHECKPOINT_S: Final = 5.0
LIVE_WITHIN_S: Final = 30.0
RESTART_S: Final = 0.3
WATCHER: Final = "watcher"


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
    faults: Counter[str] = field(default_factory=Counter)
    elections: int = 0
    commits: int = 0
    snapshots: int = 0
    """Sets, each counted once, on however many nodes it was taken."""
    installs: int = 0
    trace_hash: str = ""
    failure: Failure | None = None


class Simulation:
    """``play`` once."""

    def __init__(self, parameters: Parameters, *, timeline: Timeline, until: float | None = None) -> None:
        self.parameters = parameters
        self.timeline = timeline
        self.outcome = Outcome(parameters.seed)
        self._until = until
        self._rng = random.Random(parameters.seed ^ 0x5EED)
        self.loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
        self.network = SimNetwork(self.loop, self._fork(), parameters.network)
        self.hosts = [self._host(k) for k in range(parameters.nodes)]
        self.seen = Seen(History(lambda: int(self.loop.now * 1e9)))
        self.oracle = Oracle(self.hosts, self.fail)
        self.nemesis = Nemesis(
            parameters,
            self.hosts,
            self.network,
            self.loop,
            note=timeline.note,
            replace_client=self._replace_client,
        )
        self.oracle.witness.damaged = self.nemesis.damaged
        self._clients: list[tuple[SimClient, Process]] = []

    def _fork(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _host(self, index: int) -> Host:
        settings = self.parameters.of_node(index)
        return Host(
            settings.node.id,
            loop=self.loop,
            network=self.network,
            rng=self._fork(),
            settings=settings,
            slowest_s=self.parameters.slowest_s,
            ended=self._node_ended,
            started=self._node_started,
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
            self.fail("NothingUnhandled", f"{process}: {context.get('message')}: {error!r}; {self._standing()}")

    def _node_started(self, host: Host) -> None:
        self.oracle.started(host)

    def _node_ended(self, host: Host, error: BaseException) -> None:
        self.timeline.note(f"{host.name} stops itself: {error!r}")
        if isinstance(error, InstallDue):
            self.outcome.installs += 1
            self.loop.run_as(None, host.start, delay=RESTART_S)
            return
        if isinstance(error, CorruptData) and host.name in self.nemesis.damaged:
            host.may_run = False
            return
        if isinstance(error, InvariantViolated):
            self.fail("InvariantViolated", f"{host.name}: {error}")
        elif isinstance(error, Forbidden):
            self.fail("NoRealWorld", f"{host.name}: {error}")
        elif host.name not in self.nemesis.faulty or not isinstance(error, OSError | LogboomError):
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
        with real_world_forbidden() as refused, self.timeline.logging():
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
        outcome.faults = self.nemesis.injected
        outcome.elections = self.oracle.elections
        outcome.commits = len(self.oracle.committed)
        outcome.snapshots = self.oracle.snapshots
        outcome.trace_hash = f"{self.loop.trace & (1 << 64) - 1:016x}"
        return outcome

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
        checks = asyncio.ensure_future(self._checkpoints())
        await asyncio.gather(self.nemesis.play(parameters.faults), asyncio.sleep(parameters.seconds))
        await self._live()
        checks.cancel()

    async def _checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            self.oracle.checkpoint()
            for invariant, story in self.seen.problems:
                self.fail(invariant, story)

    # -- liveness

    async def _live(self) -> None:
        """Heal a random quorum: it must serve. Then the rest, and all must be equal."""
        self.timeline.note("healing a quorum")
        self.nemesis.heal()
        rng = self._fork()
        # Of what was damaged and is not repaired yet, the others may hold the only copies.
        hosts = [h for h in self.hosts if h.may_run and h.name not in self.nemesis.damaged]
        quorum = rng.sample(hosts, len(self.hosts) // 2 + 1)
        for host in self.hosts:
            if host not in quorum:
                host.kill(power=False)
                host.may_run, restart = False, host.may_run
                host.wanted = restart
        for host in quorum:
            host.start()
        await self._within("a quorum serves", self._serves(quorum))
        for client, _ in self._clients:
            client.stopped = True
        await self._within("clients come to an end", self._clients_done())
        for host in self.hosts:
            host.may_run = host.may_run or host.wanted
            host.start()
        await self._within("all nodes converge", self._converge())
        self.oracle.checkpoint()
        self.oracle.idle()

    async def _within(self, what: str, work: Any) -> None:
        started = self.loop.now
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=LIVE_WITHIN_S)
        if not done:
            self.fail("Liveness", f"{what}: not within {LIVE_WITHIN_S:.0f} s; {self._standing()}")
            task.cancel()
            return
        task.result()
        self.timeline.note(f"{what}: after {self.loop.now - started:.2f} s")

    def _standing(self) -> str:
        rows = []
        for host in self.hosts:
            if host.node is None:
                rows.append(f"{host.name} down")
                continue
            backend = host.node.pipeline
            engine = backend.raft.engine
            role = "leads" if engine.is_leader else "candidate" if engine.is_candidate else "follows"
            marks = " ".join(
                f"{m.partition_id}:{m.applied_index}/{m.log_index}{'' if m.state == 'running' else m.state}"
                for m in backend.watermarks.all()
            )
            rows.append(
                f"{host.name} {role} term {engine.term} commit {engine.commit_index}"
                f"/{backend.raft.journal.last_index}{'' if engine.may_lead else ' no vote'}"
                f"{'' if backend.recovered() else ' recovering'} [{marks}]"
            )
        return "; ".join(rows)

    async def _serves(self, quorum: Sequence[Host]) -> None:
        process = self.loop.process(WATCHER)
        done: asyncio.Future[None] = self.loop.create_future()

        async def serve() -> None:
            addresses = [h.settings.cluster.members[int(h.name[1:]) - 1].client_address for h in quorum]
            async with Client(addresses, rng=self._fork(), timeout=LIVE_WITHIN_S) as client:
                last = 0
                for partition in range(self.parameters.settings.cluster.partitions):
                    kv = partition in self.parameters.kv_partitions
                    name = f"live-{partition}"
                    kind, key, value = ("add", name, 1) if kv else ("append", f"log{partition}", name)
                    op = self.seen.history.invoke(0, kind, key, value, partition)
                    command = Add(name.encode(), 1) if kv else Record(name.encode())
                    receipt = await client.submit(partition, command, wait="applied")
                    self.seen.history.end(op, "ok", index=receipt.first_index, global_index=receipt.global_index)
                    last = receipt.global_index
                    if kv and await client.get(partition, name.encode()) != (1,):
                        self.fail("LinearizableRead", f"{name} was applied and is not read")
                for address in addresses:
                    await client.barrier(last, node=address)
            self.loop.run_as(None, done.set_result, None)  # what follows is not the watcher's

        self.loop.spawn(process, serve())
        await done

    async def _clients_done(self) -> None:
        while any(process.alive for _, process in self._clients):  # noqa: ASYNC110 - the dead wake nobody
            await asyncio.sleep(0.1)

    async def _converge(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            hosts = [h for h in self.hosts if h.may_run]  # not who finds its damage only now
            if any(h.node is None for h in hosts):
                continue
            backends = [h.node.pipeline for h in hosts if h.node is not None]
            commits = {b.parent.global_index for b in backends}
            if len(commits) == 1 and all(
                b.recovered()
                and b.raft.journal.last_index == b.raft.engine.commit_index
                and all(m.applied_global_index in commits for m in b.watermarks.all())
                for b in backends
            ):
                return

    # -- afterwards

    def _check_history(self) -> None:
        operations = self.seen.history.operations
        for invariant, story in self.seen.problems:
            self.fail(invariant, story)
        adds = [op for op in of_kind(operations, "add") if op.partition not in self.seen.doomed]
        for host in self.hosts:
            try:
                self._check_host(host, adds)
            except CorruptData as error:
                # Bit rot that nobody has read yet: it must not be served, and is not.
                if host.name not in self.nemesis.damaged:
                    self.fail("NoServeCorrupt", f"{host.name}: {error}")
        self._report("LinearizableRead", None, linearizable.registers(of_kind(operations, "get", "put", "cas")))

    def _check_host(self, host: Host, adds: Sequence[Operation]) -> None:
        operations = self.seen.history.operations
        if host.node is not None and host.may_run:
            state: dict[str, int] = {}
            kinds = host.node.pipeline.partitioning
            for partition, machine in host.node.machines.items():
                kind = kinds.kind(partition).state_machine
                if kind == "kv" and partition not in self.seen.doomed:
                    for chunk, _ in machine.scan(start=b"", end=None, limit=0, chunk=1 << 20):
                        state |= {key.decode(): int(value[0]) for key, value in chunk if isinstance(value, tuple)}
                store = host.node.logs[partition]
                first = store.first_available_index
                batches = store.read_committed(after_index=first - 1, through_index=1 << 62, max_bytes=1 << 62)
                self._report("PrefixAgreement", host, self.oracle.differing(partition, batches))
                if kind == "log":
                    records = [
                        (index, payload.decode())
                        for b in batches
                        if b.records is not None
                        for index, payload in enumerate(b.records.payloads(), b.header.first_index)
                    ]
                    mine = [op for op in of_kind(operations, "append") if op.partition == partition]
                    self._report("NoPhantom", host, exactly_once.appends(mine, records, -1, first=first))
                    self._report("OffsetsDenseUnique", host, exactly_once.receipts(mine, records, first=first))
            self._report("I8", host, exactly_once.counters(adds, state))
            self._report("Atomic", host, self._together(state))

    def _together(self, state: dict[str, int]) -> list[str]:
        return [
            f"half of a request: {[(op.key, state.get(op.key, 0)) for op in ops]}"
            for ops in self.seen.together
            if not any(op.partition in self.seen.doomed for op in ops)
            if len({state.get(op.key, 0) for op in ops}) > 1
        ]

    def _report(self, invariant: str, host: Host | None, problems: Sequence[str]) -> None:
        if problems:
            where = "" if host is None else f"{host.name}: "
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.fail(invariant, f"{where}{problems[0]}{more}")
