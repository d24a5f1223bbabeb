"""Reads of a partition that a node has not heard of: one that is behind does not say that there is none."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.reading import reads
from logboom.errors import LogboomError, NoSuchPartition, NotLeader
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.scans_world import Backend


class Behind(Backend):
    """It knows of partition 0 alone; ``leads``: asked for an index, it has heard of ``created``, too."""

    def __init__(self, *, leads: bool, created: int | None = None) -> None:
        super().__init__(scans_max=1)
        self.leads, self.created, self.asked = leads, created, 0
        self.workers: Any = (0,)

    def missing(self, partition: int) -> LogboomError:
        return NoSuchPartition(f"partition {partition} does not exist", partition_id=partition, partitions=1)

    async def read_index(self, deadline: float, *, lone: bool = False) -> int:
        self.asked += 1
        if not self.leads:
            raise NotLeader("n2 leads", leader="n2:1")
        self.workers = (0, self.created)
        return 7


async def read(node: Any, kind: Kind, **header: Any) -> None:
    asked = {"partition": 9, "keys": [b"k"], **header}
    if kind is Kind.GET:
        await reads.get(node, Frame(kind, 1, asked), 5.0)
    else:
        async for _ in node.scans.scan(asked, 5.0):
            pass


@pytest.mark.parametrize("kind", [Kind.GET, Kind.SCAN])
async def test_who_does_not_lead_says_so_first(kind: Kind) -> None:
    """A follower that had not heard of a partition said that it does not exist."""
    for header in ({}, {"read": "linearizable"}):
        with pytest.raises(NotLeader):
            await read(Behind(leads=False), kind, **header)


@pytest.mark.parametrize("kind", [Kind.GET, Kind.SCAN])
async def test_who_leads_has_heard_of_all_that_was_created_before(kind: Kind) -> None:
    with pytest.raises(NoSuchPartition):
        await read(Behind(leads=True), kind)
    made: Any = Behind(leads=True, created=9)
    assert await reads.partition_of_read(made, {"partition": 9}, 5.0) == 9
    assert await reads.partition_of_read(made, {"partition": 0}, 5.0) == 0
    assert made.asked == 1, "nobody is asked about what is known"


@pytest.mark.parametrize("mode", ["stale", "at_least", "bounded"])
async def test_of_other_reads_a_node_says_what_it_knows(mode: str) -> None:
    node = Behind(leads=False)
    with pytest.raises(NoSuchPartition):
        await read(node, Kind.GET, read=mode, at_least=1)
    assert not node.asked
