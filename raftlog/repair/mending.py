"""What is missing here, as it concerns the engine: whether this node may lead, and what the others are told."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.engine import Engine
from raftlog.entries.entry import Route, unpack_routes
from raftlog.events import RaftEvents
from raftlog.journal.journal import Journal
from raftlog.links.payloads import DamagedPayload, Payloads
from raftlog.repair.repair import Repair
from raftlog.repair.standing import Standing
from raftlog.repair.wanted import Wanted


class Mending:
    """Of one node. Drives ``repair``."""

    def __init__(
        self,
        *,
        engine: Engine,
        journal: Journal,
        payloads: Payloads,
        events: RaftEvents,
        repair_of: Callable[[Callable[[DamagedPayload], None], Callable[[], Standing]], Repair],
        poke: Callable[[], None],
    ) -> None:
        """``repair_of`` makes it: of what to do with damage that it finds, and of where this node stands."""
        self._engine = engine
        self._journal = journal
        self._payloads = payloads
        self._events = events
        self._poke = poke
        self.repair = repair_of(self.damaged, self._standing)
        self._term = engine.term
        """As of the last turn."""
        self._let_in: list[Wanted] = []
        """Of the message that is at the gate: what may pass on its leader's word alone."""

    def _standing(self) -> Standing:
        engine = self._engine
        return Standing(engine.term, engine.leader, engine.is_leader)

    def turn(self) -> None:
        """Every turn."""
        term = self._engine.term
        if term != self._term:
            # Whether something is missing or not: what others were to declare void is sealed here all the same.
            self._term = term
            self.repair.follow_term()
        if self.repair.active:
            self.repair.work()
        if self.repair.active or self.repair.news:
            self._follow()

    def _follow(self) -> None:
        may_lead = not self.repair.blocked
        if may_lead and not self._engine.may_lead and self.repair.doubts:
            self._engine.give_way()
        self._engine.may_lead = may_lead
        if self.repair.news:
            self.repair.news = False
            self._events.repaired()

    def may_pass(self, route: Route, index: int, term: int) -> bool:
        """The entry at ``index``, which routes this, may enter the journal: the leader of ``term`` sends it."""
        if self._payloads.holds(route):
            return True
        if not self.repair.may_pass(route, term):
            return False
        self._let_in.append(Wanted(route, index))
        return True

    def passed(self) -> None:
        """The engine has what may pass. What it has taken of that is missing from now on.

        It need not take any; and the message may have been cut in front of it, for something else.
        """
        if not self._let_in:
            return
        let_in, self._let_in = self._let_in, []
        for wanted in let_in:
            if not wanted.is_cut_off(self._journal):
                self.repair.let_in(wanted)

    def damaged(self, damage: DamagedPayload) -> None:
        """A batch that was held cannot be read: fetch it from a peer; until it is back, do not lead."""
        route = damage.route
        if self._payloads.lose(route, at=damage.at):
            self.repair.damaged(Wanted(route, self._uncommitted_index(route)))
            self._engine.may_lead = False
            self._poke()

    def _uncommitted_index(self, route: Route) -> int | None:
        rest = self._journal.after(self._engine.applied_index)
        found = (index for command, index, _ in rest if route.digest in {r.digest for r in unpack_routes(command)})
        return next(found, None)

    def hole_committed(self, route: Route) -> None:
        """It was handed up without its payload."""
        self.repair.committed(route)
        self._follow()
        self._poke()

    def voided(self, digest: bytes) -> None:
        """It counts as nothing: nobody needs it any more."""
        self.repair.voided(digest)
        self._follow()
