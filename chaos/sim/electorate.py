"""Who may elect, lead and commit: the configurations in all journals, as an observer reads them, beside what nodes do.

The nodes' own idea of who counts is not asked, it is what is looked at: a configuration counts on a node from
the moment it is in its journal until it is cut off there, and what was handed up is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chaos.sim.host import Host
from dispatcher.pipeline.backend import Backend
from logboom.types import NodeId
from raftlog.entries.configuration import MEMBERS, NOBODY, Configuration, Role
from raftlog.entries.entry import KIND_CONTROL
from raftlog.entries.parent_state import ParentState
from raftlog.journal.membership import parse
from raftlog.members.changes import CAUGHT_UP_ENTRIES

Fail = Callable[[str, str], None]


class Electorate:
    """``fail(invariant, story)`` ends the run."""

    def __init__(self, begins: Configuration, votes: Mapping[tuple[str, int], set[str]], fail: Fail) -> None:
        """``votes``: whom a node has voted for, by node and term; several if it lost its journal meanwhile."""
        self._begins = begins
        self._votes = votes
        self._fail = fail
        self._journals: dict[str, Any] = {}
        self._lost: dict[str, list[Any]] = {}
        """Those that were set aside: a leader that does not know yet goes by what they had acknowledged."""
        self._in: dict[str, list[Configuration]] = {}
        """By host: what is in its journal, of a dead process too."""
        self._moved: list[tuple[Host, Backend]] = []
        """Where another one counts since the last instant."""
        self._told: list[Host] = []
        """Where one was handed up since then."""
        self._said: dict[int, tuple[str, Configuration]] = {}
        """By Raft index of each that was handed up: by whom first."""
        self._removed_in: dict[NodeId, int] = {}
        """The term whose leader has committed it."""
        self.newest = begins
        """Of those that were handed up anywhere."""
        self.voters_ever = {begins.voters}

    # -- what is in the journals

    def started(self, host: Host, backend: Backend) -> None:
        """It has read its journal; from now on whatever enters it, or is cut off, is noticed."""
        journal: Any = backend.raft.journal
        base = ParentState.decode(journal.base.state).members
        begins = base or (NOBODY if host.settings.node.join else self._begins)
        found = [parse(*entry) for entry in journal.after(journal.base_index)]
        known = self._in[host.name] = [begins, *(each for each in found if each is not None)]
        former = self._journals.get(host.name)
        if former is not None and backend.raft.members.membership.rejoining is not None:
            self._lost.setdefault(host.name, []).append(former)
        self._journals[host.name] = journal
        self._moved.append((host, backend))
        add, delete = journal.add, journal.deleteEntriesFrom

        def added(command: bytes, index: int, term: int) -> None:
            add(command, index, term)
            said = parse(command, index, term) if command[:1] == KIND_CONTROL else None
            if said is not None:
                self._enters(host, backend, said)

        def deleted(position: int) -> None:
            end = journal.entries[position][1] if position < len(journal.entries) else 1 << 62
            delete(position)
            while len(known) > 1 and known[-1].index >= end:
                known.pop()
                self._moved.append((host, backend))

        journal.add, journal.deleteEntriesFrom = added, deleted

    def _enters(self, host: Host, backend: Backend, said: Configuration) -> None:
        known, engine = self._in[host.name], backend.raft.engine
        before = known[-1]
        known.append(said)
        self._moved.append((host, backend))
        self.voters_ever.add(said.voters)
        if not engine.is_leader:
            return
        story = f"{host.name}, term {engine.term}, commit {engine.commit_index}: {_row(said)} after {_row(before)}"
        if before.index > max(1, engine.commit_index):
            self._fail("OneChangeAtATime", story)
        if engine.term_at(engine.commit_index) != engine.term:
            self._fail("ChangeAfterOwnTerm", story)
        self._check_step(before, said, story)
        for node in sorted(set(said.voters) - set(before.voters)):
            journals = [self._journals.get(node), *(() if node in engine.forgetful else self._lost.get(node, ()))]
            held = max((each.durable_index for each in journals if each is not None), default=0)
            if held < before.index or engine.journal.last_index - held > CAUGHT_UP_ENTRIES + 1:
                self._fail("PromotedBehind", f"{story}; {node} has entries up to {held}")

    def _check_step(self, before: Configuration, said: Configuration, story: str) -> None:
        if len(set(before.voters) ^ set(said.voters)) > 1:
            self._fail("OneVoterAtATime", story)
        if not {*before.removed, *(set(before.ids) - set(said.ids))} <= set(said.removed):
            self._fail("IdsNotReused", f"{story}: whoever is removed stays so")
        if set(said.ids) & {*said.removed, *before.removed}:
            self._fail("IdsNotReused", story)

    def instant(self) -> None:
        """A node goes by the last one in its journal; who leads, and is told that it has no vote, leads no more."""
        if not self._moved and not self._told:
            return
        moved, self._moved = self._moved, []
        for host, backend in moved:
            if host.node is None or host.node.pipeline is not backend:
                continue
            counts, known = backend.raft.members.membership.current, self._in[host.name][-1]
            begins = known.index == 1  # the settings say it, each node's its own: addresses may differ
            same = counts.ids == known.ids if begins else counts.says_the_same(known)
            if counts.index != known.index or not same:
                self._fail("LastInJournal", f"{host.name} goes by {_row(counts)}, its journal says {_row(known)}")
        told, self._told = self._told, []
        for host in told:
            if host.node is not None:
                self.checkpoint(host, host.node.pipeline)

    def voters(self, host: str) -> tuple[NodeId, ...]:
        """Those that count there."""
        return self._in[host][-1].voters

    # -- what they do

    def leads(self, host: Host, term: int) -> None:
        """A new leader has the votes of a majority of its voters, and was not removed in an earlier term.

        One that has its removal in its journal may: it was elected without its own vote, and only to commit that.
        """
        voters = self.voters(host.name)
        granted = [v for v in voters if v == host.name or host.name in self._votes.get((v, term), ())]
        if 2 * len(granted) <= len(voters):
            self._fail("ElectedByQuorum", f"{host.name} leads term {term} with {granted} of {voters}")
        if host.name in voters and self._removed_in.get(NodeId(host.name), term) < term:
            self._fail("RemovedLeads", f"{host.name} leads term {term}, and was removed before")

    def handed_up(self, host: Host, raft_index: int, term: int, committed_in: int, fields: Mapping[str, Any]) -> None:
        """A control entry. ``committed_in``: the term of the leader that has counted it."""
        if fields.get("do") != MEMBERS:
            return
        self._told.append(host)
        said = Configuration.parse(fields, term=term, index=raft_index)
        first = self._said.setdefault(raft_index, (host.name, said))
        if first[1] != said:
            self._fail("MembersAgree", f"{host.name} and {first[0]} differ: {_row(said)}, {_row(first[1])}")
        if said.index > self.newest.index:
            self._check_step(self.newest, said, f"committed: {_row(said)} after {_row(self.newest)}")
            for node in sorted(set(said.removed) - set(self.newest.removed)):
                self._removed_in[node] = committed_in
            self.newest = said

    def checkpoint(self, host: Host, backend: Backend) -> None:
        """Nobody goes on leading once it knows that it has no vote."""
        members, engine = backend.parent.members, backend.raft.engine
        if engine.is_leader and members is not None and host.name not in members.voters:
            current = self._in[host.name][-1]
            if current.index <= engine.applied_index:
                self._fail("RemovedLeads", f"{host.name} leads term {engine.term}; {_row(current)} is committed")

    # -- the end

    def may_count(self, hosts: Iterable[Host]) -> list[Configuration]:
        """The newest that is known to be committed, and those that are in a journal behind it."""
        found = [c for host in hosts for c in self._in.get(host.name, ()) if c.index > self.newest.index]
        return [self.newest, *found]


def _row(said: Configuration) -> str:
    seats = " ".join(s.node if s.role is Role.VOTER else f"({s.role} {s.node})" for s in said.seats)
    return f"[{said.index}: {seats}{' -' if said.removed else ''}{','.join(said.removed)}]"
