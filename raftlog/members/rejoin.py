"""Coming back after the journal was damaged, or the disk lost: this node's part (docs/decisions/0019, 0031).

It has begun another journal and does not know whom it voted for, nor what it acknowledged. To every leader it is like
one that has died, and somebody new under its name: it says so in every reply, gives no vote, shows no watermark. When
the log says that it begins anew, and that is committed and handed up here, it is what the log makes of it: a member
that joins, and a voter again once it has caught up.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from raftlog.engine import Engine
from raftlog.journal.membership import Membership
from raftlog.links.links import Links

log = structlog.get_logger(__name__)


class Rejoin:
    """Of one node; does nothing where nothing was lost."""

    def __init__(self, *, membership: Membership, engine: Engine, links: Links) -> None:
        self._membership = membership
        self._engine = engine
        self._links = links
        self._ending = False
        links.rejoining = membership.rejoining is not None
        if links.directories is not None:
            links.directories.forget = self._disk_lost
            links.directories.leader = lambda: engine.leader

    def _disk_lost(self, lineage: str) -> bool:
        """Others have met this node with another disk: what it is asked is not what it would have answered."""
        journal, links = self._engine.journal, self._links
        if self._membership.forget is None or journal.last_index > 1:
            return False
        foreign = links.identity.lineage not in (None, lineage)
        rejoining = self._membership.rejoining = self._membership.forget(foreign)
        links.rejoining = True
        if foreign:  # of the cluster's first history, as every directory that is begun by itself
            links.identity = replace(links.identity, lineage=None)
        if links.directories is not None:
            links.directories.renew(rejoining.token)
        for peer in list(links.links):  # they have to hear it before anything else
            links.links[peer].connection.close()
        log.warning(
            "disk_lost",
            advice="it begins anew, and votes again once the others have taken it back; where only one of them votes, "
            "nobody leads without this node, and the cluster begins again with that one (`logboom recover`)",
        )
        return True

    def follow(self) -> None:
        """Every turn: is it over?"""
        waiting = self._membership.rejoining
        # Not before it is committed: what is cut off again would leave a voter that has forgotten its votes.
        if waiting is None or self._ending or not self._membership.began_anew(self._engine.applied_index):
            return
        self._ending = True
        waiting.over(self._over)

    def _over(self) -> None:
        self._membership.rejoining, self._links.rejoining = None, False
        log.warning("rejoined", raft_index=self._engine.applied_index)
