"""Telling other nodes of frontiers: what a node holds for it, and how long it takes at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dispatcher.barriers.exchange import Exchange
from dispatcher.barriers.frontiers import LEVELS
from dispatcher.barriers.telling import Telling
from logboom.types import Level
from logboom.wire import Kind
from tests.unit.dispatcher.barrier_desk import A, B, Desk
from tests.unit.dispatcher.frontier_world import N1, N2, NODES

APPLIED = LEVELS.index(Level.APPLIED)


async def test_what_moves_while_it_is_told_is_gathered_for_the_next_time() -> None:
    """Else a frontier that moves as fast as it is told holds up the loop for as long as the link takes frames."""
    desk, told = Desk(), list[Any]()

    def send(_peer: object, kind: Kind, header: dict[str, Any]) -> bool:
        assert len(told) < 10
        if kind is Kind.FRONTIERS:
            told.extend(header["rows"])
            desk.apply(A, desk.applied_at[A] + 1)
        return True

    exchange = Exchange(
        node_id=N1,
        barriers=desk.barriers,
        watermarks=desk.watermarks,
        links=lambda: SimpleNamespace(send=send, speaks=lambda *_: True),
        may_show=lambda _: True,
        hurry=lambda _: None,
    )
    exchange.asking.set_members(N1, NODES, NODES)
    exchange.telling.asked(N2, {"rows": [[A, APPLIED, 1, 1_000, True]]})
    for times in range(1, 4):
        exchange.tick()
        assert [row[2] for row in told] == list(range(times))
    exchange.close()


def test_a_row_that_found_no_place_at_first_takes_one_and_gives_it_back() -> None:
    desk = Desk(waiters_max=2)
    telling = Telling(desk.barriers, desk.watermarks, may_show=lambda _: True)
    desk.state(A, "paused")
    telling.asked(N2, {"rows": [[A, APPLIED, 5, 5, True]]})
    others = [desk.wait(9, [B], client=name)[0] for name in ("one", "other")]
    telling.told(N2, telling.tell(N2))  # in a state that may change: it wants to wait for that, and there is no place
    for each in others:
        assert each is not None
        desk.barriers.cancel(each)
    desk.state(A, "running")
    telling.told(N2, telling.tell(N2))
    telling.tick()
    assert len(desk.barriers) == 1
    telling.peer_down(N2)
    assert len(desk.barriers) == 0
