"""How many partitions each node has files for: who leads creates none that another could not open. Sans-io.

Where a creation is handed up nobody can refuse it any more. A node tells its peers in PROGRESS frames how many it can
hold, over a new link and when that has changed. What one has said counts while it is away, too: it will come back to
what was created meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

from logboom.errors import InvalidRequest, ProtocolError
from logboom.types import NodeId
from logboom.wire import Kind, shown

LOOK_S: Final = 1.0
"""Between two looks at what this process may still open."""
PLENTY: Final = 4096
"""Who has room for so many more need not count."""


class Sender(Protocol):
    """raftlog.links.links.Links, as far as it is needed."""

    def send(self, peer: NodeId, kind: Kind, header: dict[str, object]) -> bool:
        """False: not now."""
        ...


class Capacity:
    """How many partitions this node has room for, and the others, as they say."""

    def __init__(
        self, *, links: Callable[[], Sender], room: Callable[[], int | None], living: Callable[[], int]
    ) -> None:
        """``room``: for so many more this process has files, None: any number. ``living``: those it has, or opens."""
        self._links = links
        self._room = room
        self._living = living
        self._own: int | None = None
        self._look_at = 0.0
        self._untold: set[NodeId] = set()
        self._linked: set[NodeId] = set()
        self._said: dict[NodeId, int | None] = {}

    def tell(self, now: float) -> None:
        """Those who have not heard it; now and then again, should a link have been full."""
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            own = self._holds()
            if own != self._own:
                self._own = own
                self._untold |= self._linked
        for peer in sorted(self._untold):
            if self._links().send(peer, Kind.PROGRESS, {"durable": [], "holds": self._own}):
                self._untold.discard(peer)

    def _holds(self) -> int | None:
        room = self._room()
        return None if room is None or room >= PLENTY else self._living() + room

    def heard(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """A PROGRESS frame. Raises ProtocolError."""
        if "holds" in header:
            holds = header["holds"]
            if holds is not None and (type(holds) is not int or holds < 0):
                raise ProtocolError(f"PROGRESS with holds {shown(holds)}")
            self._said[peer] = holds

    def peer_up(self, peer: NodeId) -> None:
        """A new link: it says it anew, if it is of a release that does."""
        self._said.pop(peer, None)
        self._linked.add(peer)
        self._untold.add(peer)

    def peer_down(self, peer: NodeId, *, member: bool) -> None:
        """What a member has said counts on."""
        self._linked.discard(peer)
        self._untold.discard(peer)
        if not member:
            self._said.pop(peer, None)

    def members_changed(self, members: Collection[NodeId]) -> None:
        """Of others nobody needs to know any more, once they are gone."""
        self._said = {peer: said for peer, said in self._said.items() if peer in members or peer in self._linked}

    def check(self, members: Collection[NodeId], partitions: int) -> None:
        """Raises InvalidRequest, naming the first of these that cannot hold so many."""
        for peer in sorted(members):
            holds = self._said.get(peer)
            if holds is not None and holds < partitions:
                raise InvalidRequest(
                    f"no room for another partition on {peer}: it has file descriptors for {holds} at most, and there "
                    f"would be {partitions}; see `ulimit -n` there"
                )
