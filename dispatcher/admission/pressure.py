"""What the other voters' signals withhold: who leads admits no more than a quorum can take. Sans-io.

A node tells its peers what its own signals say of it as a whole, in PROGRESS frames: over a new link, and when it has
changed. The leader ranks the voters by it and goes by the last one that it needs for a quorum: one full disk of three
holds nobody up, two do, before they stop. Who is not connected ranks last; without a quorum nothing is withheld for
that, as nothing is committed either. Is the full one the leader itself, another one should lead (``better``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from dispatcher.admission.admission import Admission
from dispatcher.admission.budgets import Verdict
from logboom.errors import ProtocolError
from logboom.types import NodeId
from logboom.wire import Kind, shown
from raftlog.entries.configuration import Configuration

SOURCE: Final = "voters"
"""Whose verdict this is: those of the node's own signals stay."""
NAME_MAX: Final = 256
NOT_THERE: Final = Verdict("not connected", 2.0)
AT_EASE: Final = Verdict("", 0.0)


class Sender(Protocol):
    """raftlog.links.links.Links, as far as it is needed."""

    def send(self, peer: NodeId, kind: Kind, header: dict[str, object]) -> bool:
        """False: not now."""
        ...


class Pressure:
    """What this node says of itself to others, and as a leader what the voters say."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        links: Callable[[], Sender],
        admission: Admission,
        eased: Callable[[], None],
    ) -> None:
        """``eased``: less is withheld than before."""
        self._node_id = node_id
        self._links = links
        self._admission = admission
        self._eased = eased
        self._voters: frozenset[NodeId] = frozenset()
        self._leads = False
        self._own: Verdict | None = None
        self._said: dict[NodeId, Verdict] = {}
        """What those who are connected have said last."""
        self._untold: set[NodeId] = set()

    # -- this node's own

    def said(self, verdict: Verdict | None) -> None:
        """By the signals of this node, now."""
        if verdict != self._own:
            self._own = verdict
            self._untold.update(self._said)
        self.tell()

    def tell(self) -> None:
        """Those who have not heard it; now and then again, should a link have been full."""
        for peer in sorted(self._untold):
            if self._links().send(peer, Kind.PROGRESS, {"durable": [], "pressure": self._row()}):
                self._untold.discard(peer)

    def _row(self) -> list[object]:
        return [] if self._own is None else [self._own.signal[:NAME_MAX], self._own.pressure]

    # -- the others'

    def heard(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """A PROGRESS frame. Raises ProtocolError."""
        if "pressure" in header and peer in self._said:
            self._said[peer] = _parse(peer, header["pressure"])
            self._judge()

    def peer_up(self, peer: NodeId) -> None:
        """A new link: nobody is under pressure who has not said so."""
        self._said[peer] = AT_EASE
        self._untold.add(peer)
        self.tell()
        self._judge()

    def peer_down(self, peer: NodeId) -> None:
        """The link is gone."""
        self._said.pop(peer, None)
        self._untold.discard(peer)
        self._judge()

    def members_changed(self, members: Configuration) -> None:
        """Who counts from now on."""
        self._voters = frozenset(members.voters)
        self._judge()

    def leads(self) -> None:
        """This node admits from now on."""
        self._leads = True
        self._judge()

    def lost_leadership(self) -> None:
        """Another one does."""
        self._leads = False
        self._judge()

    def better(self) -> tuple[NodeId, ...]:
        """Who should lead in this node's place, best first: this one takes nothing, and a quorum of the others could.

        All of them: the best may be without what it would have to have.
        """
        if not self._leads or self._own is None or self._own.pressure < 1:
            return ()
        said = {peer: self._said.get(peer, NOT_THERE).pressure for peer in self._voters - {self._node_id}}
        able = sorted((pressure, peer) for peer, pressure in said.items() if pressure < 1)
        return tuple(peer for _, peer in able) if 2 * len(able) > len(self._voters) else ()

    @property
    def own(self) -> Verdict | None:
        """What the signals of this node say of it."""
        return self._own

    def _judge(self) -> None:
        if self._admission.judge(None, self._verdict(), source=SOURCE):
            self._eased()

    def _verdict(self) -> Verdict | None:
        others = self._voters - {self._node_id}
        needed = len(self._voters) // 2 + 1 - (self._node_id in self._voters)
        if not self._leads or not 0 < needed <= len(others):
            return None
        ranked = sorted(
            (self._said.get(peer, NOT_THERE) for peer in others), key=lambda each: (each.pressure, each.signal)
        )
        last = ranked[needed - 1]
        return last if 0 < last.pressure <= 1 else None


def _parse(peer: NodeId, row: object) -> Verdict:
    if row == []:
        return AT_EASE
    if isinstance(row, list) and len(row) == 2:
        signal, pressure = row
        if type(signal) is str and 0 < len(signal) <= NAME_MAX and type(pressure) is float and 0 < pressure <= 1:
            return Verdict(f"{signal}@{peer}", pressure)
    raise ProtocolError(f"PROGRESS with pressure {shown(row)}")
