"""PySyncObj 0.3.17 as a consensus engine, made safe. The only module that imports it.

Stock PySyncObj truncates without a conflict check, rewinds and pipelines wrongly, counts
replies of older terms, counts votes twice and itself before any sync, and unpickles what
comes off the wire. ``Engine`` overrides what is unsafe (name-mangled methods, hence the
exact version and source hash) and keeps the rest: roles, terms, elections, the log.

No threads, sockets, files, clock or randomness of its own: all of it is passed in.
docs/decisions/0002-pysyncobj.md lists every hole and what closes it.
"""

from __future__ import annotations

import hashlib
import inspect
import zlib
from collections.abc import Callable, KeysView
from typing import Any, Final

import pysyncobj.serializer
import pysyncobj.syncobj as stock
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from logboom.errors import IncompatibleVersion
from logboom.settings import RaftSettings
from logboom.types import NodeId
from ports.clock import Clock
from ports.invariant import InvariantViolated, invariant
from ports.rng import Rng
from raftlog.entry import KIND_CONTROL, KIND_NOOP, KIND_ROUTES
from raftlog.journal import Journal
from raftlog.membership import Membership, parse
from raftlog.messages import Message

SUPPORTED: Final = "0.3.17"
SOURCE_HASHES: Final = {
    stock: "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    pysyncobj.serializer: "4d39fde2f15000ad8f507ec229ebd4f6a86371b6f84d4dc1439a9cccd52857ee",
}
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
MESSAGES_PER_ROUND: Final = 4


def check_version() -> None:
    """The overrides below must never meet another PySyncObj. Raises IncompatibleVersion."""
    if VERSION != SUPPORTED:
        raise IncompatibleVersion(f"pysyncobj {VERSION}; install {SUPPORTED}", found=VERSION, supported=SUPPORTED)
    for module, expected in SOURCE_HASHES.items():
        with open(inspect.getfile(module), "rb") as source:  # noqa: PTH123 - the package's own file
            if hashlib.sha256(source.read()).hexdigest() != expected:
                raise IncompatibleVersion(
                    f"{module.__name__} is not the released pysyncobj {SUPPORTED}: reinstall it",
                    found="changed source",
                    supported=SUPPORTED,
                )


class _NoPickle:
    """Stands where PySyncObj calls pickle: whatever reaches it must not be executed."""

    @staticmethod
    def _refuse(*_: object, **__: object) -> bytes:
        raise InvariantViolated("pysyncobj tried to pickle; the overlay must have closed that path")

    dumps = loads = load = dump = to_bytes = _refuse


class _NoPoller:
    def poll(self, timeout: float) -> None:
        """Nothing to poll: the event loop drives."""

    def subscribe(self, *_: object) -> None:
        """No sockets here."""

    def unsubscribe(self, *_: object) -> None:
        """No sockets here."""


class _Peer(Node):  # type: ignore[misc]
    def __init__(self, node_id: NodeId) -> None:
        super().__init__(node_id)
        self._hash = zlib.crc32(node_id.encode())  # set order must not depend on the hash seed

    def __hash__(self) -> int:
        return self._hash


class _Outbound(Transport):  # type: ignore[misc]
    ready = True

    def __init__(self, send: Callable[[NodeId, Message], bool]) -> None:
        super().__init__(None, None, None)
        self._send = send

    def send(self, node: Node, message: Message) -> bool:
        return self._send(NodeId(node.id), message)

    def destroy(self) -> None:
        """Connections are not ours."""


