"""Batches that some node has found that nobody has: entries are acknowledged without them."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.entries.entry import Route


class Holes:
    """Until they come back: who has one on its disk again answers for it as for any other."""

    def __init__(self) -> None:
        self._routes: dict[bytes, Route] = {}
        self._back: set[tuple[str, bytes]] = set()
        """Hosts that have had one on their disk since they missed it."""

    def conceded(self, host: str, route: Route) -> None:
        """By this one; the others need not, and acknowledge without it, too."""
        self._routes[route.digest] = route
        self._back.discard((host, route.digest))

    def look(self, host: str, keeps: Callable[[Route], bool]) -> None:
        """``keeps``: it has that one, also after a power loss."""
        for digest, route in self._routes.items():
            if (host, digest) not in self._back and keeps(route):
                self._back.add((host, digest))

    def lost_disk(self, host: str) -> None:
        """Whatever it had is gone."""
        self._back = {each for each in self._back if each[0] != host}

    def excuse(self, host: str, digest: bytes, *, void: bool) -> bool:
        """It may have acknowledged an entry without this one, or need not keep it, as it was declared void since."""
        return digest in self._routes and (void or (host, digest) not in self._back)
