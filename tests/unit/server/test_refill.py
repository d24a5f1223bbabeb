"""refill.json: read back, removed, damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, Unavailable
from server.directory.manifest import sealed
from server.directory.refill import REFILL, Refills, decode, encode

DATA = Path("/n")
LINEAGE = "ab" * 16


class Late:
    """An offload that does nothing before it is asked to."""

    def __init__(self) -> None:
        self.waits: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.waits.append((job, done))

    def run_all(self) -> None:
        for job, done in self.waits:
            try:
                done(job(), None)
            except OSError as error:
                done(None, error)
        self.waits.clear()

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()

    async def close(self) -> None:
        """Nothing to end."""


class Node:
    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(0))
        self.disk.make_directory(DATA)
        self.late, self.fatal = Late(), list[BaseException]()

    def start(self) -> Refills:
        return Refills(self.disk, DATA, offload=self.late, fatal=self.fatal.append)

    def full(self, operation: str, path: Path, _size: int) -> None:
        raise OSError(28, "No space left on device", str(path))


def test_what_is_waited_for_outlives_a_power_loss_until_it_is_over() -> None:
    node, over = Node(), list[bool]()
    assert node.start().found() is None
    node.start().keep(3, 4, LINEAGE)
    node.disk.power_loss()
    found = node.start().found()
    assert found is not None
    assert (found.term, found.index, found.lineage) == (3, 4, LINEAGE)
    found.over(lambda: over.append(True))
    assert not over
    node.late.run_all()
    assert over
    node.disk.power_loss()
    assert node.start().found() is None


def test_what_is_over_removes_nothing_that_came_after_it() -> None:
    node = Node()
    refills = node.start()
    refills.keep(3, 4, LINEAGE).over(lambda: None)
    refills.keep(5, 9, LINEAGE)
    node.late.run_all()
    found = node.start().found()
    assert found is not None
    assert (found.term, found.index) == (5, 9)


def test_what_the_disk_refuses_ends_the_node() -> None:
    node = Node()
    refill = node.start().keep(3, 4, LINEAGE)
    node.disk.hook = node.full
    with pytest.raises(Unavailable):
        node.start().keep(5, 9, LINEAGE)
    refill.over(lambda: pytest.fail("it is not over"))
    node.late.run_all()
    assert len(node.fatal) == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        encode(3, 4, LINEAGE)[:-2],
        encode(3, 0, LINEAGE),
        encode(-1, 4, LINEAGE),
        encode(3, 4, "?"),
        sealed({"index": 4}),
        sealed({"index": 4, "term": 3}),
        sealed({"index": "4", "lineage": "", "term": 3}),
        sealed({"index": True, "lineage": "", "term": 3}),
        sealed({"index": 4, "lineage": None, "term": 3}),
        sealed({"index": 4, "lineage": "", "more": 1, "term": 3}),
    ],
)
def test_with_a_damaged_one_no_node_starts(raw: bytes) -> None:
    """It would lead with what is from before."""
    node = Node()
    node.disk.replace_file(DATA / REFILL, raw)
    with pytest.raises(CorruptData, match=r"refill\.json"):
        node.start().found()
    assert decode(encode(3, 4, LINEAGE), path="refill.json") == (3, 4, LINEAGE)
