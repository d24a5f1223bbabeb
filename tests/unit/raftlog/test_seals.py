"""What the leader may be about to declare void, and who takes it off that again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from logboom.wire import Frame, Kind
from raftlog.entries.entry import ROUTE
from raftlog.repair.standing import Standing
from tests.unit.raftlog.holes_world import A, B, World, route


def test_what_is_void_by_the_time_that_it_is_given_takes_no_seal_off() -> None:
    """The leader's disk was slow, and its copy lost meanwhile: who has not come to the void would have had both."""
    leader, ended = World(), list[Callable[[], None]]()
    leader.standing = Standing(4, A, True)
    leader.payloads.held = {5}

    def submit(job: Callable[[], Any], done: Callable[[Any, None], None]) -> None:
        found = job()
        ended.append(lambda: done(found, None))

    leader.repair._giving._offload = cast("Any", SimpleNamespace(submit=submit))
    leader.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 4, "asked": 1}, memoryview(ROUTE.pack(*route(5)))))
    leader.payloads.held.clear()
    leader.repair.voided(route(5).digest)
    (end,) = ended
    end()
    assert [(header, body) for _, _, header, body in leader.sent] == [({}, [b"5"])]
