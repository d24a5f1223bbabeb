"""How fast a principal may read: who is faster waits for his turn, others do not notice, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.reading.feeds import FeedRequest
from dispatcher.reading.log_scan import LogScan
from dispatcher.reading.read_rates import CHUNK_BYTES_MIN, KEPT_MIN, Pace, ReadRates
from dispatcher.reading.tail import Tail
from logboom.errors import DeadlineExceeded, LogboomError
from logboom.settings import ReadSettings
from logboom.types import KIB, PartitionId
from logboom.wire import Kind
from tests.unit.dispatcher.reading_world import Client, World
from tests.unit.raftlog.world import VirtualClock, VirtualLoop

PER_S = 100 * KIB
ROW = bytes(900)
OTHER = PartitionId(1)


class Desk:
    """A hundred kilobytes a second, of which two hundred milliseconds' worth may come at once."""

    def __init__(self, loop: VirtualLoop, *, per_s: int = PER_S, burst_ms: int = 200) -> None:
        self.loop = loop
        self.rates = ReadRates(per_s=per_s, burst_ms=burst_ms, clock=VirtualClock(loop))
        self.turns: list[str] = []

    def ask(self, pace: Pace, name: str, size: int) -> None:
        """Somebody who reads again and again."""

        def go_on() -> None:
            if pace.admits(name, go_on):
                self.turns.append(name)
                pace.take(size)
                self.ask(pace, name, size)

        go_on()

    def after(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))


@pytest.fixture
def desk() -> Any:
    loop = VirtualLoop()
    yield Desk(loop)
    loop.close()


def asked(desk: Desk, pace: Pace, *names: str, size: int = 10 * KIB) -> None:
    async def begin() -> None:
        for name in names:
            desk.ask(pace, name, size)

    desk.loop.run_until_complete(begin())


@pytest.mark.parametrize("size", [1, 10 * KIB, 300 * KIB])
def test_whoever_reads_as_fast_as_he_can_reads_at_that_rate(desk: Desk, size: int) -> None:
    if size == 1:
        desk.rates.per_s = 100  # steps, not bytes
    asked(desk, desk.rates.enter("p"), "a", size=size)
    desk.after(100.0)
    most = desk.rates.per_s * 100.2 + size
    assert most - 2 * size - desk.rates.per_s <= len(desk.turns) * size <= most


def test_streams_of_the_same_client_take_turns(desk: Desk) -> None:
    asked(desk, desk.rates.enter("p"), "a", "b", "c")
    desk.after(10.0)
    counts = [desk.turns.count(name) for name in "abc"]
    assert min(counts[1:]) >= 30
    assert max(counts) - min(counts) <= 4  # the first one had what may come at once


def test_all_connections_of_a_certificate_share_it_and_others_have_their_own(desk: Desk) -> None:
    one, same, other = desk.rates.enter("p"), desk.rates.enter("p"), desk.rates.enter("q")
    assert one is same
    asked(desk, one, "hot", size=500 * KIB)
    assert not one.admits("more", lambda: None)
    assert other.admits("quiet", lambda: None)
    nameless = desk.rates.enter("")
    nameless.take(500 * KIB)
    assert desk.rates.enter("").admits("another", lambda: None)
    one.leave("more")


def test_who_comes_again_on_another_connection_still_owes(desk: Desk) -> None:
    pace = desk.rates.enter("p")
    pace.take(500 * KIB)
    desk.rates.leave(pace)
    assert desk.rates.enter("p").owed == pytest.approx(5.0)


def test_who_has_paid_and_gone_is_forgotten(desk: Desk) -> None:
    for number in range(10 * KEPT_MIN):
        desk.rates.leave(desk.rates.enter(f"client {number}"))
    assert len(desk.rates._paces) <= 2 * KEPT_MIN


def test_who_leaves_is_not_called_and_keeps_nobody_waiting(desk: Desk) -> None:
    pace, called = desk.rates.enter("p"), list[str]()
    pace.take(50 * KIB)

    async def wait() -> None:
        assert not pace.admits("a", lambda: called.append("a"))
        assert not pace.admits("b", lambda: called.append("b"))
        assert not pace.admits("a", lambda: called.append("twice"))
        assert desk.rates.waiting == 2
        pace.leave("a")
        pace.leave("a")

    desk.loop.run_until_complete(wait())
    desk.after(1.0)
    assert (called, desk.rates.waiting, desk.rates.waited) == (["b"], 0, 2)


def test_nobody_is_held_up_where_nothing_is_bounded(desk: Desk) -> None:
    rates = ReadRates(per_s=0, burst_ms=1, clock=VirtualClock(desk.loop))
    pace = rates.enter("p")
    pace.take(1 << 40)
    assert pace.admits("a", lambda: None)
    assert pace.chunk_bytes >= 1 << 40
    assert not rates._paces


