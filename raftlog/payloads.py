"""What the parent log needs to know of payloads. The partitions stay out of sight behind it."""

from __future__ import annotations

from typing import Protocol

from raftlog.entry import Route


class Payloads(Protocol):
    """The payload batches of one node."""

    def holds(self, route: Route) -> bool:
        """The batch with that digest ends at that index here: appended, synced with the next group at the latest."""
        ...

    def may_be_refetched(self, route: Route) -> bool:
        """Write-behind: the batch may be missing after a power loss though its entry was acknowledged."""
        ...

    def receive(self, raw: memoryview) -> Route | None:
        """Check and append a batch as tentative.

        Returns its route, or None if it was held already or its predecessor is missing (it
        will be asked for again, in order). Raises CorruptData for a batch that is not what
        its digest says.
        """
        ...

    def size(self, route: Route) -> int:
        """Bytes of a held batch."""
        ...

    def read(self, route: Route) -> bytes:
        """A held batch, raw. Blocking; off the loop. Raises CorruptData."""
        ...
