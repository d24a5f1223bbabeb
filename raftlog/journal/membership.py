"""The configuration that counts on this node: the last one in its journal, committed or not (Raft dissertation, 4.1).

What is cut off the journal never was; then the one before counts again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from logboom.types import NodeId
from raftlog.entries.configuration import MEMBERS, Configuration, Seat
from raftlog.entries.entry import KIND_CONTROL, unpack_control
from raftlog.journal.journal import Journal


@dataclass(frozen=True)
class Rejoining:
    """The journal was damaged, and another begun: what this node has promised to others it does not know."""

    token: bytes
    """Of this time alone: the log names it where the node begins anew."""
    over: Callable[[Callable[[], None]], None]
    """Makes it so for later starts, too, that this is over; calls back on the loop."""


@dataclass(frozen=True)
class Refill:
    """The journal was empty, or of a time before, when others told this node of an entry of theirs.

    That of a configuration with both: what counts here until then is from before it, even where it is this node alone.
    """

    term: int
    index: int
    lineage: str
    """Of the history in which that is."""
    over: Callable[[Callable[[], None]], None]
    """Makes it so for later starts, too, that this is over; calls back on the loop."""


class Membership:
    """Of one node. The engine says what enters its journal and what is cut off."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        journal: Journal,
        begins: Configuration,
        rejoining: Rejoining | None = None,
        forget: Callable[[bool], Rejoining] | None = None,
        wait_for: Callable[[int, int, str, bool], Refill] | None = None,
    ) -> None:
        """``begins`` counts where the journal begins: from its base's state, or else from the settings.

        ``forget`` makes it so, durable on return, that this node has lost what it promised; with True it has no lineage
        either. May raise Unavailable. None: it cannot find out. ``wait_for`` makes it so
        that this node waits for an entry, by its term, index and lineage; with True it has none itself from then on.
        """
        self.node_id = node_id
        self.journal = journal
        self.forget = forget
        self.wait_for = wait_for
        self.rejoining = rejoining
        """While it is set this node gives no vote, and nothing that it says counts for a quorum."""
        self.refill: Refill | None = None
        """Until its journal is as far as that this node stands for no election; it votes as any other."""
        self._journal = journal
        self._known = [begins]
        for command, index, term in journal.entries[1:]:
            found = parse(command, index, term)
            if found is not None:
                self._known.append(found)

    @property
    def current(self) -> Configuration:
        """What counts."""
        return self._known[-1]

    @property
    def before(self) -> Configuration | None:
        """What counts should the current one be cut off; None: that is no longer possible."""
        return self._known[-2] if len(self._known) > 1 else None

    @property
    def lacks(self) -> bool:
        """Others know of a configuration that is yet to come here."""
        if self.refill is None:
            return False
        _, index, term = self._journal.entry(self._journal.last_index)
        return (term, index) < (self.refill.term, self.refill.index)

    def take(self, configuration: Configuration) -> None:
        """It is in the journal. What it cannot be cut back to any more is forgotten, as a start would."""
        self._known.append(configuration)
        while len(self._known) > 1 and self._known[1].index <= self._journal.base_index:
            del self._known[0]

    def truncated(self, index: int) -> bool:
        """The journal ends before a Raft index; True if another configuration counts now."""
        before = len(self._known)
        while len(self._known) > 1 and self._known[-1].index >= index:
            self._known.pop()
        return len(self._known) != before

    def seats(self, applied_index: int) -> tuple[Seat, ...]:
        """Whom to have links with: until the current one is committed also those of the one before, it may return."""
        current = self.current
        if current.index <= applied_index or len(self._known) == 1:
            return current.seats
        return (*current.seats, *(seat for seat in self._known[-2].seats if seat.node not in current.ids))

    def may_campaign(self, commit_index: int) -> bool:
        """It votes; or did until an entry that may never be committed, and that perhaps only this node has."""
        if self.rejoining is not None or self.lacks:
            return False
        if self.node_id in self.current.voters:
            return True
        return self.current.index > commit_index and len(self._known) > 1 and self.node_id in self._known[-2].voters

    def began_anew(self, applied_index: int) -> bool:
        """The log says, committed and handed up here, that this node has forgotten what it promised."""
        token = None if self.rejoining is None else self.rejoining.token
        return token is not None and any(
            each.index <= applied_index and each.rejoined_with(self.node_id) == token for each in self._known
        )

    def removed_at(self, applied_index: int) -> bool:
        """It was a member, and is not any more, for good."""
        return self.node_id in self.current.removed and self.current.index <= applied_index


def parse(command: bytes, index: int, term: int) -> Configuration | None:
    """The configuration that a Raft entry holds; None for any other entry. Raises CorruptData."""
    if command[:1] != KIND_CONTROL:
        return None
    fields = unpack_control(command)
    if fields is None or fields.get("do") != MEMBERS:
        return None
    return Configuration.parse(fields, term=term, index=index)
