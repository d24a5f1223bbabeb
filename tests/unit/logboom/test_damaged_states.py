"""A state that is damaged at one node, and made anew there, while others have it whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from logboom import Client
from logboom.errors import CorruptData, Unavailable
from logboom.records import RecordBlock
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, entries, fails

DAMAGED = fails(CorruptData("the state of partition 0 is damaged here; ask another node"))
READS = (Kind.GET, Kind.SCAN, Kind.VIEW_SCAN)


def got(session: Session, frame: Frame) -> None:
    block = RecordBlock.from_columns(payloads=[b"bA"])
    header = {"found": [True], "metadata": len(block.metadata), "data": len(block.data), "global_index": 5}
    session.send(frame, Kind.VALUES, header, [bytes(block.metadata), bytes(block.data)])


def scanned(session: Session, frame: Frame) -> None:
    entries(session, frame, [b"a"], more=False)


def viewed(session: Session, frame: Frame) -> None:
    block = RecordBlock.from_columns(payloads=[b"bA"], keys=[b"a"])
    header = {"count": 1, "metadata": len(block.metadata), "data": len(block.data), "global_index": 5, "partition": 0}
    session.send(frame, Kind.ENTRIES, header, [bytes(block.metadata), bytes(block.data)])


def sound(node: FakeNode) -> None:
    node.answers |= {Kind.GET: got, Kind.SCAN: scanned, Kind.VIEW_SCAN: viewed}


def damaged(nodes: Sequence[FakeNode]) -> None:
    for node in nodes:
        node.answers |= dict.fromkeys(READS, DAMAGED)


async def read(boom: Client, kind: Kind, **how: Any) -> Any:
    if kind is Kind.GET:
        return await boom.get(0, b"a", **how)
    if kind is Kind.SCAN:
        [found] = [value async for _, value in boom.scan(0, limit=5, **how)]
    else:
        [found] = [each.value async for each in boom.scan_view([0], **how)]
    return found


def asked(nodes: Sequence[FakeNode]) -> list[int]:
    return [sum(len(node.of(kind)) for kind in READS) for node in nodes]


@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("how", [{"at_least": 3}, {"stale": True}, {"max_staleness": 1.0}])
async def test_what_any_node_may_answer_one_that_has_it_whole_does(kind: Kind, how: dict[str, Any]) -> None:
    """A client that came to the one where it was damaged was told so, for good, beside two that had it whole."""
    how = {"at_least": 3} if kind is Kind.VIEW_SCAN else how
    async with cluster(3) as nodes, Client(nodes[0].address) as boom:
        damaged(nodes[:2])
        sound(nodes[2])
        for _ in range(6):  # whoever's turn it is
            assert await read(boom, kind, **how) == b"A"
        assert asked(nodes)[2] == 6


@pytest.mark.parametrize("kind", READS)
async def test_where_all_have_it_damaged_each_says_so_once(kind: Kind) -> None:
    async with cluster(3) as nodes, Client(nodes[0].address) as boom:
        damaged(nodes)
        await boom._cluster.any()
        with pytest.raises(CorruptData, match="ask another node"):
            await read(boom, kind, at_least=3)
        assert sorted(asked(nodes)) == [1, 1, 2]


@pytest.mark.parametrize("kind", READS)
async def test_a_node_that_is_named_and_one_that_leads_speak_for_themselves(kind: Kind) -> None:
    async with cluster(2) as nodes, Client(nodes[0].address) as boom:
        damaged(nodes[:1])
        sound(nodes[1])
        for how in ({"at_least": 3, "node": "n1"}, {}):
            with pytest.raises(CorruptData):
                await read(boom, kind, **how)
        assert asked(nodes) == [2, 0]


async def test_who_cannot_be_reached_keeps_nobody_waiting() -> None:
    async with cluster(3) as nodes, Client(nodes[0].address) as boom:
        damaged(nodes[:1])
        sound(nodes[2])
        await boom._cluster.any()
        await nodes[1].stop()
        assert await read(boom, Kind.GET, at_least=3) == b"A"
        await nodes[2].stop()
        with pytest.raises((CorruptData, Unavailable)):
            await read(boom, Kind.GET, at_least=3, timeout=1.0)


async def test_where_one_has_it_damaged_the_others_are_asked_in_turn() -> None:
    """The same one was asked each time, which was starting again, and never the third, which had it whole."""
    async with cluster(3) as nodes, Client(nodes[0].address) as boom:
        damaged(nodes[:1])
        nodes[1].answers |= dict.fromkeys(READS, fails(Unavailable("recovering", retry_after=0.001)))
        sound(nodes[2])
        for _ in range(6):
            assert await read(boom, Kind.GET, at_least=3) == b"A"
        assert asked(nodes)[2] == 6


async def test_one_that_is_no_member_any_more_is_not_asked() -> None:
    async with cluster(3) as nodes, Client(nodes[0].address) as boom:
        damaged(nodes[:1])
        nodes[1].answers |= dict.fromkeys(READS, fails(Unavailable("nothing new comes here", retry_after=0.001)))
        sound(nodes[2])
        for node in nodes:
            await boom._cluster.connection(node.address)
        boom._cluster._removed = frozenset([nodes[1].name])
        for _ in range(6):
            assert await read(boom, Kind.GET, at_least=3) == b"A"
        assert asked(nodes)[1:] == [0, 6]
