"""A cluster that begins again in the simulator: what of its first history holds, and code that blocks there."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.history import History
from chaos.sim.blocking import PlugPulled, dies_at, offline_world
from chaos.sim.disk import SimDisk
from chaos.sim.drawing import draw
from chaos.sim.histories import SecondHistory, give_up
from chaos.sim.loop import ProcessDied, SimLoop
from chaos.sim.readers import CursorAt
from chaos.sim.seen import Seen
from chaos.sim.stories import told


@pytest.fixture
def loop() -> Any:
    return SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here


def seen() -> Seen:
    clock = iter(range(1000))
    return Seen(History(lambda: next(clock)), {})


@pytest.mark.parametrize("outcome", ["fail", "info"])
def test_what_was_acknowledged_behind_the_set_is_given_up(outcome: str) -> None:
    mine = seen()
    for global_index in (3, 4):
        op = mine.history.invoke(1, "add", f"c1-{global_index}", 1, 0)
        mine.history.end(op, "ok", global_index=global_index)
    mine.history.invoke(1, "add", "c1-5", 1, 0)
    assert give_up(mine, 3, outcome, 0.0) == []
    assert [op.outcome for op in mine.history.operations] == ["ok", outcome, "info"]


def test_what_was_sent_before_may_be_in_the_set_though_it_is_told_of_as_of_later() -> None:
    """It was sent again, and its second place is behind the set."""
    mine = seen()
    for name in ("c1-1", "c1-2"):
        mine.history.end(mine.history.invoke(1, "add", name, 1, 0), "ok", global_index=4)  # at 0 and 2 ns
    give_up(mine, 3, "fail", 2e-9)
    assert [op.outcome for op in mine.history.operations] == ["info", "fail"]


def test_what_an_answer_said_was_not_done_nobody_knows_behind_the_set() -> None:
    """Another history may have it, and answer otherwise."""
    mine = seen()
    for global_index in (0, 3, 4):
        mine.history.end(mine.history.invoke(1, "add", f"r{global_index}", 1, 0), "fail", global_index=global_index)
    give_up(mine, 3, "info", 0.0)
    assert [op.outcome for op in mine.history.operations] == ["fail", "fail", "info"]


def test_registers_are_looked_at_before_they_are_of_another_history() -> None:
    mine = seen()
    mine.history.end(mine.history.invoke(1, "put", "r1", "v", 0), "ok", result=True, global_index=9)
    mine.history.end(mine.history.invoke(1, "get", "r1", None, 0), "ok", result="another")
    assert len(give_up(mine, 1, "fail", 0.0)) == 1
    assert mine.history.operations == []


def test_who_goes_through_all_again_is_told_of_each_in_the_end() -> None:
    mine = seen()
    mine.history.end(mine.history.invoke(0, "add", "p7", 1, 0), "ok", global_index=9)
    give_up(mine, 1, "fail", 0.0)
    assert mine.history.operations[0].outcome == "info"


def test_what_the_second_history_begins_with_is_still_looked_at() -> None:
    first = seen()
    op = first.history.invoke(1, "add", "c1-1", 1, 0)
    first.together.append([op])
    first.places.by_global.update({at: (0, at, b"batch") for at in (3, 4)})
    first.places.told += [CursorAt("a", 5, 2), CursorAt("b", 6, 3), CursorAt("a", 9, 4)]
    first.problems.append(("I7", "told already"))
    second = first.second({"n1:1": "n1"}, 3)
    assert second.again
    assert (second.together, second.history, second.problems) == ([[op]], first.history, [])
    assert list(second.places.by_global) == [3]
    assert second.places.cursors == {"a": 5, "b": 6}
    assert second.places.told == first.places.told[:2]


def test_what_was_found_on_the_spot_is_told_before_another_history_begins() -> None:
    """It was thrown away with all that had been seen since the last checkpoint."""
    found, mine = list[tuple[str, list[str]]](), seen()
    mine.problems.append(("TokenKept", "a story"))
    oracle = SimpleNamespace(witness=SimpleNamespace(committed_after=lambda _: 0.0), inherit=lambda *_, **__: None)
    run: Any = SimpleNamespace(
        seen=mine,
        oracle=oracle,
        nemesis=SimpleNamespace(injected={}),
        _report=lambda invariant, _, problems: found.append((invariant, problems)),
        _watch=lambda _: None,
    )
    SecondHistory._second(run, None, 1, 1, [], given_up="fail")  # type: ignore[arg-type]
    assert ("TokenKept", ["a story"]) in found
    assert run.seen.again


@pytest.mark.parametrize("call", range(1, 6))
def test_a_command_is_killed_at_a_call_that_changes_something(call: int) -> None:
    """Of a file that is replaced: made, written, synced, renamed, and its name synced."""
    disk, path = SimDisk(random.Random(1)), Path("/data/file")
    disk.make_directory(path.parent)
    disk.replace_file(path, b"old")
    disk.hook = dies_at(call)
    with pytest.raises(PlugPulled):
        disk.replace_file(path, b"new")
    disk.hook = None
    assert disk.read_file(path) in (b"old", b"new")


def test_the_world_goes_on_while_somebody_blocks(loop: SimLoop) -> None:
    world, found = offline_world(SimDisk(random.Random(1)), loop, random.Random(1)), list[float]()

    def command() -> None:
        world.sleep(2.0)
        found.append(world.monotonic())

    async def others() -> None:
        begun = loop.now
        loop.run_as(loop.process("operator"), command)
        await asyncio.sleep(1.0)
        found.append(loop.now)
        await asyncio.sleep(2.0)
        found[:] = [at - begun for at in found]

    loop.run_until_complete(others())
    assert found == [1.0, 2.0]


def test_who_is_killed_while_it_blocks_does_not_go_on(loop: SimLoop) -> None:
    world, found = offline_world(SimDisk(random.Random(1)), loop, random.Random(1)), list[str]()
    process = loop.process("operator")

    def command() -> None:
        try:
            world.sleep(2.0)
        except ProcessDied:
            found.append("died")
            raise
        found.append("went on")

    async def others() -> None:
        loop.run_as(process, command)
        await asyncio.sleep(1.0)
        loop.kill(process)
        await asyncio.sleep(2.0)

    loop.run_until_complete(others())
    assert found == ["died"]


def test_a_story_more_changes_no_other() -> None:
    for seed in range(1, 50):
        rng = random.Random(seed ^ 0x57041E5)
        assert (told(seed).follows, told(seed).hands_on) == (rng.random() < 0.25, rng.random() < 0.35)


def test_some_seeds_tell_it_and_none_in_which_members_change() -> None:
    drawn = [draw(seed) for seed in range(1, 100)]
    assert any(each.restores for each in drawn)
    assert not any(each.restores and each.members_change for each in drawn)
