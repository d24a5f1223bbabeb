"""A snapshot of many log partitions, or of long logs: what being given it costs the node that needs it."""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.upkeep import installing
from dispatcher.upkeep.installing import InstallDue
from dispatcher.upkeep.log_fetching import LogFetch
from logboom.types import GlobalLogIndex, NodeId, PartitionId, RaftIndex
from partitions.log.log import PartitionLog
from raftlog.entries.parent_state import ParentState, Tail
from snapshots.states import StatesWriter
from tests.unit.dispatcher.installing_world import COUNT, LOG, G, Source, Target, Wire
from tests.unit.partitions.compaction_world import chain, raw
from tests.unit.snapshots.states_world import Dump

MANY = [PartitionId(LOG + number) for number in range(200)]
PIECES = 2000
BYTES_MAX = 64
"""Of memory for each batch that was fetched, until the places of all are saved."""


class Many(Source):
    """All of its logs end alike."""

    def set_at(self, global_index: GlobalLogIndex) -> None:
        tail, raft_index = self.batches[-1], RaftIndex(self.raft_index)
        tails = {p: Tail(tail.last_index, tail.digest, G) for p in MANY}
        self.parent = ParentState(global_index, raft_index, tails)
        writer = self.written_by(self.store.begin(global_index))
        self.store.complete(writer, self.meta_of(writer.finish()))

    def written_by(self, writer: StatesWriter) -> StatesWriter:
        for partition in MANY:
            writer.add(partition, "log", Dump([], self.batches[-1].last_index))
        return writer


async def test_logs_of_which_nothing_is_lacking_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of them all that a set says of all partitions was read, in one turn of the loop: minutes of silence."""
    wire, read, turns = Wire(), list[bytes](), list[int]()
    source, target = Many("a", wire), Target(wire, has=COUNT)
    loop, turn, over = asyncio.get_running_loop(), 0, False

    def decode(said: bytes) -> ParentState:
        read.append(said)
        return ParentState.decode(said)

    async def log_of(*_: Any) -> PartitionLog:
        turns.append(turn)
        return target.log

    def beat() -> None:
        nonlocal turn
        turn += 1
        if not over:
            loop.call_soon(beat)

    monkeypatch.setattr(installing, "ParentState", SimpleNamespace(decode=decode))
    monkeypatch.setattr(target.installing, "_log_of", log_of)
    beat()
    source.serving.offer(NodeId("t"))
    await target.ended()
    over = True
    assert ([type(error) for error in target.fatal], target.ready) == ([InstallDue], [G])
    assert len(turns) == len(MANY)
    assert len(set(turns)) == len(MANY), "others have their turn in between"
    assert read == [source.parent.encode()]


def test_of_what_was_fetched_little_is_kept_until_its_places_are_saved() -> None:
    """The logs of all partitions are fetched before the places of any are saved."""
    target, batches = Target(Wire()), chain(PIECES)
    pieces = [(memoryview(raw(batch)), number) for number, batch in enumerate(batches, 1)]
    end = Tail(batches[-1].last_index, batches[-1].digest, GlobalLogIndex(PIECES))
    fetch = LogFetch(target.log, end, ())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        fetch.take(pieces, lambda _, **__: None)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert fetch.is_whole
    assert after - before < BYTES_MAX * PIECES
