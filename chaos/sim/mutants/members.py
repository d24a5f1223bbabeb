"""Bugs of the members' and the partitions' coming and going."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.edit import Edit, Mutant

ENGINE: Final = "raftlog.engine:Engine."
CHANGES: Final = "raftlog.members.changes:Changes."
CONFIGURATION: Final = "raftlog.entries.configuration:Configuration."
LIFECYCLE: Final = "raftlog.entries.lifecycle:Lifecycle."
PARTITIONING: Final = "dispatcher.pipeline.partitioning:Partitioning."

MUTANTS: Final = (
    Mutant(
        "learners-count",
        "Learners are asked for votes, and acknowledgements of theirs make quorums.",
        ("ElectedByQuorum", "CommitOnQuorum"),
        (Edit(ENGINE + "_follow", "for voter in current.voters if", "for voter in current.ids if"),),
        needs="members_change",
    ),
    Mutant(
        "all-links-count",
        "Whoever has a link counts for the commit index: learners, guests, those who are just removed.",
        ("CommitOnQuorum", "CommitOwnTerm", "LeaderComplete", "CommitTrue", "InvariantViolated"),
        (
            Edit(
                ENGINE + "_held_by_quorum",
                "[0 if forgetful and node.id in forgetful else match[node] for node in self._voters]",
                "[match[node] for node in self._peers.values()]",
            ),
        ),
        needs="members_change",
    ),
    Mutant(
        "own-vote-always",
        "A candidate votes for itself although its journal says that it has no vote any more.",
        ("ElectedByQuorum",),
        (
            Edit(
                ENGINE + "_majority",
                "(others + self.votes) > len(self._voters) + self.votes",
                "(others + 1) > len(self._voters) + 1",
            ),
        ),
        needs="members_change",
    ),
    Mutant(
        "counts-once-committed",
        "A follower goes by another configuration only if it was committed when it came.",
        ("LastInJournal",),
        (
            Edit(
                ENGINE + "_store",
                "self.membership.take(configuration)",
                "if configuration.index <= self.commit_index: self.membership.take(configuration)",
            ),
        ),
        needs="members_change",
    ),
    Mutant(
        "change-before-own-term",
        "A new leader changes the members before it knows what is committed.",
        ("ChangeAfterOwnTerm",),
        (
            Edit(CHANGES + "propose", "if not self._admits():", "if not self._engine.is_leader:"),
            Edit(CHANGES + "tick", "not self._admits()", "not self._engine.is_leader"),
        ),
        needs="members_change",
    ),
    Mutant(
        "two-changes-at-once",
        "A change of the members does not wait until the one before is committed.",
        ("OneChangeAtATime",),
        (
            Edit(
                CHANGES + "propose", "if current.index > engine.commit_index or self._waiting is not None:", "if False:"
            ),
            Edit(CHANGES + "tick", "and current.index <= engine.commit_index and self._waiting is None", ""),
        ),
        needs="members_change",
    ),
    Mutant(
        "cut-off-and-kept",
        "A configuration that is cut off the journal counts on.",
        ("LastInJournal",),
        (
            Edit(
                "raftlog.journal.membership:Membership.truncated",
                "while len(self._known) > 1 and",
                "while False and",
            ),
        ),
        needs="members_change",
    ),
    Mutant(
        "voter-without-entries",
        "Whoever joins is made a voter as soon as there is a link.",
        ("PromotedBehind",),
        (
            Edit(
                CHANGES + "tick",
                "and engine.acknowledged_by(node) >= current.index",
                "",
            ),
        ),
        needs="members_change",
    ),
    Mutant(
        "removed-and-forgotten",
        "A configuration does not say who was removed.",
        ("IdsNotReused",),
        (Edit(CONFIGURATION + "removing", "removed=tuple(sorted((*self.removed, node)))", "removed=self.removed"),),
        needs="members_change",
    ),
    Mutant(
        "partition-id-again",
        "The id of the last partition that was created is given again once that is destroyed.",
        ("IdsNotReused",),
        (
            Edit(
                LIFECYCLE + "after",
                "return replace(fixed, created={p:",
                "return replace(fixed, next_id=fixed.next_id - (partition + 1 == self.next_id), created={p:",
            ),
        ),
        needs="partitions_change",
    ),
    Mutant(
        "created-in-another-mode",
        "A partition is opened in the cluster's mode, whatever was ordered.",
        ("OpenedAsOrdered", "AckDurable"),
        (
            Edit(
                "server.directory.partitions:PartitionRooms.open_log",
                "self._open_log(partition_id, kind,",
                "self._open_log(partition_id, kind._replace(mode=self._settings.cluster.mode),",
            ),
        ),
        needs="partitions_change",
    ),
    Mutant(
        "begun-not-fixed",
        "The log does not say how many partitions the cluster began with, and nobody compares.",
        ("DestroyedByNobody", "DestroyedStaysSo", "IdsNotReused", "NoSelfStop", "Liveness", "InvariantViolated"),
        (
            Edit(LIFECYCLE + "fixed", "replace(self, begun=begun, next_id", "replace(self, next_id"),
            Edit(PARTITIONING + "check_begun", "same = self.lifecycle.begun == self._begun", "same = True"),
        ),
        needs="partitions_change",
    ),
    Mutant(
        "destroyed-and-removed-early",
        "What is left of a destroyed partition goes before the journal begins behind its last batch.",
        ("AcknowledgedKept", "AckDurable", "I2", "NoSelfStop", "InvariantViolated", "NothingUnhandled", "Liveness"),
        (Edit(PARTITIONING + "forget", "if base.is_gone(p)", "if self.lifecycle.is_gone(p)"),),
        needs="partitions_change",
    ),
    Mutant(
        "last-partition-goes",
        "The last partition can be destroyed.",
        ("LastPartitionStays",),
        (
            Edit(LIFECYCLE + "refuses", 'return "it is the last partition" if count == 1 else ""', 'return ""'),
            Edit(PARTITIONING + "destroy", "if left == [partition_id]:", "if False:"),
        ),
        needs="begun_go",
    ),
    Mutant(
        "asked-again-is-refused",
        "Who asks again for what has been done, since he did not hear of it, is told that it cannot be.",
        ("MembersMove",),
        (
            Edit(CONFIGURATION + "adding", "if known[:3] == seat[:3]:", "if False:"),
            Edit(CONFIGURATION + "removing", "if node in self.removed:", "if False:"),
        ),
        needs="members_change",
    ),
    Mutant(
        "founder-begins-again",
        "Who alone votes by what it has does not ask whether others have met it with another disk.",
        ("PrefixAgreement", "CommitTrue", "OneLeaderPerTerm", "LinearizableRead", "Liveness", "NoSelfStop"),
        (
            Edit(
                "raftlog.links.directories:Directories.find_out",
                "lost = self._are_others(header) or",
                "lost = (self._are_others(header) and not self._is_lone) or",
            ),
        ),
        needs="begins_alone",
    ),
    Mutant(
        "fed-leads-alone",
        "Of two voters one that is empty leads with what it is given of a time when it alone voted.",
        ("LeaderComplete", "PrefixAgreement", "CommitTrue", "OneLeaderPerTerm", "Liveness", "NoSelfStop"),
        (Edit("raftlog.members.refilling:Refilling._told", "if membership.wait_for is None or", "if True or"),),
        needs="shrinks",
    ),
    Mutant(
        "unopened-not-synced",
        "What is synced of a partition counts for others only once its machine is open.",
        ("Liveness",),
        (
            Edit(
                "dispatcher.pipeline.pipeline:Pipeline._settle",
                "for partition_id in unopened:",
                "for partition_id in ():",
            ),
        ),
    ),
    Mutant(
        "unopened-not-destroyed",
        "A partition whose machine is not open yet where it is led from cannot be destroyed.",
        ("Liveness", "NothingUnhandled"),
        (
            Edit(
                PARTITIONING + "destroy",
                "opens = partition_id in self.opening and self.lifecycle.lives(partition_id, self._begun)",
                "opens = False",
            ),
        ),
    ),
    Mutant(
        "promoted-with-all",
        "Whoever is made a voter is so with all who join or watch.",
        ("OneVoterAtATime",),
        (
            Edit(
                CONFIGURATION + "giving",
                "if seat.node == node else seat for seat",
                "if role is Role.VOTER or seat.node == node else seat for seat",
            ),
            Edit(
                CONFIGURATION + "check_step", "len(changed) <= 1 and bool(following.voters)", "bool(following.voters)"
            ),
        ),
        needs="members_change",
    ),
    Mutant(
        "removed-and-leads-on",
        "A leader that is removed hands leadership over to nobody, and leads on.",
        ("RemovedLeads",),
        (
            Edit(
                "dispatcher.sessions.members:_try_change",
                "if node == backend.node_id and node in backend.members.voters:",
                "if False:",
            ),
            Edit(
                ENGINE + "_lead",
                "if not self.votes and self.membership.current.index <= self.applied_index:",
                "if False:",
            ),
        ),
        needs="members_change",
    ),
    Mutant(
        "newest-members-sent",
        "To whoever lacks an older configuration a leader sends the newest in its place.",
        ("MembersAgree",),
        (
            Edit(
                ENGINE + "_entries",
                "entry = self.journal.entry(index)",
                "entry, now = self.journal.entry(index), self.membership.current\n        "
                "entry = entry if not parse(*entry) or now.index <= index else "
                "(self.journal.entry(now.index)[0], *entry[1:])",
            ),
        ),
        needs="members_change",
    ),
    Mutant(
        "next-id-of-those-that-live",
        "Where the journal begins later, which id comes next is found among the partitions that live.",
        ("PartitionsAgree", "IdsNotReused", "SnapshotEquivalence"),
        (
            Edit(
                LIFECYCLE + "_parsed",
                "return cls(begun, next_id, created, destroyed), end",
                "return cls(begun, max([begun, *(p + 1 for p in created)]), created, destroyed), end",
            ),
            Edit(LIFECYCLE + "decode", "if found.encode() != raw[:end]:", "if False:"),
        ),
        needs="partitions_change",
    ),
    Mutant(
        "joins-for-ever",
        "Who joins, or joins anew, is never made a voter.",
        ("Liveness",),
        (Edit("raftlog.members.changes:Changes.tick", "if now - since >= CAUGHT_UP_S and", "if False and"),),
        needs="rot_journal",
    ),
    Mutant(
        "aside-at-every-start",
        "A node that has set a journal aside once does so at every start from then on (AcknowledgedKept).",
        ("AcknowledgedKept",),
        (
            Edit(
                "server.directory.rejoin:open_journal",
                "if own is not None and of.said() not in (None, own, token):",
                'if token is None and disk.exists(directory.parent / f"{ASIDE}1"):',
            ),
        ),
        needs="rot_journal",
    ),
)
