"""What may be used since all nodes know it, and the parent log says so (docs/decisions/0036-txn.md).

Nobody asks before somebody wants to use it: until then nodes of an earlier release may come and go. From then on one
of those that is handed the log ends, before it applies anything that it does not understand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from logboom.errors import IncompatibleVersion, Unavailable
from raftlog.entries.agreed import agreeing

if TYPE_CHECKING:
    from dispatcher.pipeline.surroundings import Surroundings

log = structlog.get_logger(__name__)

AGAIN_S = 0.02


class Agreement:
    """One node's part: what it does about it as a leader."""

    def __init__(self, pipeline: Surroundings) -> None:
        self._pipeline = pipeline
        self._proposed: dict[str, int] = {}
        """Features that this leader has proposed to use, and in which term."""
        self._known_since: dict[str, float] = {}
        """All members are there, and each has said that it can."""

    def check(self, feature: str) -> None:
        """Leader only: it may be used. Raises IncompatibleVersion while a member does not know it, else Unavailable.

        The latter while one is away from which this node has not heard it since it started, and for the moment until
        what all know is in the log. One that was put back to an earlier release while it was away ends when it comes.
        """
        pipeline = self._pipeline
        if feature in pipeline.parent.agreed:
            return
        links, seats = pipeline.raft.links, pipeline.members.seats
        others = [seat.node for seat in seats if seat.node != pipeline.node_id]
        earlier = [node for node in others if links.connected(node) and not links.speaks(node, feature)]
        if earlier:
            names = ", ".join(earlier)
            raise IncompatibleVersion(
                f"{names}: of an earlier release, which does not know {feature}: it can be used when all are upgraded",
                found=None,
                supported=feature,
            )
        away = [node for node in others if not links.connected(node) and not links.knew(node, feature)]
        if away:
            names = ", ".join(away)
            raise Unavailable(
                f"{feature} is used for the first time, and {pipeline.node_id}, which leads, has not heard since it "
                f"started whether {names} can. Start {names}; what is gone for good: "
                f"`logboom members remove {away[0]}`",
                retry_after=1.0,
            )
        self._propose(feature)
        raise Unavailable(f"{feature} is being agreed on; try again", retry_after=AGAIN_S)

    def consider(self, feature: str, now: float) -> None:
        """Now and then: have it agreed on, unasked, where that closes no way back that somebody may still want.

        That is where nothing was ordered yet, and where all have known it for ``raft.agree_after_s``.
        """
        pipeline = self._pipeline
        if feature in pipeline.parent.agreed or not pipeline.raft.admits:
            return
        links = pipeline.raft.links
        others = [seat.node for seat in pipeline.members.seats if seat.node != pipeline.node_id]
        if not all(links.connected(node) and links.speaks(node, feature) for node in others):
            self._known_since.pop(feature, None)
            return
        since = self._known_since.setdefault(feature, now)
        if pipeline.parent.global_index == 0 or now - since >= pipeline.settings.raft.agree_after_s:
            self._propose(feature)

    def lost_leadership(self) -> None:
        """Whoever is put back while others lead is not seen from here."""
        self._known_since.clear()

    def _propose(self, feature: str) -> None:
        raft = self._pipeline.raft
        term = raft.engine.term
        if self._proposed.get(feature) != term:  # what is lost is lost with the term
            raft.propose_control(agreeing([feature]))
            self._proposed[feature] = term
            log.info("agreeing", feature=feature)
