"""Whoever is refused something is told a reason that there is."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chaos.history import History
from chaos.sim import clients, readers, waiting
from chaos.sim.beginnings import Beginning, Beginnings
from chaos.sim.clients import SimClient
from chaos.sim.drawing import draw
from chaos.sim.followers import Followers
from chaos.sim.parameters import Parameters
from chaos.sim.readers import LogReaders
from chaos.sim.seen import Seen
from chaos.sim.stories import Stories
from chaos.sim.waiting import Told, Waiting
from logboom import errors
from logboom.errors import LogboomError
from logboom.settings import AdmissionSettings, NetSettings, RaftSettings

WRONG = [("RefusedRightly",)]


def calm() -> Parameters:
    """There is room for everything, and nothing of the logs goes."""
    drawn = next(drawn for drawn in map(draw, count(1)) if drawn.kv_partitions and drawn.log_partitions)
    admission = AdmissionSettings(node_ops=1_000, partition_ops=1_000, signals=())
    snapshot = msgspec.structs.replace(drawn.settings.snapshot, retain_log_ms=0, retain_log_bytes=0)
    raft, net = RaftSettings(), NetSettings()
    settings = msgspec.structs.replace(drawn.settings, admission=admission, snapshot=snapshot, raft=raft, net=net)
    return replace(drawn, settings=settings, blackout=None, kinds=(), stories=Stories())


def seen(**more: Any) -> Seen:
    """Of a run in which partition 9 was asked to be destroyed, and 8 was created."""
    ticks = count()
    made = Seen(History(lambda: next(ticks)), {"n1:1": "n1"}, parameters=calm(), **more)
    made.doomed, made.created = {9}, {8: "kv", 9: "kv"}
    return made


def told(by: Seen) -> list[tuple[str]]:
    return [(invariant,) for invariant, _ in by.problems]


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("no"),
        errors.ProtocolError("no"),
        errors.IncompatibleVersion("no"),
        errors.WrongNode("no"),
        errors.RecordTooLarge("no"),
        errors.CorruptData("no"),
        errors.LineageMismatch("no"),
        errors.NoSuchPartition("no", partition_id=0),
        errors.NoSuchPartition("no"),
        errors.PartitionDestroyed("no", partition_id=8),
        errors.IndexCompacted("no", first=3),
        errors.ConfigError("no"),
        errors.CommandsRejected("no"),
        errors.BarrierFuture("no", target=9),
        errors.Voided("no", partition_id=0),
        errors.PartitionFrozen("no", partition_id=0),
        errors.Overloaded("full", limit="partition_ops"),
    ],
    ids=lambda error: error.code,
)
def test_what_nobody_may_be_told(error: LogboomError) -> None:
    by = seen()
    by.refused("a write", error)
    assert told(by) == WRONG


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("it was done before", outcome="unknown"),
        errors.NoSuchPartition("not here yet", partition_id=800),
        errors.PartitionDestroyed("gone", partition_id=9),
        errors.Overloaded("others of this client went first"),
        errors.PartitionFrozen("it goes", partition_id=9),
        errors.NotLeader("ask another"),
    ],
    ids=lambda error: error.code,
)
def test_what_anybody_may_be_told(error: LogboomError) -> None:
    by = seen()
    by.refused("a write", error)
    assert told(by) == []


def test_what_there_are_reasons_for_in_some_runs() -> None:
    def wrong(error: LogboomError, *asked: int, change: Any = lambda drawn: drawn, **more: Any) -> bool:
        by = seen(**more)
        by.parameters = change(by.parameters)
        by.refused("somebody", error, *asked)
        return bool(by.problems)

    def small(drawn: Parameters) -> Parameters:
        admission = msgspec.structs.replace(drawn.settings.admission, partition_ops=4)
        return replace(drawn, settings=msgspec.structs.replace(drawn.settings, admission=admission))

    def removing(drawn: Parameters) -> Parameters:
        snapshot = msgspec.structs.replace(drawn.settings.snapshot, retain_log_bytes=8)
        return replace(drawn, settings=msgspec.structs.replace(drawn.settings, snapshot=snapshot))

    def thin(drawn: Parameters) -> Parameters:
        return replace(drawn, kinds=("thin_lines",))

    def paused(drawn: Parameters) -> Parameters:
        return replace(drawn, kinds=("pause_partition",))

    def asking(drawn: Parameters) -> Parameters:
        return replace(drawn, stories=Stories(asks=True))

    keyed, logs = calm().kv_partitions, calm().log_partitions
    removed, damaged, mixed = errors.IndexCompacted("no"), errors.CorruptData("no"), errors.LineageMismatch("no")
    assert not wrong(errors.RecordTooLarge("no"), change=small)
    assert not wrong(damaged, rotten=lambda: True)
    assert not wrong(damaged, change=lambda drawn: replace(drawn, blackout=3.0))
    forgot, kept = (errors.CorruptData("no", partition_id=partition) for partition in (9, 8))
    assert not wrong(forgot, change=lambda drawn: replace(drawn, blackout=3.0))
    assert wrong(kept, change=lambda drawn: replace(drawn, blackout=3.0))
    assert not wrong(mixed, again=True)
    assert not wrong(errors.Overloaded("no", limit="node_ops"), change=small)
    assert not wrong(errors.Overloaded("no", limit="forward_queue"), change=thin)
    assert not wrong(errors.PartitionFrozen("no", partition_id=0), change=paused)
    assert not wrong(errors.PartitionFrozen("no", partition_id=0), kept=1)
    assert not wrong(errors.Voided("no", partition_id=0), voids={(0, 3)})
    assert not wrong(errors.BarrierFuture("no", timestamp_ms=1), change=asking)
    assert wrong(errors.BarrierFuture("no", target=1), change=asking)
    assert wrong(removed, *logs)
    assert not wrong(removed, *logs, change=removing)
    assert not wrong(removed, *logs, *keyed)


@pytest.mark.parametrize(
    ("first", "merged", "right"), [(5, False, True), (6, False, False), (70, True, True), (71, True, False)]
)
def test_nobody_is_told_that_more_is_gone_than_any_node_has_removed(first: int, *, merged: bool, right: bool) -> None:
    by = seen(begins=lambda partition: Beginning(5, 70) if partition == 0 else Beginning(1, 1))
    error = errors.IndexCompacted("no", first=first)
    by.refused("who reads the log", error, *calm().kv_partitions, 0, merged=merged)
    assert told(by) == ([] if right else WRONG)


def test_where_logs_begin_is_remembered_of_nodes_that_are_gone() -> None:
    log = SimpleNamespace(first_available_index=7, first_global_index=0)
    host: Any = SimpleNamespace(node=SimpleNamespace(pipeline=SimpleNamespace(logs={0: log})))
    begins = Beginnings([host])
    assert (begins.of(0), begins.of(1)) == ((7, 1), (1, 1))
    log.first_available_index, log.first_global_index = 3, 40  # made anew from another node's
    begins.started(host)
    host.node = None
    assert begins.of(0) == (7, 40)


def test_who_is_paused_or_lost_is_so_for_a_reason() -> None:
    def wrong(error: LogboomError, **changed: Any) -> bool:
        by = seen()
        by.parameters = replace(calm(), **{"kinds": (), "stories": Stories(), **changed})
        by.refused("somebody", error)
        return bool(by.problems)

    paused, lost = errors.PartitionPaused("no"), errors.PartitionLost("no")
    assert wrong(paused)
    assert not wrong(paused, kinds=("pause_partition",))
    assert not wrong(paused, stories=Stories(asks=True))
    assert wrong(lost)
    assert not wrong(lost, kinds=("rot",))
    assert not wrong(lost, blackout=1.0)


def test_what_was_told_is_counted() -> None:
    by = seen()
    for error in (errors.Overloaded("full"), errors.NotLeader("no"), errors.Overloaded("full")):
        by.refused("a write", error)
    assert by.refusals == {"overloaded": 2, "not_leader": 1}


class Liar:
    """A client whose every call is refused."""

    def __getattr__(self, _name: str) -> Any:
        async def refuse(*_: object, **__: object) -> None:
            raise errors.InvalidRequest("no")

        return refuse


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (clients, readers, waiting):
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": _no_pause}))


async def _no_pause(_seconds: float) -> None: ...


@pytest.mark.usefixtures("_at_once")
async def test_clients_tell() -> None:
    """Whatever they do."""
    by = seen()
    client = SimClient(1, parameters=calm(), seen=by, rng=random.Random(1), barrier_reached=lambda _: None)
    client.client = client.readers._client = Liar()  # type: ignore[assignment]
    partition = calm().kv_partitions[0]
    calls: list[Any] = [
        client._adds,
        lambda: client._get(client._invoke("get", "r1", None, partition)),
        lambda: client._put(client._invoke("put", "r1", "v", partition), None),
        client._watch,
        client._change_partitions,
    ]
    for call in calls:
        by.problems.clear()
        while not by.problems:  # some of them have nothing to ask yet
            await call()
        assert told(by) == WRONG


@pytest.mark.usefixtures("_at_once")
async def test_readers_and_those_who_wait_tell() -> None:
    by, found = seen(), list[str]()
    reading = LogReaders(Liar(), calm(), by, random.Random(2))  # type: ignore[arg-type]
    reading._cursor = reading._client.cursor  # type: ignore[method-assign, assignment]
    reading._tail = reading._scan = reading._fetch = reading._view = reading._cursor  # type: ignore[method-assign, assignment]
    await reading.look()
    assert told(by) == WRONG
    waits = Waiting(
        Liar(),  # type: ignore[arg-type]
        told=Told(),
        addresses={"n1:1": "n1"},
        rng=random.Random(1),
        partitions=lambda: [0],
        doomed=lambda _: False,
        reached=lambda _: None,
        problem=lambda *_: None,
        refused=lambda error: found.append(error.code),
        dice=random.Random(1),
        all_of=lambda *_: None,
    )
    waits._barrier = waits._watch = waits._bounded = waits._client.barrier  # type: ignore[method-assign, assignment]
    await waits.step()
    assert found == ["invalid_request"]


@pytest.mark.parametrize(
    ("first", "last", "goes_on", "due", "right"),
    [
        (3, 5, 6, 3, True),
        (3, 5, 6, 4, True),  # he began in it
        (3, 5, 6, 0, True),
        (3, 4, 5, 3, False),
        (3, 5, 7, 3, False),
        (3, 5, 6, 2, False),
        (3, 5, 6, 6, False),
    ],
    ids=["all", "the end of it", "anywhere", "never void", "too far", "too early", "once more"],
)
def test_only_what_was_declared_void_is_stepped_over(
    first: int, last: int, goes_on: int, due: int, *, right: bool
) -> None:
    by = seen(voids={(0, 5), (1, 4)})
    gap = errors.Voided("void", partition_id=0, first_index=first, last_index=last, next=goes_on)
    assert by.stepped_over("a tail", gap, due) == goes_on
    assert told(by) == ([] if right else [("VoidTold",)])


async def test_whoever_follows_or_reads_a_log_tells_of_what_is_stepped_over() -> None:
    by, failed = seen(), list[str]()

    class Tailing:
        async def tail(self, partition: int, *, on_void: Any, **_: Any) -> Any:
            on_void(errors.Voided("void", partition_id=partition, first_index=1, last_index=2, next=3))
            for batch in ():
                yield batch

    following = Followers(
        calm(),
        [],
        loop=None,  # type: ignore[arg-type]
        network=None,  # type: ignore[arg-type]
        rng=random.Random(1),
        seen=by,
        ends=lambda _: [],
        fail=lambda invariant, _: failed.append(invariant),
    )
    following._client = Tailing()  # type: ignore[assignment]
    await following._tail(0)()
    assert told(by) == [("VoidTold",)]
    reading = LogReaders(Tailing(), calm(), by, random.Random(1))  # type: ignore[arg-type]
    await reading._tail()
    assert told(by) == [("VoidTold",)] * 2
