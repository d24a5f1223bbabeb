"""What is removed under a reader, or before it is applied, is seen; and so is what is counted, and held by nobody."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.held import check_held, look_at_holding, look_at_keeping, look_at_removing
from dispatcher.reading.feeds import Feed
from dispatcher.reading.read_budget import ReadBudget
from logboom.errors import LogboomError
from partitions.log.compaction import Leases, Taken

HOST: Any = SimpleNamespace(name="n1")
LEASE_S = 10.0


class Removing:
    """A partition whose log begins at 1, and of which 40 are applied; the clock says 5."""

    def __init__(self) -> None:
        self.leases = Leases(LEASE_S)
        self.store: Any = SimpleNamespace(first_available_index=1, _leases=self.leases)
        self.clock, self.fenced = SimpleNamespace(now=5.0), False
        self.wrong: list[str] = []

    async def to(self, first: int, *, takes_s: float = 0.0) -> list[str]:
        """It begins there once compaction has removed something."""

        def compact(keep_from_index: int, *, ends: bool) -> Callable[[], None]:
            self.store.first_available_index = keep_from_index
            return lambda: None

        async def remove(*_: object) -> None:
            self.clock.now += takes_s
            self.store.compact(first, ends=True)()

        self.store.compact = compact

        compaction = SimpleNamespace(_remove=remove)
        backend: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: self.clock.now),
            logs={0: self.store},
            rebuilding=SimpleNamespace(fenced=lambda _: self.fenced),
            settings=SimpleNamespace(log=SimpleNamespace(reader_lease_ms=1000 * LEASE_S)),
            snapshots=SimpleNamespace(compaction=compaction),
            workers={0: SimpleNamespace(applied_index=40)},
        )
        look_at_removing(HOST, backend, lambda invariant, _: self.wrong.append(invariant))
        await compaction._remove(None, 0, first - 1)
        assert self.store.compact is compact
        return self.wrong


@pytest.mark.parametrize(("first", "wrong"), [(1, []), (41, []), (42, ["NothingEvicted"])])
async def test_what_is_not_applied_stays(first: int, wrong: list[str]) -> None:
    assert await Removing().to(first) == wrong


async def test_a_state_that_is_made_anew_is_another_matter() -> None:
    removing = Removing()
    removing.fenced = True
    assert await removing.to(42) == []


@pytest.mark.parametrize(("first", "wrong"), [(1, []), (20, []), (21, ["LeaseKept"])])
async def test_what_somebody_reads_stays(first: int, wrong: list[str]) -> None:
    removing = Removing()
    for index in (20, 30):
        removing.leases.add(index, by=Taken(5.0))
    assert await removing.to(first) == wrong


async def test_a_reader_who_takes_nothing_for_long_holds_nothing() -> None:
    removing = Removing()
    removing.leases.add(20, by=Taken(5.0))
    assert await removing.to(30, takes_s=LEASE_S) == []


async def test_nor_does_one_who_has_left() -> None:
    removing = Removing()
    lease = removing.leases.add(20, by=Taken(5.0))
    lease.release()
    assert await removing.to(30) == []


def held(
    budget: ReadBudget,
    *,
    streams: int,
    leases: int = 0,
    idle: bool = True,
    logs: int = 0,
    watched: int = 0,
    ahead: int = 0,
    sessions: int = 0,
) -> list[str]:
    wrong, store = list[str](), SimpleNamespace(_leases=SimpleNamespace(_leases=range(leases)))
    backend: Any = SimpleNamespace(
        read_budget=budget,
        streams_open=streams,
        streams_logs=logs,
        watched=SimpleNamespace(taken=watched),
        freshness=SimpleNamespace(ahead=SimpleNamespace(taken=ahead)),
        logs={0: store},
    )
    service = SimpleNamespace(sessions=dict.fromkeys(range(sessions)))
    host: Any = SimpleNamespace(name="n1", node=SimpleNamespace(service=service))
    check_held(host, backend, lambda invariant, _: wrong.append(invariant), idle=idle)
    return wrong


def test_what_is_counted_is_what_readers_hold() -> None:
    budget = ReadBudget(bytes_max=100, segments_max=4)
    grant = budget.ask(nbytes=60, segments=1, order=1, admitted=lambda: None)
    assert held(budget, streams=1) == []
    budget.nbytes += 1
    assert held(budget, streams=1, idle=False) == ["I10"]
    budget.nbytes -= 1
    assert held(budget, streams=0, idle=False) == []
    assert held(budget, streams=0) == ["I10"]
    grant.release()
    assert held(budget, streams=0) == []


def test_only_who_is_alone_holds_more_than_there_is() -> None:
    budget, wrong = ReadBudget(bytes_max=100, segments_max=4), list[str]()
    backend: Any = SimpleNamespace(read_budget=budget)
    look_at_holding(HOST, backend, lambda invariant, _: wrong.append(invariant))
    alone = budget.ask(nbytes=160, segments=1, order=1, admitted=lambda: None)
    assert (held(budget, streams=2), wrong) == ([], [])
    budget._fits = lambda _: True  # type: ignore[method-assign]
    other = budget.ask(nbytes=1, segments=1, order=2, admitted=lambda: None)
    assert (held(budget, streams=2), wrong) == (["I10"], ["I10"])
    alone.read(99)
    assert held(budget, streams=2) == []
    other.read(1)
    budget.ask(nbytes=0, segments=5, order=3, admitted=lambda: None)
    assert (held(budget, streams=3), wrong) == (["I10"], ["I10", "I10"])


def test_whoever_reads_no_more_leases_nothing() -> None:
    budget = ReadBudget(bytes_max=100, segments_max=4)
    assert held(budget, streams=1, leases=3) == []
    assert held(budget, streams=0, leases=1) == ["I10"]
    assert held(budget, streams=0, leases=1, idle=False) == []


@pytest.mark.parametrize("idle", [False, True])
def test_where_no_stream_is_open_none_of_their_logs_are_counted(idle: bool) -> None:
    budget = ReadBudget(bytes_max=100, segments_max=4)
    assert held(budget, streams=1, logs=3, idle=idle) == []
    assert held(budget, streams=0, logs=1, idle=idle) == ["I10"]


@pytest.mark.parametrize("what", [{"watched": 1}, {"ahead": 1}])
def test_whoever_is_gone_follows_nothing_and_waits_for_nothing(what: dict[str, int]) -> None:
    budget = ReadBudget(bytes_max=100, segments_max=4)
    for fields in ({"sessions": 1}, {"idle": False}, {"sessions": 1, "idle": False}):
        assert held(budget, streams=0, **what, **fields) == []  # type: ignore[arg-type]
    assert held(budget, streams=0, **what) == ["I10"]


class Stream(Feed):
    def __init__(self, *, closed: bool, reading: bool) -> None:
        self._closed, self._reading = closed, reading

    def move(self, error: LogboomError | None = None) -> None: ...

    def _keep(self, now: float) -> None: ...

    def _let_go(self) -> None: ...


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(
    ("closed", "reading", "wrong"), [(True, False, ["I10"]), (False, False, []), (False, True, []), (True, True, [])]
)
def test_a_stream_that_has_ended_holds_nothing_but_what_a_thread_still_reads(
    closed: bool, reading: bool, around: bool, wrong: list[str]
) -> None:
    """Seed 201 at 17c35a8d: a node that was frozen in the midst of a read."""
    budget, stream = ReadBudget(bytes_max=100, segments_max=4), Stream(closed=closed, reading=reading)
    budget.ask(nbytes=60, segments=1, order=1, admitted=(lambda: stream.move()) if around else stream.move)  # noqa: PLW0108
    assert held(budget, streams=1, idle=False) == wrong


@pytest.mark.parametrize(
    ("left", "wrong"), [([30], ["SetKept"]), ([20, 30], []), ([], ["SetKept"])], ids=["newer", "its own", "none"]
)
def test_the_set_from_which_a_node_goes_on_stays(left: list[int], wrong: list[str]) -> None:
    """Its journal begins at 10, and 25 is applied: what lies behind that is of no use to it."""
    sets, found = [SimpleNamespace(raft_index=at, global_index=at) for at in (20, 30)], list[str]()

    def prune(_keep: int, but: Any = ()) -> list[int]:
        sets[:] = [each for each in sets if each.raft_index in left]
        return []

    raft = SimpleNamespace(
        journal=SimpleNamespace(base=SimpleNamespace(index=10)), engine=SimpleNamespace(applied_index=25)
    )
    store = SimpleNamespace(sets=lambda: list(sets), prune=prune)
    backend: Any = SimpleNamespace(raft=raft, snapshots=SimpleNamespace(store=store))
    look_at_keeping(HOST, backend, lambda invariant, _: found.append(invariant))
    assert store.prune(2, but={30}) == []
    assert found == wrong
