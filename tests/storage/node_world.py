"""A node's disk: journal and partition logs, written through GroupSync, recovered by RaftLog.

What a node promises to others is what its outbox lets go: ``promise`` is told by that alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from chaos.sim.disk import SimDisk
from dispatcher.pipeline.payloads import PartitionPayloads
from logboom.types import DurabilityMode, PartitionId, PartitionLogIndex, Term
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from raftlog.core import RaftLog
from raftlog.entries.entry import KIND_NOOP, Route, pack_routes, unpack_routes
from raftlog.journal.journal import Entry, Journal
from raftlog.journal.outbox import GroupLimits, GroupSync
from raftlog.repair.wanted import Wanted
from tests.storage.partition_world import build, check_held, open_log, raw
from tests.storage.world import World

MODES = {
    PartitionId(0): DurabilityMode.WRITE_AHEAD,
    PartitionId(1): DurabilityMode.WRITE_AHEAD,
    PartitionId(2): DurabilityMode.WRITE_BEHIND,
}


class Queue:
    """ports.offload.Offload: jobs run, and are told to have ended, when the workload says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.ended: list[Callable[[], None]] = []
        self.broken = False
        """A write or sync has failed; perhaps nobody was told yet."""

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((job, done))

    def run(self, at: int) -> None:
        job, done = self.jobs.pop(at)
        try:
            result = job()
        except OSError as error:
            self.broken |= "strip" not in done.__qualname__  # that runs beside the groups and holds up none
            self.ended.append(lambda error=error: done(None, error))  # type: ignore[misc]
        else:
            self.ended.append(lambda: done(result, None))

    def tell(self, at: int) -> None:
        self.ended.pop(at)()


class Recovery(RaftLog):
    """Of a RaftLog, what ``recover`` works on."""

    def __init__(self, journal: Journal, payloads: PartitionPayloads, group: GroupSync) -> None:
        self.journal, self.payloads, self.group = journal, payloads, group
        self.put_back = 0
        self.engine: Any = SimpleNamespace(may_lead=None)
        self.wanted: list[Wanted] = []
        self.repair: Any = SimpleNamespace(missing=self.wanted.extend)

    @property
    def missing(self) -> list[Route]:
        return [wanted.route for wanted in self.wanted]


class Parts:
    """An opened node, short of its network."""

    def __init__(self, disk: SimDisk, limits: GroupLimits) -> None:
        self.logs = {p: open_log(disk, Path(f"/n/partitions/{p}"), p, mode) for p, mode in MODES.items()}
        self.journal = Journal.open(
            disk=disk,
            directory=Path("/n/journal"),
            cluster_id="c",
            segment_bytes=4096,
            random_bytes=random.Random(0).randbytes,
        )
        self.found = snapshot(self.journal)
        self.queue = Queue()
        self.failures: list[BaseException] = []
        self.group = GroupSync(
            journal=self.journal,
            offload=self.queue,  # type: ignore[arg-type]
            clock=SimpleNamespace(monotonic=lambda: 0.0),  # type: ignore[arg-type]
            synced=lambda: None,
            failed=self.failures.append,
            limits=limits,
        )
        self.payloads = PartitionPayloads(self.logs, self.group.dirty)
        self.recovery = Recovery(self.journal, self.payloads, self.group)
        self.recovery.recover()

    def close(self) -> None:
        for log in self.logs.values():
            log.close()
        self.journal.close()


class Version(NamedTuple):
    """The journal after some change."""

    entries: tuple[Entry, ...]
    term: int
    vote: str | None


def snapshot(journal: Journal) -> Version:
    return Version(tuple(journal.entries), journal.term, journal.vote)


class Promise(NamedTuple):
    """What others were told."""

    version: int
    durable: frozenset[bytes]
    """Batches that its entries name and that were said to be synced."""


