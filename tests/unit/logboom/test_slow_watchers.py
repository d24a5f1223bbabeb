"""Who takes what he watches more slowly than it moves is told the newest, and nothing piles up in front of it."""

from __future__ import annotations

from typing import Any

from logboom import Client, Put
from logboom.client.arrivals import Stream
from logboom.wire import Frame, Kind
from tests.unit.logboom.fake_server import Session, cluster

MOVES = 3000


def mark(partition: int, applied: int) -> list[Any]:
    return [partition, applied, applied, applied, 0, applied, "running"]


def watched(rows: list[list[Any]], **more: Any) -> dict[str, Any]:
    head = {"node": "n1", "commit_index": 9, "minimum": 4, "first": False, "whole": True, "gone": []}
    return {**head, "watermarks": rows, **more}


async def test_who_watches_watermarks_slowly_is_told_the_newest() -> None:
    def flood(session: Session, frame: Frame) -> None:
        session.send(frame, Kind.WATCHED, watched([mark(0, 1), mark(1, 1), mark(2, 1)], first=True), more=True)
        for k in range(2, MOVES):
            session.send(frame, Kind.WATCHED, watched([mark(k % 2, k)], gone=[2] if k == 7 else []), more=True)

    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.WATCH] = flood
        updates = boom.watermarks_stream()
        await anext(updates)
        await boom.submit(0, Put(b"a", b""))  # its answer comes behind all of them
        [stream] = (await boom._cluster.connection(node.address))._streams.values()
        assert len(stream.items) <= 1
        newest = await anext(updates)
        assert [m.applied_index for m in newest.watermarks] == [MOVES - 2, MOVES - 1]
        await updates.aclose()


async def test_who_watches_a_barrier_slowly_is_told_the_newest() -> None:
    def flood(session: Session, frame: Frame) -> None:
        for k in range(1, MOVES):
            told = {"node": "n1", "frontiers": [[k % 2, k]], "reached": int(k > 9), "needed": 2}
            session.send(frame, Kind.BARRIER_PROGRESS, told, more=True)

    async with cluster() as [node], Client(node.address) as boom:
        node.answers[Kind.BARRIER] = flood
        steps = boom.barrier_watch(MOVES, partitions=[0, 1])
        await anext(steps)
        await boom.submit(0, Put(b"a", b""))
        newest = await anext(steps)
        assert (newest.frontiers, newest.reached) == ({0: MOVES - 2, 1: MOVES - 1}, 1)
        await steps.aclose()


def test_what_is_said_anew_takes_the_place_of_all_before_it() -> None:
    stream = Stream()
    for header in (watched([mark(0, 5), mark(1, 5)], first=True), watched([mark(0, 3)], first=True, whole=False)):
        stream.put(Frame(Kind.WATCHED, 1, header))
    stream.put(Frame(Kind.WATCHED, 1, watched([mark(2, 4)], gone=[0])))
    stream.put(Frame(Kind.END, 1, {}))
    merged, end = stream.items
    assert isinstance(merged, Frame)
    assert merged.header == watched([mark(2, 4)], first=True, gone=[0])
    assert isinstance(end, Frame)


def test_of_what_a_filter_passes_over_the_newest_position_is_kept() -> None:
    """Each read without a match left one behind: a consumer who worked for a while had his memory filled with them."""
    stream = Stream()
    for index in range(2, 10_000):
        stream.put(Frame(Kind.SKIPPED, 1, {"next_index": index}))
    assert [each.header for each in stream.items if isinstance(each, Frame)] == [{"next_index": 9_999}]


def test_what_lies_between_stays_where_it_is() -> None:
    stream = Stream()
    for index in range(0, 40, 4):
        stream.put(Frame(Kind.SKIPPED, 1, {"next_index": index}))
        stream.put(Frame(Kind.SKIPPED, 1, {"next_index": index + 1}))
        stream.put(Frame(Kind.RECORDS, 1, {"next_index": index + 2}))
        stream.put(Frame(Kind.RECORDS, 1, {"next_index": index + 3}))
    told = [(each.kind, each.header["next_index"]) for each in stream.items if isinstance(each, Frame)]
    kinds = ((Kind.SKIPPED, 1), (Kind.RECORDS, 2), (Kind.RECORDS, 3))
    assert told == [(kind, index + more) for index in range(0, 40, 4) for kind, more in kinds]
