"""Named positions: they only move forward, whoever commits, and live in a partition that users do not see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from logboom import Client
from logboom.client.cursors import POSITION, CursorRow, key_of
from logboom.commands import Value
from logboom.errors import CorruptData, DeadlineExceeded, InvalidRequest
from logboom.wire import Kind
from tests.unit.logboom.fake_kv import WHERE, Kv
from tests.unit.logboom.fake_server import Session, cluster


@asynccontextmanager
async def world() -> AsyncIterator[tuple[Kv, Client]]:
    async with cluster() as [node], Client(node.address, timeout=5) as boom:
        yield Kv(node), boom


async def test_nothing_is_made_by_looking() -> None:
    async with world() as (kv, boom):
        assert await boom.cursor("c").position() == 0
        assert await boom.cursors() == []
        await boom.cursor("c").delete()
        assert not kv.there


async def test_a_cursor_only_moves_forward_unless_it_is_forced() -> None:
    async with world() as (kv, boom):
        cursor = boom.cursor("c", 1)
        assert [await cursor.commit(p) for p in (5, 9, 7, 9)] == [5, 9, 9, 9]
        assert kv.writes == 2
        assert await cursor.commit(3, force=True) == 3
        assert await boom.cursor("c", 1).position() == 3
        assert await boom.cursor("c").position() == await boom.cursor("c", 2).position() == 0


async def test_two_that_share_a_name_do_not_move_each_other_back() -> None:
    async with world() as (_, boom):
        one, other = boom.cursor("c"), boom.cursor("c")
        await one.commit(5)
        await other.commit(20)
        assert await one.commit(10) == 20  # what it knew was old
        assert await one.commit(21) == 21
        assert await other.commit(21) == 21
        assert await boom.cursor("c").position() == 21


async def test_what_we_know_may_be_higher_than_what_is_so() -> None:
    """An operator has moved it back."""
    async with world() as (_, boom):
        cursor = boom.cursor("c")
        await cursor.commit(50)
        await boom.commit_cursor("c", None, 10, force=True)
        assert await cursor.commit(40) == 40


async def test_users_do_not_see_the_partition() -> None:
    async with world() as (kv, boom):
        await boom.cursor("c").commit(5)
        assert kv.there
        assert await boom.partitions() == [0, 1, 2, 3]
        assert WHERE not in await boom.state_machines()


async def test_a_partition_that_somebody_destroyed_is_made_again() -> None:
    async with world() as (kv, boom):
        cursor = boom.cursor("c")
        await cursor.commit(5)
        kv.there, kv.state = False, {}
        assert await cursor.commit(6) == 6
        assert kv.there


async def test_rows_and_their_lag() -> None:
    async with world() as (kv, boom):
        await boom.cursor("a", 1).commit(41)
        await boom.cursor("b").commit(91)
        await boom.cursor("c", 9).commit(1)
        assert await boom.cursors() == [
            CursorRow("a", 1, 41, 10),
            CursorRow("b", None, 91, 0),
            CursorRow("c", 9, 1, None),
        ]
        await boom.delete_cursor("a", 1)
        assert [row.name for row in await boom.cursors()] == ["b", "c"]
        assert POSITION.unpack(kv.state[key_of("b", None)]) == (91,)


async def test_what_is_no_position_keeps_nobody_from_the_others() -> None:
    """Anybody can write to that partition who knows its id; all cursors ended in struct.error then."""
    async with world() as (kv, boom):
        await boom.cursor("a").commit(41)
        kv.state[key_of("b", None)] = b"none"
        assert [row.name for row in await boom.cursors()] == ["a"]
        with pytest.raises(CorruptData, match="no position"):
            await boom.cursor("b").position()
        assert await boom.cursor("b").commit(7, force=True) == 7
        assert await boom.cursor("b").position() == 7


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b"])
def test_names(name: str) -> None:
    with pytest.raises(InvalidRequest):
        key_of(name, None)


@pytest.mark.parametrize("position", [0, -1, 1 << 63, "5", True])
async def test_positions(position: Value) -> None:
    async with world() as (_, boom):
        with pytest.raises(InvalidRequest):
            await boom.cursor("c").commit(position)  # type: ignore[arg-type]


async def test_a_commit_takes_no_longer_than_its_timeout_whatever_it_takes() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        kv, cursor = Kv(node), boom.cursor("me", 1)
        await cursor.commit(3)
        moved = list[int]()

        def somebody_is_faster(session: Session, frame: Any) -> None:
            moved.append(len(moved) + 4)  # as often as it is looked at
            kv.state[key_of("me", 1)] = POSITION.pack(moved[-1])
            kv.submit(session, frame)

        node.answers[Kind.SUBMIT] = somebody_is_faster
        began = boom._cluster.now
        async with asyncio.timeout(10):
            with pytest.raises(DeadlineExceeded):
                await cursor.commit(1 << 40, timeout=0.3)
        assert boom._cluster.now - began < 5
        assert moved
