"""Snapshots: partitions that are destroyed meanwhile, and more who wait than may."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.sessions import admin
from dispatcher.upkeep.due import FAILED_S
from dispatcher.upkeep.snapshotting import CUT, HOLE_LOOK_S, WAITERS_MAX
from logboom.errors import DeadlineExceeded, Unavailable
from logboom.settings import SnapshotSettings
from logboom.state_machine import NOWHERE, Entry
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.holes import Hole
from partitions.machines.guarded import GuardedDump
from server.world.offload_os import ThreadOffload
from tests.unit.dispatcher.snapshotting_bench import Bench, Closing
from tests.unit.partitions.worker_world import HeldOffload, world

BEHIND, CAPTURED = PartitionId(0), PartitionId(1)
STALL_S = SnapshotSettings().dump_stall_ms / 1000


def under_way() -> Bench:
    bench = Bench(partitions=3, behind=1)
    bench.cut(30)
    return bench


def test_one_that_still_lacks_the_state_of_what_is_destroyed_is_given_up() -> None:
    bench = under_way()
    answers: list[Any] = []
    bench.taking._awaiting.append(answers.append)
    del bench.workers[BEHIND]
    with capture_logs() as said:
        bench.taking.ended(BEHIND)
    assert [each["log_level"] for each in said if each["event"] == "snapshot_failed"] == ["info"], "nothing is wrong"
    assert [type(answer) for answer in answers] == [Unavailable]
    assert (bench.taking.progress(), bench.taking.failed) == (None, 0)
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


def test_one_that_waits_for_a_state_that_is_damaged_for_good_is_given_up() -> None:
    """It waited for ever, as did whoever had asked; the states that it had kept their files growing."""
    bench = under_way()
    answers: list[Any] = []
    bench.taking._awaiting.append(answers.append)
    bench.taking.tick()
    assert not answers
    bench.workers[BEHIND].useless = True
    with capture_logs() as said:
        bench.taking.tick()
    assert [each["log_level"] for each in said if each["event"] == "snapshot_failed"] == ["error"]
    assert [answer.message for answer in answers] == ["the snapshot failed: the state of partition 0 is damaged here"]
    assert answers[0].fields["retry_after"] == FAILED_S
    assert (bench.taking.progress(), bench.taking.failed) == (None, 1)
    assert all(dump.closed for worker in bench.workers.values() for dump in worker.dumps)


def hole(first: int) -> Hole:
    return Hole(PartitionLogIndex(first), PartitionLogIndex(first), b"d" * 16, GlobalLogIndex(29))


def test_one_that_waits_for_a_state_that_lacks_what_nobody_has_is_given_up_for_the_next() -> None:
    """While a leader lacked a batch no cut was asked for, for whoever had the state: neither gave it to the other."""
    bench = under_way()
    answers: list[Any] = []
    bench.taking._awaiting.append(answers.append)
    bench.holes[BEHIND] = hole(11)
    bench.taking.tick()
    later = bench.create()
    assert (answers, bench.proposed) == ([], []), "what is behind the cut holds nothing up"
    bench.holes[BEHIND], bench.now = hole(10), HOLE_LOOK_S
    bench.taking.tick()
    assert [answer.message for answer in answers] == ["the snapshot failed: partition 0 lacks a batch that is lost"]
    assert (bench.taking.progress(), later, bench.proposed) == (None, [], [CUT])
    assert all(dump.closed for worker in bench.workers.values() for dump in worker.dumps)
    bench.cut(31)
    assert bench.taking.progress() is None, "nor is one begun"
    assert [answer.message for answer in later] == ["partition 0 lacks a batch that is lost"]
    again = [answer.fields["retry_after"] for answer in (*answers, *later)]
    assert again == [FAILED_S] * 2, "whoever asked for one asks for no other at once, each of which is another cut"
    bench.holes.clear()
    bench.cut(32)
    bench.workers[BEHIND].arrive(at=10)
    bench.offload.run()
    assert bench.sets() == [32]


def test_what_is_lost_is_of_no_account_to_a_state_that_has_come_to_the_cut() -> None:
    bench = Bench()
    bench.holes[BEHIND] = hole(10)
    bench.cut(30)
    bench.offload.run()
    assert bench.sets() == [30]


@pytest.mark.parametrize("says", [9, 11])
def test_a_dump_that_says_that_it_is_of_another_index_is_in_no_set(says: int) -> None:
    """A user's: the set was complete on all nodes, logs went by it, and none could load it."""
    bench = under_way()
    asked, bench.workers[BEHIND].asked = bench.workers[BEHIND].asked, None
    assert asked is not None
    _, taken = asked
    other = Closing(says)
    taken(other)
    bench.offload.run()
    assert (bench.sets(), bench.taking.failed, other.closed) == ([], 1, True)
    assert bench.taking.progress() is None


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

    async def too_slow() -> None:
        with pytest.raises(DeadlineExceeded):
            await asked(bench, 0.0)

    await too_slow()
    bench.cut(30)  # which lasts
    for _ in range(WAITERS_MAX + 1):
        await too_slow()
    assert len(bench.taking._waiting) + len(bench.taking._awaiting) == 1
    bench.workers[BEHIND].arrive(at=10)
    bench.offload.run()
    bench.taking.tick()
    assert len(bench.proposed) == 2, "they were told that it goes on"


