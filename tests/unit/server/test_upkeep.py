"""The thread of snapshots: where it is, and that somebody is told when it stays there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from ports.offload import Place
from server.watching.upkeep import MEANWHILE, STILL_S, Upkeep
from server.world.offload_os import SlowOffload


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


class Hanging:
    """A machine of a user."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()

    def entries(self) -> Iterator[int]:
        yield 1
        self.began.set()
        self.go_on.wait(60)


def looked(upkeep: Upkeep, clock: Clock, seconds: float) -> list[Any]:
    with capture_logs() as lines:
        clock.now += seconds
        upkeep.look()
    return list(lines)


async def test_a_call_of_a_user_s_machine_that_does_not_return_is_told_once_and_named() -> None:
    offload, clock, machine, ended = SlowOffload(name="slow"), Clock(), Hanging(), asyncio.Event()
    upkeep = Upkeep(lambda: {"snapshot": place} if (place := offload.place()) is not None else {}, clock)
    assert looked(upkeep, clock, STILL_S) == looked(upkeep, clock, STILL_S) == [], "it has nothing to do"
    offload.submit(partial(list, machine.entries()), lambda _, __: ended.set())
    try:
        await asyncio.to_thread(machine.began.wait, 20)
        found = offload.place()
        async with asyncio.timeout(20):  # until it waits, it moves
            while found is None or found != offload.place():
                found = offload.place()
                await asyncio.sleep(0.01)
        assert looked(upkeep, clock, 1) == looked(upkeep, clock, STILL_S - 1) == []
        (line,) = looked(upkeep, clock, 1)
        assert (line["event"], line["thread"], line["seconds"]) == ("upkeep_stands_still", "snapshot", STILL_S)
        assert "no snapshot is taken" in line["reason"]
        assert "Hanging.entries" in line["at"]
        assert "test_upkeep.py" in line["at"]
        assert looked(upkeep, clock, STILL_S) == []
        assert upkeep.still_s == 2 * STILL_S
    finally:
        machine.go_on.set()
    async with asyncio.timeout(20):
        await ended.wait()
    assert offload.place() is None
    (line,) = looked(upkeep, clock, 1)
    assert line["event"] == "upkeep_goes_on"
    assert upkeep.still_s == 0
    await offload.close()


def test_what_moves_is_not_told_however_long_it_takes() -> None:
    clock, moved = Clock(), 0
    upkeep = Upkeep(lambda: {"scrub": Place(moved, "somewhere")}, clock)
    for moved in range(10):  # noqa: B007 - the place has it
        assert looked(upkeep, clock, STILL_S) == []


def test_each_thread_is_told_by_itself() -> None:
    clock, places = Clock(), {name: Place(0, f"in {name}") for name in MEANWHILE}
    upkeep = Upkeep(lambda: places, clock)
    assert looked(upkeep, clock, 1) == []
    places["scrub"] = Place(1, "further on")
    assert {line["thread"] for line in looked(upkeep, clock, STILL_S)} == MEANWHILE.keys() - {"scrub"}
    places = {name: place for name, place in places.items() if name in ("slow", "scrub")}
    lines = looked(upkeep, clock, STILL_S)
    assert [(line["event"], line["thread"]) for line in lines] == [
        ("upkeep_goes_on", "snapshot"), ("upkeep_goes_on", "rebuild"), ("upkeep_stands_still", "scrub"),
    ]  # fmt: skip
    assert upkeep.still_s == 2 * STILL_S


async def test_who_waits_so_as_not_to_be_faster_moves() -> None:
    offload, marks = SlowOffload(name="slow"), set[Any]()
    over = threading.Event()

    def nap() -> None:
        while not over.is_set():
            offload.sleep(0.005)

    napping = asyncio.ensure_future(offload.run(nap))
    async with asyncio.timeout(20):
        while len(marks) < 5:
            place = offload.place()
            marks |= {place.mark} if place is not None else set()
            await asyncio.sleep(0.005)
    over.set()
    await napping
    await offload.close()
