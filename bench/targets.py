"""What a load does to any system: one command, one block, over a number of connections."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

VALUE_BYTES: Final = 256
KEYS: Final = 1_000_000
PARTITIONS: Final = 8
PREPARED: Final = 64
"""Blocks are made before the clock runs and used in turn: the systems are measured, not the making."""
PREPARED_BYTES: Final = 64 << 20
"""At most so much of them per client."""
SINGLES: Final = 4096
"""Single commands made beforehand."""

Operation = Callable[[], Awaitable[object]]
"""Does one thing, acknowledged. What it gives is awaited as it comes: no coroutine of ours around a client's future."""


@dataclass(frozen=True)
class Job:
    """What a client is to do, apart from how many at once."""

    endpoints: tuple[str, ...]
    seed: int = 1
    value_bytes: int = VALUE_BYTES
    partitions: int = PARTITIONS
    """Spread over so many partitions or streams, where the system has them."""
    machine: str = "kv"
    """logboom: the partitions' state machine."""
    wait: str = "applied"
    """logboom: what is waited for."""


class Target(Protocol):
    """One system, as a load sees it."""

    async def open(self, connections: int) -> None: ...

    def single(self, slot: int) -> Operation:
        """One command, over a connection and to a partition that ``slot`` says; several slots may share it."""

    def bulk(self, slot: int, records: int) -> Operation: ...

    async def drain(self) -> None:
        """Until what was acknowledged has been applied."""

    async def close(self) -> None: ...


def rows(rng: random.Random, count: int, value_bytes: int = VALUE_BYTES) -> list[tuple[bytes, bytes]]:
    """Keys out of a million, random values."""
    return [(b"k%015d" % rng.randrange(KEYS), rng.randbytes(value_bytes)) for _ in range(count)]


def prepared(block_bytes: int) -> int:
    """How many blocks of this size a client makes beforehand."""
    return max(4, min(PREPARED, PREPARED_BYTES // block_bytes))


def make(
    system: str,
    endpoints: list[str],
    seed: int,
    *,
    machine: str = "kv",
    wait: str = "applied",
    partitions: int = PARTITIONS,
    value_bytes: int = VALUE_BYTES,
) -> Target:
    """A client of one of ``bench.systems.SYSTEMS``; ``endpoints`` as its cluster's ``client_addresses`` says."""
    from bench.systems import SYSTEMS  # the systems know this module

    return SYSTEMS[system].target(Job(tuple(endpoints), seed, value_bytes, partitions, machine, wait))
