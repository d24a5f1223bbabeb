"""The parent log of one node: engine, journal, gate, links, feeds and outbox, put together.

Driven by the event loop: every message, proposal and timer ends in one ``turn``. Within a
turn, in this order: new proposals enter the journal, the engine moves, committed entries go
up, payload and ``append_entries`` leave, one group sync starts, and everything else that
wants to leave waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import structlog

from logboom.errors import CorruptData, LogboomError, NotLeader, Unavailable
from logboom.settings import RaftSettings
from logboom.types import NodeId
from logboom.wire import Buffer, Frame, Kind
from ports.clock import Clock
from ports.invariant import InvariantViolated, invariant
from ports.offload import Offload
from ports.rng import Rng
from raftlog.engine import Engine, messages
from raftlog.entries.entry import Route, unpack_control, unpack_routes
from raftlog.events import RaftEvents
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base
from raftlog.journal.membership import Membership
from raftlog.journal.outbox import GroupSync
from raftlog.links import gate
from raftlog.links.feed import Feeds
from raftlog.links.links import Links
from raftlog.links.payloads import DamagedPayload, Payloads
from raftlog.members.members import Members
from raftlog.outbound import Outbound
from raftlog.proposals import Proposals
from raftlog.reads import ReadRounds
from raftlog.repair.mending import Mending
from raftlog.repair.needs import Needs
from raftlog.repair.recovery import recover
from raftlog.repair.repair import Repair
from raftlog.repair.room import Room
from raftlog.turns import Turns

log = structlog.get_logger(__name__)


class RaftLog:
    """See the module. ``fatal`` is called with whatever must stop the node."""

    def __init__(
        self,
        *,
        membership: Membership,
        journal: Journal,
        payloads: Payloads,
        links_of: Callable[[RaftLog], Links],
        group: Callable[[Callable[[], None]], GroupSync],
        settings: RaftSettings,
        clock: Clock,
        rng: Rng,
        offload: Offload,
        events: RaftEvents,
        fatal: Callable[[BaseException], None],
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.clock = clock
        self.events = events
        self.payloads = payloads
        self.fatal = fatal
        self.links = links_of(self)
        self.group = group(self._on_synced)
        self.turns = Turns(self._turn, self.group, every_s=settings.heartbeat_ms / 3000)
        self.poke = self.turns.poke
        self.outbound = Outbound(
            links=self.links, group=self.group, journal=journal, stalled_s=settings.fallback_ms / 1000
        )
        self.feeds = Feeds(
            peers=[],
            journal=journal,
            payloads=payloads,
            links=self.links,
            offload=offload,
            advanced=self._advanced,
            damaged=self.damaged,
            bytes_max=settings.unsynced_bytes_max,
            acknowledged=lambda peer: self.engine.acknowledged_by(peer),  # noqa: PLW0108 - made below
            mends=lambda peer: self.needs.mends(peer),  # noqa: PLW0108 - made below
        )
        self.engine = Engine(
            membership=membership,
            journal=journal,
            settings=settings,
            clock=clock,
            rng=rng,
            send=self.outbound.send,
            apply=self._on_committed,
            sendable=self.feeds.sendable,
            too_far=self._too_far,
            members_moved=self.poke,
        )
        self.reads = ReadRounds(self.engine, self.links.flush)
        self.needs = Needs(journal=journal, engine=self.engine, feeds=self.feeds, links=self.links, clock=clock)
        self.mending = Mending(
            engine=self.engine,
            journal=journal,
            payloads=payloads,
            events=events,
            repair_of=lambda damaged, standing: Repair(
                peers=[],
                links=self.links,
                payloads=payloads,
                journal=journal,
                offload=offload,
                clock=clock,
                damaged=damaged,
                standing=standing,
                room=Room(settings.unsynced_bytes_max, self.group.hold),
            ),
            poke=self.poke,
        )
        self.repair = self.mending.repair
        self.outbound.engine, self.outbound.repair = self.engine, self.repair
        self.members = Members(self.engine, self.feeds, self.links, self.repair, admits=lambda: self.admits)
        self.put_back = 0
        """Batches that a power loss took from their log and the journal gave back."""
        self._leading_term: int | None = None
        self._admitting = False
        self._proposals = Proposals(entry_bytes_max=settings.entry_bytes_max)

    # -- life

    def recover(self) -> None:
        """Before anything else; see raftlog.repair.recovery (blocking)."""
        found = recover(self.journal, self.payloads, self.group)
        self.put_back = found.put_back
        self.repair.missing(found.missing)
        for route in self.payloads.lost():
            self.repair.committed(route)
        self.engine.may_lead = not found.missing

    async def start(self, peer_address: str) -> str:
        """Listen for peers and begin to tick; returns the bound address."""
        self.turns.begin()
        address = await self.links.start(peer_address)
        self.engine.listens()
        self.turns.tick_later()
        return address

    async def close(self) -> None:
        """Stop; what is not synced is dropped."""
        self.turns.close()
        await self.links.close()
        self.reads.fail(Unavailable("the node is shutting down"))

    def turn_now(self) -> None:
        """Have the turn that is due at once, and send and sync what it leaves."""
        if self.turns.scheduled:
            # The followers of the last quorum get it first, then we sync. The spare ones, without which it commits, get
            # it a little later, together with the commands after it: one sync there for several.
            self.outbound.lone = True
            try:
                self._turn()
            finally:  # whatever goes wrong: the turns that come see to their syncs themselves
                self.outbound.lone = False
            self.links.hold_back(self.engine.spares, self.settings.spare_linger_ms / 1000)
            self.group.kick()

    def _turn(self) -> None:
        if not self.turns.due:
            return
        try:
            if self._leading_term is None:
                self.group.kick()  # first of all: a leader waits for it
            self._orders()
            self.turns.take()  # not before: what a sync on the loop lets go on goes on in this turn
            if self._proposals:
                self._append_proposals()
            if self._admitting and self.engine.is_leader:
                self.reads.start()
            if self.engine.tick():
                self.poke()
            if self.engine.news_due is not None:
                # A new commit index travels with the next entries, or alone a little later.
                self.turns.later(self.settings.commit_linger_ms / 1000, still=self._has_news)
            self._notice_role()
            if self.members.follow():
                self.events.members_changed(self.members.membership.current)
            self.reads.finish()
            if self._leading_term is not None:
                self.members.tick()
                if self.feeds.behind and not self.outbound.silent:
                    self.feeds.pump(term=self.engine.term, settled=not self._proposals)
            self.mending.turn()
            if self._leading_term is None:
                self.group.kick()
            elif self.group.waits and not self.outbound.lone:  # ``turn_now`` sees to it itself
                self.turns.kick_soon()
        except (InvariantViolated, CorruptData, OSError) as error:
            self.turns.closed = True
            self.fatal(error)
        except BaseException:  # somebody else's mistake, which is told where it ends
            self.turns.take()  # not to be due for ever: no other turn would come
            raise

    def _has_news(self) -> bool:
        return self.engine.news_due is not None

    def _on_synced(self) -> None:
        self.events.synced()
        if self.engine.due:
            self.poke()

    # -- writing

    @property
    def admits(self) -> bool:
        """This node leads and takes proposals.

        The first entry of its term is committed, no batch that new ones would follow is damaged here, and it is not
        handing over.
        """
        # A frame may have ended it, and the turn that tells of it is still to come.
        leads = self._admitting and self._still_leads
        return leads and self.engine.may_lead and not self.members.transfer.under_way

    def propose(self, routes: Sequence[Route], *, payload_bytes: int) -> None:
        """Order one request's routes, in one Raft entry, after everything proposed before. Leader only."""
        if not self._admitting:
            raise NotLeader("this node does not lead", leader=None)
        self._proposals.request(routes, payload_bytes)
        self.poke()

    def propose_control(self, fields: Mapping[str, Any]) -> None:
        """Order a control entry after everything proposed before. Only a leader that ``admits``, else NotLeader."""
        if not self.admits:
            raise NotLeader("this node does not lead", leader=None)
        self._orders()
        self._proposals.control(fields)
        self.poke()

    def send_payload(self, buffers: list[Buffer], *, traceparent: str | None = None) -> None:
        """Put a batch that was just appended on every live link, ahead of its routing entry.

        ``traceparent``: whoever gets it is to say what it did for that request; see RaftEvents.
        """
        self.poke()  # before the link's own flush: batch and entry then leave in one write
        if self.outbound.silent:
            self.feeds.interrupt()
        else:
            self.feeds.broadcast(self.engine.term, buffers, traceparent=traceparent)

    def _orders(self) -> None:
        # Not while a batch is damaged that the next one would follow: until it is back, or others lead.
        if self._admitting and self._still_leads and self.engine.may_lead:
            self.events.orders()

    @property
    def _still_leads(self) -> bool:
        return self.engine.is_leader and self.engine.term == self._leading_term

    def _append_proposals(self) -> None:
        commands = self._proposals.take()
        if not self._still_leads:
            return  # their outcome was answered when leadership was lost
        for command in commands:
            self.engine.append(command)

    def damaged(self, damage: DamagedPayload) -> None:
        """A batch that was held cannot be read."""
        self.mending.damaged(damage)

    def uncommitted_routes(self) -> list[Route]:
        """Routes in the journal above what was handed up: where a new leader continues from."""
        rest = self.journal.after(self.engine.applied_index)
        return [route for command, _, _ in rest for route in unpack_routes(command)]

    def _on_committed(self, index: int, term: int, command: bytes) -> None:
        fields = unpack_control(command)
        if fields is None:
            self.events.committed(index, term, unpack_routes(command))
        else:
            self.events.control(index, term, fields)
            self.members.changes.committed(index)

    def _notice_role(self) -> None:
        term = self.engine.term if self.engine.is_leader else None
        if term != self._leading_term:
            if self._admitting or self._leading_term is not None:
                self._admitting = False
                self._proposals.clear()
                self.reads.fail(NotLeader("this node no longer leads", leader=None))
                self.events.lost_leadership()
                self.members.lost()
            self._leading_term = term
            self.feeds.reset()
            self.engine.lagging.clear()
            log.info("role", leads=term is not None, term=self.engine.term)
        if term is not None and not self._admitting and self.engine.leads_committed_term:
            self._admitting = True
            self.events.leads(term)

    # -- beginning later

    @property
    def lagging(self) -> AbstractSet[NodeId]:
        """Leader only: peers that lack what the journal no longer has, until they acknowledge something that it has."""
        return self.engine.lagging

    def compact(self, base: Base, done: Callable[[], None]) -> None:
        """Let the journal begin at ``base``, which has been handed up here; ``done`` once it does. One at a time.

        Before the call everything up to there is on stable storage outside the journal: what is applied and, of
        every partition, its log. Peers that lack what goes need a snapshot.
        """
        invariant(base.index <= self.engine.applied_index, "compaction to {}, not handed up yet", base.index)
        self.group.compact(base, done)

    # -- linearizable reads (Raft dissertation, 6.4)

    def read_index(self, done: Callable[[LogboomError | None], None], *, lone: bool = False) -> None:
        """Call ``done(None)`` once everything committed before this call has been handed up here.

        Proven by a quorum's answer to a round sent after the call; no clocks. Else ``done(error)``. ``lone``: at once.
        """
        if not self._admitting:
            done(NotLeader("this node does not lead", leader=None))
            return
        if not self.reads.ask(done, lone=lone and not self._proposals):
            self.poke()

    # -- the links' events

    def link_up(self, peer: NodeId) -> None:
        """See LinkEvents."""
        self.links.seldom.say(log.info, "link_up", peer=peer)
        if self.members.roster.link_up(peer):
            self.events.peer_forgot(peer)
        self.engine.connected(peer, up=True)
        if self._leading_term is not None:
            self.feeds.begin(peer, held=self.engine.acknowledged_by(peer))
        self.needs.forget()
        self.events.peer_up(peer)
        self.poke()

    def link_down(self, peer: NodeId) -> None:
        """See LinkEvents."""
        self.engine.connected(peer, up=False)
        self.members.roster.link_down(peer)
        self.repair.peer_down(peer)
        self.needs.link_down(peer)
        self.events.peer_down(peer)
        self.poke()

    def link_arriving(self, peer: NodeId, frame: Frame) -> None:
        """See LinkEvents."""
        if frame.kind is Kind.PAYLOAD:
            self._sign_of_life(peer, frame)
        self.engine.sends(peer)

    def link_read(self, peer: NodeId) -> None:
        """See LinkEvents."""
        if self.turns.scheduled:
            self._turn()  # at once: who waits for the answer to these frames waits for nothing else

    def link_drained(self, peer: NodeId) -> None:
        """See LinkEvents."""
        self.events.peer_drained(peer)
        self.poke()

    def link_frame(self, peer: NodeId, frame: Frame) -> None:
        """See LinkEvents."""
        if peer not in self.engine.peers:
            return  # its link is being closed
        if frame.kind is Kind.RAFT:
            message = messages.decode(frame.body)
            self.members.heard(peer, message)
            self._on_raft(peer, message)
            if self._needs_no_turn():
                return
        elif frame.kind is Kind.PAYLOAD:
            self._on_payload(peer, frame)
        elif frame.kind is Kind.NEED:
            index = messages.index_in(frame.header, "raft_index")
            if self._leading_term is not None:
                self.needs.answer(peer, index)
        elif frame.kind is Kind.ERROR:
            self.members.roster.refused(peer, frame)
        elif frame.kind in (Kind.FETCH, Kind.FETCHED):
            if frame.kind is Kind.FETCH:
                self.needs.fetched(peer, frame.header)
            self.repair.on_frame(peer, frame)
        else:
            self.events.peer_frame(peer, frame)
        self.poke()

    def _needs_no_turn(self) -> bool:
        """After a Raft message to a leader: finish the read rounds that it proves; True if nothing else is due.

        Such an answer often comes right before the next command, which has its own turn.
        """
        if self._leading_term is None or not self._still_leads:
            return False
        self.reads.finish()
        return not (self.engine.due or self.reads.under_way or self.feeds.behind or self.repair.active)

    def _on_raft(self, peer: NodeId, message: messages.Message) -> None:
        missing, whole = None, message
        if message["type"] == "append_entries" and message["term"] >= self.engine.term:
            message, missing = gate.pass_through(message, self.mending.may_pass, above=self.journal.base_index)
        self.engine.receive(peer, message)
        self.mending.passed()
        if message["type"] == "next_node_idx" and self._leading_term is not None and self.feeds.halted(peer):
            self.feeds.rewind(peer, held=self.engine.acknowledged_by(peer))
        if missing is not None and gate.agrees(whole, missing, self.engine.term_at(missing - 1)):
            self.needs.ask(peer, missing)
            self.events.foretold(gate.foretold(whole, missing), missing - 1)
        # Otherwise the entry before the missing one is absent here or differs, too: the engine has told the leader,
        # which goes back. A NEED from here would make it start too far ahead again.

    def _sign_of_life(self, peer: NodeId, payload: Frame) -> None:
        # Payload of a term comes from its leader alone, so it counts as a heartbeat; other frames of that node prove
        # nothing of the kind.
        if payload.header.get("term") == self.engine.term and self.engine.feeding(peer):
            self.poke()

    def _on_payload(self, peer: NodeId, frame: Frame) -> None:
        self._sign_of_life(peer, frame)
        if messages.index_in(frame.header, "term") >= self.engine.term:
            route = self.payloads.receive(frame.body)
            if route is not None and "traceparent" in frame.header:
                self.events.traced(route, frame.header["traceparent"])

    def _too_far(self, peer: NodeId) -> None:
        if not self.feeds.halted(peer):
            self.feeds.rewind(peer, held=0)
        self.events.peer_needs_snapshot(peer)

    def _advanced(self, peer: NodeId) -> None:
        self.engine.send_soon()
        self.poke()
