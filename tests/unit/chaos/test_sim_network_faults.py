"""The simulated network: cut lines, closed ports, dead processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from chaos.sim.host import SimClock
from chaos.sim.loop import ProcessDied
from chaos.sim.network import WINDOW_BYTES, NetworkProfile
from chaos.sim.port import SimPort
from logboom.types import KIB
from logboom.wire import Kind, encode
from ports.net import ConnectionLimits
from server.world.net_os import AsyncioNetwork
from tests.unit.chaos.sim_world import CALM, End, World
from tests.unit.server.net_world import Session

BAD: NetworkProfile = NetworkProfile(delay_max_s=0.05, loss=0.2, split=0.5, bytes_per_s=1e6)


def noise(rng: random.Random, sizes: Sequence[int]) -> list[bytes]:
    return [rng.randbytes(size) for size in sizes]


# -- cuts


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_way_is_silent_and_delivers_everything_in_order_when_it_heals(seed: int) -> None:
    world = World(NetworkProfile(delay_max_s=0.3, loss=0.1, split=0.3), seed=seed)
    rng = random.Random(seed)
    pieces = noise(rng, [rng.randint(1, 400) for _ in range(200)])

    async def story() -> None:
        ours, theirs = await world.pair()
        await asyncio.sleep(5.0)
        before = 0
        for number, piece in enumerate(pieces):
            if number in (40, 100):
                world.network.cut("a", "b")
                before = len(theirs.data)
            if number in (80, 150):
                assert len(theirs.data) == before
                world.network.heal("a", "b")
            ours.transport.write(piece)
            theirs.transport.write(b".")
            await asyncio.sleep(rng.random() * 0.02)
        await asyncio.sleep(60.0)
        assert bytes(theirs.data) == b"".join(pieces)
        assert len(ours.data) == len(pieces)

    world.play(story())


def test_what_was_on_its_way_when_the_line_healed_does_not_overtake() -> None:
    world = World(NetworkProfile(delay_min_s=0.1, delay_max_s=0.1, split=0.0))

    async def story() -> bytes:
        ours, theirs = await world.pair()
        await asyncio.sleep(1.0)
        world.network.cut("a", "b")
        ours.transport.write(b"1")
        await asyncio.sleep(0.5)
        ours.transport.write(b"2")
        await asyncio.sleep(0.05)
        world.network.heal()
        ours.transport.write(b"3")
        await asyncio.sleep(1.0)
        return bytes(theirs.data)

    assert world.play(story()) == b"123"


def test_a_cut_goes_one_way() -> None:
    world = World(CALM)

    async def story() -> tuple[bytes, bytes]:
        ours, theirs = await world.pair()
        world.network.cut("a", "b")
        ours.transport.write(b"there")
        theirs.transport.write(b"back")
        await asyncio.sleep(60.0)
        return bytes(ours.data), bytes(theirs.data)

    assert world.play(story()) == (b"back", b"")


def test_healing_one_line_leaves_the_others_cut() -> None:
    world = World(CALM)

    async def story() -> tuple[bytes, bytes]:
        ours, theirs = await world.pair()
        for line in (("a", "b"), ("b", "a")):
            world.network.cut(*line)
        ours.transport.write(b"there")
        theirs.transport.write(b"back")
        await asyncio.sleep(1.0)
        world.network.heal("b", "a")
        await asyncio.sleep(1.0)
        assert (bytes(ours.data), bytes(theirs.data)) == (b"back", b"")
        world.network.heal("a")
        await asyncio.sleep(1.0)
        return bytes(ours.data), bytes(theirs.data)

    assert world.play(story()) == (b"back", b"there")


def test_a_reset_does_not_get_over_a_cut_line() -> None:
    world = World(CALM)

    async def story() -> list[list[str]]:
        ours, theirs = await world.pair()
        world.network.cut("a", "b")
        ours.transport.abort()
        await asyncio.sleep(60.0)
        meanwhile = list(theirs.told)
        world.network.heal()
        await asyncio.sleep(1.0)
        return [meanwhile, theirs.told]

    assert world.play(story()) == [["made"], ["made", "lost"]]


# -- connecting


@pytest.mark.parametrize("line", [("a", "b"), ("b", "a")])
def test_connecting_over_a_cut_line_hangs_and_can_be_given_up(line: tuple[str, str]) -> None:
    world = World(CALM)

    async def story() -> float:
        await world.listen("b")
        world.network.cut(*line)

        async def patiently() -> None:
            async with asyncio.timeout(45.0):
                await asyncio.get_running_loop().create_connection(lambda: End(world.loop), "b", 7000)

        with pytest.raises(TimeoutError):
            await world.on("a", patiently)
        return world.now

    assert world.play(story()) == pytest.approx(45.0, abs=0.1)
    assert world.accepted == []
    assert world.network.ends == {}


@pytest.mark.parametrize("where", ["no listener", "other port", "other host", "closed"])
def test_connecting_to_a_closed_port_is_refused(where: str) -> None:
    world = World(CALM)

    async def story() -> float:
        if where == "closed":
            server = await world.on("b", lambda: asyncio.get_running_loop().create_server(asyncio.Protocol, "b", 7000))
            server.close()
            await server.wait_closed()
        elif where != "no listener":
            await world.listen("b" if where == "other port" else "c", port=7001 if where == "other port" else 7000)
        with pytest.raises(ConnectionRefusedError):
            await world.dial("a", "b")
        return world.now

    assert world.play(story()) < 0.1


def test_a_taken_port_cannot_be_bound_again() -> None:
    world = World(CALM)

    async def story() -> int | None:
        await world.listen("b")
        with pytest.raises(OSError, match="already in use") as refused:
            await world.listen("b")
        await world.listen("b", port=7001)
        return refused.value.errno

    assert world.play(story()) == 98


# -- death


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_killed_process_resets_its_connections(victim: str) -> None:
    world = World(CALM)

    async def story() -> tuple[End, End]:
        ours, theirs = await world.pair()
        dead, alive = (ours, theirs) if victim == "a" else (theirs, ours)
        dead.transport.write(b"last words")
        world.kill(victim)
        await asyncio.sleep(0.1)
        return dead, alive

    dead, alive = world.play(story())
    assert dead.told == ["made"]
    assert (alive.told, bytes(alive.data)) == (["made", "lost"], b"last words")
    assert isinstance(alive.error, ConnectionResetError)
    assert world.network.ends == {}


def test_what_a_dead_process_had_not_sent_is_gone() -> None:
    """It was in its own memory."""
    world = World(CALM)

    async def story() -> End:
        ours, theirs = await world.pair(reads=False)
        ours.transport.write(bytes(WINDOW_BYTES))
        ours.transport.write(b"more")
        world.kill("a", power=True)
        theirs.transport.resume_reading()
        await asyncio.sleep(60.0)
        return theirs

    theirs = world.play(story())
    assert len(theirs.data) == WINDOW_BYTES
    assert theirs.told == ["made", "lost"]


def test_a_host_without_power_is_missed_late() -> None:
    world = World(CALM)

    async def story() -> tuple[float, End]:
        ours, _ = await world.pair()
        world.kill("b", power=True)
        off = world.now
        ours.transport.write(b"are you there?")
        await asyncio.sleep(60.0)
        return off, ours

    off, ours = world.play(story())
    assert ours.told == ["made", "lost"]
    assert ours.at["lost"] - off >= 0.5
    assert isinstance(ours.error, ConnectionResetError)


@pytest.mark.parametrize("power", [False, True])
def test_ports_are_free_again_after_death(power: bool) -> None:
    world = World(CALM)

    async def story() -> bytes:
        await world.pair()
        world.kill("b", power=power)
        with pytest.raises(ConnectionRefusedError):
            await world.dial("a", "b")
        await world.listen("b")
        again = await world.dial("a", "b")
        again.transport.write(b"hello")
        await asyncio.sleep(1.0)
        return bytes(world.accepted[-1].data)

    assert world.play(story()) == b"hello"


@pytest.mark.parametrize("power", [False, True])
def test_who_dies_before_it_has_accepted_is_missed_too(power: bool) -> None:
    world = World(CALM)

    async def story() -> End:
        await world.listen("b")
        world.loop.stop_process(world.processes["b"])
        ours = await world.dial("a", "b")
        ours.transport.write(b"hello")
        await asyncio.sleep(1.0)
        world.kill("b", power=power)
        await asyncio.sleep(60.0)
        return ours

    ours = world.play(story())
    assert ours.told == ["made", "lost"]
    assert world.accepted == []


def test_who_is_gone_before_it_is_accepted_is_noticed() -> None:
    world = World(CALM)

    async def story() -> End:
        await world.listen("b")
        world.loop.stop_process(world.processes["b"])
        await world.dial("a", "b")
        world.kill("a")
        await asyncio.sleep(1.0)
        world.loop.continue_process(world.processes["b"])
        await asyncio.sleep(1.0)
        return world.accepted[-1]

    assert world.play(story()).told == ["made", "lost"]


def test_who_has_closed_before_it_is_accepted_is_heard_out() -> None:
    world = World(CALM)

    async def story() -> End:
        await world.listen("b")
        world.loop.stop_process(world.processes["b"])
        ours = await world.dial("a", "b")
        ours.transport.write(b"hello")
        ours.transport.close()
        world.loop.continue_process(world.processes["b"])
        await asyncio.sleep(1.0)
        return world.accepted[-1]

    theirs = world.play(story())
    assert (bytes(theirs.data), theirs.told) == (b"hello", ["made", "eof", "lost"])


def test_a_stopped_process_is_connected_to_and_answers_when_it_goes_on() -> None:
    world = World(CALM)

    async def story() -> list[bytes]:
        await world.listen("b")
        world.loop.stop_process(world.processes["b"])
        ours = await world.dial("a", "b")
        for piece in (b"1", b"2", b"3"):
            ours.transport.write(piece)
            await asyncio.sleep(1.0)
        assert world.accepted == []
        world.loop.continue_process(world.processes["b"])
        ours.transport.write(b"4")
        await asyncio.sleep(1.0)
        return [bytes(world.accepted[-1].data)]

    assert world.play(story()) == [b"1234"]


def test_who_dies_while_it_writes_says_no_more() -> None:
    world = World(CALM)

    async def story() -> End:
        ours, theirs = await world.pair()

        async def work() -> None:
            ours.transport.write(b"before")
            world.kill("a")
            raise ProcessDied

        world.loop.spawn(world.processes["a"], work())
        await asyncio.sleep(1.0)
        return theirs

    theirs = world.play(story())
    assert (bytes(theirs.data), theirs.told) == (b"before", ["made", "lost"])


# -- as production uses it


def test_the_production_network_runs_on_it() -> None:
    """Frames both ways over a bad line, then a reset, then a connection anew."""
    world = World(BAD, seed=11)
    limits = ConnectionLimits(unauthenticated_frame_bytes=KIB, frame_bytes=64 * KIB)
    rng = random.Random(11)
    bodies = noise(rng, [rng.randint(0, 60 * KIB) for _ in range(40)])
    accepted: list[Session] = []
    deaths: list[BaseException] = []

    class Asking(Session):
        def frame(self, frame: Any) -> None:
            self.frames.append(frame)
            if frame.kind is Kind.HELLO:
                self.open.authenticated()

    def accept() -> Session:
        accepted.append(Session())
        return accepted[-1]

    def net() -> AsyncioNetwork:
        return AsyncioNetwork(clock=SimClock(world.loop), on_fatal=deaths.append, port=SimPort)

    async def ask() -> Asking:
        asking = Asking()
        connection = await net().dial("b:7001", asking, limits=limits, tls=None)
        connection.send(encode(Kind.HELLO, {}, [b"me"], request_id=0))
        await asyncio.sleep(5.0)
        for number, body in enumerate(bodies, 1):
            connection.send(encode(Kind.GET, {}, [body], request_id=number))
            await asyncio.sleep(rng.random() * 0.05)
        await asyncio.sleep(60.0)
        return asking

    async def story() -> tuple[Session, Session]:
        listener = await world.on("b", lambda: net().listen("b:7001", accept, limits=limits, tls=None))
        assert listener.address == "b:7001"
        first = await world.on("a", ask)
        world.network.reset("a", "b", both_know=True)
        await asyncio.sleep(5.0)
        second = await world.on("a", ask)
        await world.on("b", listener.close)
        await asyncio.sleep(5.0)
        return first, second

    first, second = world.play(story())
    for session in (first, second):
        assert [frame.request_id for frame in session.frames] == list(range(len(bodies) + 1))
        assert [bytes(frame.body) for frame in session.frames] == [b"me", *bodies]
    assert isinstance(first.error, ConnectionResetError)
    assert second.error is None
    assert [len(session.ends) for session in accepted] == [1, 1]
    assert deaths == []
