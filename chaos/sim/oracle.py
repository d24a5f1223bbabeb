"""What must be true all the time, seen from above: the nodes' insides, and everything they ever committed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from chaos.sim.host import Host
from chaos.sim.witness import Witness
from dispatcher.backend import Backend
from logboom.types import NodeId
from partitions.reading import CommittedBatch
from partitions.worker import ApplyWorker
from raftlog import messages
from raftlog.engine import LEADER
from raftlog.entry import Route, unpack_routes

JOURNAL_LOOK: Final = 200
"""Entries at the end of a journal that a checkpoint looks at."""

Fail = Callable[[str, str], None]


class Oracle:
    """``fail(invariant, story)`` ends the run."""

    def __init__(self, hosts: Sequence[Host], fail: Fail) -> None:
        self._hosts = hosts
        self._fail = fail
        self._leaders: dict[int, str] = {}
        self._last: dict[str, tuple[int, int, int]] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self.committed: dict[int, tuple[int, tuple[Route, ...]]] = {}
        """Raft index to term and routes: what the first node that committed it said."""
        self._ends: dict[int, list[tuple[int, int]]] = {}
        """Per partition: (global index, last index) of its committed batches, ascending."""
        self._digests: dict[tuple[int, int], tuple[str, bytes]] = {}
        self._producers: dict[tuple[int, int], tuple[str, int]] = {}
        self._batches: dict[tuple[int, int], tuple[int, bytes]] = {}
        """By partition and last index: global index and digest."""
        self._sets: dict[int, tuple[str, bytes, bytes]] = {}
        """By global index: the first node that had such a snapshot, the states' digest, the parent's state."""
        self._partitions: dict[int, tuple[str, bytes]] = {}
        """By Raft index of each change: who was handed it first, and what partitions there were then."""
        self._global = 0
        self.witness = Witness(hosts, fail)
        self.elections = 0
        self.checks = 0

    # -- at every instant

    def instant(self) -> None:
        """Cheap: roles, terms and commit indices."""
        for host in self._hosts:
            node = host.node
            if node is None:
                continue
            engine = node.pipeline.raft.engine.__dict__
            seen = (
                engine["_SyncObj__raftState"],
                engine["_SyncObj__raftCurrentTerm"],
                engine["_SyncObj__raftCommitIndex"],
            )
            before = self._last.get(host.name)
            if seen != before:
                self._moved(host, before, seen)

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
        backend, raft = node.pipeline, node.pipeline.raft
        self.witness.started(host, backend)
        commit, send = backend.committed, raft._send_now  # noqa: SLF001 - an observer
        control = backend.control
        votes = self._votes

        def committed(raft_index: int, term: int, routes: Sequence[Route]) -> None:
            self._on_committed(host, raft_index, term, tuple(routes))
            self.witness.committed(host, raft_index, routes)
            commit(raft_index, term, routes)

        def send_now(peer: NodeId, body: bytes) -> None:
            if b"response_vote" in body:
                message = messages.decode(memoryview(body))
                earlier = votes.setdefault((host.name, message["term"]), peer)
                if earlier != peer:
                    self._fail("VoteOnce", f"{host.name} voted for {earlier} and {peer} in term {message['term']}")
            send(peer, body)

        def controlled(raft_index: int, term: int, fields: Mapping[str, Any]) -> None:
            control(raft_index, term, fields)
            self._on_control(host, backend, raft_index)

        backend.control = controlled  # type: ignore[method-assign]
        backend.committed = committed  # type: ignore[method-assign]
        raft._send_now = send_now  # type: ignore[method-assign]  # noqa: SLF001 - an observer

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
        there = backend.parent.lifecycle.encode()
        first = self._partitions.setdefault(raft_index, (host.name, there))
        if first[1] != there:
            self._fail("PartitionsAgree", f"{host.name} and {first[0]} differ over the partitions at {raft_index}")

    def barrier_reached(self, name: str, target: int, partitions: Sequence[int]) -> None:
        """BarrierSound: whoever was told so finds everything up to ``target`` applied there."""
        host = next(h for h in self._hosts if h.name == name)
        node = host.node
        if node is None or not node.pipeline.recovered():
            return  # died since; what it had said is checked by watermarks
        for partition, machine in node.machines.items():
            if partition not in partitions or node.pipeline.rebuilding.fenced(partition):
                continue  # a state that is being made anew shows nothing, and had come that far
            ends = self._ends.get(partition, [])
            before = bisect_right(ends, (target, 1 << 62))
            due = ends[before - 1][1] if before else 0
            applied = machine.position().applied_index
            if applied < due:
                story = f"{name}: barrier at {target} over partition {partition}: {due} is due, {applied} is applied"
                self._fail("BarrierSound", story)

    def differing(self, partition: int, batches: Sequence[CommittedBatch]) -> list[str]:
        """Of a node's log, whatever is not as it was committed: nothing in between may be missing either."""
        found = []
        for before, batch in zip([None, *batches], batches, strict=False):
            header = batch.header
            known = self._batches.get((partition, header.last_index))
            if known != (batch.global_index, header.digest):
                found.append(
                    f"{partition}/{header.last_index}: {batch.global_index} {header.digest.hex()}, not {known}"
                )
            if before is not None and before.header.last_index + 1 != header.first_index:
                found.append(f"partition {partition}: {header.first_index} after {before.header.last_index}")
        ends = self._ends.get(partition, [])
        last = batches[-1].header.last_index if batches else 0
        if batches and ends and ends[-1][1] != last:
            found.append(f"partition {partition} ends at {last}, {ends[-1][1]} was committed")
        return found

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

    def _check_node(self, host: Host, backend: Backend) -> None:
        raft = backend.raft
        for meta in backend.snapshots.store.sets():
            seen = self._sets.setdefault(meta.global_index, (host.name, meta.states_digest, meta.parent))
            if seen[1:] != (meta.states_digest, meta.parent):
                self._fail("SnapshotEquivalence", f"{host.name} and {seen[0]} differ at {meta.global_index}")
        for mark in backend.watermarks.all():
            if not mark.snapshot_index <= mark.applied_index <= mark.durable_index <= mark.log_index:
                self._fail("I1", f"{host.name}: {mark}")
        if raft.engine.may_lead:
            for command, index, _ in raft.journal.entries[1:][-JOURNAL_LOOK:]:
                for route in unpack_routes(command):
                    if not backend.payloads.holds(route):
                        self._fail("I2", f"{host.name}: journal entry {index} without its batch {route}")
        if raft.journal.durable_index < raft.journal.floor:
            self._fail("I3", f"{host.name}: acknowledged {raft.journal.floor}, durable {raft.journal.durable_index}")
        operations, size = backend.admission.used()
        limits = backend.settings.admission
        if not 0 <= operations <= limits.node_ops or not 0 <= size <= limits.node_bytes:
            self._fail("I10", f"{host.name}: {operations} operations and {size} bytes admitted")
        if operations and not len(backend.pending):
            self._fail("I10", f"{host.name}: {operations} operations admitted with nothing under way")
        for partition, machine in backend.machines.items():
            digest, position = machine.digest()
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
            if len(backend.barriers):
                self._fail("BarrierLive", f"{host.name}: {len(backend.barriers)} barriers left behind")