class NodeWorld(World):
    def __init__(self, disk: SimDisk, seed: int) -> None:
        super().__init__(disk, seed)
        self.made: dict[PartitionId, dict[bytes, Batch]] = {p: {} for p in MODES}
        self.versions = [Version(((KIND_NOOP, 1, 0),), 0, None)]
        self.told = 0
        self.durable: frozenset[bytes] = frozenset()
        self.committed = 1
        self.global_index = 0
        self.released = 0
        self.limits = GroupLimits(
            inline=self.rng.choice((0, 0, 4096)), redo=1500, redo_group=3000, unsettled=self.rng.choice((1000, 3000))
        )

    # -- a process

    def open(self) -> None:
        self.parts = Parts(self.disk, self.limits)
        self._version_of(self.parts.found, self.told)
        # Later versions stay in the list: until this process has synced what it found, they may be on the disk.
        self.versions.append(self.parts.found)
        self._note_change()
        self.told = len(self.versions) - 1
        self._fetch(self.parts.recovery.missing)
        self.committed, self.global_index = 1, 0
        self._note_durable()
        self.mark()

    def _fetch(self, missing: list[Route]) -> None:
        """A peer has them."""
        for route in missing:
            received = self.parts.payloads.receive(memoryview(raw(self.made[route.partition_id][route.digest])))
            assert received is not None, "a batch that was fetched does not fit"
        self.parts.group.flush()

    def _version_of(self, found: Version, least: int, *, cut: bool = False) -> int:
        """``cut``: its last entries may be gone, since a recovery cuts what has lost its batch."""
        for number in range(least, len(self.versions)):
            if self.versions[number] == found:
                return number
        for number in range(least, len(self.versions) if cut else least):
            known = self.versions[number]
            if (known.entries[: len(found.entries)], *known[1:]) == found:
                return number
        ends = [(len(v.entries), v.term, v.vote) for v in self.versions[least:]]
        raise AssertionError(f"the journal ends at {len(found.entries), *found[1:]}; written since its word: {ends}")

    def _note_change(self) -> None:
        now = snapshot(self.parts.journal)
        if now != self.versions[-1]:
            self.versions.append(now)

    def _note_durable(self) -> None:
        named = {route.digest for command, _, _ in self.versions[self.told].entries for route in unpack_routes(command)}
        self.durable = frozenset(
            digest
            for partition, log in self.parts.logs.items()
            for digest, batch in self.made[partition].items()
            if digest in named and log.is_durable(batch.last_index, digest)
        )

    # -- what it does

    @property
    def failures(self) -> Sequence[BaseException]:
        return self.parts.failures

    def step(self) -> None:
        fate, rng, parts = self.rng.random(), self.rng, self.parts
        if fate < 0.45:
            self._propose()
        elif fate < 0.53:
            self._vote(rng.choice((None, "n1", "n2")))
        elif fate < 0.57:
            self._lose_conflict()
        elif fate < 0.65:
            self._commit()
        elif fate < 0.72:
            log = parts.logs[PartitionId(2)]
            if log.request_sync():
                parts.group.dirty(log)
        elif fate < 0.75 and not parts.failures and not parts.queue.broken:
            self.disk.kill()
            self.open()
            return
        parts.group.kick()
        for _ in range(rng.choice((0, 1, 2, 8))):
            if parts.queue.jobs and rng.random() < 0.6:
                parts.queue.run(rng.randrange(len(parts.queue.jobs)))
            elif parts.queue.ended:
                parts.queue.tell(rng.randrange(len(parts.queue.ended)))

    def finish(self) -> None:
        while self.parts.queue.ended:
            self.parts.queue.tell(0)

    def _tails(self) -> dict[PartitionId, Batch]:
        return {
            route.partition_id: self.made[route.partition_id][route.digest]
            for command, _, _ in self.parts.journal.entries
            for route in unpack_routes(command)
        }

    def _propose(self) -> None:
        """Batches and the entry that names them, in one group or the batches earlier."""
        parts, journal = self.parts, self.parts.journal
        tails, routes = self._tails(), []
        for partition in self.rng.sample(sorted(MODES), self.rng.choice((1, 1, 2))):
            batch = build(self.rng, partition, tails.get(partition), journal.term)
            self.made[partition][batch.digest] = batch
            parts.logs[partition].append(batch)
            parts.group.dirty(parts.logs[partition])
            routes.append(Route(partition, Term(journal.term), PartitionLogIndex(batch.last_index), batch.digest))
        if self.rng.random() < 0.3:
            parts.group.kick()
        journal.add(pack_routes(routes), journal.last_index + 1, journal.term)
        self._note_change()
        self._hold(journal.last_index)

    def _vote(self, candidate: str | None) -> None:
        self.parts.journal.setCurrentTerm(self.parts.journal.term + 1, candidate)
        self._note_change()
        self._hold(None)

    def _lose_conflict(self) -> None:
        """Another leader's entry takes the place of one that was perhaps acknowledged, and not committed."""
        journal = self.parts.journal
        if journal.last_index > self.committed:
            self._vote(None)
            journal.truncate_from(self.rng.randint(self.committed + 1, journal.last_index))
            self._note_change()
            if self.rng.random() < 0.7:
                self._propose()

    def _hold(self, index: int | None) -> None:
        """Tell a peer, once it is true; as RaftLog does."""
        version, term, journal, parts = len(self.versions) - 1, self.parts.journal.term, self.parts.journal, self.parts

        def tell() -> None:
            assert parts is self.parts, "a dead process speaks"
            assert not parts.queue.broken, "acknowledged after a failed write or sync (SyncFailStop)"
            assert not parts.failures, "acknowledged after a failed write or sync (SyncFailStop)"
            self.released += 1
            if index is not None:
                if term != journal.term:
                    return
                assert index <= journal.durable_index
                journal.acknowledged(index)
            self.told = max(self.told, version)
            self._note_durable()
            self.mark()

        parts.group.hold(tell)

    def _commit(self) -> None:
        journal = self.parts.journal
        target = min(self.rng.randint(self.committed, journal.last_index), journal.floor)
        for command, index, term in journal.entries[self.committed : max(target, self.committed)]:
            for route in unpack_routes(command):
                self.global_index += 1
                self._commit_route(self.parts.logs, route, self.global_index, term)
            self.committed = index

    @staticmethod
    def _commit_route(logs: dict[PartitionId, PartitionLog], route: Route, number: int, term: int) -> None:
        logs[route.partition_id].commit(
            last_index=route.last_index, digest=route.digest, global_index=number, term=term
        )

    # -- what must hold

    def promise(self) -> Promise:
        return Promise(self.told, self.durable)

    def verify(self, disk: SimDisk, promise: Promise, *, again: bool = False) -> Any:
        parts = Parts(disk, self.limits)
        version = self._version_of(parts.found, promise.version, cut=again)
        entries = tuple(parts.journal.entries)
        least = min(len(v.entries) for v in self.versions[promise.version : version + 1])
        assert entries == self.versions[version].entries[: len(entries)]
        assert len(entries) >= least, f"{least} entries were acknowledged, {len(entries)} are left (NoTruncateAcked)"
        found = set[bytes]().union(*(check_held(log, self.made[p]) for p, log in parts.logs.items()))
        missing = parts.recovery.missing
        routes = [route for command, _, _ in entries for route in unpack_routes(command)]
        assert {r.digest for r in routes} <= found | {r.digest for r in missing}, "an entry without its batch (I2)"
        assert all(MODES[r.partition_id] is DurabilityMode.WRITE_BEHIND for r in missing), "a synced batch is gone"
        assert parts.recovery.engine.may_lead is (not missing), "leads while something is missing"
        named = {r.digest for r in routes}
        assert promise.durable & named <= found, "a batch that was said to be synced is gone"
        if not missing:
            self._serve(parts, routes)
        parts.close()
        return entries, found, parts.journal.term, parts.journal.vote

    def _serve(self, parts: Parts, routes: list[Route]) -> None:
        for number, route in enumerate(routes, 1):
            self._commit_route(parts.logs, route, number, 1)
        for partition, log in parts.logs.items():
            read = log.read_committed(after_index=0, through_index=log.committed_index, max_bytes=1 << 30)
            chain = [self.made[partition][route.digest] for route in routes if route.partition_id == partition]
            assert [batch.header for batch in read] == [batch.header for batch in chain]
            assert [batch.records for batch in read] == [batch.records() for batch in chain]
