"""A few commands at hand are applied on the loop; everything else elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from logboom.commands import Txn, from_record
from logboom.settings import ApplySettings
from logboom.types import WideRecord
from partitions.apply.slow_groups import SlowGroups
from partitions.log.recent import HEADER_BYTES
from ports.invariant import InvariantViolated
from tests.unit.partitions.worker_world import HeldOffload, inline, turn, world


def test_who_waits_for_one_command_waits_for_no_thread() -> None:
    with inline() as w:

        async def story() -> None:
            w.commit()
            assert not w.worker.is_about_to
            w.notify()
            assert w.reported == []  # whoever notifies is in the midst of something
            assert w.worker.is_about_to
            await turn()
            assert (w.reported, w.under_way) == ([1], 0)
            assert not w.worker.is_about_to

        w.run(story)


def test_what_nobody_waits_for_is_applied_when_there_are_a_few() -> None:
    with inline() as w:

        async def story() -> None:
            w.commit()
            w.notify(urgent=False)  # the first group lingers for nobody
            await turn()
            for number in range(15):
                w.commit(records=1)
                w.notify(urgent=False)
                await turn()
                assert len(w.reported) == 1, number
            w.commit(records=1)
            w.notify(urgent=False)
            await turn()
            assert (len(w.reported), w.under_way) == (17, 0)
            w.commit(records=1)
            w.notify(urgent=False)
            await asyncio.sleep(0.2)
            assert len(w.reported) == 18  # or when they have waited long enough

        w.run(story)


@pytest.mark.parametrize(
    ("count", "records", "changes"),
    [
        pytest.param(1, 65, {}, id="too many records"),
        pytest.param(33, 2, {}, id="too many together"),
        pytest.param(9, 2, {"inline_bytes": 1_000}, id="too large"),
        pytest.param(1, 1, {"inline_bytes": 0}, id="turned off"),
        pytest.param(3, 1, {"recent_bytes": 0}, id="not in memory"),
    ],
)
def test_everything_else_goes_elsewhere(count: int, records: int, changes: dict[str, int]) -> None:
    with inline(**changes) as w:

        async def story() -> None:
            w.commit(count, records=records)
            w.notify()
            await turn()
            assert (w.reported, w.under_way) == ([], 1)
            w.finish()
            assert len(w.reported) == count

        w.run(story)


def test_a_machine_that_does_not_say_so_is_never_called_on_the_loop() -> None:
    with world(HeldOffload) as w:

        async def story() -> None:
            w.commit()
            w.notify()
            await turn()
            assert (w.reported, w.under_way) == ([], 1)
            w.finish()

        w.run(story)


def test_whose_state_is_slow_to_read_is_left_alone_for_a_while() -> None:
    with inline() as w:
        w.machine.takes_s = 0.003

        async def story() -> None:
            w.commit()
            w.notify()
            await turn()
            assert (w.reported, w.under_way) == ([1], 0)
            w.machine.takes_s = 0.0
            w.commit()
            w.notify()
            await turn()
            assert w.under_way == 1
            w.finish()
            await asyncio.sleep(10.0)
            w.commit()
            w.notify()
            await turn()
            assert (w.reported, w.under_way) == ([1, 3, 5], 0)

        w.run(story)


def test_nor_is_any_other_of_its_node_but_for_a_shorter_while() -> None:
    """With a thousand partitions on a slow disk the loop was held by a thousand groups in ten seconds."""
    slow = SlowGroups()
    with inline(slow=slow) as one, inline(slow=slow) as other:
        one.machine.takes_s = 0.003

        async def held() -> None:
            one.commit()
            one.notify()
            await turn()
            assert (one.reported, one.under_way) == ([1], 0)

        async def others() -> None:
            other.commit()
            other.notify()
            await turn()
            assert (other.reported, other.under_way) == ([], 1)
            other.finish()
            await asyncio.sleep(1.0)
            other.commit()
            other.notify()
            await turn()
            assert (other.reported, other.under_way) == ([1, 3], 0)

        assert one.loop.now == other.loop.now
        one.run(held)
        other.run(others)


def test_nor_are_others_that_were_to_be_applied_in_the_same_turn() -> None:
    """Many partitions were told at once what they may apply: all of them held the loop, one after the other."""
    slow = SlowGroups()
    with inline(slow=slow) as one, inline(slow=slow, loop=one.loop) as other:
        one.machine.takes_s = 0.003

        async def story() -> None:
            for each in (one, other):
                each.commit()
                each.notify()
                assert each.worker.is_about_to
            await turn()
            assert (one.reported, one.under_way) == ([1], 0)
            assert (other.reported, other.under_way) == ([], 1)
            assert (other.progress, other.worker.is_about_to) == ([[]], False), "whoever waits for that turn is told"
            other.finish()
            assert (other.reported, other.under_way) == ([1], 0)

        one.run(story)


def compares(count: int) -> bytes:
    """The payload of a transaction of so many, each of the same key with nothing."""
    return bytes((5, count, 1, 0)) + b"\0\1\0\0\0\0\0k" * count + b"\1\0\1\0\0\0k\1"


@pytest.mark.parametrize(
    ("batches", "each", "elsewhere"),
    [
        pytest.param(1, 10, False, id="a few"),
        pytest.param(1, 120, True, id="one of many"),
        pytest.param(20, 10, True, id="many of a few"),
    ],
)
def test_keys_that_transactions_look_at_are_counted(batches: int, each: int, *, elsewhere: bool) -> None:
    """Fifteen bytes of a record are one: a thousand were looked up on the loop, as at most 64 were to be."""
    assert isinstance(from_record(WideRecord(compares(each), b"k")), Txn)
    with inline() as w:

        async def story() -> None:
            w.commit(batches, records=1, payload=compares(each), wide=True)
            w.notify()
            await turn()
            assert (w.under_way, len(w.reported)) == (int(elsewhere), 0 if elsewhere else batches)
            while w.under_way:
                w.finish()
            assert len(w.reported) == batches
            assert not w.log.recent

        w.run(story)


def test_a_failure_is_tried_again_like_any_other() -> None:
    with inline(retry_initial_ms=50) as w:
        w.machine.failures = [OSError("injected 0")]

        async def story() -> None:
            w.commit(2)
            w.notify()
            await turn()
            assert (w.worker.state, w.reported) == ("retrying", [])
            await asyncio.sleep(0.06)
            w.finish()  # what was in memory was used up: from the file, elsewhere
            w.finish()
            assert (w.worker.state, w.reported) == ("running", [1, 3])

        w.run(story)


def test_a_broken_invariant_ends_the_node() -> None:
    with inline() as w:
        w.machine.failures = [InvariantViolated("injected")]

        async def story() -> None:
            w.commit()
            w.notify()
            await turn()

        w.run(story)
        assert [str(error) for error in w.fatal] == ["injected"]


def test_closing_waits_for_what_is_about_to_run_here() -> None:
    with inline() as w:

        async def story() -> None:
            w.commit()
            w.notify()
            await w.worker.close()
            assert w.reported == [1]

        w.run(story)


def test_the_default_takes_a_few_lone_commands() -> None:
    assert 16 * 500 < ApplySettings().inline_bytes < 64 * 1024


def test_a_machine_without_records_is_applied_on_the_loop_however_many_they_are_but_not_sooner() -> None:
    with inline(needs_records=False) as w:

        async def story() -> None:
            w.commit()
            w.notify(urgent=False)
            await turn()
            w.commit(3, records=500)
            w.notify(urgent=False)
            await turn()
            assert w.reported == [1]  # nobody waits, and more of them at a time cost less
            await asyncio.sleep(0.2)
            assert (w.reported, w.under_way) == ([1, 3, 503, 1003], 0)
            w.commit(records=500)
            w.notify()
            await turn()
            assert (w.reported[4:], w.under_way) == ([1503], 0)

        w.run(story)


def test_many_batches_without_records_are_applied_elsewhere() -> None:
    with inline(needs_records=False) as w:

        async def story() -> None:
            w.commit(ApplySettings().inline_bytes // HEADER_BYTES + 1, records=1)
            w.notify()
            await turn()
            assert (w.reported, w.under_way) == ([], 1)

        w.run(story)


def test_a_machine_that_is_about_to_wait_for_the_disk_is_applied_elsewhere() -> None:
    with inline() as w:

        async def story() -> None:
            w.commit()
            w.notify()
            await turn()
            w.machine.applies_in_memory = False  # as a log's, when its checkpoint is due
            w.commit()
            w.notify()
            await turn()
            assert (w.reported, w.under_way) == ([1], 1)

        w.run(story)


def test_with_nothing_left_to_apply_no_timer_runs() -> None:
    """A thousand partitions with a batch now and then woke the loop as often again as there was something to do."""
    with inline() as w:

        async def story() -> None:
            loop = asyncio.get_running_loop()
            w.commit()
            w.notify(urgent=False)
            await turn()
            assert w.reported == [1]
            assert not [each for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]

        w.run(story)


def test_a_stop_where_the_log_ends_is_not_forgotten_for_that() -> None:
    with inline() as w:

        async def story() -> None:
            w.commit()
            taken: list[object] = []
            w.worker.stop_at(2, lambda _: "state", taken.append)
            w.notify(urgent=False)
            await asyncio.sleep(0.2)
            w.finish()
            assert (w.reported, taken) == ([1], ["state"])

        w.run(story)