async def asked(bench: Bench, deadline: float) -> dict[str, Any]:
    backend: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0), snapshots=SimpleNamespace(taking=bench.taking, store=bench.store)
    )
    found: dict[str, Any] = (await admin.act(backend, {"action": "snapshot"}, deadline))["snapshot"]
    return found


@pytest.mark.parametrize("written", [0, 1])
async def test_one_that_was_under_way_when_he_asked_is_not_new_to_anybody(written: int) -> None:
    bench = Bench()
    bench.cut(15)
    answer = asyncio.ensure_future(asked(bench, 60.0))
    await asyncio.sleep(0)
    bench.offload.run()
    bench.taking.tick()
    bench.cut(15 + written, raft_index=6)
    bench.offload.run()
    found = await answer
    assert (found["global_index"], found["new"]) == (15 + written, bool(written))


async def test_one_that_takes_the_place_of_one_under_way_that_came_to_nothing_is_new() -> None:
    """Nothing was written in between, and nobody had a set of there."""
    bench = Bench(behind=1)
    bench.cut(15)
    answer = asyncio.ensure_future(asked(bench, 60.0))
    await asyncio.sleep(0)
    bench.taking.ended(BEHIND)
    bench.workers[BEHIND].arrive(at=10)
    bench.taking.tick()
    bench.cut(15, raft_index=6)
    bench.offload.run()
    found = await answer
    assert (found["global_index"], found["raft_index"], found["new"]) == (15, 6, True)


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


