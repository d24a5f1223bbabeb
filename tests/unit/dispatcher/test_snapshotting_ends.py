"""Snapshots: partitions that are destroyed meanwhile, and more who wait than may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.sessions import admin
from dispatcher.upkeep.snapshotting import WAITERS_MAX
from logboom.errors import DeadlineExceeded, Unavailable
from logboom.types import PartitionId
from tests.unit.dispatcher.snapshotting_bench import Bench, Closing

BEHIND, CAPTURED = PartitionId(0), PartitionId(1)


def under_way() -> Bench:
    bench = Bench(partitions=3, behind=1)
    bench.cut(30)
    return bench


def test_one_that_still_lacks_the_state_of_what_is_destroyed_is_given_up() -> None:
    bench = under_way()
    answers: list[Any] = []
    bench.taking._awaiting.append(answers.append)
    del bench.workers[BEHIND]
    bench.taking.ended(BEHIND)
    assert [type(answer) for answer in answers] == [Unavailable]
    assert (bench.taking.progress(), bench.taking.failed) == (None, 1)
    assert all(dump.closed for worker in bench.workers.values() for dump in worker.dumps)
    bench.offload.run()
    assert bench.sets() == []


def test_one_that_has_the_state_of_what_is_destroyed_goes_on_and_holds_its_machine() -> None:
    bench = under_way()
    del bench.workers[CAPTURED]
    bench.taking.ended(CAPTURED)
    assert bench.taking.holds(CAPTURED)
    assert not bench.taking.holds(BEHIND)
    bench.workers[BEHIND].arrive(at=10)
    bench.offload.run()
    assert bench.sets() == [30]
    assert not bench.taking.holds(CAPTURED)


def test_nobody_minds_what_is_destroyed_while_none_is_taken() -> None:
    bench = Bench()
    bench.taking.ended(BEHIND)
    assert bench.taking.failed == 0


def test_only_so_many_wait() -> None:
    bench = Bench()
    for _ in range(WAITERS_MAX):
        bench.create()
    with pytest.raises(Unavailable):
        bench.create()
    bench.cut(30)
    bench.offload.run()
    bench.create()


async def test_who_waited_too_long_keeps_nobody_else_from_waiting_and_theirs_is_taken_all_the_same() -> None:
    """Found by review: a daily snapshot that never came in time was refused after some months, while one lasted."""
    bench = Bench(partitions=3, behind=1)
    backend: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0), snapshots=SimpleNamespace(taking=bench.taking)
    )

    async def too_slow() -> None:
        with pytest.raises(DeadlineExceeded):
            await admin.act(backend, {"action": "snapshot"}, 0.0)

    await too_slow()
    bench.cut(30)  # which lasts
    for _ in range(WAITERS_MAX + 1):
        await too_slow()
    assert len(bench.taking._waiting) + len(bench.taking._awaiting) == 1
    bench.workers[BEHIND].arrive(at=10)
    bench.offload.run()
    bench.taking.tick()
    assert len(bench.proposed) == 2, "they were told that it goes on"


def test_a_dump_that_cannot_be_closed_costs_its_snapshot_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a user's machine: that node took no snapshot any more, and told nobody who had asked for one."""
    bench = Bench(partitions=3)

    def refuse(_: Closing) -> None:
        raise RuntimeError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(Closing, "close", refuse)
        answers = bench.create()
        bench.cut(30)
        bench.offload.run()
    assert [type(answer) for answer in answers] == [Unavailable]
    assert (bench.taking.progress(), bench.taking.failed, bench.sets()) == (None, 1, [])
    bench.cut(31)
    bench.offload.run()
    assert bench.sets() == [31]
