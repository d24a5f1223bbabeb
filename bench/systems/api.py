"""What a system offers to the benchmark, so that nothing outside this package asks which one it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from bench.systems.programs import Missing
from bench.targets import Job, Target

__all__ = ["Cluster", "Missing", "Probe", "Prober", "System"]


class Cluster(Protocol):
    """Server processes, three of them or one alone; a context manager that starts them and ends them."""

    nodes: list[str]
    addresses: dict[str, str]
    settings: str
    """What differs from the system's defaults, for people."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def pid(self, node: str) -> int:
        """Of a started node; processes under it count as the node's."""

    def leader(self) -> str:
        """The node that takes writes."""

    def client_addresses(self) -> tuple[str, ...]:
        """What a load's clients are told."""

    def kill(self, node: str) -> None:
        """SIGKILL, and wait until it is gone."""

    def start_node(self, node: str) -> None:
        """Start a node that has ended; does not wait."""

    def wait_serving(self) -> None:
        """Until writes are taken."""

    def stop(self) -> None:
        """End what was started."""

    def version(self) -> str:
        """As the system says itself."""


Probe = Callable[[int], Awaitable[bool]]
"""One small write with its number; False: refused, as it is while nobody leads."""
Prober = Callable[[Cluster, str], AbstractAsyncContextManager[Probe]]
"""Makes a probe whose connections are open before the leader, named second, is killed."""


@dataclass(frozen=True)
class System:
    """One of those that are compared."""

    name: str
    find: Callable[[], Path]
    """Its program. Raises Missing."""
    cluster: Callable[[Path, Path], Cluster]
    """From its program and an empty directory."""
    target: Callable[[Job], Target]
    prober: Prober | None = None
    """None: it has no automatic failover."""
    alone: Callable[[Path, Path], Cluster] | None = None
    """As ``cluster``, with one server, where that is of use to somebody."""
