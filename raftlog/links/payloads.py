"""What the parent log needs to know of payloads. The partitions stay out of sight behind it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from logboom.errors import CorruptData, IndexCompacted, PartitionDestroyed
from logboom.types import PartitionId
from raftlog.entries.entry import Route
from raftlog.links.lacks import Lack

REMOVED: Final = (IndexCompacted, PartitionDestroyed)
"""A batch that was held, or that nobody needs any more, has no bytes here: a snapshot stands for it."""


class DamagedPayload(CorruptData):
    """A held batch that cannot be read back. Another node may have it."""

    def __init__(self, message: str, route: Route, *, at: object = None) -> None:
        """``at``: where it was read, as ``Payloads.lose`` knows it."""
        super().__init__(message)
        self.route = route
        self.at = at


class Payloads(Protocol):
    """The payload batches of one node."""

    def holds(self, route: Route) -> bool:
        """The batch with that digest ends at that index here: appended, synced with the next group at the latest."""
        ...

    def lack(self, route: Route) -> Lack:
        """Why a batch is not held."""
        ...

    def is_covered(self, route: Route) -> bool:
        """A snapshot on this node has what it did, though the state may have not: it must not be void."""
        ...

    def receive(self, raw: memoryview, *, behind: bytes = b"") -> Route | None:
        """Check and append a batch as tentative. ``behind``: digest of what the journal has in front of it.

        Returns its route, or None if it was held already or its predecessor is missing, other than that one (it
        will be asked for again, in order). Raises CorruptData for a batch that is not what its digest says.
        """
        ...

    def size(self, route: Route) -> int:
        """Bytes of a held batch."""
        ...

    def read(self, route: Route) -> bytes:
        """A held batch, raw. Blocking; off the loop. Raises DamagedPayload, or REMOVED where snapshots stand for it."""
        ...

    def write_again(self, acknowledged: Iterable[Route], carried: AbstractSet[bytes]) -> None:
        """At start, blocking: write and sync what was found and may not be on the disk.

        What was ``acknowledged`` is there, but for write-behind and batches whose digest is in ``carried``.
        """
        ...

    def doubt(self, lacking: AbstractSet[PartitionId]) -> None:
        """At start, behind ``write_again``, blocking: of these something is missing that was ``acknowledged``.

        That says nothing of the copy that is received in its place: the next ``write_again`` does not go by it there.
        """
        ...

    def lose(self, route: Route, *, at: object = None) -> bool:
        """A batch is damaged here: not held until it is received again. False: it was not held.

        Or it is no longer where it was read (``DamagedPayload.at``; None: wherever it is).
        """
        ...

    def concede(self, route: Route) -> bool:
        """Nobody has this batch: the log may go on behind a hole in its place. False: it is held, or cannot be a hole.

        A hole is not ``held``. It is filled by ``receive`` as soon as the batch turns up.
        """
        ...

    def lost(self) -> list[Route]:
        """At start: what nobody had below the journal's base, and is not void."""
        ...

    def is_hole(self, route: Route) -> bool:
        """There is a hole in its place here, conceded or voided."""
        ...

    def ended(self, route: Route) -> bool:
        """Its partition is destroyed, as far as this node has come: nobody waits for it here."""
        ...

    def begin_behind(self, route: Route) -> None:
        """No node has it, and others have removed it: so has this one, with all in front of it, if it needs neither."""
        ...

    def seal(self, digest: bytes, *, on: bool) -> None:
        """A leader is about to void it: ``receive`` takes it no more, until it is taken off again."""
        ...
