"""``Engine``: what the rest of raftlog drives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logboom.settings import RaftSettings
from logboom.types import NodeId
from ports.clock import Clock
from ports.invariant import invariant
from ports.rng import Rng
from raftlog.engine.messages import Message
from raftlog.engine.replication import Replication
from raftlog.engine.stock import FOLLOWER, Given, Peer
from raftlog.entries.entry import KIND_CONTROL, KIND_NOOP, KIND_ROUTES
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership, parse

APPLY_BATCH: Final = 256
"""Entries that are handed up in one turn."""


class Engine(Replication):
    """One node's Raft. All calls on the event loop; every effect goes through the callables given."""

    def __init__(
        self,
        *,
        membership: Membership,
        journal: Journal,
        settings: RaftSettings,
        clock: Clock,
        rng: Rng,
        send: Callable[[NodeId, Message], bool],
        apply: Callable[[int, int, bytes], None],
        sendable: Callable[[NodeId], int],
        too_far: Callable[[NodeId], None],
        members_moved: Callable[[], None] = lambda: None,
    ) -> None:
        """``send`` queues a message (False: not connected); ``apply`` gets committed entries in order.

        ``sendable`` is the highest Raft index whose payload is on the link to a peer. ``too_far`` is called in every
        round that has nothing for a peer, because it lacks what the journal no longer has. ``members_moved`` is called
        when another configuration counts: quorums follow at once, new members are peers, old ones stay until dropped.
        """
        self._apply = apply
        super().__init__(
            Given(
                membership=membership,
                journal=journal,
                settings=settings,
                clock=clock,
                rng=rng,
                send=send,
                sendable=sendable,
                too_far=too_far,
                members_moved=members_moved,
            )
        )
        self._follow()
        self._set("raftLastApplied", journal.base_index)  # the commit index comes from the journal itself

    # -- time

    def tick(self) -> bool:
        """Everything that is due now. True: committed entries are left to apply, tick again soon."""
        now = self.clock.monotonic()
        passed = self._look_at_clock(now)
        if not self.is_leader:
            self._campaign_if_due(now, passed)
        return self._lead(now) if self.is_leader else self._apply_committed()

    def _lead(self, now: float) -> bool:
        self._advance_commit()
        self._fall_back_if_alone(now)
        more = self._apply_committed()
        if not self.is_leader:
            return more  # alone
        if self._need_append or now >= self._next_round():
            self._SyncObj__sendAppendEntries()
        if not self.votes and self.membership.current.index <= self.applied_index:
            self._SyncObj__sendAppendEntries()  # the others need not find out by themselves that it is committed
            self._step_down()
        return more

    @property
    def due(self) -> bool:
        """The next ``tick`` has more to do than to look at the clock."""
        commit, applied = self.commit_index, self.applied_index
        if self._need_append or (applied < commit and applied < self.journal.durable_index):
            return True
        return self._may_commit(commit) and self.is_leader and self._held_by_quorum() > commit

    def _apply_committed(self) -> bool:
        # Only what is synced here, with the term in which it was heard that it is committed: what apply shows must
        # survive this node's crash. Started again in the term before, it would take less from that one's leader for
        # all that it has shown (``covering_commit``). The term that is queued: a start takes that of the last entry
        # where it is later, which is on the disk already, and nothing would say so before the next term.
        commit, applied = self.commit_index, self.applied_index
        if commit <= applied or not self.may_lead or self.journal.durable_term < self.journal.term:
            return False
        end = min(commit, self.journal.durable_index)
        if end <= applied:
            return False
        stop = min(end, applied + APPLY_BATCH)
        for index in range(applied + 1, stop + 1):
            command, _, term = self.journal.entry(index)
            if command[:1] != KIND_NOOP:
                self._apply(index, term, command)
            self._set("raftLastApplied", index)
        return stop < end

    # -- messages

    def receive(self, peer: NodeId, message: Message) -> None:
        """A checked message, past the gate."""
        self._SyncObj__onMessageReceived(self._peers[peer], message)

    def _SyncObj__onMessageReceived(self, node: Peer, message: Message) -> None:  # noqa: N802
        kind, term = message["type"], message["term"]
        if kind == "next_node_idx":
            self._on_reply(node, message)
        elif kind == "append_entries":
            if term < self.term:
                self._SyncObj__sendNextNodeIdx(node, seq=message["seq"])  # a stale leader learns our term
            else:
                self._on_append(node, message)
        elif kind == "pre_vote":
            self._on_pre_vote(node, message)
        elif kind == "pre_vote_no":
            if term > self.term and not self.is_leader:
                self._SyncObj__setCurrentTerm(term, None)
                self._SyncObj__setState(FOLLOWER)
        elif kind == "pre_vote_ok":
            self._on_pre_vote_ok(node, term)
        elif kind == "request_vote":
            # Who has forgotten its votes, and what it acknowledged, must not help anybody to lead.
            may = self.membership.rejoining is None and (message.get("force") or not self._leader_is_alive())
            if term >= self.term and may:
                led = self.is_leader
                super()._SyncObj__onMessageReceived(node, message)
                if led and not self.is_leader:
                    self._step_down()  # its deadline is of before it led: it would stand, or ask, in this very turn
        elif kind == "response_vote":
            self._on_vote(node, term)
        elif kind == "timeout_now":
            self._on_timeout_now(node, term)

    # -- writing and reading

    def append(self, command: bytes) -> int:
        """Leader only: put a command at the end of the journal; sent by the next tick. Returns its Raft index."""
        invariant(self.is_leader, "append on a node that does not lead")
        invariant(command[:1] in (KIND_ROUTES, KIND_CONTROL), "a command of unknown kind")
        index = self.journal.last_index + 1
        configuration = parse(command, index, self.term)
        self.journal.add(command, index, self.term)
        self._need_append = True
        if configuration is not None:
            self.membership.current.check_step(configuration)
            self.membership.take(configuration)
            self._follow()
            self._members_moved()
        return index

    def start_read_round(self) -> int:
        """Leader only: send a round at once; leadership is proven when a quorum echoes its number."""
        self._SyncObj__sendAppendEntries()
        return self.round

    @property
    def leads_committed_term(self) -> bool:
        """Leads, and an entry of its own term is committed and applied: it knows all that is committed."""
        return self.is_leader and self.term_at(self.applied_index) == self.term

    def covering_commit(self) -> int | None:
        """A Raft index that is committed and at or above all that this node showed before it started; None: unknown.

        Only a commit index whose entry is of the current term proves that (Raft, 5.4.2), and only one that was heard,
        or counted, since this process started. It covers what was committed in terms up to this one; whoever is heard
        may have been replaced in a later one, of which this node then has shown nothing.
        """
        if self.membership.rejoining is not None:
            return None  # whom it follows may be a leader that it had left behind
        index = self.commit_index if self.is_leader else self.heard_commit
        if index is None or index > self.commit_index or self.term_at(index) != self.term:
            return None
        return index
