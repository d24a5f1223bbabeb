"""Being fed with an empty disk, without having promised anything that matters: this node's part (docs/decisions/0031).

Of two voters the other one has everything, and needs this one's vote. What it feeds begins with what both have been
through, and there may be times at which this node alone voted. It leads nobody with that: it waits for the
configuration that the other one has told it of.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from raftlog.engine import Engine
from raftlog.journal.membership import Membership
from raftlog.links.hello import Claim
from raftlog.links.links import Links

log = structlog.get_logger(__name__)


class Refilling:
    """Of one node; does nothing where others know of no configuration that is yet to come here."""

    def __init__(self, *, membership: Membership, engine: Engine, links: Links) -> None:
        self._membership = membership
        self._engine = engine
        self._links = links
        self._ending = False
        if links.directories is not None:
            links.directories.wait_for = self._told
            links.directories.lacks = lambda: membership.lacks
            links.directories.empty = lambda: engine.journal.last_index == 1

    def _told(self, theirs: Claim, lineage: str, lost: bool) -> bool:  # noqa: FBT001 - as Directories has it
        """``lost``: it is empty, and was not before. True: it is of no history now, and takes that one with a link."""
        membership, links = self._membership, self._links
        own, known = links.identity.lineage, membership.refill
        foreign = own not in (None, lineage)
        if membership.wait_for is None or (foreign and not (lost and own == "")):
            return False  # of a history that was begun here on purpose
        _, index, term = self._engine.journal.entry(self._engine.journal.last_index)
        reached = (term, index)
        if known is not None and known.lineage == lineage:
            reached = max(reached, (known.term, known.index))
        if theirs.index == 0 or (theirs[:2] <= reached and not foreign):
            return False
        membership.refill, self._ending = membership.wait_for(theirs.term, theirs.index, lineage, foreign), False
        if foreign:  # as every directory that is begun by itself, of the cluster's first
            links.identity = replace(links.identity, lineage=None)
            for peer in list(links.links):  # of the one that it was begun in
                links.links[peer].connection.close()
        log.info("waits_for_members", term=theirs.term, index=theirs.index, members=list(theirs.ids))
        return foreign

    def follow(self) -> None:
        """Every turn: is it over?"""
        refill, engine = self._membership.refill, self._engine
        if refill is None or self._ending:
            return
        # Not before it is handed up: what is cut off again would leave a node that begins where it was before.
        reached = engine.term_at(engine.applied_index) or 0, engine.applied_index
        # Never, where it is fed by another history that it has taken since. With an empty journal it may be that it was
        # ended between the two of waiting and taking: told again, it goes on.
        other = self._links.identity.lineage not in (None, refill.lineage) and engine.journal.last_index > 1
        if reached < (refill.term, refill.index) and not other:
            return
        self._ending = True
        refill.over(self._over)

    def _over(self) -> None:
        if self._ending:
            self._membership.refill = None