class TestTurn:
    def test_it_is_waited_for(self, desk: Desk) -> None:
        pace = desk.rates.enter("p")
        pace.take(120 * KIB)  # a second more than may come at once
        began = desk.loop.now
        desk.loop.run_until_complete(pace.turn(5.0))
        assert desk.loop.now - began == pytest.approx(1.0, abs=0.01)

    def test_no_longer_than_there_is_time(self, desk: Desk) -> None:
        pace = desk.rates.enter("p")
        pace.take(60 * KIB)
        asked(desk, pace, "a", "b", "c", size=50 * KIB)  # who came before
        began = desk.loop.now
        with pytest.raises(DeadlineExceeded, match=r"reads\.principal_bytes_per_s") as late:
            desk.loop.run_until_complete(pace.turn(0.5))
        assert late.value.outcome == "not_applied"
        assert desk.loop.now - began == pytest.approx(0.5)
        assert desk.rates.waiting == 3

    def test_what_would_be_too_late_is_told_at_once(self, desk: Desk) -> None:
        """Its client gives up at the same moment, and would not hear why."""
        pace = desk.rates.enter("p")
        pace.take(1_000 * KIB)
        began = desk.loop.now
        with pytest.raises(DeadlineExceeded, match=r"10 s ahead"):
            desk.loop.run_until_complete(pace.turn(0.5))
        assert (desk.loop.now, desk.rates.waiting) == (began, 0)

    def test_who_gives_up_leaves_the_line(self, desk: Desk) -> None:
        pace = desk.rates.enter("p")
        pace.take(100 * KIB)

        async def give_up() -> None:
            waits = asyncio.ensure_future(pace.turn())
            await asyncio.sleep(0)
            assert desk.rates.waiting == 1
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            await pace.turn(1.0)

        desk.loop.run_until_complete(give_up())
        assert desk.rates.waiting == 0


class Node:
    """Logs of two partitions, on a loop whose clock jumps."""

    def __init__(self, loop: VirtualLoop, *, per_s: int, memory_bytes: int = 1 << 26) -> None:
        self.loop = loop
        self.world: Any = World(2, reads=ReadSettings(memory_bytes=memory_bytes))
        self.clock = self.world.clock = VirtualClock(loop)
        self.rates = ReadRates(per_s=per_s, burst_ms=100, clock=self.clock)
        self.feeds: list[Any] = []

    def tail(self, pace: Pace, client: Client, **wanted: Any) -> Tail:
        client.pace = pace
        asked = FeedRequest(**{"credit": 1 << 30, "start": 1, "whole": True, **wanted})
        self.feeds.append(Tail(self.world, PartitionId(0), asked, **client.how()))
        return self.feeds[-1]

    def scan(self, pace: Pace, client: Client, **wanted: Any) -> LogScan:
        client.pace = pace
        asked = FeedRequest(**{"credit": 1 << 30, **wanted})
        partitions = [PartitionId(0), OTHER]
        self.feeds.append(LogScan(self.world, partitions, asked, through=0, **client.how()))
        return self.feeds[-1]

    def run(self, seconds: float, *begin: Any, step_s: float = 0.001) -> None:
        async def go() -> None:
            for feed in begin:
                feed.move()
            until = self.loop.now + seconds
            while self.loop.now < until:
                self.world.work()
                await asyncio.sleep(step_s)

        self.loop.run_until_complete(go())


@pytest.fixture
def node() -> Any:
    loop = VirtualLoop()
    made = Node(loop, per_s=20 * KIB)
    yield made
    for feed in made.feeds:
        feed.close()
    loop.close()


def received(client: Client) -> int:
    return sum(len(body) for _, body in client.of(Kind.BATCHES))


class TestStreams:
    @pytest.mark.parametrize("kind", ["tail", "scan"])
    def test_one_that_is_over_its_rate_pauses_and_ends_whole(self, node: Node, kind: str) -> None:
        for _ in range(100):
            node.world.append(0, [ROW])
        client = Client()
        feed = getattr(node, kind)(node.rates.enter("p"), client)
        node.run(1.0, feed)
        some = received(client)
        assert 0 < some <= node.rates.per_s * 1.1 + 2 * CHUNK_BYTES_MIN
        assert client.ends == []
        node.run(10.0)
        assert client.ends == [None]
        assert received(client) > 100 * len(ROW)
        assert node.rates.waiting == 0

    def test_others_do_not_notice(self, node: Node) -> None:
        for _ in range(100):
            node.world.append(0, [ROW])
        hot, quiet = Client(), Client()
        one, other = node.tail(node.rates.enter("p"), hot), node.tail(node.rates.enter("q"), quiet, start=99)
        node.run(0.05, one, other)
        assert quiet.ends == [None]
        assert hot.ends == []

    def test_many_of_one_client_all_go_on_though_there_is_memory_for_one_chunk(self) -> None:
        """A chunk that is read, and waits for its turn to be sent, could be given back for the next one, for ever."""
        loop = VirtualLoop()
        node = Node(loop, per_s=200 * KIB, memory_bytes=4 * KIB)
        for _ in range(100):
            node.world.append(0, [ROW])
        pace, clients = node.rates.enter("p"), [Client() for _ in range(8)]
        tails = [node.tail(pace, client) for client in clients]
        node.run(10.0, *tails)
        assert [client.ends for client in clients] == [[None]] * 8
        loop.close()

    def test_what_a_paused_one_has_not_read_is_not_removed(self, node: Node) -> None:
        for _ in range(100):
            node.world.append(0, [ROW])
        client, pace = Client(), node.rates.enter("p")
        feed = node.tail(pace, client)
        pace.take(10_000 * KIB)  # as scans of the same client may have: longer than a lease lasts
        node.run(0.01, feed)
        log = node.world.logs[0]
        leases = log._leases
        assert leases.lowest(1 << 40, now=node.loop.now + 300.0) == 1
        assert math.isinf(feed._lease.taken.at)
        node.run(600.0, step_s=0.1)
        assert client.ends == [None]

    def test_one_that_is_closed_while_it_waits_leaves_nothing(self, node: Node) -> None:
        for _ in range(10):
            node.world.append(0, [ROW])
        client, pace = Client(), node.rates.enter("p")
        pace.take(1_000 * KIB)
        feed = node.tail(pace, client)
        node.run(0.01, feed)
        assert node.rates.waiting == 1
        feed.close()
        assert node.rates.waiting == 0
        node.run(100.0)
        assert client.frames == []

    def test_a_partition_that_goes_ends_one_that_waits(self, node: Node) -> None:
        node.world.append(0, [ROW])
        client, pace = Client(), node.rates.enter("p")
        pace.take(1_000 * KIB)
        feed = node.tail(pace, client)
        node.run(0.01, feed)
        gone = LogboomError("gone")
        feed.move(gone)
        assert client.ends == [gone]
        assert node.rates.waiting == 0


