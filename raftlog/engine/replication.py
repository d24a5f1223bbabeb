"""Entries: what a leader sends, what a follower stores, and what counts as committed."""

from __future__ import annotations

from typing import Final

from logboom.errors import WrongNode
from logboom.types import NodeId
from ports.invariant import invariant
from raftlog.engine.elections import Elections
from raftlog.engine.messages import Message
from raftlog.engine.stock import LEADER, Given, Peer
from raftlog.journal.membership import parse

MESSAGES_PER_ROUND: Final = 4


class Replication(Elections):
    """Nothing that is committed is ever cut off; nothing counts as held here before it is synced here."""

    def __init__(self, given: Given) -> None:
        self._sendable = given.sendable
        self._too_far = given.too_far
        self._need_append = False
        self.news_due: float | None = None
        """When followers are told of a new commit index, should nothing else be sent to them before."""
        self.round_due: float | None = None
        """When all are asked, should the quickest not have answered a lone round before."""
        self.heard_commit: int | None = None
        """Commit index that the leader of the current term named last, since this process started."""
        self._round_heard = (0, 0)
        """Of the last append_entries: its term, and its round."""
        super().__init__(given)

    def _SyncObj__setState(self, state: int) -> None:  # noqa: N802
        if state != LEADER:  # nor does it owe anything that only a leader sends
            self._need_append, self.news_due, self.round_due = False, None, None
        super()._SyncObj__setState(state)

    # -- the leader sends

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self._need_append, self.news_due, self.round_due = False, None, None
        self.round += 1
        self._set("newAppendEntriesTime", self.clock.monotonic() + self.settings.heartbeat_ms / 1000)
        connected = self._SyncObj__connectedNodes
        for peer in self.quickest:
            if self._peers[peer] in connected:
                self._send_append(self._peers[peer])
        for peer, node in self._peers.items():
            if peer not in self.quickest and node in connected:
                self._send_append(node)

    def start_lone_round(self) -> bool:
        """A round, at once, of the followers that made the last quorum. False: not all are there, or it leads no more.

        The others have nothing to do with it, unless ``round_due`` comes first (docs/decisions/0012).
        """
        if not self.is_leader or self._need_append or not self.quickest_are_connected:
            return False
        self.round += 1
        self.round_due = self.clock.monotonic() + self.settings.spare_linger_ms / 1000
        for peer in self.quickest:
            self._send_append(self._peers[peer])
        return True

    def _send_append(self, node: Peer) -> None:
        following, journal = self._SyncObj__raftNextIndex, self.journal
        for _ in range(MESSAGES_PER_ROUND):
            start = following[node]
            if start <= journal.base_index:
                self._send_beat(node)
                return
            last = journal.last_index
            entries = self._entries(start, min(last, self._sendable(node.id)))
            previous = journal.entry(start - 1)
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
            end = entries[-1][1]
            following[node] = end + 1
            if end >= last:
                return

    def _send_beat(self, node: Peer) -> None:
        """To one who lacks what is gone: that there is a leader, and nothing else."""
        beat = {"type": "append_entries", "term": self.term, "commit_index": self.commit_index, "seq": self.round}
        self._SyncObj__transport.send(node, beat)
        self.lagging.add(node.id)
        self._too_far(node.id)

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

    def _next_round(self) -> float:
        beat = float(self._SyncObj__newAppendEntriesTime)
        return min(beat, self.news_due or beat, self.round_due or beat)

    def send_soon(self) -> None:
        """Leader only: send a round with the next tick."""
        self._need_append = True

    def rewind(self, peer: NodeId, index: int) -> None:
        """Leader only: send entries from ``index`` on again."""
        match, following = self._SyncObj__raftMatchIndex, self._SyncObj__raftNextIndex
        node = self._peers[peer]
        following[node] = max(match[node] + 1, min(following[node], index), 2)
        self._rewound[peer] = self.round
        self._need_append = True

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

    # -- and hears

    def _on_reply(self, node: Peer, message: Message) -> None:
        term = self.term
        if message["term"] > term:
            self._SyncObj__setCurrentTerm(message["term"], None)
            self._step_down()
            return
        if message["term"] < term or not self.is_leader:
            return  # of an older leadership
        end = message["next_node_idx"] - 1
        if message["success"] and end > self.journal.last_index:
            # No node of this history has what its leader has not. It says so to all who lead: let it end none of them.
            raise WrongNode(
                f"{node.id} says that it holds Raft entry {end}, and the leader's last is "
                f"{self.journal.last_index}: of another history, as a node from before a restore is: remove its data"
            )
        match, following = self._SyncObj__raftMatchIndex, self._SyncObj__raftNextIndex
        self._SyncObj__lastResponseTime[node] = self.clock.monotonic()
        self._echoed[node.id] = max(self._echoed.get(node.id, 0), message["seq"])
        if self.forgetful or "rejoining" in message:
            self._note_memory(node, message)
        if message["success"]:
            match[node] = held = max(match[node], end)
            following[node] = max(following[node], held + 1)
            self._furthest = max(self._furthest, held)
            if self.lagging and held >= self.journal.base_index:
                self.lagging.discard(node.id)
        elif message["reset"] and message["seq"] > self._rewound.get(node.id, 0):
            # Once per round: every message in flight will complain, and each answer would start a storm.
            self._rewound[node.id] = self.round
            following[node] = max(match[node] + 1, min(following[node], self._go_on_at(message)), 2)
            self._need_append = True
        elif not message["reset"] and following[node] <= self.journal.base_index < message["next_node_idx"]:
            self._probe(node, message["next_node_idx"])

    def _go_on_at(self, message: Message) -> int:
        """Where a peer that complains may agree: behind the last entry of a term that it can have there."""
        end: int = min(message["next_node_idx"] - 1, self.journal.last_index)
        if "term_before" in message and end >= self.journal.base_index:
            end = self.journal.last_of(message["term_before"], end)
        return end + 1

    def _note_memory(self, node: Peer, message: Message) -> None:
        """Every reply says whether its sender has forgotten what it said before."""
        if "rejoining" not in message:
            self.forgetful.pop(node.id, None)
            return
        self.forgetful[node.id] = message["rejoining"]
        if not message["success"]:
            # What it acknowledged with its former journal is gone. Else a match goes back with a lost disk alone.
            match = self._SyncObj__raftMatchIndex
            match[node] = min(match[node], max(0, message["next_node_idx"] - 1))

    def lost_disk(self, peer: NodeId) -> None:
        """It has another one than before: what it acknowledged is gone. A leader would wait for more of it for ever."""
        if peer in self._peers:
            self._SyncObj__raftMatchIndex[self._peers[peer]] = 0

    def _probe(self, node: Peer, end: int) -> None:
        """Its journal reaches further than it is known to agree: does it have our base? Once for each end and base."""
        asked = end, self.journal.base_index
        if self._probed.get(node.id) != asked:
            self._probed[node.id] = asked
            self._SyncObj__raftNextIndex[node] = self.journal.base_index + 1
            self._need_append = True

    def _advance_commit(self) -> None:
        commit = self.commit_index
        if not self._may_commit(commit):
            return
        index = self._held_by_quorum()
        if index > commit and self.term_at(index) == self.term:
            self.journal.acknowledged(min(index, self.journal.durable_index))
            self._set("raftCommitIndex", index)
            match = self._SyncObj__raftMatchIndex
            self.quickest = [node.id for node in self._voters if match[node] >= index and self._counts(node)]
            if self.news_due is None:
                self.news_due = self.clock.monotonic() + self.settings.commit_linger_ms / 1000

    # -- a follower

    def _on_append(self, node: Peer, message: Message) -> None:
        before, self._heard_leader = self._heard_leader, self.clock.monotonic()
        self._missed = self._excused = False
        self.heard_commit = message["commit_index"]
        term, own = message["term"], self.term
        self._round_heard = term, message["seq"]
        invariant(not (term == own and self.is_leader), "{} also leads term {}", node.id, own)
        if self._SyncObj__raftLeader is node and term == own and not self.is_candidate:
            self.patience.heard(self._heard_leader - before)
            self._SyncObj__raftElectionDeadline = self._heard_leader + self._SyncObj__generateRaftTimeout()
            self._handed_over = self._handed_over and not self._has_news(message)
            self._pre_vote_passed = self._handed_over  # what he has asked for himself stands
        else:
            self._pre_vote_passed = self._handed_over = False
            # The stock preamble: deadline, leader, term, role; our own commit index, so that it moves nothing.
            super()._SyncObj__onMessageReceived(
                node, {"type": "append_entries", "term": term, "commit_index": self.commit_index}
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
            self._complain(node, self.journal.last_index, previous_term, message["seq"])
        elif held != previous_term:
            self._complain(node, previous - 1, previous_term, message["seq"])
        else:
            self._store(entries)
            end = previous + len(entries)
            self._set("raftCommitIndex", max(self.commit_index, min(message["commit_index"], end)))
            self._SyncObj__sendNextNodeIdx(node, nextNodeIdx=end + 1, success=True, seq=message["seq"])

    def _has_news(self, message: Message) -> bool:
        """It has entries that are not here: its sender admits, and no longer waits for anybody to take over."""
        return any(index > self.journal.last_index for _, index, _ in message.get("entries", ())[-1:])

    def feeding(self, peer: NodeId) -> bool:
        """Payload of this term comes from ``peer``, in pieces if it is large, and heartbeats lie behind it.

        If we follow it, it is there. It has to hear that we are, too, before it gives up a leadership that all follow:
        with the round that was heard last, which proves no more than before. True: that was due.
        """
        now, (term, seq) = self.clock.monotonic(), self._round_heard
        if now - self._heard_leader < self.settings.heartbeat_ms / 1000:
            return False
        node = self._peers.get(peer)
        if node is None or node is not self._SyncObj__raftLeader or term != self.term:
            return False
        if self.is_candidate or self.is_leader:
            return False
        self._heard_leader = now
        self._missed = self._excused = False
        self._pre_vote_passed = self._handed_over
        due = now + self._SyncObj__generateRaftTimeout()
        self._set("raftElectionDeadline", max(due, self._SyncObj__raftElectionDeadline))
        self._SyncObj__sendNextNodeIdx(node, seq=seq)
        return True

    def _complain(self, node: Peer, end: int, leaders: int, seq: int) -> None:
        """The journals agree up to ``end`` at most, behind which the leader has an entry of term ``leaders``.

        Terms only grow along a journal: nothing of a later one here can be in the leader's before that. With the term
        of what is left it leaves out as much of its own, so that each term costs one answer, and not each entry.
        """
        end = self.journal.last_of(leaders, end)
        self._SyncObj__sendNextNodeIdx(node, nextNodeIdx=max(end, 0) + 1, reset=True, seq=seq, before=self.term_at(end))

    def _store(self, entries: list[tuple[bytes, int, int]]) -> None:
        known, last = 0, self.journal.last_index
        if entries and entries[0][1] <= last:  # sent again, or of another leader
            while known < len(entries) and self.term_at(entries[known][1]) == entries[known][2]:
                known += 1
        new = entries[known:]
        configurations = [each for entry in new if (each := parse(*entry)) is not None]
        moved = bool(configurations)
        if new and new[0][1] <= last:  # a real conflict
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
        node: Peer,
        reset: bool = False,  # noqa: FBT001, FBT002 - the base class's signature
        nextNodeIdx: int | None = None,  # noqa: N803
        success: bool = False,  # noqa: FBT001, FBT002
        seq: int = 0,
        before: int | None = None,
    ) -> None:
        reply = {
            "type": "next_node_idx",
            "next_node_idx": self.journal.last_index + 1 if nextNodeIdx is None else nextNodeIdx,
            "reset": reset,
            "success": success,
            "term": self.term,
            "seq": seq,
        }
        if before is not None:
            reply["term_before"] = before
        if self.membership.rejoining is not None:
            reply["rejoining"] = self.membership.rejoining.token
        self._SyncObj__transport.send(node, reply)
