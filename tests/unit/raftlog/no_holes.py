"""The part of ``Payloads`` that concerns batches that nobody has, for stores that never go on without one."""

from __future__ import annotations

from raftlog.entries.entry import Route


class NoHoles:
    def is_covered(self, route: Route) -> bool:
        return False

    def concede(self, route: Route) -> bool:
        return False

    def is_hole(self, route: Route) -> bool:
        return False

    def lost(self) -> list[Route]:
        return []

    def ended(self, route: Route) -> bool:
        return False

    def begin_behind(self, route: Route) -> None:
        pass

    def seal(self, digest: bytes, *, on: bool) -> None:
        pass
