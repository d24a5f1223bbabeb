"""Who acknowledges what is missing, calls saved what is not, or takes an old index for a new one is seen at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.promises import (
    NOTHING,
    check_saved,
    check_void,
    look_at_acknowledging,
    look_at_freshness,
    look_at_producers,
)
from chaos.sim.state_file import StateFiles
from logboom.settings import ApplySettings
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, NodeId, PartitionId, PartitionLogIndex
from partitions.machines.kv import KvMachine
from raftlog.engine import messages
from raftlog.entries.voids import Void
from tests.unit.chaos.sim_world import World

HOST: Any = SimpleNamespace(name="n1")
PEER = NodeId("n2")


def reply(next_node_idx: int, *, success: bool = True) -> bytes:
    message = {"type": "next_node_idx", "reset": False, "term": 1, "seq": 1, "journal": 1}
    return messages.encode({**message, "next_node_idx": next_node_idx, "success": success})


@pytest.mark.parametrize(
    ("missing", "said", "success", "wrong"),
    [(NOTHING, 9, True, 0), (8, 8, True, 0), (8, 9, True, 1), (8, 9, False, 0)],
)
def test_a_reply_tells_of_nothing_that_was_missing_when_it_was_queued(
    missing: int, said: int, success: bool, wrong: int
) -> None:
    found, queued, sent = list[str](), list[Callable[[], None]](), list[bytes]()
    raft = SimpleNamespace(
        group=SimpleNamespace(hold=queued.append),
        outbound=SimpleNamespace(send_now=lambda _, body: sent.append(body)),
        repair=SimpleNamespace(first_index=missing),
    )
    look_at_acknowledging(HOST, raft, lambda invariant, _: found.append(invariant))
    body = reply(said, success=success)
    raft.group.hold(lambda: raft.outbound.send_now(PEER, body))
    raft.repair.first_index = 1  # damaged since: nobody could know
    raft.group.hold(lambda: None)
    for each in queued:
        each()
    raft.outbound.send_now(PEER, reply(99))
    assert (sent[0], found) == (body, ["AckHeld"] * wrong)


@pytest.mark.parametrize(
    ("max_age", "began", "index", "wrong"),
    [(0.0, 0.0, 2, 0), (0.0, 0.0, 1, 1), (1.0, -1.0, 1, 0), (1.0, -1.0, 0, 1), (1.0, 0.0, 1, 1), (1.0, 0.2, 3, 1)],
)
def test_an_index_covers_what_was_committed_when_it_is_said_to_be_of(
    max_age: float, began: float, index: int, wrong: int
) -> None:
    found, world = list[str](), World()

    async def story() -> None:
        now = world.loop.now

        async def recent(max_age: float, deadline: float) -> int:
            await asyncio.sleep(5.0)  # what is committed meanwhile need not be in it
            return index

        freshness = SimpleNamespace(recent=recent, _known=(now + began, index))
        committed_at = [0.0, now - 0.5, now, now + 0.1]
        look_at_freshness(HOST, freshness, committed_at, lambda invariant, _: found.append(invariant))
        assert await freshness.recent(max_age, now + 9.0) == index

    world.play(story())
    assert found == ["FreshEnough"] * wrong


@pytest.mark.parametrize(("known", "wrong"), [(2, 0), (3, 1)])
def test_so_many_producers_are_known_and_no_more(known: int, wrong: int) -> None:
    class Dedupe(list[int]):
        def commit(self) -> None:
            self.extend(range(known))

    found, dedupe = list[str](), Dedupe()
    backend: Any = SimpleNamespace(
        settings=SimpleNamespace(apply=ApplySettings(producers_max=2)),
        workers={0: SimpleNamespace(dedupe=dedupe)},
    )
    look_at_producers(HOST, backend, lambda invariant, _: found.append(invariant))
    dedupe.commit()
    assert found == ["ProducersBounded"] * wrong


@pytest.mark.parametrize(("checkpoints", "wrong"), [(1, 1), (2, 0)])
def test_what_is_saved_the_power_leaves(tmp_path: Any, checkpoints: int, wrong: int) -> None:
    found, files = list[str](), StateFiles(rng=None)  # type: ignore[arg-type]
    machine = KvMachine(files.open(tmp_path, ApplySettings()))
    for _ in range(checkpoints):
        machine._position = Position(PartitionLogIndex(4), GlobalLogIndex(4))
        machine.checkpoint()
    worker: Any = SimpleNamespace(machine=machine, saved_index=4, log=SimpleNamespace(partition_id=0))
    check_saved(HOST, worker, lambda invariant, _: found.append(invariant))
    assert found == ["SavedStays"] * wrong


@pytest.mark.parametrize(
    ("held", "durable", "hole", "damaged", "wrong"),
    [
        (True, True, False, False, ["VoidProven"]),
        (False, True, False, False, []),
        (True, False, False, False, []),
        (True, True, True, False, []),
        (True, True, False, True, []),
    ],
    ids=["somebody has it", "nobody does", "on no disk", "void before", "damaged"],
)
def test_what_is_declared_void_nobody_has(
    held: bool, durable: bool, hole: bool, damaged: bool, wrong: list[str]
) -> None:
    found, void = (
        list[str](),
        Void(PartitionId(0), PartitionLogIndex(3), PartitionLogIndex(4), b"digest", GlobalLogIndex(9), 0, False),
    )
    log = SimpleNamespace(
        find=lambda *_: "here" if held else None, is_durable=lambda *_: durable, is_hole=lambda *_: hole
    )
    hosts: list[Any] = [
        SimpleNamespace(name=name, node=None if logs is None else SimpleNamespace(pipeline=SimpleNamespace(logs=logs)))
        for name, logs in (("n1", {0: log}), ("n2", {}), ("n3", None))
    ]
    check_void(hosts, void, {"n1"} if damaged else set(), lambda invariant, _: found.append(invariant))
    assert found == wrong


@pytest.mark.parametrize(
    ("kept", "damaged", "members", "wrong"),
    [
        (True, set(), {"n1"}, ["VoidProven"]),
        (False, set(), {"n1"}, []),
        (True, {"n1"}, {"n1"}, []),
        (True, set(), set(), []),
    ],
    ids=["on his disk", "nowhere", "damaged", "no member"],
)
def test_nor_has_a_member_that_is_down(kept: bool, damaged: set[str], members: set[str], wrong: list[str]) -> None:
    """He was not asked: nobody could have known."""
    found, asked = list[str](), list[tuple[Any, ...]]()

    def keeps(*what: Any) -> bool:
        asked.append(what)
        return kept

    host: Any = SimpleNamespace(
        name="n1", node=None, disk=SimpleNamespace(keeps=keeps), path=lambda *parts: "/".join(parts)
    )
    void = Void(PartitionId(3), PartitionLogIndex(3), PartitionLogIndex(4), b"digest", GlobalLogIndex(9), 0, False)
    for head in (b"", b"beforedigest"):
        check_void([host], void, damaged, lambda invariant, _: found.append(invariant), head=head, members=members)
    assert found == wrong
    assert set(asked) <= {("partitions/3", ".log", b"beforedigest")}
