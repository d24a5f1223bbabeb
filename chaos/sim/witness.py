"""Raft's own promises, held against what the nodes really have: journals side by side, and what is on the disks.

The oracle compares outcomes. That takes a bad day: a lost vote matters when two nodes stand in one
term, a lost acknowledgement when two of three disks forget. Here the promise itself is looked at,
when it is made: whoever breaks one is seen even if nobody suffers.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from chaos.sim.electorate import Electorate
from chaos.sim.holes import Holes
from chaos.sim.host import Host
from chaos.sim.promises import check_saved, look_at_acknowledging, look_at_freshness, look_at_producers
from chaos.sim.starts_and_cuts import carrying, look_at_covering, look_at_cuts
from chaos.sim.struck import Struck
from chaos.sim.what_if import forgotten
from dispatcher.pipeline.backend import Backend
from logboom.errors import CorruptData, LogboomError
from logboom.types import DurabilityMode, NodeId, PartitionId
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from raftlog.engine import messages
from raftlog.entries.entry import Route, unpack_routes
from raftlog.entries.parent_state import EMPTY, ParentState
from raftlog.journal.journal_codec import ENTRY, INDEX
from raftlog.reads import Done

EVERY: Final = 8
"""One acknowledgement, or entry, in so many is looked up on the disk."""
STRIPS: Final = 4
"""One strip of the journal in so many is followed by a look at what a power loss would leave."""
LOOK: Final = 8
"""Uncommitted entries that are looked at when a batch arrives."""

Fail = Callable[[str, str], None]


class Witness:
    """``fail(invariant, story)`` ends the run."""

    def __init__(self, hosts: Sequence[Host], electorate: Electorate, fail: Fail) -> None:
        self._hosts = hosts
        self._electorate = electorate
        self._fail = fail
        self.damaged: set[str] = set()
        """Hosts whose partition logs were changed behind their back, or are others: their promises may be broken,"""
        self.rotten: set[str] = set()
        """and those whose present ones are damaged, and may be yet."""
        self.forgetful: set[str] = set()
        """Hosts whose journal was."""
        self.may_forget: set[str] = set()  # those of them that have not said so since: each may once
        self.struck = Struck()
        self._lost: dict[str, list[Any]] = {}
        """Journals that were set aside: what they had acknowledged counted then."""
        self._tokens: dict[str, bytes] = {}
        """Of the last time that a host began anew."""
        self._terms = [0, 0]
        """Terms of the committed entries, by Raft index (there is no 0, and 1 is a placeholder)."""
        self._committed_in = [0, 0]
        """The terms of the leaders that committed them: never less than the one before."""
        self._journals: dict[str, Any] = {}
        """Every host's last one, of a dead process too: what it held then, its disk holds."""
        self._routes: dict[tuple[int, int], Route] = {}
        """Of committed batches, by partition and last index: as many as the highest global index."""
        self._committed_at: list[float] = []
        """When each of them was handed up first, anywhere, by global index."""
        self._units: dict[bytes, tuple[Route, ...]] = {}
        """By digest: everything that was proposed as one request."""
        self._holes, self.voids = Holes(), set[tuple[int, int]]()
        self._acknowledgements: Counter[str] = Counter()
        self._turn = 0
        self._strips = 0

    def inherit(self, before: Witness, raft_index: int, batches: Iterable[tuple[int, bytes]], keeps: str) -> None:
        """What was committed up to there in another history counts in this one. ``batches``: with their digests."""
        self._terms[:] = before._terms[: raft_index + 1]
        self._committed_in[:] = before._committed_in[: raft_index + 1]
        kept = {digest for _, digest in batches}
        self._routes.update((at, route) for at, route in before._routes.items() if route.digest in kept)
        self._committed_at[:] = [0.0] * len(self._routes)
        self._journals.update((name, journal) for name, journal in before._journals.items() if name == keeps)

    @property
    def terms(self) -> Sequence[int]:
        """Of committed entries, by Raft index."""
        return self._terms

    def committed_after(self, global_index: int) -> float:
        """When the first one behind that was handed up, anywhere; never: at the end of time."""
        return self._committed_at[global_index] if global_index < len(self._committed_at) else math.inf

    # -- a node's life

    def started(self, host: Host, backend: Backend) -> None:
        """It has recovered: what it had acknowledged is there, and from now on it is listened to."""
        before, journal = self._journals.get(host.name), backend.raft.journal
        if before is not None and self._has_forgotten(host, backend):
            self._lost.setdefault(host.name, []).append(before)
            before = None
        if before is not None:
            self._check_kept(host, backend, floor=min(before.last_index, before.floor), before=before)
        if journal.durable_index > journal.base_index and not self._in_journal(
            host, _entry(journal, journal.durable_index)
        ):
            self._fail("AckDurable", f"{host.name} starts with entry {journal.durable_index}, which is not on its disk")
        self._journals[host.name] = journal
        self._electorate.started(host, backend)
        self._acknowledgements[host.name] = 0
        self._listen(host, backend)
        self._look_inside(host, backend)

    def rejoins(self, host: Host) -> int:
        """How often it has lost its journal."""
        return len(self._lost.get(host.name, ()))

    def _has_forgotten(self, host: Host, backend: Backend) -> bool:
        """It says so for the first time since its journal was damaged, and does not do so again."""
        rejoining = backend.raft.members.membership.rejoining
        if rejoining is None or self._tokens.get(host.name) == rejoining.token:
            return False
        if host.name not in self.may_forget:
            self._fail("AcknowledgedKept", f"{host.name} has set a journal aside that was whole")
        self.may_forget.discard(host.name)
        self._tokens[host.name] = rejoining.token
        return True

    def _check_kept(self, host: Host, backend: Backend, *, floor: int, before: Any) -> None:
        journal = backend.raft.journal
        if floor > journal.base_index and backend.raft.engine.term_at(floor) != before.entry(floor)[2]:
            story = f"{host.name} had acknowledged entry {floor}; its journal ends at {journal.last_index}"
            self._fail("AcknowledgedKept", story)
        for command, index, _ in journal.after(journal.base_index) if host.name not in self.rotten else ():
            if index > floor:
                break
            for route in unpack_routes(command):
                log = backend.logs.get(route.partition_id)
                if log is None or log.mode is not DurabilityMode.WRITE_AHEAD:
                    continue
                void = (route.partition_id, route.last_index) in self.voids
                if not (backend.payloads.holds(route) or self._holes.excuse(host.name, route.digest, void=void)):
                    story = f"{host.name} had acknowledged entry {index}, and does not hold {route} any more"
                    self._fail("AcknowledgedKept", story)

    def _listen(self, host: Host, backend: Backend) -> None:
        """To what it says to others, and answers to readers."""
        raft: Any = backend.raft
        send, propose, read = raft.outbound.send_now, raft.propose, raft.read_index

        def send_now(peer: NodeId, body: bytes) -> None:
            if b"_vote" in body or b"next_node_idx" in body:  # all else is of no interest: decoding it takes its time
                self._on_message(host, backend, messages.decode(memoryview(body)), peer)
            send(peer, body)

        def proposed(routes: Sequence[Route], *, payload_bytes: int) -> None:
            if len(routes) > 1:
                self._units.update(dict.fromkeys((route.digest for route in routes), tuple(routes)))
            propose(routes, payload_bytes=payload_bytes)

        def read_index(done: Done, *, lone: bool = False) -> None:
            due = len(self._routes)

            def answered(error: LogboomError | None) -> None:
                if error is None and backend.parent.global_index < due:
                    story = f"{host.name} may read at {backend.parent.global_index}, {due} was committed when it asked"
                    self._fail("LinearizableRead", story)
                done(error)

            read(answered, lone=lone)

        raft.outbound.send_now, raft.propose, raft.read_index = send_now, proposed, read_index

    def _look_inside(self, host: Host, backend: Backend) -> None:
        """At what it counts, receives, and throws away."""
        engine: Any = backend.raft.engine
        payloads: Any = backend.payloads
        journal: Any = backend.raft.journal
        files: Any = journal._files  # noqa: SLF001 - an observer
        advance, receive, strip = engine._advance_commit, payloads.receive, files.strip  # noqa: SLF001 - an observer
        concede = payloads.concede

        def advance_commit() -> None:
            known = engine.commit_index
            advance()
            if engine.commit_index > known:
                self._counted(host, engine)

        def received(raw: memoryview, *, behind: bytes = b"") -> Route | None:
            found: Route | None = receive(raw, behind=behind)
            for command, index, _ in journal.after(engine.commit_index)[:LOOK] if found and engine.may_lead else ():
                if not all(payloads.holds(route) or payloads.is_hole(route) for route in unpack_routes(command)):
                    self._fail("I2", f"{host.name}: {found} came, and the batch of entry {index} is gone")
            return found

        def conceded(route: Route) -> bool:
            done: bool = concede(route)
            if done:
                self._holes.conceded(host.name, route)
            return done

        def stripped(through: int) -> None:
            full = carrying(journal)
            strip(through)
            if carrying(journal) < full:
                self._strips += 1
                if self._strips % STRIPS == 0:
                    self._check_power_loss(host)

        engine._advance_commit, payloads.receive, files.strip = advance_commit, received, stripped  # noqa: SLF001
        payloads.concede = conceded
        look_at_cuts(host, journal, lambda at: self._in_journal(host, _entry(journal, at)), self._fail)
        look_at_covering(host, engine, self._terms, self._fail)
        look_at_acknowledging(host, backend.raft, self._fail)
        look_at_freshness(host, backend.freshness, self._committed_at, self._fail)
        look_at_producers(host, backend, self._fail)
        self._look_at_messages(host, engine)
        self._look_at_captures(host, backend)

    def _look_at_captures(self, host: Host, backend: Backend) -> None:
        """A state that is captured for a snapshot is that of the cut."""
        taking: Any = backend.snapshots.taking
        on_captured = taking._captured  # noqa: SLF001 - an observer

        def captured(gathering: Any, partition: PartitionId, dump: Any) -> None:
            due = gathering.parent.tails.get(partition, EMPTY).last_index
            found = backend.workers[partition].applied_index if partition in backend.workers else due
            if dump is not None and not gathering.over and found != due:
                self._fail("CapturedAtCut", f"{host.name}: partition {partition} is captured at {found}, cut at {due}")
            on_captured(gathering, partition, dump)

        taking._captured = captured  # noqa: SLF001 - an observer

    def _look_at_messages(self, host: Host, engine: Any) -> None:
        """At what one of them may move, and what it may not."""
        on_append, on_reply = engine._on_append, engine._on_reply  # noqa: SLF001 - an observer
        journal = engine.journal

        def appended(node: Any, message: Any) -> None:
            entries, commit, last = message.get("entries", ()), engine.commit_index, journal.last_index
            conflict = any(engine.term_at(index) not in (None, term) for _, index, term in entries)
            on_append(node, message)
            if journal.last_index < last and not conflict:
                self._fail("CutForNothing", f"{host.name} cuts {last} back to {journal.last_index}: no conflict")
            if commit < engine.commit_index > message.get("prevLogIdx", 0) + len(entries):
                self._fail("CommitAgreed", f"{host.name} commits {engine.commit_index} after {len(entries)} entries")

        def replied(node: Any, message: Any) -> None:
            stale, before = message["term"] < engine.term, engine._echoed.get(node.id)  # noqa: SLF001 - an observer
            on_reply(node, message)
            if engine.term < message["term"] or (stale and engine._echoed.get(node.id) != before):  # noqa: SLF001 - an observer
                self._fail("ReplyOfTerm", f"{host.name}, term {engine.term}, counts a reply of term {message['term']}")

        engine._on_append, engine._on_reply = appended, replied  # noqa: SLF001 - an observer

    def committed(self, host: Host, index: int, routes: Sequence[Route]) -> None:
        """An entry is handed up: with all of its requests, and synced here."""
        for route in routes:
            unit = self._units.get(route.digest, ())
            if not set(unit) <= set(routes):
                self._fail("Atomic", f"{host.name}: entry {index} has {routes}, one request is {unit}")
            self._routes[route.partition_id, route.last_index] = route
            self.struck.committed(route)
            if len(self._routes) > len(self._committed_at):
                self._committed_at.append(asyncio.get_running_loop().time())
        if index % EVERY == 0 and host.node is not None:
            if not self._in_journal(host, _entry(self._journals[host.name], index)):
                self._fail("AppliedDurable", f"{host.name}: entry {index} is handed up and not on its disk")
            for route in routes:
                worker = host.node.pipeline.workers.get(route.partition_id)
                if worker is not None:
                    self._check_applied(host, worker)

    # -- the commit index

    def leads(self, host: Host, engine: Any) -> None:
        """A new leader has everything that leaders of earlier terms have committed."""
        top = bisect_left(self._committed_in, engine.term) - 1
        if top >= engine.journal.base_index and engine.term_at(top) != self._terms[top]:
            story = f"{host.name} leads term {engine.term}; entry {top} of term {self._terms[top]} is committed"
            self._fail("LeaderComplete", f"{story}, its own is of term {engine.term_at(top)}")

    def _counted(self, leader: Host, engine: Any) -> None:
        """A leader's commit index has moved."""
        top, commit = len(self._terms) - 1, engine.commit_index
        term = engine.term_at(commit)
        if term != engine.term:
            self._fail("CommitOwnTerm", f"{leader.name}, term {engine.term}, commits {commit} of term {term}")
        voters = self._electorate.voters(leader.name)
        holding = [name for name in voters if any(_holds(each, commit, term) for each in self._journals_of(name))]
        if 2 * len(holding) <= len(voters):
            self._fail("CommitOnQuorum", f"{leader.name} commits entry {commit}; on the disks of {holding} alone")
        if commit > top:
            self._terms += [engine.term_at(index) for index in range(top + 1, commit + 1)]
            self._committed_in += [max(engine.term, self._committed_in[-1])] * (commit - top)

    def _journals_of(self, name: str) -> list[Any]:
        """With those that it has lost: what was acknowledged then may be counted later.

        What it says before it was taken back may not: it may have promised something else.
        """
        host = next(each for each in self._hosts if each.name == name)
        forgets = host.node is not None and host.node.pipeline.raft.members.membership.rejoining is not None
        known = [self._journals[name]] if name in self._journals and not forgets else []
        return [*known, *self._lost.get(name, ())]

    def committed_in(self, index: int) -> int:
        """The term whose leader has counted an entry."""
        return self._committed_in[min(index, len(self._committed_in) - 1)]

    def lost_disk(self, host: Host) -> None:
        """What it had promised is gone: nobody may ask for it, but what it said may be on its way, and is counted."""
        self.damaged.add(host.name)
        self.struck.now(host.name)
        self._holes.lost_disk(host.name)
        journal = self._journals.pop(host.name, None)
        if journal is not None:
            self._lost.setdefault(host.name, []).append(journal)

    def commit_moved(self, host: Host, engine: Any, commit: int) -> None:
        """Whatever a node takes for committed a leader has counted."""
        known = self._terms[commit] if commit < len(self._terms) else None
        if known != engine.term_at(commit):
            story = f"{host.name} takes entry {commit} of term {engine.term_at(commit)} for committed; it is {known}"
            self._fail("CommitTrue", story)

    # -- on the disk

    def _on_message(self, host: Host, backend: Backend, message: messages.Message, peer: NodeId) -> None:
        kind = message["type"]
        if kind in ("response_vote", "request_vote"):
            voted_for = peer if kind == "response_vote" else host.name
            if not self._in_journal(host, INDEX.pack(message["term"]) + voted_for.encode()):
                self._fail("VoteDurable", f"{host.name}: {kind} of term {message['term']}, vote not on its disk")
        elif kind == "next_node_idx" and message["success"]:
            self._acknowledgements[host.name] += 1
            if self._acknowledgements[host.name] % EVERY == 1:
                self._check_acknowledged(host, backend, message["next_node_idx"] - 1)

    def _check_acknowledged(self, host: Host, backend: Backend, index: int) -> None:
        journal = backend.raft.journal
        if index <= journal.base_index or index > journal.last_index:
            return
        if not self._in_journal(host, _entry(journal, index)):
            self._fail("AckDurable", f"{host.name} acknowledges entry {index}, which is not on its disk")
        for route in unpack_routes(journal.entry(index)[0]):
            log = backend.logs[route.partition_id]
            if log.mode is DurabilityMode.WRITE_AHEAD and not self._has_batch(host, _head(log, route)):
                self._fail("AckDurable", f"{host.name} acknowledges entry {index}, {route} is not on its disk")

    def checkpoint(self) -> None:
        """What is applied is on disks; and one node is asked what it would know after a power loss."""
        running = [host for host in self._hosts if host.node is not None and host.name not in self.rotten]
        for host in running:
            self._holes.look(host.name, partial(self._keeps, host))
            for worker in host.node.pipeline.workers.values() if host.node is not None else ():
                check_saved(host, worker, self._fail)
                self._check_applied(host, worker)
        self._turn += 1
        if running and self._turn % 2:
            self._check_power_loss(running[self._turn // 2 % len(running)])  # each in turn, however many there are

    def _check_power_loss(self, host: Host) -> None:
        if host.node is not None and host.name not in self.rotten and host.node.pipeline.raft.engine.may_lead:
            try:
                lost = forgotten(host, host.node.pipeline)
            except CorruptData as error:
                self._fail("WouldStart", f"{host.name}: after a power loss now: {error}")
                return
            if lost:
                self._fail("AckDurable", f"{host.name} would not find {lost}")

    def _check_applied(self, host: Host, worker: ApplyWorker) -> None:
        """On the disk there; written behind, on the disks of a majority."""
        log, index = worker.log, worker.applied_index
        route = self._routes.get((log.partition_id, index))
        if route is None or host.name in self.rotten:
            return
        if log.first_available_index > index or log.is_hole(index, route.digest):
            return  # compacted, or never here: the state came from a snapshot
        if log.is_lost(index, route.digest):
            return  # reading it has failed: it is fetched, and written again
        if host.name in self.forgetful and log.committed_index < index:
            return  # what only its journal had synced went with it; what is applied is what it was
        head, where = _head(log, route), f"{log.partition_id}/{index}"
        if not self._has_batch(host, head):
            self._fail("AppliedDurable", f"{host.name} has applied {where}, which is not on its disk")
        if log.mode is DurabilityMode.WRITE_BEHIND:
            counted = self.struck.excused(route)
            on = {
                each.name
                for each in self._hosts
                if each.name in counted or self._has_batch(each, head) or self._has_compacted(each, route)
            }
            # Whoever voted when it was applied: that may be long ago.
            if not any(2 * len(on & {*voters}) > len(voters) for voters in self._electorate.voters_ever):
                self._fail("AppliedStable", f"{host.name} has applied {where}, on the disks of {sorted(on)} alone")

    def _has_compacted(self, host: Host, route: Route) -> bool:
        """Its journal begins behind it: what it did is in the states there, saved and in a snapshot."""
        journal = self._journals.get(host.name)
        parent = ParentState.decode(journal.base.state) if journal is not None else ParentState()
        reached = parent.tails.get(route.partition_id, EMPTY).last_index >= route.last_index
        return reached or parent.lifecycle.is_gone(route.partition_id)

    def _has_batch(self, host: Host, head: _Head) -> bool:
        if host.name in self.rotten:
            return True  # who can tell
        directory = host.path("partitions", str(head.partition))
        return host.disk.keeps(directory, ".log", head.digests) or self._in_journal(host, head.digests)

    def _keeps(self, host: Host, route: Route) -> bool:
        log = host.node.pipeline.logs.get(route.partition_id) if host.node is not None else None
        if log is None or log.find(route.last_index, route.digest) is None:
            return False
        return self._has_batch(host, _head(log, route))

    def _in_journal(self, host: Host, part: bytes) -> bool:
        return host.disk.keeps(host.path("journal"), ".journal", part)


class _Head(NamedTuple):
    """What a batch begins with wherever it is, unlike the routing entry that names it."""

    partition: int
    digests: bytes


def _head(log: PartitionLog, route: Route) -> _Head:
    ref = log.find(route.last_index, route.digest)
    previous = ref.previous_digest if ref is not None else b"not held: found nowhere"
    return _Head(route.partition_id, previous + route.digest)


def _entry(journal: Any, index: int) -> bytes:
    command, _, term = journal.entry(index)
    return ENTRY.pack(index, term) + bytes(command)


def _holds(journal: Any, index: int, term: int | None) -> bool:
    if index <= journal.base_index:
        return True
    return bool(index <= journal.durable_index and journal.entry(index)[2] == term)
