"""Reads of a partition that a node has not heard of: one that is behind does not say that there is none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.reading import reads
from dispatcher.reading.views import Views
from dispatcher.sessions.answering import Answering
from dispatcher.sessions.waits import Waits
from logboom.errors import LogboomError, NoSuchPartition, NotLeader, QuotaExceeded
from logboom.settings import Settings
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.scans_world import Backend


class Behind(Backend):
    """It knows of partition 0 alone; ``leads``: asked for an index, it has heard of ``created``, too."""

    def __init__(self, *, leads: bool, created: int | None = None) -> None:
        super().__init__(scans_max=1)
        self.leads, self.created, self.asked = leads, created, 0
        self.workers: Any = (0,)
        self.views: Any = Views(self, views_max=0)  # type: ignore[arg-type]
        """Whoever comes so far is told that there are too many."""

    def partition_ids(self) -> Any:
        return self.workers

    def look(self) -> None:
        """Nothing has to be done."""

    def recovered(self, partitions: Any) -> bool:
        return bool(partitions)

    def missing(self, partition: int) -> LogboomError:
        return NoSuchPartition(f"partition {partition} does not exist", partition_id=partition, partitions=1)

    async def read_index(self, deadline: float, *, lone: bool = False) -> int:
        self.asked += 1
        if not self.leads:
            raise NotLeader("n2 leads", leader="n2:1")
        self.workers = (0, self.created)
        return 7


async def view(node: Any, header: dict[str, Any]) -> None:
    """As a session has it answered. Raises what its client is told."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    client: Any = SimpleNamespace(
        fail=lambda _, error: told.set_exception(error), connection=SimpleNamespace(peer_identities=())
    )
    pace: Any = SimpleNamespace(turn=lambda _: asyncio.sleep(0))
    service: Any = SimpleNamespace(backend=node, settings=Settings())
    answering = Answering(client, service, partitions=Waits(node, client).partitions, pace=lambda: pace)
    answering.answer(Frame(Kind.VIEW_SCAN, 1, header))
    await told


async def read(node: Any, kind: Kind, **header: Any) -> None:
    asked = {"partition": 9, "keys": [b"k"], **header}
    if kind is Kind.VIEW_SCAN:
        await view(node, {"partitions": [0, 9], **header})
    elif kind is Kind.GET:
        await reads.get(node, Frame(kind, 1, asked), 5.0)
    else:
        async for _ in node.scans.scan(asked, 5.0):
            pass


@pytest.mark.parametrize("kind", [Kind.GET, Kind.SCAN, Kind.VIEW_SCAN])
async def test_who_does_not_lead_says_so_first(kind: Kind) -> None:
    """A follower that had not heard of a partition said that it does not exist."""
    for header in ({}, {"read": "linearizable"}):
        with pytest.raises(NotLeader):
            await read(Behind(leads=False), kind, **header)


@pytest.mark.parametrize("kind", [Kind.GET, Kind.SCAN])
async def test_nor_does_it_answer_of_a_partition_that_it_knows(kind: Kind) -> None:
    """Whatever else is said of a read, or nothing at all: a linearizable one is the leader's."""
    for header in ({}, {"read": "linearizable"}):
        node = Behind(leads=False)
        with pytest.raises(NotLeader):
            await read(node, kind, partition=0, **header)
        assert node.asked == 1


@pytest.mark.parametrize("kind", [Kind.GET, Kind.SCAN, Kind.VIEW_SCAN])
async def test_who_leads_has_heard_of_all_that_was_created_before(kind: Kind) -> None:
    with pytest.raises(NoSuchPartition):
        await read(Behind(leads=True), kind)
    made: Any = Behind(leads=True, created=9)
    assert await reads.partition_of_read(made, {"partition": 9}, 5.0) == 9
    assert await reads.partition_of_read(made, {"partition": 0}, 5.0) == 0
    assert made.asked == 1, "nobody is asked about what is known"


@pytest.mark.parametrize("mode", ["stale", "at_least", "bounded"])
async def test_of_other_reads_a_node_says_what_it_knows(mode: str) -> None:
    for kind in (Kind.GET, Kind.VIEW_SCAN):
        node = Behind(leads=False)
        with pytest.raises(NoSuchPartition):
            await read(node, kind, read=mode, at_least=1)
        assert not node.asked


@pytest.mark.parametrize("partitions", [[9, 0], None])
async def test_a_view_is_of_all_that_were_created_before(partitions: Any) -> None:
    """Of all, a node that had just come to lead took those that it knew of."""
    node = Behind(leads=True, created=9)
    asked: list[Any] = []

    def scan(partitions: Any, header: Any, deadline: float, **how: Any) -> Any:
        asked.append(sorted(partitions))
        return Views(node, views_max=0).scan(partitions, header, deadline, **how)  # type: ignore[arg-type]

    node.views = SimpleNamespace(scan=scan)
    with pytest.raises(QuotaExceeded):
        await view(node, {"partitions": partitions})
    assert asked == [[0, 9]]


async def test_of_what_it_knows_a_view_is_asked_for_at_once() -> None:
    for header in ({"partitions": [0]}, {"partitions": None, "read": "stale"}):
        node = Behind(leads=False)
        with pytest.raises(QuotaExceeded):
            await view(node, header)
        assert not node.asked
