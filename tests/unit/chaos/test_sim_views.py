"""A view has what was acknowledged before it began, and what was ordered up to its moment."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.history import Operation
from chaos.sim.readers import LogReaders, Places
from chaos.sim.seen import Seen
from chaos.sim.waiting import Told, Waited
from logboom.client.reads import ViewEntry


async def found(*rows: tuple[int, str], late: bool = False, global_index: int = 5) -> set[str]:
    """What is wrong with a view of 7 that has these rows; keys ``a`` and ``b`` were acknowledged, maybe meanwhile."""
    ops = [Operation(1, "add", key, 1, 0, partition=partition) for partition, key in ((0, "a"), (1, "b"))]

    def acknowledge() -> None:
        for op in ops:
            op.outcome, op.global_index = "ok", global_index

    async def scan_view(partitions: list[int], timeout: float) -> AsyncIterator[ViewEntry]:
        if late:
            acknowledge()
        for partition, key in [*rows, (0, "else")]:
            yield ViewEntry(partition, key.encode(), (1,), 7)  # type: ignore[arg-type]

    seen: Any = SimpleNamespace(together=[ops], doomed=set(), problems=[], told=Told())
    if not late:
        acknowledge()
    client, parameters = SimpleNamespace(scan_view=scan_view), SimpleNamespace(kv_partitions=[0, 1], seed=1)
    assert Seen.__dataclass_fields__.keys() >= vars(seen).keys()
    await LogReaders(client, parameters, seen, random.Random(1))._view()  # type: ignore[arg-type]
    return {invariant for invariant, _ in seen.problems}


async def test_what_is_right() -> None:
    assert await found((0, "a"), (1, "b")) == set()
    assert await found(late=True, global_index=8) == set()


@pytest.mark.parametrize(
    ("rows", "how", "wrong"),
    [
        ([(0, "a")], {}, {"ViewAtomic", "ViewFresh"}),
        ([], {"global_index": 8}, {"ViewFresh"}),
        ([], {"late": True}, {"ViewAtomic"}),
    ],
)
async def test_what_is_not(rows: list[tuple[int, str]], how: dict[str, Any], wrong: set[str]) -> None:
    assert await found(*rows, **how) == wrong


@pytest.mark.parametrize(("newest", "told"), [(4, []), (5, [("n3", {0: 7}), ("n3", {0: 8})])])
async def test_what_one_node_gives_is_looked_at_there(newest: int, told: list[tuple[str, dict[int, int]]]) -> None:
    """In some of the tails, of which it is known who gives them."""
    reached, asked = list[Waited](), list[str | None]()

    async def tail(partition: int, *, node: str | None, **_: Any) -> AsyncIterator[Any]:
        asked.append(node)
        for at in (7, 8):
            yield SimpleNamespace(
                partition_id=partition, global_index=at, first_index=at, position=at + 1, records=Records
            )

    addresses = {"a:1": "n1", "c:1": "n3", "b:1": "n2"}
    seen: Any = SimpleNamespace(places=Places(newest=newest), problems=[], addresses=addresses)
    parameters = SimpleNamespace(kv_partitions=[0], log_partitions=[], seed=1)
    readers = LogReaders(SimpleNamespace(tail=tail), parameters, seen, random.Random(1), reached.append)  # type: ignore[arg-type]
    await readers._tail()
    assert [(each.node, dict(each.targets)) for each in reached] == told
    assert asked == ["c:1" if told else None]
    assert {each.level for each in reached} <= {"durable", "applied"}
    assert not seen.problems


class Records:
    data = b"records"