class Silent(Closing):
    """Gives nothing until ``meanwhile`` has returned."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(10)
        self._meanwhile = meanwhile

    def entries(self) -> Iterator[Entry]:
        self._meanwhile()
        return super().entries()


async def test_a_dump_of_a_users_that_nobody_reads_is_closed_off_the_loop_and_its_machine_later() -> None:
    """The loop waited for it, for as long as an `apply` that had its lock: no heartbeat left, and others elected."""
    bench, threads, go_on = Bench(partitions=2), ThreadOffload(workers=1, name="users"), threading.Event()
    closed_by = list[int]()

    def close() -> None:
        go_on.wait(20)
        closed_by.append(threading.get_ident())

    bench.cut(30)
    dump: Any = SimpleNamespace(close=close)
    gathering = bench.taking._gathering
    assert gathering is not None
    gathering.offloads = {BEHIND: threads}
    gathering.dumps[BEHIND].close()
    gathering.dumps[BEHIND] = GuardedDump("mine", dump, gathering.dumps[BEHIND].position)
    bench.taking._abandon(gathering, "a test")
    assert bench.taking.progress() is None
    assert closed_by == []
    assert (bench.taking.holds(BEHIND), bench.taking.holds(CAPTURED)) == (True, False)
    go_on.set()
    async with asyncio.timeout(20):
        while bench.taking.holds(BEHIND):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    assert len(closed_by) == 1
    assert closed_by[0] != threading.get_ident()
    await threads.close()
    bench.cut(31)
    dump.close = lambda: closed_by.append(0)
    gathering = bench.taking._gathering
    assert gathering is not None
    gathering.offloads = {BEHIND: threads}
    gathering.let_go(BEHIND, GuardedDump("mine", dump, NOWHERE))
    assert (closed_by[1:], gathering.closing) == ([0], {}), "a node that ends has no threads any more"


def wait_in_vain(bench: Bench) -> None:
    for _ in range(3):
        bench.now += STALL_S
        bench.taking.tick()


def test_a_dump_that_gives_nothing_is_given_up_and_named() -> None:
    """Found by review: no snapshot was taken on that node any more, even once the partition was destroyed."""
    bench = Bench(partitions=3, behind=1)
    answers: list[Any] = bench.create()
    seen: list[str] = []

    def meanwhile() -> None:
        bench.taking.tick()
        bench.now += STALL_S / 2
        bench.taking.tick()
        assert not bench.given_up, "it may be slow"
        wait_in_vain(bench)
        assert bench.given_up == [1]
        assert [type(answer) for answer in answers] == [Unavailable]
        assert f"the dump of partition {BEHIND}" in answers[0].message
        assert [bench.workers[PartitionId(p)].dumps[0].closed for p in (1, 2)] == [True, True], "nobody else waits"
        assert not dump.closed, "its thread may still be in there"
        assert bench.taking.holds(BEHIND)
        assert not bench.taking.holds(CAPTURED)
        again = bench.create()
        bench.cut(40)
        assert f"partition {BEHIND}" in again[0].message
        seen.append("refused")

    dump = Silent(meanwhile)
    bench.cut(30)
    worker = bench.workers[BEHIND]
    worker.applied_index = 10
    (_, taken), worker.asked = worker.asked, None  # type: ignore[misc]
    taken(dump)
    bench.offload.run()
    assert seen
    assert dump.closed
    assert not bench.taking.holds(BEHIND)
    assert (bench.sets(), bench.taking.failed) == ([], 2)
    bench.cut(60)
    bench.offload.run()
    assert bench.sets() == [60]
    assert not bench.fatal


def test_a_machine_that_does_not_return_from_dump_is_given_up_too() -> None:
    bench = under_way()
    worker = bench.workers[BEHIND]
    wait_in_vain(bench)
    assert bench.taking.progress() is not None, "who has much to apply takes his time"
    (_, taken), worker.asked = worker.asked, None  # type: ignore[misc]
    worker.capturing = True
    wait_in_vain(bench)
    assert bench.taking.progress() is None
    assert not bench.given_up, "that is no thread of ours"
    bench.cut(40)
    assert bench.taking.progress() is None
    worker.capturing = False
    late = Closing(10)
    taken(late)
    assert late.closed
    worker.applied_index = 10
    bench.cut(50)
    bench.offload.run()
    assert bench.sets() == [50]


def test_a_view_that_takes_long_is_no_dump_that_hangs() -> None:
    """The cut was given up, and nobody heard of a dump's end: no snapshot was taken there until the next start."""
    bench, seen = Bench(), list[object]()
    with world(HeldOffload) as w:
        w.machine.dump = lambda: Closing(10)  # type: ignore[attr-defined]
        bench.workers[BEHIND] = w.worker  # type: ignore[assignment]

        async def story() -> None:
            w.commit(5)
            w.notify()
            w.finish()
            w.worker.stop_at(10, lambda _: "view", seen.append)
            w.worker.hurry()
            bench.cut(30)
            wait_in_vain(bench)
            assert (bench.taking.progress() is None, len(bench.taking.stuck)) == (False, 0)
            assert (seen, w.under_way) == ([], 1), "the view is read, the dump is asked for behind it"
            w.finish()
            w.finish()
            bench.offload.run()

        w.run(story)
    assert (seen, bench.sets(), bench.taking.failed) == (["view"], [30], 0)
    assert not bench.taking.holds(BEHIND)


def test_a_dump_of_a_cut_that_was_given_up_before_ends_what_was_given_up_for_it() -> None:
    """Nobody heard of its end: no snapshot was taken there until the next start."""
    bench = under_way()
    worker = bench.workers[BEHIND]
    (_, taken), worker.asked = worker.asked, None  # type: ignore[misc]
    worker.capturing = True
    bench.taking._abandon(bench.taking._gathering, "for another reason")  # type: ignore[arg-type]
    bench.cut(40)
    wait_in_vain(bench)
    assert (bench.taking.progress(), list(bench.taking.stuck)) == (None, [BEHIND])
    worker.capturing = False
    taken(Closing(10))
    assert not bench.taking.holds(BEHIND)
    worker.applied_index = 10
    bench.cut(50)
    bench.offload.run()
    assert bench.sets() == [50]
