"""Reads of a partition that a node has not heard of: one that is behind does not say that there is none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.backend import Backend as PipelineBackend
from dispatcher.reading import reads
from dispatcher.reading.views import Views
from dispatcher.sessions.answering import Answering
from dispatcher.sessions.named import Named
from logboom.errors import InvalidRequest, LogboomError, NoSuchPartition, NotLeader, QuotaExceeded, Unavailable
from logboom.settings import ReadSettings, Settings
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


def asked(node: Any, frame: Frame, *names: str) -> tuple[Answering, asyncio.Future[None]]:
    """As a session has it answered, of a client with these names; what he is told in the end."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    client: Any = SimpleNamespace(
        fail=lambda _, error: told.set_exception(error), connection=SimpleNamespace(peer_identities=names)
    )
    pace: Any = SimpleNamespace(turn=lambda _: asyncio.sleep(0), expect=lambda _: 0, was=lambda *_: None)
    service: Any = SimpleNamespace(backend=node, settings=Settings())
    answering = Answering(client, service, partitions=Named(node).partitions, pace=lambda: pace)
    if frame.kind is Kind.GET:
        answering.get(frame, 5.0)
    else:
        answering.answer(frame)
    return answering, told


async def view(node: Any, header: dict[str, Any]) -> None:
    """Raises what its client is told."""
    await asked(node, Frame(Kind.VIEW_SCAN, 1, header))[1]


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
    scanned, anew = list[Any](), list[Any]()

    def scan(partitions: Any, header: Any, deadline: float, **how: Any) -> Any:
        scanned.append(sorted(partitions))
        anew.append(how.get("anew"))
        return Views(node, views_max=0).scan(partitions, header, deadline, **how)  # type: ignore[arg-type]

    node.views = SimpleNamespace(scan=scan)
    with pytest.raises(QuotaExceeded):
        await view(node, {"partitions": partitions})
    assert scanned == [[0, 9]]
    if partitions is None:
        node.workers = (0, 9, 11)
        assert sorted(anew[0]()) == [0, 9, 11], "which there are is asked when it is taken"
    else:
        assert anew == [None], "those that are named are all that it is of"


@pytest.mark.parametrize("kind", [Kind.GET, Kind.SCAN, Kind.VIEW_SCAN])
@pytest.mark.parametrize("names", [("spark", "job"), ()])
async def test_whoever_waits_does_so_in_a_place_of_his_own(kind: Kind, names: tuple[str, ...]) -> None:
    """And not in one of the node's."""
    node: Any = Behind(leads=False)
    node.views = Views(node, views_max=1)
    node.partitioning = SimpleNamespace(kind=lambda _: SimpleNamespace(state_machine="kv"))
    askers = list[Any]()

    async def wait_applied(*_: Any, asker: Any = None) -> None:
        askers.append(asker)
        raise Unavailable("enough")

    node.wait_applied = wait_applied
    header = {"partition": 0, "partitions": [0], "keys": [b"k"], "read": "at_least", "at_least": 7}
    answering, told = asked(node, Frame(kind, 1, header), *names)
    with pytest.raises(Unavailable, match="enough"):
        await told
    assert askers == [(answering, "job, spark" if names else answering)]


def test_what_views_hold_is_bounded_by_the_settings() -> None:
    node: Any = object.__new__(PipelineBackend)
    node.settings = Settings(reads=ReadSettings(views_max=3, memory_bytes=99 << 20))
    with pytest.raises(InvalidRequest, match="0 partitions"):
        node.views._check(())
    node.views.open = 3
    with pytest.raises(QuotaExceeded):
        node.views._check(())
    assert node.views._many.bytes_max == 99 << 20


async def test_of_what_it_knows_a_view_is_asked_for_at_once() -> None:
    for header in ({"partitions": [0]}, {"partitions": None, "read": "stale"}):
        node = Behind(leads=False)
        with pytest.raises(QuotaExceeded):
            await view(node, header)
        assert not node.asked
