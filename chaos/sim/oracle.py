"""What must be true all the time, seen from above: the nodes' insides, and everything they ever committed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

from chaos.sim.beginnings import Beginnings
from chaos.sim.electorate import Electorate
from chaos.sim.held import check_held, look_at_holding, look_at_keeping, look_at_removing
from chaos.sim.host import Host
from chaos.sim.lag import LagWatch
from chaos.sim.promises import check_void
from chaos.sim.rates import look_at_reading, look_at_shares, look_at_writing
from chaos.sim.receipts import ReceiptWatch, Row
from chaos.sim.retention import RetentionWatch
from chaos.sim.turned_away import look_at_waiting
from chaos.sim.void_watch import VoidWatch
from chaos.sim.waiting import Waited, Waits
from chaos.sim.witness import Witness
from dispatcher.pipeline.backend import Backend
from logboom.errors import CorruptData, Voided
from logboom.types import NodeId, PartitionId, Watermark
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from partitions.log.reading import CommittedBatch
from ports.invariant import InvariantViolated
from raftlog.engine import messages
from raftlog.engine.stock import LEADER
from raftlog.entries.chosen import encode_chosen
from raftlog.entries.configuration import Configuration
from raftlog.entries.entry import Route, unpack_routes
from raftlog.entries.voids import VOID, Void
from snapshots.meta import SetMeta

JOURNAL_LOOK: Final = 200
"""Entries at the end of a journal that a checkpoint looks at."""

LATE_S: Final = 0.2
"""Between the time of one who waits and the look that tells him so, at most."""

STANDING: Final = itemgetter("_SyncObj__raftState", "_SyncObj__raftCurrentTerm", "_SyncObj__raftCommitIndex")
"""Of what an engine knows: role, term and commit index."""

Fail = Callable[[str, str], None]


class Oracle:
    """``fail(invariant, story)`` ends the run."""

    def __init__(self, hosts: Sequence[Host], begins: Configuration, fail: Fail) -> None:
        """``begins``: the members at the beginning."""
        self._hosts = hosts
        self._fail = fail
        self._leaders: dict[int, str] = {}
        self._last: dict[str, tuple[int, int, int]] = {}
        self._engines: dict[str, dict[str, int]] = {}
        """Of every host's last node: what its engine knows."""
        self._votes: dict[tuple[str, int, int], str] = {}
        self._granted: dict[tuple[str, int], set[str]] = {}
        self.rotten: set[str] = set()
        """Hosts with states that were damaged behind their back."""
        self.committed: dict[int, tuple[int, tuple[Route, ...]]] = {}
        """Raft index to term and routes: what the first node that committed it said."""
        self._ends: dict[int, list[tuple[int, int]]] = {}
        """Per partition: (global index, last index) of its committed batches, ascending."""
        self._digests: dict[tuple[int, int], tuple[str, bytes]] = {}
        self._producers: dict[tuple[int, int], tuple[str, int]] = {}
        self._batches: dict[tuple[int, int], tuple[int, bytes]] = {}
        """By partition and last index: global index and digest."""
        self._sets: dict[tuple[int, int], tuple[str, bytes, bytes]] = {}
        """By global index and cut: the first node that had such a snapshot, the states' digest, the parent's state."""
        self._partitions: dict[int, tuple[str, bytes]] = {}
        """By Raft index of each change: who was handed it first, and what partitions there were then."""
        self._living: frozenset[int] = frozenset()
        """Those that were created, as of the last change."""
        self.created_at: dict[int, int] = {}
        """By partition: the newest global index when it was created."""
        self._ever: set[int] = set()
        """Those that ever were."""
        self._global = 0
        self.voids: set[tuple[int, int]] = set()
        """Partition and last index of what any node was handed as void."""
        self.electorate = Electorate(begins, self._granted, fail)
        self.witness = Witness(hosts, self.electorate, fail)
        self.lag = LagWatch(fail)
        self._chosen: list[Row] = []
        self._receipts = ReceiptWatch(self._ends, self._chosen, fail)
        self.retention = RetentionWatch(self.ends, self._batches, fail)
        self.beginnings = Beginnings(hosts)
        self.retention.voids = self.witness.voids = self.voids
        self._void = VoidWatch(hosts, self.voids, fail)
        self.elections = 0
        self.checks = 0

    def inherit(self, before: Oracle, raft_index: int, global_index: int, *, keeps: str = "") -> None:
        """What was committed up to there in another history is the beginning of this one; the rest was given up.

        ``keeps``: a host that has what it had acknowledged.
        """
        self.committed.update((at, row) for at, row in before.committed.items() if at <= raft_index)
        self._global = global_index
        self._chosen += [row for row in before._chosen if row.raft_index <= raft_index]
        self.voids |= before.voids
        for partition, ends in before._ends.items():
            self._ends[partition] = [row for row in ends if row[0] <= global_index]
        last = {partition: ends[-1][1] if ends else 0 for partition, ends in self._ends.items()}
        self._batches.update((at, row) for at, row in before._batches.items() if row[0] <= global_index)
        self._digests.update((at, row) for at, row in before._digests.items() if at[1] <= last.get(at[0], 0))
        self._producers.update((at, row) for at, row in before._producers.items() if at[1] <= last.get(at[0], 0))
        self.witness.inherit(before.witness, raft_index, self._batches.values(), keeps)
        self.retention.inherit(before.retention)

    # -- at every instant

    def instant(self) -> None:
        """Cheap: roles, terms and commit indices."""
        for host in self._hosts:
            if host.node is None:
                continue
            seen = STANDING(self._engines[host.name])
            if seen != self._last.get(host.name):
                self._moved(host, self._last.get(host.name), seen)
        self.electorate.instant()

    def _moved(self, host: Host, before: tuple[int, int, int] | None, seen: tuple[int, int, int]) -> None:
        self._last[host.name] = seen
        role, term, commit = seen
        engine: Any = host.node.pipeline.raft.engine if host.node is not None else None
        if role == LEADER:
            first = self._leaders.setdefault(term, host.name)
            if first != host.name:
                self._fail("OneLeaderPerTerm", f"{first} and {host.name} lead in term {term}")
            elif before is None or before[0] != LEADER:
                self.elections += 1
                self.witness.leads(host, engine)
                self.electorate.leads(host, term)
        if before is not None:
            if term < before[1]:
                self._fail("TermMonotonic", f"{host.name} went from term {before[1]} to {term}")
            if commit < before[2]:
                self._fail("CommitNeverRegresses", f"{host.name} went from commit {before[2]} to {commit}")
        if commit > (1 if before is None else before[2]):
            self.witness.commit_moved(host, engine, commit)

    # -- observation points

    def started(self, host: Host) -> None:
        """A node has been put together: watch what it commits and whom it votes for."""
        node = host.node
        if node is None:
            return
        self._last.pop(host.name, None)
        self._engines[host.name] = node.pipeline.raft.engine.__dict__
        backend, raft = node.pipeline, node.pipeline.raft
        self.witness.started(host, backend)
        self.lag.started(host, backend)
        self._receipts.started(host, backend)
        look_at_waiting(host, backend, self._fail)
        self.retention.started(host, backend)
        look_at_writing(host, backend.admission, backend.settings.admission, self._fail)
        look_at_reading(host, node.service.read_rates, self._fail)
        look_at_shares(host, backend.admission, backend.settings.admission, self._fail)
        look_at_removing(host, backend, self._fail, self.beginnings.at)
        look_at_holding(host, backend, self._fail)
        look_at_keeping(host, backend, self._fail)
        self._void.check_logs(host, backend)
        self.beginnings.started(host)
        taking: Any = backend.snapshots.taking
        completed = taking._completed  # noqa: SLF001 - an observer

        def set_completed(meta: SetMeta) -> None:
            self.check_sets(host.name, [meta])  # before others are told of it, and say that theirs is another
            completed(meta)

        taking._completed = set_completed  # noqa: SLF001 - an observer
        backend.watermarks.listen(partial(self._check_mark, host))
        commit, send = backend.committed, raft.outbound.send_now
        control = backend.control
        votes = self._votes

        def committed(raft_index: int, term: int, routes: Sequence[Route]) -> None:
            self._on_committed(host, raft_index, term, tuple(routes))
            self.witness.committed(host, raft_index, routes)
            commit(raft_index, term, routes)

        def send_now(peer: NodeId, body: bytes) -> None:
            if b"response_vote" in body:
                message = messages.decode(memoryview(body))
                earlier = votes.setdefault((host.name, self.witness.rejoins(host), message["term"]), peer)
                self._granted.setdefault((host.name, message["term"]), set()).add(peer)
                if raft.members.membership.rejoining is not None:
                    self._fail("VoteOnce", f"{host.name} votes in term {message['term']}, and has forgotten its votes")
                if earlier != peer:
                    self._fail("VoteOnce", f"{host.name} voted for {earlier} and {peer} in term {message['term']}")
            send(peer, body)

        def controlled(raft_index: int, term: int, fields: Mapping[str, Any]) -> None:
            if fields.get("do") == VOID:
                void = Void.parse(fields, raft_index=raft_index)
                self._void.declared(void)
                if raft_index not in self._partitions:
                    broken, members = self.witness.rotten | self.rotten, self.electorate.newest.ids
                    check_void(self._hosts, void, broken, self._fail, head=self._head(void), members=members)
            control(raft_index, term, fields)
            self._on_control(host, backend, raft_index)
            self.electorate.handed_up(host, raft_index, term, self.witness.committed_in(raft_index), fields)

        backend.control = controlled  # type: ignore[method-assign]
        backend.committed = committed  # type: ignore[method-assign]
        raft.outbound.send_now = send_now  # type: ignore[method-assign]

    def _on_committed(self, host: Host, raft_index: int, term: int, routes: tuple[Route, ...]) -> None:
        first = self.committed.get(raft_index)
        if first is None:
            self.committed[raft_index] = term, routes
            for route in routes:
                self._global += 1
                ends = self._ends.setdefault(route.partition_id, [])
                if ends and ends[-1][1] >= route.last_index:
                    self._fail(
                        "OffsetsDenseUnique", f"partition {route.partition_id}: {route.last_index} after {ends[-1][1]}"
                    )
                ends.append((self._global, route.last_index))
                self._batches[route.partition_id, route.last_index] = self._global, route.digest
        elif first != (term, routes):
            self._fail("PrefixAgreement", f"{host.name} committed {term, routes} at {raft_index}, others {first}")

    def _on_control(self, host: Host, backend: Backend, raft_index: int) -> None:
        parent = backend.parent
        fresh, there = raft_index not in self._partitions, parent.lifecycle.encode() + encode_chosen(parent.chosen)
        first = self._partitions.setdefault(raft_index, (host.name, there))
        if first[1] != there:
            self._fail("PartitionsAgree", f"{host.name} and {first[0]} differ over the partitions at {raft_index}")
        lifecycle = parent.lifecycle
        if not lifecycle.ids(backend.cluster.partitions):
            self._fail("LastPartitionStays", f"{host.name}: none is left at {raft_index}")
        if fresh:
            if parent.chosen != (self._chosen[-1].chosen if self._chosen else {}):
                self._chosen.append(Row(parent.global_index, raft_index, parent.chosen))
            again = (lifecycle.created.keys() - self._living) & self._ever
            if again:
                self._fail("IdsNotReused", f"partitions {again} are created again at {raft_index}")
            self.created_at.update(dict.fromkeys(lifecycle.created.keys() - self._living, parent.global_index))
            self._living = frozenset(lifecycle.created)
            self._ever |= self._living

    def _head(self, void: Void) -> bytes:
        """What the batch begins with, wherever it is: the digest of the one in front, and its own."""
        before = self._batches.get((void.partition_id, void.first_index - 1))
        return b"" if before is None else before[1] + void.digest

    def barrier_reached(self, waited: Waited) -> None:
        """BarrierSound: whoever was told so finds it true on the nodes that it was said of."""
        wrong = Waits(self._hosts, self._ends, self.witness.damaged).check(waited)
        if wrong:
            self._fail("BarrierSound", wrong)

    def differing(
        self, partition: int, batches: Sequence[CommittedBatch], voids: Mapping[int, int] = MappingProxyType({})
    ) -> list[str]:
        """Of a node's log, whatever is not as it was committed: nothing in between may be missing either.

        ``voids``: first and last index of what was declared void, which every node has to know of.
        """
        found = [
            f"partition {partition}: void from {first} to {last} on one node, not on {host.name}"
            for host in self._hosts
            for first, last in voids.items()
            if host.node is not None
            and not any(v[1:3] == (first, last) for v in host.node.pipeline.parent.voids.of(PartitionId(partition)))
        ]
        for before, batch in zip([None, *batches], batches, strict=False):
            header = batch.header
            known = self._batches.get((partition, header.last_index))
            if known != (batch.global_index, header.digest):
                found.append(
                    f"{partition}/{header.last_index}: {batch.global_index} {header.digest.hex()}, not {known}"
                )
            expected = int(header.first_index if before is None else before.header.last_index + 1)
            while before is not None and expected in voids:
                expected = voids[expected] + 1
            if before is not None and expected != header.first_index:
                found.append(f"partition {partition}: {header.first_index} after {before.header.last_index}")
        ends = self._ends.get(partition, [])
        last = batches[-1].header.last_index if batches else 0
        while last + 1 in voids:
            last = voids[last + 1]
        if batches and ends and ends[-1][1] != last:
            found.append(f"partition {partition} ends at {last}, {ends[-1][1]} was committed")
        return found

    def newest(self) -> int:
        """Global index of what was committed last."""
        return self._global

    def ends(self, partition: int) -> Sequence[tuple[int, int]]:
        """Global and last index of its committed batches, ascending."""
        return self._ends.get(partition, ())

    @property
    def shared(self) -> int:
        """Receipts for a part of a batch that several producers share, with more of it that others wrote."""
        return self._receipts.shared

    @property
    def snapshots(self) -> int:
        """Sets that were seen."""
        return len(self._sets)

    # -- at checkpoints

    def checkpoint(self) -> None:
        """Everything that can be seen on running nodes."""
        self.checks += 1
        self.witness.checkpoint()
        for host in self._hosts:
            if host.node is not None:
                self._check_node(host, host.node.pipeline)

    def check_sets(self, node: str, sets: Iterable[SetMeta]) -> None:
        """Those of one cut are equal, on all nodes that have it."""
        for meta in sets:
            # A node that misses a cut takes the next one, where nothing but the cuts may lie between.
            cut = meta.global_index, meta.raft_index
            seen = self._sets.setdefault(cut, (node, meta.states_digest, meta.parent))
            if seen[1:] != (meta.states_digest, meta.parent):
                self._fail("SnapshotEquivalence", f"{node} and {seen[0]} differ at {meta.global_index}")

    def _check_node(self, host: Host, backend: Backend) -> None:
        raft = backend.raft
        self.check_sets(host.name, backend.snapshots.store.sets())
        for mark in backend.watermarks.all():
            self._check_mark(host, mark)
        if raft.engine.may_lead:
            for command, index, _ in raft.journal.entries[1:][-JOURNAL_LOOK:]:
                for route in unpack_routes(command):
                    if not backend.payloads.holds(route) and not backend.payloads.is_hole(route):
                        self._fail("I2", f"{host.name}: journal entry {index} without its batch {route}")
        if raft.journal.durable_index < raft.journal.floor:
            self._fail("I3", f"{host.name}: acknowledged {raft.journal.floor}, durable {raft.journal.durable_index}")
        if backend.comparing.differences:  # else ``check_sets`` says so
            self._fail("DifferTrue", f"{host.name} tells of states that differ: {backend.comparing.differences}")
        operations, size = backend.admission.used()
        limits = backend.settings.admission
        if not 0 <= operations <= limits.node_ops or not 0 <= size <= limits.node_bytes:
            self._fail("I10", f"{host.name}: {operations} operations and {size} bytes admitted")
        gathered = backend.submitting.proposing.holding()
        if operations and not len(backend.pending) and not gathered:
            self._fail("I10", f"{host.name}: {operations} operations admitted with nothing under way")
        self._check_ledger(host, backend)
        check_held(host, backend, self._fail)
        self._void.check_logs(host, backend)
        self._void.check_seals(host, backend)
        for partition, created in backend.parent.lifecycle.created.items():
            log = backend.logs.get(partition)
            if log is not None and log.mode is not created.kind.mode:
                self._fail("OpenedAsOrdered", f"{host.name}: partition {partition} is {log.mode}, not {created.kind}")
        self.electorate.checkpoint(host, backend)
        self.lag.checkpoint(host, backend, damaged=host.name in self.rotten | self.witness.rotten)
        for partition, machine in backend.machines.items():
            try:
                digest, position = machine.digest()
            except CorruptData:
                if host.name in self.rotten | self.witness.rotten:
                    continue  # it must not be served, and is not
                raise
            at = partition, position.applied_index
            first = self._digests.setdefault(at, (host.name, digest))
            if first[1] != digest:
                story = f"partition {partition} at {position}: {host.name} differs from {first[0]}"
                self._fail("I6", story)
            if (self.checks + partition) % len(backend.machines) == 0:
                self._check_producers(host, backend.workers[partition])
            ends = self._ends.get(partition, [])
            if position.applied_index > (ends[-1][1] if ends else 0):
                self._fail("I7", f"{host.name}: partition {partition} applied {position}, not committed")

    def _check_mark(self, host: Host, mark: Watermark) -> None:
        if not mark.snapshot_index <= mark.applied_index <= mark.durable_index <= mark.log_index:
            self._fail("I1", f"{host.name}: {mark}")

    def _check_ledger(self, host: Host, backend: Backend) -> None:
        """Every budget is what tickets hold; whoever waits for admission is counted, in time, and at a leader."""
        waiting = backend.submitting.waiting
        self._receipts.check_forwarding(host, backend)
        holding = backend.pending.holding() + backend.submitting.proposing.holding()
        for partition in backend.partition_ids():
            batches = backend.admission.gate(partition).batches
            if batches != holding[partition]:
                story = f"partition {partition} has {batches} batches admitted, and {holding[partition]} under way"
                self._fail("I10", f"{host.name}: {story}")
        try:
            backend.admission.audit()
            late = host.process is not None and (host.process.stopped or host.process.slow)
            waiting.audit(backend.clock.monotonic(), late_s=math.inf if late else LATE_S)
        except InvariantViolated as error:
            self._fail("I10", f"{host.name}: {error}")
        if waiting and not backend.raft.engine.is_leader:  # else it was told, and told them
            self._fail("I10", f"{host.name}: {len(waiting)} requests wait at a node that does not lead")

    def _check_producers(self, host: Host, worker: ApplyWorker) -> None:
        """What decides over repetitions is a part of the state."""
        partition, index = worker.log.partition_id, worker.applied_index
        known = worker.dedupe._producers  # noqa: SLF001 - an observer
        memory = hash(tuple((producer, known[producer].encode()) for producer in sorted(known)))
        first = self._producers.setdefault((partition, index), (host.name, memory))
        if first[1] != memory:
            self._fail("I5", f"partition {partition} at {index}: {host.name} knows other producers than {first[0]}")

    def idle(self) -> None:
        """After the load: every budget is whole again, nobody waits any more."""
        for host in self._hosts:
            if host.node is None:
                continue
            backend: Any = host.node.pipeline
            if backend.admission.used() != (0, 0):
                self._fail("I10", f"{host.name}: {backend.admission.used()} still admitted with nothing under way")
            if len(backend.submitting.waiting):
                self._fail("I10", f"{host.name}: {len(backend.submitting.waiting)} requests wait for no budget")
            self._check_ledger(host, backend)
            check_held(host, backend, self._fail, idle=True)
            self._void.check_seals(host, backend, idle=True)
            self._receipts.check_forwarding(host, backend, idle=True)
            if len(backend.barriers):
                self._fail("BarrierLive", f"{host.name}: {len(backend.barriers)} barriers left behind")


def read_all(store: PartitionLog) -> tuple[list[CommittedBatch], dict[int, int]]:
    """What a node's log has, and first and last index of what is void in it."""
    batches: list[CommittedBatch] = []
    voids: dict[int, int] = {}
    after = store.first_available_index - 1
    while after < store.committed_index:
        try:
            batches += store.read_committed(after_index=after, through_index=1 << 62, max_bytes=1 << 62)
            after = batches[-1].last_index
        except Voided as gap:
            voids[gap.first_index] = after = gap.last_index
    return batches, voids
