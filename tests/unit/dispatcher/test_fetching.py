"""Data by descriptor: what is asked for, from whole batches, each read once."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.reading import fetching
from logboom.errors import CorruptData, IndexCompacted, InvalidRequest, NoSuchPartition, Unavailable
from partitions.log.batch import Batch
from partitions.log.opening import LogBase
from tests.unit.dispatcher.reading_world import World, answer
from tests.unit.partitions.compaction_world import settle


def world(count: int = 12) -> World:
    made = World(2)
    for number in range(count):
        made.append(0, [b"%d-%d" % (number, k) for k in range(4)])
    made.append(1, [b"other"])
    made.sync(1)
    return made


async def test_rows_come_as_they_are_asked_for_whatever_their_order() -> None:
    made = world()
    rows = [[0, 48, None], [1, 1, None], [0, 1, None], [0, 6, None], [0, 48, None]]
    found = await answer(fetching.fetch(made, {"rows": rows}))
    assert [found[k] for k in range(5)] == [b"11-3", b"other", b"0-0", b"1-1", b"11-3"]
    assert (made.read_budget.nbytes, made.read_budget.segments) == (0, 0)


async def test_parts_of_a_record() -> None:
    found = await answer(fetching.fetch(world(), {"rows": [[0, 48, [[0, 2], [3, 1], [1, 0]]], [0, 1, []]]}))
    assert found == {0: b"113", 1: b""}


async def test_each_batch_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, reads = world(), list[int]()
    at = made.logs[0].chunks.at

    def counted(position: int, count: int) -> Any:
        reads.append(position)
        return at(position, count)

    monkeypatch.setattr(made.logs[0].chunks, "at", counted)
    rows = [[0, index, None] for index in (9, 1, 3, 4, 10, 2)]
    assert len(await answer(fetching.fetch(made, {"rows": rows}))) == 6
    assert reads == [0, 2]


async def test_each_batch_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor for each record of a large batch held the node's processor for a second."""
    made, parsed = world(), list[int]()
    records = Batch.records

    def counted(batch: Batch) -> Any:
        parsed.append(batch.header.first_index)
        return records(batch)

    monkeypatch.setattr(Batch, "records", counted)
    rows = [[0, index, None] for index in (9, 1, 3, 4, 10, 2)]
    assert len(await answer(fetching.fetch(made, {"rows": rows}))) == 6
    assert parsed == [1, 9]


async def test_one_that_is_destroyed_before_its_turn_comes_is_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with a KeyError, or went on with what is not there any more, as long as the client took its time."""
    monkeypatch.setattr(fetching, "ANSWER_BYTES", 1)
    made = world()
    frames = fetching.fetch(made, {"rows": [[0, 1, None], [0, 2, None], [1, 1, None]]})
    assert (await anext(frames))[1] == [b"0-0"]
    gone = made.logs.pop(0)
    with pytest.raises(NoSuchPartition):
        await anext(frames)
    made.logs[0] = gone
    frames = fetching.fetch(made, {"rows": [[0, 1, None], [1, 1, None]]})
    await anext(frames)
    del made.logs[1]
    with pytest.raises(NoSuchPartition):
        await anext(frames)


async def test_answers_are_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ANSWER_BYTES", 20)
    made = world()
    sizes = [
        sum(header["lengths"])
        async for header, _ in fetching.fetch(made, {"rows": [[0, k, None] for k in range(1, 49)]})
    ]
    assert len(sizes) > 5
    assert max(sizes) <= 20 + 16


async def test_one_record_asked_for_a_thousand_times_is_answered_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them were put together before anybody looked how much that was."""
    monkeypatch.setattr(fetching, "ANSWER_BYTES", 20)
    frames = [frame async for frame in fetching.fetch(world(), {"rows": [[0, 1, None]] * 1000})]
    assert sum(len(header["rows"]) for header, _ in frames) == 1000
    assert max(sum(header["lengths"]) for header, _ in frames) <= 20 + 3


@pytest.mark.parametrize(
    "rows",
    [
        None, [], [[0, 1]], [[0, 0, None]], [["0", 1, None]], [[0, 1, [[0]]]], [[0, 1, [[0, -1]]]], [[0, 1, [[0, 99]]]],
        [[0, 1, [[True, 1]]]], [[0, 1, [[0, 1]] * 65]], [[0, 1, [[0, 3], [0, 1]]]],
        [[0, 1, None]] * 4097, [[0, 1 << 63, None]],
    ],
)  # fmt: skip
async def test_what_is_no_descriptor(rows: Any) -> None:
    with pytest.raises(InvalidRequest):
        await answer(fetching.fetch(world(), {"rows": rows}))


async def test_what_is_not_here() -> None:
    made = world(40)
    with pytest.raises(NoSuchPartition):
        await answer(fetching.fetch(made, {"rows": [[7, 1, None]]}))
    made.append(1, [b"not durable"], sync=False)
    with pytest.raises(Unavailable):
        await answer(fetching.fetch(made, {"rows": [[1, 2, None]]}))
    gone = made.batches[0][29]
    settle(made.logs[0], LogBase(gone.last_index, gone.digest, 30))  # type: ignore[arg-type]
    with pytest.raises(IndexCompacted):
        await answer(fetching.fetch(made, {"rows": [[0, 1, None]]}))
    assert made.read_budget.nbytes == 0


async def test_a_disk_that_fails_is_another_nodes_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulator, seed 39, fault `eio`: nobody had expected it."""
    made = world()

    def fails(*_: int) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(made.logs[0].chunks, "at", fails)
    with pytest.raises(Unavailable, match="Input/output error"):
        await answer(fetching.fetch(made, {"rows": [[0, 1, None]]}))
    assert made.read_budget.nbytes == 0


async def test_damage_is_repaired_or_said() -> None:
    made = world()
    batch = made.damage(0, 1)
    with pytest.raises(Unavailable):
        await answer(fetching.fetch(made, {"rows": [[0, 6, None]]}))
    assert [partition for partition, _ in made.damages] == [0]
    made.lost.add(batch.digest)
    with pytest.raises(CorruptData):
        await answer(fetching.fetch(made, {"rows": [[0, 6, None]]}))
    made.mend(0, batch)
    assert await answer(fetching.fetch(made, {"rows": [[0, 6, None]]})) == {0: b"1-1"}