class Engine(SyncObj):  # type: ignore[misc]
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
        apply_batch: int = 256,
    ) -> None:
        """``send`` queues a message (False: not connected); ``apply`` gets committed entries in order.

        ``sendable`` is the highest Raft index whose payload is on the link to a peer. ``too_far`` is called in every
        round that has nothing for a peer, because it lacks what the journal no longer has. ``members_moved`` is called
        when another configuration counts: quorums follow at once, new members are peers, old ones stay until dropped.
        """
        check_version()
        self.membership = membership
        self.votes = False
        """This node is a voter."""
        self.journal = journal
        self.clock = clock
        self.rng = rng
        self.settings = settings
        self.may_lead = True
        """False while payload of the journal is missing here: no campaign, nothing applied. Votes are about the
        journal, which is whole: whoever gets one has every entry that this node has acknowledged."""
        self._apply = apply
        self._apply_batch = apply_batch
        self._sendable = sendable
        self._too_far = too_far
        self._members_moved = members_moved
        self.lagging: set[NodeId] = set()
        """Leader only: peers that have not acknowledged anything since they were too far behind."""
        self._voters: tuple[_Peer, ...] = ()
        """The other ones."""
        self._granted: set[str] = set()
        self._pre_votes: set[str] = set()
        self._pre_vote_passed = False
        self._handed_over = False
        """The next campaign is the leader's own wish."""
        self._heard_leader = -1e9
        self._next_look = -1e9
        self._need_append = False
        self.news_due: float | None = None
        """When followers are told of a new commit index, should nothing else be sent to them before."""
        self.heard_commit: int | None = None
        """Commit index that the leader of the current term named last, since this process started."""
        self.quickest: list[NodeId] = []
        """Peers that had acknowledged the last entry when it was committed."""
        self.round = 0
        """Sequence of the last append_entries round; echoed in replies."""
        self._echoed: dict[str, int] = {}
        self._probed: dict[str, int] = {}
        """What a lagging peer said of its end when it was last tried whether it has the base."""
        self._rewound: dict[str, int] = {}
        """Last round before a peer's entries were started over: complaints about older rounds are stale."""
        # PySyncObj takes these as module globals.
        stock.pickle = pysyncobj.serializer.pickle = _NoPickle()
        stock.monotonicTime = clock.monotonic
        stock.createPoller = lambda _: _NoPoller()
        stock.createJournal = lambda j: j
        conf = SyncObjConf(
            autoTick=False,
            journalFile=journal,
            appendEntriesPeriod=settings.heartbeat_ms / 1000,
            raftMinTimeout=settings.election_min_ms / 1000,
            raftMaxTimeout=settings.election_max_ms / 1000,
            leaderFallbackTimeout=settings.fallback_ms / 1000,
            connectionTimeout=max(1.0, settings.election_max_ms / 1000),
            appendEntriesUseBatch=True,
            appendEntriesBatchSizeBytes=settings.message_bytes_max,
            logCompactionMinEntries=1 << 60,
            logCompactionMinTime=1 << 60,
            dynamicMembershipChange=False,
        )
        self._peers: dict[NodeId, _Peer] = {}
        super().__init__(_Peer(membership.node_id), [], conf, transport=_Outbound(send))
        self._follow()
        self._set("raftLastApplied", journal.base_index)  # the commit index comes from the journal itself

    # -- private state of the base class, by its mangled names

    def _set(self, name: str, value: Any) -> None:
        invariant("_SyncObj__" + name in self.__dict__, "pysyncobj has no {}", name)
        self.__dict__["_SyncObj__" + name] = value

    # -- members

    @property
    def peers(self) -> KeysView[NodeId]:
        """All that this node talks to, members or not."""
        return self._peers.keys()

    @property
    def connected_peers(self) -> list[NodeId]:
        """Those whose link is up."""
        return [peer for peer, node in self._peers.items() if node in self._SyncObj__connectedNodes]

    def _follow(self) -> None:
        """Quorums are those of the configuration that counts."""
        own, current = self.membership.node_id, self.membership.current
        for member in current.ids:
            if member != own:
                self.add_peer(member)
        self._voters = tuple(self._peers[voter] for voter in current.voters if voter != own)
        self.votes = own in current.voters

    def add_peer(self, peer: NodeId) -> None:
        """From now on messages go there once it is connected, and may come from there. It counts if it is a voter."""
        if peer in self._peers:
            return
        node = _Peer(peer)
        self._peers = dict(sorted({**self._peers, peer: node}.items()))
        self._SyncObj__otherNodes.add(node)
        self._SyncObj__raftNextIndex[node] = self.journal.base_index + 1
        self._SyncObj__raftMatchIndex[node] = 0
        self._SyncObj__lastResponseTime[node] = self.clock.monotonic()

    def drop_peer(self, peer: NodeId) -> None:
        """Forget one that is no member."""
        invariant(peer not in self.membership.current.ids, "{} is dropped, and a member", peer)
        node = self._peers.pop(peer)
        for nodes in (self._SyncObj__otherNodes, self._SyncObj__connectedNodes):
            nodes.discard(node)
        for table in (self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex, self._SyncObj__lastResponseTime):
            table.pop(node, None)
        for known in (self._echoed, self._probed, self._rewound):
            known.pop(peer, None)
        self.lagging.discard(peer)
        self.quickest = [each for each in self.quickest if each != peer]

    def _majority(self, others: int) -> bool:
        """So many other voters, and this node if it is one, are more than half."""
        return 2 * (others + self.votes) > len(self._voters) + self.votes

    def hand_over(self, peer: NodeId) -> None:
        """Leader only: have one that has every entry stand for election at once."""
        self._SyncObj__transport.send(self._peers[peer], {"type": "timeout_now", "term": self.term})

    # -- what the rest of raftlog sees

    @property
    def is_leader(self) -> bool:
        """Believes to lead; proven only by a read round."""
        return bool(self._SyncObj__raftState == LEADER)

    @property
    def is_candidate(self) -> bool:
        """Campaigning."""
        return bool(self._SyncObj__raftState == CANDIDATE)

    @property
    def leader(self) -> NodeId | None:
        """Who leads, as far as this node knows."""
        node = self._SyncObj__raftLeader
        return None if node is None else NodeId(node.id)

    @property
    def term(self) -> int:
        """Current term."""
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        """Highest Raft index known to be committed."""
        return int(self._SyncObj__raftCommitIndex)

    @property
    def applied_index(self) -> int:
        """Highest Raft index handed to ``apply``."""
        return int(self._SyncObj__raftLastApplied)

    @property
    def leads_committed_term(self) -> bool:
        """Leads, and an entry of its own term is committed and applied: it knows all that is committed."""
        return self.is_leader and self.term_at(self.applied_index) == self.term

    def covering_commit(self) -> int | None:
        """A Raft index that is committed and at or above everything that was ever committed before; None: unknown.

        Only a commit index whose entry is of the current term proves that (Raft, 5.4.2), and only
        one that was heard, or counted, since this process started.
        """
        index = self.commit_index if self.is_leader else self.heard_commit
        if index is None or index > self.commit_index or self.term_at(index) != self.term:
            return None
        return index

    def term_at(self, index: int) -> int | None:
        """Term of a journal entry, its base's included; None if it has none there."""
        journal = self.journal
        return journal.entry(index)[2] if journal.base_index <= index <= journal.last_index else None

    def connected(self, peer: NodeId, *, up: bool) -> None:
        """A link came up or went down."""
        node = self._peers.get(peer)
        if node is None:
            return
        (self._SyncObj__connectedNodes.add if up else self._SyncObj__connectedNodes.discard)(node)
        if up and self.is_leader:
            # Whatever was in flight is gone; start from what the peer has acknowledged. Of whom nothing is known we
            # believe that it has everything, as of all when we began to lead: its answer tells how far back to go.
            known = self._SyncObj__raftMatchIndex[node] or self.journal.last_index
            self._SyncObj__raftNextIndex[node] = max(self.journal.base_index, known) + 1
            self._probed.pop(peer, None)
            self._need_append = True

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

    def quorum_round(self) -> int:
        """Highest round that a quorum (ourselves included) has echoed in this term."""
        echoes: list[int] = [
            *([self.round] if self.votes else ()),
            *(self._echoed.get(node.id, 0) for node in self._voters),
        ]
        echoes.sort(reverse=True)
        return echoes[len(echoes) // 2]

    def receive(self, peer: NodeId, message: Message) -> None:
        """A checked message, past the gate."""
        self._SyncObj__onMessageReceived(self._peers[peer], message)

    def acknowledged_by(self, peer: NodeId) -> int:
        """Leader only: highest Raft index that ``peer`` is known to hold; 1 when nothing is known."""
        return max(1, int(self._SyncObj__raftMatchIndex.get(self._peers.get(peer), 0)))

    def rewind(self, peer: NodeId, index: int) -> None:
        """Leader only: send entries from ``index`` on again."""
        match, following = self._SyncObj__raftMatchIndex, self._SyncObj__raftNextIndex
        node = self._peers[peer]
        following[node] = max(match[node] + 1, min(following[node], index), 2)
        self._rewound[peer] = self.round
        self._need_append = True

    def send_soon(self) -> None:
        """Leader only: send a round with the next tick."""
        self._need_append = True

    # -- time

    def tick(self) -> bool:
        """Everything that is due now. True: committed entries are left to apply, tick again soon."""
        now = self.clock.monotonic()
        if not self.is_leader and self.may_lead:
            self._campaign_if_due(now)
        if self.is_leader:
            self._advance_commit()
            self._fall_back_if_alone(now)
        more = self._apply_committed()
        if self.is_leader and (self._need_append or now >= self._next_round()):
            self._SyncObj__sendAppendEntries()
        if self.is_leader and not self.votes and self.membership.current.index <= self.applied_index:
            self._SyncObj__sendAppendEntries()  # the others need not find out by themselves that it is committed
            self._step_down()
        return more

    def _next_round(self) -> float:
        beat = float(self._SyncObj__newAppendEntriesTime)
        return beat if self.news_due is None else min(beat, self.news_due)

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803 - overrides the base class
        raise InvariantViolated("the stock tick counts unsynced entries; use tick()")

    def _campaign_if_due(self, now: float) -> None:
        if self._SyncObj__raftElectionDeadline > now and not self._handed_over:
            return
        if not self.membership.may_campaign(self.commit_index):
            return
        self._set("raftElectionDeadline", now + self._SyncObj__generateRaftTimeout())
        if self._voters and not self._pre_vote_passed:
            self._pre_votes = set()
            self._ask_all({"type": "pre_vote", "term": self.term + 1, **self._last_entry()})
            return
        self._pre_vote_passed = False
        self._set("raftLeader", None)
        self._SyncObj__setState(CANDIDATE)
        self._SyncObj__setCurrentTerm(self.term + 1, self._SyncObj__selfNode.id)
        self._granted = set()
        self._ask_all({"type": "request_vote", "term": self.term, "force": self._handed_over, **self._last_entry()})
        self._handed_over = False
        if not self._voters:
            self._SyncObj__onBecomeLeader()

    def _last_entry(self) -> dict[str, int]:
        _, index, term = self.journal[-1]
        return {"last_log_index": index, "last_log_term": term}

    def _ask_all(self, message: Message) -> None:
        for node in self._voters:
            self._SyncObj__transport.send(node, dict(message))

    @property
    def spares(self) -> list[NodeId]:
        """Followers that the last quorum did without, while everyone who made it is connected."""
        connected = self._SyncObj__connectedNodes
        if not self.quickest or any(self._peers[peer] not in connected for peer in self.quickest):
            return []
        return [peer for peer in self._peers if peer not in self.quickest]

    def _advance_commit(self) -> None:
        if self.commit_index == self.journal.last_index:
            return
        index = self._held_by_quorum()
        if index > self.commit_index and self.term_at(index) == self.term:
            self.journal.acknowledged(min(index, self.journal.durable_index))
            self._set("raftCommitIndex", index)
            match = self._SyncObj__raftMatchIndex
            self.quickest = [node.id for node in self._voters if match[node] >= index]
            if self.news_due is None:
                self.news_due = self.clock.monotonic() + self.settings.commit_linger_ms / 1000

    def _held_by_quorum(self) -> int:
        match = self._SyncObj__raftMatchIndex
        # Ourselves only up to what is synced here: our append_entries may have left before our own sync.
        held: list[int] = [self.journal.durable_index, *(match[node] for node in self._voters)]
        if not self.votes:
            del held[0]
        held.sort(reverse=True)
        return held[len(held) // 2]

    @property
    def due(self) -> bool:
        """The next ``tick`` has more to do than to look at the clock."""
        if self._need_append or self.applied_index < min(self.commit_index, self.journal.durable_index):
            return True
        return self.is_leader and self._held_by_quorum() > self.commit_index

    def _fall_back_if_alone(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + self.settings.heartbeat_ms / 1000
        deadline = now - self.settings.fallback_ms / 1000
        heard = sum(self._SyncObj__lastResponseTime[node] > deadline for node in self._voters)
        if not self._majority(heard) or not self.may_lead:
            self._step_down()

    def _step_down(self) -> None:
        self._SyncObj__setState(FOLLOWER)
        self._set("raftLeader", None)
        self._set("raftElectionDeadline", self.clock.monotonic() + self._SyncObj__generateRaftTimeout())

    def _apply_committed(self) -> bool:
        # Only what is synced here: what apply shows must survive this node's crash.
        end = min(self.commit_index, self.journal.durable_index) if self.may_lead else 0
        stop = min(end, self.applied_index + self._apply_batch)
        for index in range(self.applied_index + 1, stop + 1):
            command, _, term = self.journal.entry(index)
            if command[:1] != KIND_NOOP:
                self._apply(index, term, command)
            self._set("raftLastApplied", index)
        return stop < end

    # -- messages

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:  # noqa: N802
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
            if term >= self.term and (message.get("force") or not self._leader_is_alive()):
                super()._SyncObj__onMessageReceived(node, message)
        elif kind == "response_vote":
            self._on_vote(node, term)
        elif kind == "timeout_now":
            self._on_timeout_now(node, term)

    def _on_vote(self, node: Node, term: int) -> None:
        if term != self.term or not self.is_candidate or node not in self._voters:
            return
        self._granted.add(node.id)
        if self._majority(len(self._granted)):
            self._SyncObj__onBecomeLeader()

    def _on_timeout_now(self, node: Node, term: int) -> None:
        """The leader wants this node to follow it."""
        if term == self.term and node is self._SyncObj__raftLeader and self.votes and self.may_lead:
            self._handed_over = self._pre_vote_passed = True

    def _leader_is_alive(self) -> bool:
        recent = self.clock.monotonic() - self._heard_leader < self.settings.election_min_ms / 1000
        return recent and self._SyncObj__raftLeader is not None

    def _on_pre_vote(self, node: Node, message: Message) -> None:
        last = self._last_entry()
        theirs = (message["last_log_term"], message["last_log_index"])
        fresh = theirs >= (last["last_log_term"], last["last_log_index"])
        if self.is_leader:
            return
        if message["term"] <= self.term:
            self._SyncObj__transport.send(node, {"type": "pre_vote_no", "term": self.term})
        elif fresh and not self._leader_is_alive():
            # Stand back for a moment: two who run at once take each other's votes, again and again.
            stand_back = self.settings.election_min_ms / 1000 * (0.25 + 0.25 * self.rng.random())
            earliest = self.clock.monotonic() + stand_back
            self._set("raftElectionDeadline", max(self._SyncObj__raftElectionDeadline, earliest))
            self._SyncObj__transport.send(node, {"type": "pre_vote_ok", "term": message["term"]})
        elif not self._leader_is_alive():
            # Whoever is behind us will not win: do not let the time pass that he would need to see it. Where there are
            # several of us, not all at once.
            ahead = self.settings.election_min_ms / 1000 * (0.25 * self.rng.random() if len(self._voters) > 2 else 0.0)
            latest = self.clock.monotonic() + ahead
            self._set("raftElectionDeadline", min(self._SyncObj__raftElectionDeadline, latest))

    def _on_pre_vote_ok(self, node: Node, term: int) -> None:
        if term != self.term + 1 or self.is_leader or self._leader_is_alive() or node not in self._voters:
            return
        self._pre_votes.add(node.id)
        if self._majority(len(self._pre_votes)):
            self._pre_vote_passed = True
            self._set("raftElectionDeadline", 0)

    def _on_reply(self, node: Node, message: Message) -> None:
        if message["term"] > self.term:
            self._SyncObj__setCurrentTerm(message["term"], None)
            self._step_down()
            return
        if message["term"] < self.term or not self.is_leader:
            return  # of an older leadership
        match, following = self._SyncObj__raftMatchIndex, self._SyncObj__raftNextIndex
        self._SyncObj__lastResponseTime[node] = self.clock.monotonic()
        self._echoed[node.id] = max(self._echoed.get(node.id, 0), message["seq"])
        if message["success"]:
            match[node] = max(match[node], message["next_node_idx"] - 1)
            following[node] = max(following[node], match[node] + 1)
            if match[node] >= self.journal.base_index:
                self.lagging.discard(NodeId(node.id))
            invariant(match[node] <= self.journal.last_index, "{} acknowledged entries that we never sent", node.id)
        elif message["reset"] and message["seq"] > self._rewound.get(node.id, 0):
            # Once per round: every message in flight will complain, and each answer would start a storm.
            self._rewound[node.id] = self.round
            following[node] = max(match[node] + 1, min(following[node], message["next_node_idx"]), 2)
            self._need_append = True
        elif not message["reset"] and following[node] <= self.journal.base_index < message["next_node_idx"]:
            self._probe(node, message["next_node_idx"])

    def _probe(self, node: Node, end: int) -> None:
        """Its journal reaches further than it is known to agree: does it have our base? Once for each such end."""
        if self._probed.get(node.id) != end:
            self._probed[node.id] = end
            self._SyncObj__raftNextIndex[node] = self.journal.base_index + 1
            self._need_append = True

    def _on_append(self, node: Node, message: Message) -> None:
        self._heard_leader = self.clock.monotonic()
        self.heard_commit = message["commit_index"]
        invariant(not (self.is_leader and message["term"] == self.term), "{} also leads term {}", node.id, self.term)
        if self._SyncObj__raftLeader is node and message["term"] == self.term and not self.is_candidate:
            self._SyncObj__raftElectionDeadline = self._heard_leader + self._SyncObj__generateRaftTimeout()
        else:
            # The stock preamble: deadline, leader, term, role; our own commit index, so that it moves nothing.
            super()._SyncObj__onMessageReceived(
                node, {"type": "append_entries", "term": message["term"], "commit_index": self.commit_index}
            )
        if "prevLogIdx" not in message:
            self._SyncObj__sendNextNodeIdx(node, seq=message["seq"])
            return
        previous, previous_term, entries = message["prevLogIdx"], message["prevLogTerm"], message["entries"]
        base = self.journal.base
        if previous < base.index:
            # What is at or before our base is committed: everybody who leads has the same.
            reached = entries[: base.index - previous][-1:]
            agreed = not reached or reached[0][1] < base.index or reached[0][2] == base.term
            invariant(agreed, "{} sends entry {}, our base, of another term", node.id, base.index)
            entries = entries[base.index - previous :]
            previous, previous_term = base.index, base.term
        held = self.term_at(previous)
        if held is None:
            self._SyncObj__sendNextNodeIdx(node, reset=True, seq=message["seq"])
        elif held != previous_term:
            self._SyncObj__sendNextNodeIdx(node, nextNodeIdx=max(previous, 1), reset=True, seq=message["seq"])
        else:
            self._store(entries)
            end = previous + len(entries)
            self._set("raftCommitIndex", max(self.commit_index, min(message["commit_index"], end)))
            self._SyncObj__sendNextNodeIdx(node, nextNodeIdx=end + 1, success=True, seq=message["seq"])

    def _store(self, entries: list[tuple[bytes, int, int]]) -> None:
        known = 0
        while known < len(entries) and self.term_at(entries[known][1]) == entries[known][2]:
            known += 1
        new = entries[known:]
        configurations = [each for each in (parse(*entry) for entry in new) if each is not None]
        moved = bool(configurations)
        if new and new[0][1] <= self.journal.last_index:  # a real conflict
            invariant(new[0][1] > self.commit_index, "asked to truncate committed entry {}", new[0][1])
            self.journal.truncate_from(new[0][1])
            moved = self.membership.truncated(new[0][1]) or moved
        for command, index, term in new:
            self.journal.add(command, index, term)
        for configuration in configurations:
            self.membership.take(configuration)
        if moved:
            self._follow()
            self._members_moved()

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self,
        node: Node,
        reset: bool = False,  # noqa: FBT001, FBT002 - the base class's signature
        nextNodeIdx: int | None = None,  # noqa: N803
        success: bool = False,  # noqa: FBT001, FBT002
        seq: int = 0,
    ) -> None:
        self._SyncObj__transport.send(
            node,
            {
                "type": "next_node_idx",
                "next_node_idx": self.journal.last_index + 1 if nextNodeIdx is None else nextNodeIdx,
                "reset": reset,
                "success": success,
                "term": self.term,
                "seq": seq,
            },
        )

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self._need_append, self.news_due = False, None
        self.round += 1
        self._set("newAppendEntriesTime", self.clock.monotonic() + self.settings.heartbeat_ms / 1000)
        for peer in self.quickest:
            if self._peers[peer] in self._SyncObj__connectedNodes:
                self._send_append(self._peers[peer])
        for peer, node in self._peers.items():
            if peer not in self.quickest and node in self._SyncObj__connectedNodes:
                self._send_append(node)

    def _send_append(self, node: Node) -> None:
        following = self._SyncObj__raftNextIndex
        for _ in range(MESSAGES_PER_ROUND):
            start = following[node]
            if start <= self.journal.base_index:
                self._send_beat(node)
                return
            entries = self._entries(start, min(self.journal.last_index, self._sendable(NodeId(node.id))))
            previous = self.journal.entry(start - 1)
            sent = self._SyncObj__transport.send(
                node,
                {
                    "type": "append_entries",
                    "term": self.term,
                    "commit_index": self.commit_index,
                    "entries": entries,
                    "prevLogIdx": previous[1],
                    "prevLogTerm": previous[2],
                    "seq": self.round,
                },
            )
            if not sent or not entries:
                return
            following[node] = entries[-1][1] + 1
            if following[node] > self.journal.last_index:
                return

    def _send_beat(self, node: Node) -> None:
        """To one who lacks what is gone: that there is a leader, and nothing else."""
        beat = {"type": "append_entries", "term": self.term, "commit_index": self.commit_index, "seq": self.round}
        self._SyncObj__transport.send(node, beat)
        self.lagging.add(NodeId(node.id))
        self._too_far(NodeId(node.id))

    def _entries(self, start: int, end: int) -> list[tuple[bytes, int, int]]:
        taken: list[tuple[bytes, int, int]] = []
        room = self.settings.message_bytes_max // 2
        for index in range(start, end + 1):
            entry = self.journal.entry(index)
            taken.append(entry)
            room -= len(entry[0]) + 16
            if room <= 0:
                break
        return taken

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        low, high = self.settings.election_min_ms, self.settings.election_max_ms
        return (low + (high - low) * self.rng.random()) / 1000
