"""Elections: pre-votes, votes, hand-overs, and a leader that falls back when nobody answers."""

from __future__ import annotations

from typing import Final

from logboom.types import NodeId
from raftlog.engine.messages import Message
from raftlog.engine.quorums import Quorums
from raftlog.engine.stock import CANDIDATE, FOLLOWER, Given, Peer

GIVE_WAY: Final = 2
"""Times the longest that others wait before they stand for election."""
ALONE_S: Final = 1.4
"""Before a node that knows of nobody else begins a cluster, once in that one's life.

Longer than it takes others to call it, where its machine was away and is another one now (``dialling.CONNECT_S``): to
them it may be a member that has lost its disk (docs/decisions/0031)."""


class Elections(Quorums):
    """One vote per node and term, none while a leader is alive, and none that is not synced before it leaves."""

    def __init__(self, given: Given) -> None:
        self.may_lead = True
        """False while payload of the journal is missing here: no campaign, nothing applied. Votes are about the
        journal, which is whole: whoever gets one has every entry that this node has acknowledged."""
        self._granted: set[str] = set()
        self._pre_votes: set[str] = set()
        self._pre_vote_passed = False
        """Won, and not used yet; not for later, once somebody leads."""
        self._handed_over = False
        """The next campaign is the leader's own wish."""
        self._heard_leader = -1e9
        self._missed = False
        """Whoever led has been silent for longer than a leader is borne."""
        self._ticked = given.clock.monotonic()
        """When it had its last turn, whoever led then."""
        self._woke = -1e9
        """When one came later than a leader waits for whoever is to take over."""
        self._excused = False
        """It was late itself once since it has heard a leader, or led: that is taken for an excuse no second time."""
        self._next_look = -1e9
        self._gives_way_until = -1e9
        self.pre_votes_asked = 0
        self.elections = 0
        """Times that this node stood for election, since the start."""
        self.won = 0
        super().__init__(given)

    @property
    def leader(self) -> NodeId | None:
        """Who leads, as far as this node knows; nobody once he is missed, whether this node may replace him or not."""
        return None if self._missed else super().leader

    # -- standing for election

    def listens(self) -> None:
        """Others can call it from now on, or again."""
        begins = self.membership.current
        if self.journal.last_index == 1 and begins.index == 1 and begins.voters == (self.membership.node_id,):
            earliest = self.clock.monotonic() + ALONE_S
            self._set("raftElectionDeadline", max(self._SyncObj__raftElectionDeadline, earliest))

    def _look_at_clock(self, now: float) -> float:
        """Every turn. For how long there was none: this node may have stood still."""
        before, self._ticked = self._ticked, now
        if now - before > ALONE_S / 4 and now - before > self.settings.heartbeat_ms / 1000:
            self.listens()  # whoever has called in vain meanwhile calls once more
        if now - before > self.settings.election_max_ms / 1000:
            self._woke = now
            if self._handed_over:  # by one who has given that up since, and leads on
                self._handed_over = self._pre_vote_passed = False
        return now - before

    def _campaign_if_due(self, now: float, passed: float) -> None:
        if self._SyncObj__raftElectionDeadline > now and not self._handed_over:
            return
        late = passed > self.settings.election_min_ms / 2000
        if late and not self._excused and not self._handed_over:
            # It was this node that stood still. What the leader sent meanwhile is yet to be read. Once a silence:
            # who is late again and again, as its processor is scarce, would never miss anybody.
            self._excused = True
            self._set("raftElectionDeadline", now + self.settings.heartbeat_ms / 1000)
            return
        self._missed = not self._handed_over
        if not (self.may_lead and self.membership.may_campaign(self.commit_index)):
            self._pre_vote_passed = self._handed_over = False  # not to be made up for when nobody expects it
            return
        self._set("raftElectionDeadline", now + self._SyncObj__generateRaftTimeout())
        if self._voters and not self._pre_vote_passed:
            self._pre_votes = set()
            self.pre_votes_asked += 1
            self._ask_all({"type": "pre_vote", "term": self.term + 1, **self._last_entry()})
            return
        self._pre_vote_passed = False
        self.elections += 1
        self._set("raftLeader", None)
        self._SyncObj__setState(CANDIDATE)
        self._SyncObj__setCurrentTerm(self.term + 1, self._SyncObj__selfNode.id)
        self._granted = set()
        self._ask_all({"type": "request_vote", "term": self.term, "force": self._handed_over, **self._last_entry()})
        self._handed_over = False
        if not self._voters:
            self.won += 1
            self._SyncObj__onBecomeLeader()

    def give_way(self) -> None:
        """Let others lead for a while, where they are a majority without this node.

        An entry that is not committed names a batch that nobody has. Others drop it. This node, which has it, would
        have it committed, and its partition lost for it.
        """
        if len(self._voters) > 1 and not self.is_leader:
            longest = self.settings.election_max_ms / 1000 * self.patience.stretch
            self._gives_way_until = self.clock.monotonic() + GIVE_WAY * longest
            self._set("raftElectionDeadline", max(self._SyncObj__raftElectionDeadline, self._gives_way_until))

    def _ask_all(self, message: Message) -> None:
        for node in self._voters:
            self._SyncObj__transport.send(node, dict(message))

    def _on_pre_vote_ok(self, node: Peer, term: int) -> None:
        if term != self.term + 1 or self.is_leader or self._leader_is_alive() or node not in self._voters:
            return
        self._pre_votes.add(node.id)
        if self._majority(len(self._pre_votes)):
            self._pre_vote_passed = True
            self._set("raftElectionDeadline", 0)

    def _on_vote(self, node: Peer, term: int) -> None:
        if term != self.term or not self.is_candidate or node not in self._voters:
            return
        if self.membership.rejoining is not None or self.membership.lacks:
            return  # it stood before it found out that its disk was lost
        self._granted.add(node.id)
        if self._majority(len(self._granted)):
            self.won += 1
            self._SyncObj__onBecomeLeader()

    def _on_timeout_now(self, node: Peer, term: int) -> None:
        """The leader wants this node to follow it."""
        able = self.votes and self.may_lead and self.membership.rejoining is None
        if self.clock.monotonic() - self._woke < self.settings.heartbeat_ms / 1000:
            return  # it lay in a socket, maybe, while this node stood still
        if term == self.term and node is self._SyncObj__raftLeader and able:
            self._handed_over = self._pre_vote_passed = True

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._missed = self._excused = False
        self.forgetful.clear()  # with all that is known of what they hold; whoever it is says so with every reply
        super()._SyncObj__onBecomeLeader()

    # -- giving votes

    def _on_pre_vote(self, node: Peer, message: Message) -> None:
        last = self._last_entry()
        theirs = (message["last_log_term"], message["last_log_index"])
        fresh = theirs >= (last["last_log_term"], last["last_log_index"])
        if self.is_leader or self.membership.rejoining is not None:
            return
        if message["term"] <= self.term:
            self._SyncObj__transport.send(node, {"type": "pre_vote_no", "term": self.term})
        elif fresh and not self._leader_is_alive():
            # Stand back for a moment: two who run at once take each other's votes, again and again.
            stand_back = self.settings.election_min_ms / 1000 * (0.25 + 0.25 * self.rng.random())
            earliest = self.clock.monotonic() + stand_back
            self._set("raftElectionDeadline", max(self._SyncObj__raftElectionDeadline, earliest))
            self._SyncObj__transport.send(node, {"type": "pre_vote_ok", "term": message["term"]})
        elif not self._leader_is_alive() and self.clock.monotonic() >= self._gives_way_until:
            # Whoever is behind us will not win: do not let the time pass that he would need to see it. Where there are
            # several of us, not all at once.
            ahead = self.settings.election_min_ms / 1000 * (0.25 * self.rng.random() if len(self._voters) > 2 else 0.0)
            latest = self.clock.monotonic() + ahead
            self._set("raftElectionDeadline", min(self._SyncObj__raftElectionDeadline, latest))

    def _leader_is_alive(self) -> bool:
        borne_s = self.settings.election_min_ms / 1000 * self.patience.stretch
        recent = self.clock.monotonic() - self._heard_leader < borne_s
        return recent and self._SyncObj__raftLeader is not None

    # -- ceasing to lead

    def hand_over(self, peer: NodeId) -> None:
        """Leader only: have one that has every entry stand for election at once."""
        self._SyncObj__transport.send(self._peers[peer], {"type": "timeout_now", "term": self.term})

    def _fall_back_if_alone(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + self.settings.heartbeat_ms / 1000
        deadline = now - self.settings.fallback_ms / 1000
        last = self._SyncObj__lastResponseTime
        heard = sum(last[node] > deadline for node in self._voters if self._counts(node))
        if not self._majority(heard) or not self.may_lead:
            self._step_down()

    def sends(self, peer: NodeId) -> None:
        """Something large is coming from it, and on a slow line its answers lie behind that: to a leader it is there.

        No more than that: what is committed, or read, needs the answers.
        """
        node = self._peers.get(peer)
        if node is not None:
            self._SyncObj__lastResponseTime[node] = self.clock.monotonic()

    def _step_down(self) -> None:
        self._SyncObj__setState(FOLLOWER)
        self._set("raftLeader", None)
        self._set("raftElectionDeadline", self.clock.monotonic() + self._SyncObj__generateRaftTimeout())
