"""Bugs of the parent log: votes, quorums, replies, conflicts, reads."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

ENGINE: Final = "raftlog.engine:Engine."
CORE: Final = "raftlog.core:RaftLog."
OUTBOUND: Final = "raftlog.outbound:Outbound."
CHECKED_ACK: Final = 'invariant(index <= self.journal.durable_index, "I3: acknowledging an entry that is not synced")'
# The fourth class up is the library's own.
STOCK: Final = "return Elections.__mro__[3]._SyncObj__onMessageReceived(self, node, message)"
STOCK_REPLY: Final = f"""self._echoed[node.id] = max(self._echoed.get(node.id, 0), message["seq"])
    {STOCK}
    if message["term"] > self.term:"""

MUTANTS: Final = (
    Mutant(
        "acknowledge-before-sync",
        "The outbox lets everything out at once: a follower's reply leaves before its group sync (I3).",
        ("VoteDurable", "AckDurable", "InvariantViolated"),
        (Edit("raftlog.journal.outbox:GroupSync.hold", "self._held.append(send)", "send()"),),
    ),
    Mutant(
        "acknowledge-before-sync-unchecked",
        "The same, and nothing in the node looks: what was acknowledged is gone after a power loss (I3, I8).",
        ("VoteDurable", "AckDurable"),
        (
            Edit("raftlog.journal.outbox:GroupSync.hold", "self._held.append(send)", "send()"),
            Edit(OUTBOUND + "_acknowledge", CHECKED_ACK, "index = min(index, self.journal.durable_index)"),
        ),
    ),
    Mutant(
        "votes-before-sync",
        "Votes leave before they are synced: after a power loss the node votes again (VoteOnce).",
        ("VoteDurable", "VoteOnce"),
        (
            Edit(
                OUTBOUND + "send",
                "self.group.hold(lambda: self.send_now(peer, body))",
                "self.send_now(peer, body)",
            ),
        ),
    ),
    Mutant(
        "vote-twice",
        "A node votes for whoever asks in a term (VoteOnce).",
        ("VoteOnce", "OneLeaderPerTerm"),
        (
            Edit(
                ENGINE + "_SyncObj__onMessageReceived",
                "if term >= self.term and may:",
                'if term >= self.term and may and not self._set("votedForNodeId", None):',
            ),
        ),
    ),
    Mutant(
        "vote-not-persisted",
        "The journal keeps the term and not the vote: a restarted node votes again (VoteOnce).",
        ("VoteDurable", "VoteOnce", "OneLeaderPerTerm"),
        (Edit("raftlog.journal.journal:Journal.setCurrentTerm", '+ (vote or "").encode()', '+ b""'),),
    ),
    Mutant(
        "term-not-persisted",
        "Neither term nor vote are kept: a restarted node lives through old terms again (TermMonotonic).",
        ("VoteDurable", "VoteOnce", "OneLeaderPerTerm", "TermMonotonic"),
        (
            Edit(
                "raftlog.journal.journal:Journal.setCurrentTerm",
                'self._pending.append((RecordKind.HARDSTATE, codec.INDEX.pack(term) + (vote or "").encode()))',
                "pass",
            ),
        ),
    ),
    Mutant(
        "elected-alone",
        "A candidate leads as soon as it stands (ElectedByQuorum).",
        ("ElectedByQuorum", "OneLeaderPerTerm", "LeaderComplete"),
        (Edit(ENGINE + "_campaign_if_due", "if not self._voters:", "if True:"),),
    ),
    Mutant(
        "leader-counts-itself",
        "The leader counts itself for what it has not synced (I8).",
        ("CommitOnQuorum",),
        (Edit(ENGINE + "_held_by_quorum", "held.append(self.journal.durable", "held.append(self.journal.last"),),
    ),
    Mutant(
        "no-quorum",
        "What one node holds is committed (I8).",
        ("CommitOnQuorum",),
        (Edit(ENGINE + "_held_by_quorum", "held[len(held) // 2]", "held[0]"),),
    ),
    Mutant(
        "commits-older-terms",
        "A leader commits entries of older terms by counting them (Raft, figure 8).",
        ("CommitOwnTerm", "CommitOnQuorum"),
        (
            Edit(
                ENGINE + "_advance_commit",
                "index > commit and self.term_at(index) == self.term",
                "index > commit",
            ),
        ),
    ),
    Mutant(
        "commit-beyond-agreement",
        "A follower believes its leader's commit index up to the end of its own log, whether that agrees or not.",
        ("CommitTrue", "CommitAgreed", "PrefixAgreement", "OffsetsDenseUnique"),
        (
            Edit(
                ENGINE + "_on_append",
                'min(message["commit_index"], end)',
                'min(message["commit_index"], self.journal.last_index)',
            ),
        ),
    ),
    Mutant(
        "stock-append",
        "As stock PySyncObj: everything behind the previous entry is cut off, conflict or not.",
        ("CutForNothing", "InvariantViolated", "CommitNeverRegresses", "AckDurable", "CommitOnQuorum"),
        (
            Edit(
                ENGINE + "_on_append",
                "self._store(entries)",
                "self.journal.truncate_from(previous + 1); "
                "self.membership.truncated(previous + 1); "
                "self._store(entries)",
            ),
        ),
    ),
    Mutant(
        "stock-pysyncobj",
        "Stock PySyncObj handles append_entries and replies: it cuts without a conflict, rewinds, and knows no terms.",
        (
            "InvariantViolated",
            "CommitNeverRegresses",
            "AckDurable",
            "CommitOnQuorum",
            "LeaderComplete",
            "CommitTrue",
            "Liveness",
        ),
        (
            Edit(
                ENGINE + "_on_append", "before, self._heard_leader = self._heard_leader, self.clock.monotonic()", STOCK
            ),
            Edit(ENGINE + "_on_reply", 'if message["term"] > term:', STOCK_REPLY),
        ),
    ),
    Mutant(
        "previous-entry-unchecked",
        "A follower stores entries behind one of another term (Raft's log matching).",
        (
            "CommitTrue",
            "CommitOnQuorum",
            "LeaderComplete",
            "PrefixAgreement",
            "InvariantViolated",
            "OffsetsDenseUnique",
        ),
        (Edit(ENGINE + "_on_append", "elif held != previous_term:", "elif False:"),),
        needs="half_back",
    ),
    Mutant(
        "cut-and-still-durable",
        "What takes the place of entries that were cut off counts as synced at once (I3).",
        ("DurableTrue", "AckDurable", "I3", "AcknowledgedKept", "CommitOnQuorum"),
        (
            Edit(
                "raftlog.journal.journal:Journal.deleteEntriesFrom",
                "self.durable_index = min(self.durable_index, index - 1)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "cut-while-written",
        "A group that was under way when entries were cut off makes those durable that took their place (I3).",
        ("DurableTrue", "AckDurable", "I3", "AcknowledgedKept", "CommitOnQuorum", "AppliedDurable"),
        (
            Edit(
                "raftlog.journal.journal:Journal.deleteEntriesFrom",
                "self._in_flight.last_index = min(self._in_flight.last_index, index - 1)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "leads-without-batches",
        "A node that lacks batches of its journal may lead, and applies (I2).",
        ("I2", "InvariantViolated"),
        (
            Edit(CORE + "recover", "self.engine.may_lead = not found.missing", "self.engine.may_lead = True"),
            Edit("raftlog.repair.mending:Mending._follow", "not self.repair.blocked", "True"),
            Edit("raftlog.repair.mending:Mending.damaged", "self._engine.may_lead = False", "pass"),
        ),
    ),
    Mutant(
        "covered-by-any-term",
        "After a start a commit index of an older term counts as all that was ever committed (I7).",
        ("CoversAll", "I7", "BarrierSound", "ReadYourWrites", "TokenKept"),
        (
            Edit(
                ENGINE + "covering_commit",
                "or index > self.commit_index or self.term_at(index) != self.term",
                "or index > self.commit_index",
            ),
        ),
    ),
    Mutant(
        "reply-term-unchecked",
        "Replies of any term count, as entries and as proof of leadership.",
        ("ReplyOfTerm", "LinearizableRead", "CommitOnQuorum"),
        (
            Edit(ENGINE + "_on_reply", 'if message["term"] > term:', "if False:"),
            Edit(
                ENGINE + "_on_reply",
                'if message["term"] < term or not self.is_leader:',
                "if not self.is_leader:",
            ),
        ),
    ),
    Mutant(
        "admits-early",
        "A new leader admits before it knows what is committed (LinearizableRead).",
        ("LinearizableRead",),
        (
            Edit(
                ENGINE + "leads_committed_term",
                "self.is_leader and self.term_at(self.applied_index) == self.term",
                "self.is_leader",
            ),
        ),
    ),
    Mutant(
        "wrong-tail",
        "A new leader admits at once, and continues from the committed tail (I4).",
        ("InvariantViolated", "OffsetsDenseUnique"),
        (
            Edit(
                ENGINE + "leads_committed_term",
                "self.is_leader and self.term_at(self.applied_index) == self.term",
                "self.is_leader",
            ),
            Edit(
                "dispatcher.pipeline.pipeline:Pipeline.leads",
                "self.parent.tails_after(self.raft.uncommitted_routes())",
                "self.parent.tails_after([])",
            ),
        ),
    ),
    Mutant(
        "stale-read",
        "A linearizable read is answered without a read round (LinearizableRead).",
        ("LinearizableRead",),
        (
            Edit(
                CORE + "read_index", "if not self.reads.ask(done, lone=lone and not self._proposals):", "if done(None):"
            ),
        ),
        needs="half_back",
    ),
    Mutant(
        "lone-read-proven-before",
        "A lone read is answered by whatever was echoed before it (LinearizableRead).",
        ("LinearizableRead",),
        (Edit("raftlog.reads:ReadRounds.ask", "(self._engine.round, index", "(0, index"),),
    ),
    Mutant(
        "read-proven-too-early",
        "A linearizable read is answered once its round is proven, applied as far or not (LinearizableRead).",
        ("LinearizableRead",),
        (Edit("raftlog.reads:ReadRounds.finish", " and self._rounds[0].commit_index <= applied", ""),),
    ),
    Mutant(
        "gate-open",
        "The gate lets entries pass whose payload is not here (I2).",
        ("InvariantViolated", "AckDurable", "I2"),
        (
            Edit(
                "raftlog.links.gate:pass_through",
                'entries = message.get("entries")',
                'return Passed(message, None)\n    entries = message.get("entries")',
            ),
        ),
    ),
    Mutant(
        "split-request",
        "A request's routes get a Raft entry each (Atomic).",
        ("Atomic",),
        (
            Edit(
                "raftlog.entries.entry:pack_requests",
                "packs[-1].extend(routes)",
                "packs[-1].append(routes[0]); packs.extend([route] for route in routes[1:])",
            ),
        ),
    ),
    Mutant(
        "handed-up-before-synced",
        "Committed entries are handed up before they are synced here (decisions/0004).",
        ("AppliedDurable",),
        (Edit(ENGINE + "_apply_committed", "min(commit, self.journal.durable_index)", "commit"),),
    ),
    Mutant(
        "acknowledged-while-missing",
        "A follower acknowledges the entries of its journal, whether it has their batches or is fetching them (I3).",
        ("AckHeld", "AckDurable"),
        (Edit(OUTBOUND + "send", "if self.repair.active:", "if False:"),),
    ),
    Mutant(
        "counts-the-forgetful",
        "What a node acknowledges that has lost its journal counts for the quorum (decisions/0019).",
        ("CommitOnQuorum", "LinearizableRead"),
        (Edit(ENGINE + "_counts", "return node.id not in self.forgetful", "return True"),),
        needs="rot_journal",
    ),
    Mutant(
        "votes-while-rejoining",
        "A node votes though it has forgotten for whom it has voted, and what it has acknowledged (decisions/0019).",
        ("VoteOnce", "LeaderComplete", "OneLeaderPerTerm"),
        (
            Edit(ENGINE + "_SyncObj__onMessageReceived", "may = self.membership.rejoining is None and (", "may = ("),
            Edit(
                ENGINE + "_on_pre_vote",
                "if self.is_leader or self.membership.rejoining is not None:",
                "if self.is_leader:",
            ),
        ),
        needs="rot_journal",
    ),
    Mutant(
        "empty-disk-takes-part",
        "A member that comes back with an empty disk is taken for one that starts late (decisions/0031).",
        ("LeaderComplete", "OneLeaderPerTerm", "LinearizableRead"),
        (Edit("raftlog.links.directories:counts", "return node in current.ids and", "return False and"),),
        needs="disks_lost",
    ),
    Mutant(
        "earlier-disk-takes-part",
        "A member that comes back with an earlier disk is taken for one that was away (decisions/0034).",
        ("LeaderComplete", "OneLeaderPerTerm", "VoteOnce", "AcknowledgedKept", "LinearizableRead", "Liveness"),
        (
            Edit("raftlog.links.marks:Marks.lacks", "return mark.sequence > (", "return False and mark.sequence > ("),
            Edit("raftlog.links.marks:Marks.is_behind", "return life != mark.life and", "return False and"),
        ),
        needs="put_back",
    ),
    Mutant(
        "earlier-disk-ends",
        "A member whose disk was put back ends for good, as if what is on it were damaged (decisions/0034).",
        ("NoSelfStop",),
        (Edit("server.directory.directories:open_directories", "fatal(RejoinDue(why))", "fatal(CorruptData(why))"),),
        needs="put_back",
    ),
)
