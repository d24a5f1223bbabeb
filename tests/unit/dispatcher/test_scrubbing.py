"""A pass over what is at rest: how it waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from dispatcher.upkeep.scrubbing import FIRST_MS_MAX, Scrubbing
from logboom.errors import CorruptData
from logboom.settings import ScrubSettings
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.reading import DamagedBatch
from ports.scrub import AGAIN, AGAIN_S, Piece, Pieces
from tests.unit.raftlog.world import VirtualClock, VirtualLoop, VirtualOffload


def over(
    pieces: Callable[[], Pieces], loop: VirtualLoop, *, bytes_per_s: int, logs: dict[PartitionId, Any] | None = None
) -> Scrubbing:
    nothing: Any = None
    return Scrubbing(
        settings=ScrubSettings(pause_ms=FIRST_MS_MAX, bytes_per_s=bytes_per_s),
        logs={} if logs is None else logs,
        machines={},
        using=nothing,
        store=SimpleNamespace(sets=tuple),  # type: ignore[arg-type]
        journal=SimpleNamespace(scrub=pieces, sealed_bytes=6, outlives=nothing),  # type: ignore[arg-type]
        clock=VirtualClock(loop),
        offload=VirtualOffload(loop, random.Random(0)),
        damaged_batch=lambda *_: None,
        damaged_state=nothing,
        fatal=nothing,
    )


def test_it_waits_before_something_is_read_a_second_time() -> None:
    loop, at = VirtualLoop(), []

    def pieces() -> Pieces:
        for piece in (Piece(1), AGAIN, Piece(2), Piece(3)):
            at.append(loop.now)
            yield piece

    scrubbing = over(pieces, loop, bytes_per_s=1 << 30)
    loop.run_until_complete(scrubbing._pass())
    loop.close()
    gaps = [after - before for before, after in pairwise(at)]
    assert gaps[1] >= AGAIN_S
    assert max(gaps[0], gaps[2]) < 1
    assert scrubbing.status()["bytes"] == 6


def test_what_held_it_up_is_not_made_up_for() -> None:
    """Found by review: behind a snapshot that took minutes it read as fast as the disk could, for minutes."""
    loop, at = VirtualLoop(), []

    def pieces() -> Pieces:
        for number in range(6):
            if number == 1:
                loop.now += 300  # its thread has something else to do
            at.append(loop.now)
            yield Piece(10)

    scrubbing = over(pieces, loop, bytes_per_s=1)
    loop.run_until_complete(scrubbing._pass())
    loop.close()
    assert at[0] + 300 < at[1]
    assert at[-1] - at[2] > 28


class Held(VirtualOffload):
    """A job of the machine's does not return until it is let go."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, random.Random(0))
        self.hangs = False
        self.go_on = asyncio.Event()

    async def run(self, job: Callable[[], Any]) -> Any:
        if self.hangs:
            self.hangs = False
            await self.go_on.wait()
        return await super().run(job)


def test_a_state_that_gives_nothing_keeps_nothing_else_from_being_scrubbed() -> None:
    """One call of a user's machine that did not return, and nothing was scrubbed on that node until the next start."""
    loop, told = VirtualLoop(), list[str]()
    offload, partition = Held(loop), PartitionId(3)

    def scrub() -> Pieces:
        told.append("state")
        offload.hangs = not offload.go_on.is_set()
        return iter([Piece(5)])

    @contextmanager
    def using(_: PartitionId) -> Iterator[None]:
        yield
        told.append("let go")

    def journal() -> Pieces:
        told.append("journal")
        return iter([Piece(1)])

    store = SimpleNamespace(scrub=lambda: iter(()), committed_bytes=9)
    scrubbing = over(journal, loop, bytes_per_s=1 << 30, logs={partition: store})
    scrubbing._machines = {partition: SimpleNamespace(scrub=scrub)}  # type: ignore[dict-item]
    scrubbing._using, scrubbing._offload = using, offload  # type: ignore[assignment]
    scrubbing._give_up = lambda: told.append("given up")

    async def story() -> None:
        await scrubbing._pass()
        assert told == ["journal", "state", "given up"], "its machine must not be closed"
        assert scrubbing.status()["stuck"] == ["state of partition 3"]
        await scrubbing._pass()
        assert told[3:] == ["journal"]
        offload.go_on.set()
        await asyncio.sleep(1)
        assert told[4:] == ["let go"]
        assert scrubbing.status()["stuck"] == []
        await scrubbing._pass()
        assert told[5:] == ["journal", "state", "let go"]

    loop.run_until_complete(story())
    loop.close()


def test_who_is_stopped_in_the_middle_of_a_file_closes_it() -> None:
    loop, told = VirtualLoop(), list[str]()

    def read() -> Pieces:
        try:
            yield Piece(10)
            yield Piece(10)
        finally:
            told.append("closed")

    pieces = read()

    async def stopped() -> None:
        scrubbing = over(lambda: pieces, loop, bytes_per_s=1)
        scrubbing.start()
        await asyncio.sleep(FIRST_MS_MAX / 1000 + 5)
        assert told == []
        await scrubbing.close()
        assert told == ["closed"]

    loop.run_until_complete(stopped())
    loop.close()


def test_damage_to_what_was_destroyed_since_is_shown_no_more() -> None:
    """Found by review: `logboom status` named it, in a partition that there was no more, until the next start."""
    loop, partition = VirtualLoop(), PartitionId(3)
    damage = DamagedBatch("bits", last_index=PartitionLogIndex(7), digest=b"d" * 16, segment=1, path="1.seg", offset=0)
    store = SimpleNamespace(
        scrub=lambda: iter([Piece(9, damage)]), committed_bytes=9, first_available_index=1, find=lambda *_: None
    )
    logs: dict[PartitionId, Any] = {partition: store}
    scrubbing = over(lambda: iter(()), loop, bytes_per_s=1 << 30, logs=logs)
    loop.run_until_complete(scrubbing._pass())
    loop.close()
    assert len(scrubbing.status()["open"]) == 1
    del logs[partition]
    assert scrubbing.status()["open"] == []


def test_a_set_that_is_doubted_is_read_at_once_and_goes_if_it_is_damaged() -> None:
    """Until the next pass, which may be far away, it passed for whole."""
    loop, dropped = VirtualLoop(), list[tuple[GlobalLogIndex, float]]()
    good, bad = GlobalLogIndex(10), GlobalLogIndex(20)
    scrubbing = over(lambda: iter(()), loop, bytes_per_s=1 << 30)
    began = loop.now
    scrubbing._store = SimpleNamespace(  # type: ignore[assignment]
        sets=tuple,
        scrub=lambda g: iter([Piece(9, CorruptData("rotten", path="x") if g == bad else None)]),
        drop=lambda g: dropped.append((g, loop.now - began)),
    )

    async def story() -> None:
        scrubbing.start()
        await asyncio.sleep(5)
        scrubbing.doubt(good)
        scrubbing.doubt(bad)
        await asyncio.sleep(5)
        assert [g for g, _ in dropped] == [bad]
        assert dropped[0][1] < 10 < FIRST_MS_MAX / 1000
        assert scrubbing.status()["pass"] == 0, "which comes as it would have"
        await asyncio.sleep(FIRST_MS_MAX / 1000 - 10 + 1)
        assert scrubbing.status()["pass"] == 1
        await scrubbing.close()

    loop.run_until_complete(story())
    loop.close()
