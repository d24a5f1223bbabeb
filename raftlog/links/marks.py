"""How far a member's journal had come when it was last heard of (docs/decisions/0034-rolled-back-disk.md).

A node whose disk, or whole machine, was put back to an earlier copy has forgotten votes and acknowledgements, and
cannot know it. The records of a journal are numbered from its first day on, and what is on the disk stays there, so the
number of the last one only grows. Nodes say it, and the others remember: who comes back with less is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from logboom.errors import ProtocolError
from logboom.types import NUMBER_MAX, NodeId

LIFE_BYTES: Final = 16
KEEP_BEATS: Final = 5
"""What was heard goes to the disk once in so many beats of the links, one each second."""


class Mark(NamedTuple):
    """Of one member's data directory."""

    directory: bytes
    life: bytes
    """Of its process: what that has in memory is not put back with a disk."""
    sequence: int
    """Records of its journal up to there had been synced."""


Heard = dict[NodeId, Mark]
"""By member."""
Keep = Callable[[Heard, Callable[[], None]], None]
"""Makes it durable, off the loop, and calls back. A failure is final, and then it does not."""


class Own(NamedTuple):
    """This node's."""

    life: bytes
    opened: int
    """Number of the last record that was found at the start: all that was ever said before rests on those."""
    now: Callable[[], int]
    """Number of the last record that is on the disk."""


class Marks:
    """What one node has heard, and says."""

    def __init__(self, own: Own, heard: Heard, keep: Keep) -> None:
        self.heard = heard
        self._own = own
        self._keep = keep
        self._changed = self._keeping = False
        self._beats = 0
        self._speaking: dict[NodeId, tuple[bytes, bytes]] = {}
        """Directory and life of who is at the other end."""

    def fields(self, about: Collection[NodeId]) -> dict[str, Any]:
        """Of PEER_HELLO. ``about``: those that are to hear what they have said."""
        own = self._own
        heard = [[peer, *self.heard[peer]] for peer in about if peer in self.heard]
        return {"life": own.life, "journal": [own.opened, own.now()], "heard": heard}

    def beat(self, *, rejoining: bool) -> dict[str, Any]:
        """Of PING, once a second: how far this node's journal is. Who has forgotten what it promised says nothing."""
        self._beats += 1
        if self._beats >= KEEP_BEATS and self._changed and not self._keeping:
            self._beats, self._keeping, self._changed = 0, True, False
            self._keep(dict(self.heard), self._is_kept)
        return {} if rejoining else {"journal": self._own.now()}

    def _is_kept(self) -> None:
        self._keeping = False

    def lacks(self, node: NodeId, directory: bytes, header: Mapping[str, Any], field: str = "heard") -> bool:
        """The other side has heard more of this directory's journal than there was when this process began."""
        mark = _heard(header.get(field)).get(node)
        if mark is None or mark.directory != directory:
            return False
        # Of this very process: a machine that was put back with its memory.
        return mark.sequence > (self._own.now() if mark.life == self._own.life else self._own.opened)

    def is_behind(self, peer: NodeId, header: Mapping[str, Any]) -> bool:
        """It has begun with less of its journal than was heard of it before."""
        mark, theirs = self.heard.get(peer), _said(header)
        if mark is None or theirs is None or header.get("directory") != mark.directory:
            return False
        life, opened, _ = theirs
        return life != mark.life and opened < mark.sequence

    def meet(self, peer: NodeId, header: Mapping[str, Any], keep: Callable[[NodeId], bool]) -> None:
        """It is introduced. ``keep``: who else is remembered."""
        theirs, directory = _said(header), header.get("directory")
        self._speaking.pop(peer, None)
        if theirs is None or not isinstance(directory, bytes):
            return
        life, _, now = theirs
        self._speaking[peer] = directory, life
        if header.get("rejoining") is not True:  # may not be taken back
            self.heard = {each: mark for each, mark in self.heard.items() if keep(each)}
            self._note(peer, now)

    def told(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """PING, an acknowledgement, or a vote. Raises ProtocolError."""
        said = header.get("journal")
        if said is None or peer not in self._speaking:
            return
        if not _is_sequence(said):
            raise ProtocolError("bad field journal")
        self._note(peer, said)

    def _note(self, peer: NodeId, sequence: int) -> None:
        before, (directory, life) = self.heard.get(peer), self._speaking[peer]
        if before is None or before[:2] != (directory, life) or before.sequence < sequence:
            self.heard[peer] = Mark(directory, life, sequence)
            self._changed = True


def _is_sequence(said: Any) -> bool:
    return type(said) is int and 0 <= said < NUMBER_MAX


def _said(header: Mapping[str, Any]) -> tuple[bytes, int, int] | None:
    """Life, and the journal at the start and now. None: of a release that says nothing."""
    life, journal = header.get("life"), header.get("journal")
    if life is None and journal is None:
        return None
    if isinstance(life, bytes) and len(life) == LIFE_BYTES and isinstance(journal, list) and len(journal) == 2:
        opened, now = journal
        if _is_sequence(opened) and _is_sequence(now):
            return life, opened, now
    raise ProtocolError("PEER_HELLO: bad field life or journal")


def _heard(said: Any) -> dict[str, Mark]:
    if said is None:
        return {}
    try:
        found: dict[Any, Mark] = {peer: Mark(directory, life, sequence) for peer, directory, life, sequence in said}
    except (TypeError, ValueError) as error:
        raise ProtocolError("PEER_HELLO: bad field heard") from error
    if not all(isinstance(peer, str) and _is_mark(*mark) for peer, mark in found.items()):
        raise ProtocolError("PEER_HELLO: bad field heard")
    return found


def _is_mark(directory: Any, life: Any, sequence: Any) -> bool:
    return isinstance(directory, bytes) and isinstance(life, bytes) and _is_sequence(sequence)
