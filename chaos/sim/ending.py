"""How a run ends: a random quorum is healed and must serve, then the rest, and all members must be equal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from chaos.sim.chores import Chores
from chaos.sim.chores import standing as chores_standing
from chaos.sim.disk_faults import lose_sets
from chaos.sim.drawn_settings import has_rates
from chaos.sim.founder import Founder
from chaos.sim.host import Host
from chaos.sim.lag import released
from chaos.sim.loop import Process, SimLoop
from chaos.sim.mending import READ_S, Mending
from chaos.sim.oracle import Oracle
from chaos.sim.parameters import Parameters
from chaos.sim.readout import ReadOut
from chaos.sim.seen import Seen
from chaos.sim.slow_opening import SlowOpening
from dispatcher.pipeline.backend import Backend
from logboom import Add, Client, Record
from logboom.errors import BarrierTimeout, DeadlineExceeded, PartitionDestroyed, PartitionPaused, Unavailable
from raftlog.entries.configuration import Configuration, Role

LIVE_WITHIN_S: Final = 30.0
SLOWLY_READ_S: Final = 300.0
"""Everything, of one node after the other, where it is bounded how fast somebody may read; or what is left to write."""
REACHED_LOOK_S: Final = 5.0
PAUSED_LOOK_S: Final = 0.1
WATCHER: Final = "watcher"


class Stops(Protocol):
    """Somebody who does something until he is told, and then ends his process."""

    stopped: bool


class Ending:
    """Of one run, after its faults. ``damaged``, ``forgetful``: hosts that may not have what they had promised;
    ``rotten``: whose present files are damaged, and may be yet. ``removing``: whose removal may still be proposed.
    ``lose``: it is down then, and its disk is another, an empty one. ``new_host`` makes the machine with a number.
    """

    def __init__(
        self,
        parameters: Parameters,
        hosts: Sequence[Host],
        *,
        loop: SimLoop,
        oracle: Oracle,
        seen: Seen,
        damaged: set[str],
        forgetful: set[str],
        rotten: set[str],
        removing: Callable[[], str | None],
        lose: Callable[[Host], None],
        new_host: Callable[[int], Host],
        note: Callable[[str], None],
        fail: Callable[[str, str], None],
    ) -> None:
        self._parameters = parameters
        self._all = hosts
        self._loop = loop
        self._oracle = oracle
        self._seen = seen
        self._damaged, self._forgetful, self._rotten = damaged, forgetful, rotten
        self._removing = removing
        self._founder = Founder(
            parameters, hosts, oracle.electorate, loop=loop, seen=seen, lose=lose, new_host=new_host, note=note
        )
        self._note = note
        self._fail = fail

    @property
    def _hosts(self) -> list[Host]:
        return [host for host in self._all if not host.retired]

    async def play(self, clients: Sequence[tuple[Stops, Process]], fork: Callable[[], random.Random]) -> None:
        """Each phase in time."""
        quorum = self._quorum(fork())
        for host in self._hosts:
            if host not in quorum:
                host.kill(power=False)
                host.may_run, host.wanted = False, host.may_run
        for host in quorum:
            host.start()
        await self.within("a quorum serves", self._serves(quorum, fork))
        for client, _ in clients:
            client.stopped = True
        rated = has_rates(self._parameters.settings.admission)
        seconds = SLOWLY_READ_S if rated else LIVE_WITHIN_S
        await self.within("clients come to an end", self._done(clients), seconds=seconds)
        if self._parameters.members_change:
            await self.within("the members are settled", self._settled(quorum))
        for host in self._hosts:
            if host.name not in self._oracle.electorate.newest.ids:
                host.retire()
        for host in self._hosts:
            host.may_run = host.may_run or host.wanted
            host.start()
        await self.within("all nodes converge", self._converge())
        self._oracle.checkpoint()
        founder = self._founder.loses_its_disk(self._rotten | self._oracle.rotten)
        if founder is not None:
            await self.within(
                "who began the cluster is back", self._founder.play(founder, self._converge), seconds=SLOWLY_READ_S
            )
        damaged = self._rotten | self._oracle.rotten
        # At a low rate the rest of a state waits for longer than anybody who has a hung node to fear would.
        patience_s = SLOWLY_READ_S if self._parameters.paced else READ_S
        mending = Mending(self._parameters.seed, loop=self._loop, living=self._living, patience_s=patience_s)
        work = mending.play([host for host in self._hosts if host.may_run and host.name in damaged])
        await self.within("what is damaged comes back", work, seconds=SLOWLY_READ_S, lacks=lambda: mending.lacks)
        self._oracle.rotten.clear()
        whole = [h for h in self._hosts if h.may_run and h.name not in self._rotten]
        if "lose_sets" in self._parameters.kinds:
            for host in whole:
                host.kill(power=False)
                lose_sets(host, gone=True)
            for host in whole:
                host.start()
            await self.within("nodes without sets converge", self._converge())
        await self.within("who leads has a set", self._leader_has_set(), seconds=SLOWLY_READ_S)
        seconds = SLOWLY_READ_S if rated or self._parameters.paced else LIVE_WITHIN_S
        await self._opens_slowly(whole, seconds)
        chores = Chores(
            self._parameters,
            whole,
            all_are=len(whole) == len(self._hosts),
            loop=self._loop,
            write=self._write,
            living=self._living,
            fail=self._fail,
        )
        await self.within("all chores are done", chores.play(seconds), seconds=seconds)
        await self.within("all nodes have what was written then", self._converge())
        out = ReadOut(
            whole,
            loop=self._loop,
            ends=self._oracle.ends,
            doomed=self._seen.doomed,
            fail=self._fail,
            stepped_over=self._seen.stepped_over,
        )
        seconds = SLOWLY_READ_S if self._parameters.paced else LIVE_WITHIN_S
        await self.within("everything is read", out.play(fork()), seconds=seconds)
        self._oracle.idle()

    async def _opens_slowly(self, whole: Sequence[Host], seconds: float) -> None:
        """Of partitions that are created, if that is this seed's: whatever waits for those alone does not end."""
        created, doomed = self._seen.created, self._seen.doomed
        opening = SlowOpening(
            self._parameters.seed, whole, loop=self._loop, write=self._write, created=created, doomed=doomed
        )
        if opening.due:
            others = self._living("kv")[:1] + self._living("log")[:1]
            await self.within("what opens slowly is open", opening.play(others, seconds), seconds=seconds)

    def _quorum(self, rng: random.Random) -> list[Host]:
        """No more than it takes: for the members that were committed last, and for all that may come next."""
        electorate = self._oracle.electorate
        # Of what was damaged and is not repaired yet, the others may hold the only copies.
        broken = self._damaged | self._forgetful
        hosts = [h for h in self._hosts if h.may_run and (h.name not in broken or self._is_back(h))]
        first, *others = electorate.may_count(self._hosts)
        others += [_grown(said) for said in (first, *others)]
        others += [_without(said, self._removing()) for said in (first, *others)]
        able = [h for h in hosts if h.name in first.voters]
        quorum = rng.sample(able, min(len(first.voters) // 2 + 1, len(able)))
        for said in others:
            more = [h for h in hosts if h.name in said.voters and h not in quorum]
            missing = len(said.voters) // 2 + 1 - sum(h.name in said.voters for h in quorum)
            quorum += more[: max(0, missing)]
        return quorum

    def _is_back(self, host: Host) -> bool:
        """What was damaged there has been made up for: it has everything, and votes."""
        if host.node is None or host.name in self._rotten | {*self._oracle.electorate.newest.joining}:
            return False
        backend = host.node.pipeline
        return _may_vote(backend) and backend.recovered() and not backend.raft.repair.active

    async def within(
        self,
        what: str,
        work: Awaitable[None],
        why: Callable[[], str] | None = None,
        *,
        seconds: float = LIVE_WITHIN_S,
        lacks: Callable[[], str] = lambda: "",
    ) -> None:
        """Else the run fails. ``lacks``: what there is to say of it then."""
        started = self._loop.now
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            standing = (why or self.standing)()
            self._fail(
                "Liveness" if why is None else "FollowsAll", f"{what}: not in {seconds:.0f} s; {lacks()} {standing}"
            )
            task.cancel()
            return
        task.result()
        self._note(f"{what}: after {self._loop.now - started:.2f} s")

    def standing(self) -> str:
        """What everybody thinks."""
        return "; ".join(_standing(host) for host in self._hosts)

    async def _serves(self, quorum: Sequence[Host], fork: Callable[[], random.Random]) -> None:
        process = self._loop.process(WATCHER)
        done: asyncio.Future[None] = self._loop.create_future()

        async def serve() -> None:
            addresses = [host.member.client_address for host in quorum]
            # Whoever does not wait for admission has no turn where the budget is small and others stand in line.
            async with Client(addresses, rng=fork(), timeout=LIVE_WITHIN_S, admission_wait=LIVE_WITHIN_S) as client:
                last = 0
                for partition in range(self._parameters.settings.cluster.partitions):
                    last = max(last, await self._write(client, partition, f"live-{partition}"))
                for host in quorum:
                    await self._reaches(client, host, last)
            self._loop.run_as(None, done.set_result, None)  # what follows is not the watcher's

        self._loop.spawn(process, serve())
        await done

    async def _reaches(self, client: Client, host: Host, index: int) -> None:
        """Unless the operator, who goes on meanwhile, removes it: then it hears of nothing any more."""
        while host.name in self._oracle.electorate.newest.ids:
            # A partition that the operator destroyed is not waited for by the next one; one that joins may recover yet.
            with suppress(BarrierTimeout, DeadlineExceeded, PartitionDestroyed, Unavailable):
                await client.barrier(index, node=host.member.client_address, timeout=REACHED_LOOK_S)
                return

    async def _write(self, client: Client, partition: int, name: str) -> int:
        """And read it back; its global index. 0: the partition is gone, as somebody has asked for."""
        while True:
            try:
                return await self._write_once(client, partition, name)
            except PartitionPaused:
                await asyncio.sleep(PAUSED_LOOK_S)  # who wanted that is gone, and it is told to go on
                name += "-again"  # nobody knows what becomes of the one before

    async def _write_once(self, client: Client, partition: int, name: str) -> int:
        kv = partition in self._parameters.kv_partitions or self._seen.created.get(partition) == "kv"
        kind, key, value = ("add", name, 1) if kv else ("append", f"log{partition}", name)
        op = self._seen.history.invoke(0, kind, key, value, partition)
        command = Add(name.encode(), 1) if kv else Record(name.encode())
        try:
            receipt = await client.submit(partition, command, wait="applied")
            self._seen.history.end(op, "ok", index=receipt.first_index, global_index=receipt.global_index)
            if kv and await client.get(partition, name.encode()) != (1,):
                self._fail("LinearizableRead", f"{name} was applied and is not read")
        except PartitionPaused as error:
            self._seen.history.end(op, "fail" if error.outcome == "not_applied" else "info", error=error.code)
            raise
        except PartitionDestroyed:
            if partition not in self._seen.doomed:
                self._fail("DestroyedByNobody", f"partition {partition} is gone, and nobody wanted that")
            return 0
        return receipt.global_index

    def _living(self, machine: str) -> list[int]:
        """Partitions with this state machine that nobody has asked to be destroyed, as far as anybody was told."""
        begun = self._parameters.kv_partitions if machine == "kv" else self._parameters.log_partitions
        known = [*begun, *(each for each, kind in sorted(self._seen.created.items()) if kind == machine)]
        return [partition for partition in known if partition not in self._seen.doomed]

    async def _done(self, clients: Sequence[tuple[Stops, Process]]) -> None:
        while any(process.alive for _, process in clients):  # noqa: ASYNC110 - the dead wake nobody
            await asyncio.sleep(0.1)

    async def _settled(self, quorum: Sequence[Host]) -> None:
        """What has the leader's word is committed: from now on the members are those that it says."""
        while len(self._oracle.electorate.may_count(h for h in quorum if h.up)) > 1:  # noqa: ASYNC110 - nor do they
            await asyncio.sleep(0.05)

    async def _converge(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            hosts = [h for h in self._hosts if h.may_run]  # not who finds its damage only now
            if any(h.node is None for h in hosts):
                continue
            backends = [h.node.pipeline for h in hosts if h.node is not None]
            if _equal(backends) and len(self._oracle.electorate.may_count(hosts)) == 1 and self._all_vote(hosts):
                return

    async def _leader_has_set(self) -> None:
        """If its journal begins anywhere: else no node could be made of what it has."""
        while True:
            nodes = [host.node for host in self._hosts if host.node is not None]
            leading = [each.pipeline for each in nodes if each.pipeline.raft.engine.is_leader]
            if any(b.raft.journal.base_index <= 1 or b.snapshots.store.sets() for b in leading):
                return
            await asyncio.sleep(0.05)

    def _all_vote(self, hosts: Sequence[Host]) -> bool:
        """Nobody rejoins, joins, or lacks something that others have: but for those whose files are damaged yet."""
        joining = set(self._oracle.electorate.newest.joining)
        whole = [(host.name, host.node) for host in hosts if host.name not in self._rotten]
        return all(node is not None and name not in joining and _may_vote(node.pipeline) for name, node in whole)


def _grown(said: Configuration) -> Configuration:
    """A leader makes voters of those that join when they have caught up: at any moment, and asked by nobody."""
    seats = [seat._replace(role=Role.VOTER) if seat.role is Role.JOINING else seat for seat in said.seats]
    return replace(said, seats=tuple(seats))


def _without(said: Configuration, node: str | None) -> Configuration:
    """A leader may have been asked to remove it, and be about to."""
    return replace(said, seats=tuple(seat for seat in said.seats if seat.node != node))


def _equal(backends: Sequence[Backend]) -> bool:
    commits = {b.parent.global_index for b in backends}
    return len(commits) == 1 and all(
        b.recovered()
        and released(b)
        and b.raft.journal.last_index == b.raft.engine.commit_index
        and all(m.applied_global_index in commits for m in b.watermarks.all())
        for b in backends
    )


def _may_vote(backend: Backend) -> bool:
    """Or would, if it had a seat that says so."""
    raft = backend.raft
    return raft.members.membership.rejoining is None and raft.engine.may_lead and not raft.repair.blocked


def _standing(host: Host) -> str:
    if host.node is None:
        return f"{host.name} down"
    backend = host.node.pipeline
    raft, engine = backend.raft, backend.raft.engine
    role = "leads" if engine.is_leader else "candidate" if engine.is_candidate else "follows"
    marks = " ".join(
        f"{m.partition_id}:{m.applied_index}/{m.log_index}{'' if m.state == 'running' else m.state}"
        for m in backend.watermarks.all()
    )
    return (
        f"{host.name} {role} term {engine.term} commit {engine.commit_index}/{raft.journal.last_index}"
        f"{'' if engine.may_lead else ' no vote'}{'' if backend.recovered() else ' recovering'}"
        f"{'' if released(backend) else f' holds {backend.lagging.held}'}"
        f"{'' if engine.votes else f' ({raft.members.roster.standing})'}"
        f"{'' if raft.members.membership.rejoining is None else ' rejoining'} [{marks}] {chores_standing(backend)}"
    )
