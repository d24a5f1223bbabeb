"""Which tests share a process where several run them (``pytest -n``), and in which order they are given out.

pytest-xdist has marks for that (``--dist loadgroup``). It passes them on in the names of tests, which pytest 9.2 does
not let it change any more: it then gives out test by test, and says nothing (pytest-dev/pytest-xdist#1386). Here a
test's place in the tree says it, as with ``--dist loadscope``.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARE: Final = "tests/integration/spark/"
"""A JVM and a cluster for all modules in here."""
WAIT: Final = (SHARE, "tests/integration/", "tests/golden/", "tests/packaging/")
"""Most of their time is waiting, for processes."""
CALCULATE: Final = ("tests/storage/", "tests/unit/chaos/")
"""And here it is thinking."""


def scope(name: str) -> str:
    """Of a test: its module, or what that shares with others."""
    module = name.partition("::")[0]
    return SHARE if module.startswith(SHARE) else module


def thinking(of: str) -> int:
    """How much a scope thinks, rather than wait."""
    if of.startswith(CALCULATE):
        return len(WAIT) + 1
    return next((rank for rank, folder in enumerate(WAIT) if of.startswith(folder)), len(WAIT))


class FromBothEnds(LoadScopeScheduling):  # type: ignore[misc]
    """One process begins with what waits, the next with what thinks, so that these run side by side.

    Each takes the largest first, so that they come to their end together.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        sign = -1 if self.nodes.index(node) % 2 else 1
        queue = self.workqueue
        queue.move_to_end(min(queue, key=lambda of: (sign * thinking(of), -len(queue[of]))), last=False)
        super()._assign_work_unit(node)
