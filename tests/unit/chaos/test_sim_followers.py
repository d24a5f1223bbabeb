"""Who follows is given all there is, once and in order; and a token is worth what whoever has it was told of."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.followers import Followers
from chaos.sim.tokens import Handing
from logboom.errors import IndexCompacted
from logboom.types import Token

ENDS = [(2, 10), (5, 13), (6, 14)]


class Opening(list[int]):
    """Bounds of those that are being opened."""

    def nothing_through(self) -> int | None:
        return min(self, default=None)


def row(applied: int, through: int) -> Any:
    return SimpleNamespace(partition_id=0, applied_index=applied, applied_global_index=through)


def followers(found: list[str], *, doomed: frozenset[int] = frozenset(), hidden: int | None = None) -> Any:
    """One who follows partition 0, of which there are three batches; a node has applied them all.

    ``hidden``: of one that is being opened there nothing is committed up to there.
    """
    parameters: Any = SimpleNamespace(blackout=None, kv_partitions=[0], log_partitions=[])
    marks = SimpleNamespace(all=lambda: [row(14, 7)])
    voids = SimpleNamespace(of=lambda _: [])
    opening = Opening([] if hidden is None else [hidden])
    backend = SimpleNamespace(
        watermarks=marks,
        parent=SimpleNamespace(voids=voids),
        partitioning=SimpleNamespace(opening=opening),
        recovery=SimpleNamespace(over=True),
        workers={},
    )
    host: Any = SimpleNamespace(name="n1", retired=False, node=SimpleNamespace(pipeline=backend))
    nothing: Any = None
    return Followers(
        parameters,
        [host],
        loop=nothing,
        network=nothing,
        rng=random.Random(1),
        seen=SimpleNamespace(doomed=doomed),  # type: ignore[arg-type]
        ends=lambda _: ENDS,
        fail=lambda invariant, _: found.append(invariant),
    )


def batch(global_index: int, last: int) -> Any:
    return SimpleNamespace(partition_id=0, global_index=global_index, position=last + 1)


def marks(applied: int, minimum: int = 7) -> Any:
    return SimpleNamespace(node_id="n1", watermarks=[row(applied, minimum)], minimum=minimum)


def test_all_has_come() -> None:
    found = list[str]()
    mine = followers(found)
    for row in ENDS:
        mine._take("tail 0", batch(*row))
        mine._take("scan", batch(*row))
    mine._marks = marks(14)
    assert (mine.lacks(), found) == ("", [])


@pytest.mark.parametrize(("tail", "scan", "applied"), [(2, 3, 14), (3, 1, 14), (3, 3, 13), (0, 3, 14)])
def test_something_has_not(tail: int, scan: int, applied: int) -> None:
    mine = followers([])
    for name, many in (("tail 0", tail), ("scan", scan)):
        for row in ENDS[:many]:
            mine._take(name, batch(*row))
    mine._marks = marks(applied)
    assert mine.lacks() != ""


def test_what_is_to_be_destroyed_need_not_come() -> None:
    mine = followers([], doomed=frozenset((0,)))
    mine._marks = marks(14)
    assert mine.lacks() == ""


def test_of_all_no_less_is_told_than_all_have_come_to() -> None:
    for hidden, minimum, lacks in ((None, 7, False), (None, 0, True), (0, 0, False), (6, 6, False)):
        mine = followers([], doomed=frozenset((0,)), hidden=hidden)
        mine._marks = marks(14, minimum)
        assert bool(mine.lacks()) == lacks


def test_nor_is_more_or_ever_less_than_before() -> None:
    found = list[str]()
    mine = followers(found, hidden=6)
    for minimum, wrong in ((5, 0), (7, 1), (6, 1)):
        found.clear()
        mine._check(marks(14, minimum))
        assert found == ["I7"] * wrong
    found.clear()
    mine = followers(found, hidden=0)  # of which nobody can say yet what it has
    for minimum in (0, 7):
        mine._check(marks(14, minimum))
    assert found == []


@pytest.mark.parametrize("row", [(5, 12), (4, 13), (7, 15)])
def test_what_was_not_committed_there_is_found(row: tuple[int, int]) -> None:
    found = list[str]()
    followers(found)._take("scan", batch(*row))
    assert found == ["PrefixAgreement"]


def test_what_is_said_to_be_gone_has_to_be() -> None:
    found = list[str]()
    mine = followers(found)
    assert mine._removed("scan", IndexCompacted("gone", first=7), 5) == 7
    assert found == []
    mine._removed("scan", IndexCompacted("gone", first=5), 5)
    assert found == ["FollowsAll"]


@pytest.mark.parametrize(("index", "value", "wrong"), [(7, (1,), 0), (8, (1,), 1), (7, None, 1), (8, None, 2)])
async def test_a_token_is_worth_what_was_told(index: int, value: Any, wrong: int) -> None:
    async def token() -> Token:
        return Token("sim", 7, "")  # type: ignore[arg-type]

    async def get(*_: object, **__: object) -> Any:
        return value

    seen: Any = SimpleNamespace(addresses={"n1:7001": "n1"}, doomed=set(), problems=[])
    client: Any = SimpleNamespace(token=token, get=get)
    dice: Any = SimpleNamespace(choice=lambda rows: rows[0], random=lambda: 0.0)
    handing = Handing(client, seen=seen, rng=dice, acknowledged=lambda: (0, "a", index), reached=lambda _: None)
    await handing.step()
    assert [invariant for invariant, _ in seen.problems] == ["TokenKept"] * wrong