def test_the_clock_is_all_that_is_asked(desk: Desk) -> None:
    """What is owed is paid by time, whoever looks."""
    clock = SimpleNamespace(monotonic=lambda: desk.loop.now)
    rates = ReadRates(per_s=10, burst_ms=100, clock=clock)  # type: ignore[arg-type]
    pace = rates.enter("p")
    pace.take(50)
    assert pace.owed == pytest.approx(5.0)
    desk.after(2.0)
    assert pace.owed == pytest.approx(3.0)
    desk.after(9.0)
    assert pace.owed == 0.0


class TestGets:
    """Many at once: how much they take is known only when they were read."""

    def gets(self, desk: Desk, pace: Pace, count: int, size: int, *, seconds: float = 600.0) -> list[float]:
        """When each was read; those that are told that there is no time for them are not."""
        done = list[float]()

        async def one() -> None:
            try:
                await pace.turn(seconds)
            except DeadlineExceeded:
                return
            expected, nbytes = pace.expect(1), None
            try:
                await asyncio.sleep(0.005)
                nbytes = size
            finally:
                pace.was(expected, nbytes, 1)
            done.append(desk.loop.now)

        async def all_of_them() -> None:
            await asyncio.gather(*(one() for _ in range(count)))

        desk.loop.run_until_complete(all_of_them())
        return done

    @pytest.mark.parametrize("size", [10, 10 * KIB, 300 * KIB])
    def test_a_hundred_at_once_are_read_at_that_rate(self, desk: Desk, size: int) -> None:
        began, pace = desk.loop.now, desk.rates.enter("p")
        done = self.gets(desk, pace, 100, size)
        assert len(done) == 100
        assert desk.rates.waiting == 0
        for seconds in (0.5, 1.0, 10.0, 100.0):
            by_then = sum(at <= began + seconds for at in done) * size
            assert by_then <= PER_S * (seconds + 0.2) + 2 * size
        assert done[-1] - began <= 100 * size / PER_S + 1.0, "and not slower"

    def test_time_that_passes_while_one_is_expected_is_not_saved_up(self, desk: Desk) -> None:
        """Seed 2 of the simulator: it paid for what was expected, and that was then given back to the stream."""
        pace = desk.rates.enter("p")
        expected = pace.expect(1)
        desk.after(0.1)
        pace.take(PER_S)
        pace.was(expected, None, 1)
        assert pace.owed == pytest.approx(1.0)

    def test_what_comes_to_nothing_is_not_owed(self, desk: Desk) -> None:
        pace = desk.rates.enter("p")
        self.gets(desk, pace, 1, 10 * KIB)
        desk.after(10.0)
        pace.was(pace.expect(1_000), None, 1_000)
        assert pace.owed == pytest.approx(0.0)

    def test_what_is_only_expected_tells_nobody_that_there_is_no_time(self, desk: Desk) -> None:
        pace = desk.rates.enter("p")
        expected = pace.expect(1)
        assert pace.owed > 0.2
        desk.loop.run_until_complete(pace.turn(0.21))
        pace.was(expected, 10, 1)
        assert len(self.gets(desk, pace, 5, 10, seconds=0.1)) == 5

    def test_nothing_is_looked_at_where_nothing_is_bounded(self, desk: Desk) -> None:
        pace = ReadRates(per_s=0, burst_ms=1, clock=VirtualClock(desk.loop)).enter("p")
        pace.was(pace.expect(10), 1 << 40, 10)
        assert pace.owed == 0.0
