"""The simulated network: streams as TCP's, and what faults do to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.sim.host import SimClock
from chaos.sim.loop import ProcessDied
from chaos.sim.network import WINDOW_BYTES, NetworkProfile
from logboom.types import KIB
from logboom.wire import Kind, encode
from ports.net import ConnectionLimits
from server.net_os import AsyncioNetwork
from tests.unit.chaos.sim_world import CALM, End, World, transport_of
from tests.unit.server.net_world import Session

BAD: NetworkProfile = NetworkProfile(delay_max_s=0.05, loss=0.2, split=0.5, bytes_per_s=1e6)


def noise(rng: random.Random, sizes: Sequence[int]) -> list[bytes]:
    return [rng.randbytes(size) for size in sizes]


# -- streams


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1 << 32),
    sizes=st.lists(st.one_of(st.integers(0, 50), st.integers(0, 90_000)), min_size=1, max_size=12),
    pauses=st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.3]), min_size=12, max_size=12),
    loss=st.sampled_from([0.0, 0.3]),
    split=st.sampled_from([0.0, 0.5, 1.0]),
    slow=st.sampled_from([0.0, 0.5]),
)
def test_bytes_arrive_whole_and_in_order(
    seed: int, sizes: list[int], pauses: list[float], loss: float, split: float, slow: float
) -> None:
    profile = NetworkProfile(delay_max_s=0.02, loss=loss, split=split)
    world = World(profile, seed=seed)
    there, back = noise(random.Random(seed), sizes), noise(random.Random(seed + 1), sizes)

    async def story() -> tuple[End, End]:
        world.network.slow["a", "b"] = slow
        world.network.lossy["b", "a"] = loss
        ours, theirs = await world.pair()
        for one, other, pause in zip(there, back, pauses, strict=False):
            ours.transport.write(one)
            theirs.transport.writelines([other[:7], memoryview(other)[7:]])
            await asyncio.sleep(pause)
        await asyncio.sleep(120.0)
        return ours, theirs

    ours, theirs = world.play(story())
    assert bytes(theirs.data) == b"".join(there)
    assert bytes(ours.data) == b"".join(back)
    assert (ours.told[0], theirs.told[0]) == ("made", "made")
    assert not {"eof", "lost"} & {*ours.told, *theirs.told}


def test_takes_its_time() -> None:
    world = World(NetworkProfile(delay_min_s=0.25, delay_max_s=0.25, split=0.0))

    async def story() -> list[bytes]:
        ours, theirs = await world.pair()
        await asyncio.sleep(1.0)
        ours.transport.write(b"x")
        await asyncio.sleep(0.249)
        early = bytes(theirs.data)
        await asyncio.sleep(0.002)
        return [early, bytes(theirs.data)]

    assert world.play(story()) == [b"", b"x"]


def test_a_lost_packet_is_a_delay_that_later_bytes_share() -> None:
    world = World(CALM)

    async def story() -> list[bytes]:
        ours, theirs = await world.pair()
        world.network.lossy["a", "b"] = 1.0
        ours.transport.write(b"1")
        world.network.lossy.clear()
        ours.transport.write(b"2")
        await asyncio.sleep(0.19)
        early = bytes(theirs.data)
        await asyncio.sleep(10.0)
        return [early, bytes(theirs.data)]

    assert world.play(story()) == [b"", b"12"]


def test_splits_some_writes() -> None:
    world = World(NetworkProfile(split=1.0))

    async def story() -> End:
        ours, theirs = await world.pair()
        for _ in range(10):
            ours.transport.write(b"some bytes")
            await asyncio.sleep(0.1)
        return theirs

    theirs = world.play(story())
    assert (theirs.pieces, len(theirs.data)) == (20, 100)


def test_each_end_is_served_by_its_own_process() -> None:
    world = World()

    async def story() -> tuple[End, End]:
        return await world.pair()

    ours, theirs = world.play(story())
    assert ours.owner is world.processes["a"]
    assert theirs.owner is world.processes["b"]
    assert (ours.transport.get_extra_info("peername")[0], theirs.transport.get_extra_info("peername")[0]) == ("b", "a")


# -- backpressure


def test_whoever_does_not_read_holds_the_sender_back() -> None:
    world = World(CALM)
    sent = 4 * WINDOW_BYTES

    async def story() -> list[Any]:
        ours, theirs = await world.pair(reads=False)
        ours.transport.set_write_buffer_limits(high=64 * KIB)
        for _ in range(sent // KIB):
            ours.transport.write(bytes(KIB))
        await asyncio.sleep(60.0)
        buffered = ours.transport.get_write_buffer_size()
        stuck = [list(ours.told), len(theirs.data), theirs.transport.is_reading(), buffered]
        theirs.transport.resume_reading()
        await asyncio.sleep(60.0)
        return [*stuck, list(ours.told), len(theirs.data), ours.transport.get_write_buffer_size()]

    told, read, reading, buffered, *after = world.play(story())
    assert (told, read, reading) == (["made", "pause"], 0, False)
    assert buffered == sent - WINDOW_BYTES
    assert after == [["made", "pause", "resume"], sent, 0]


def test_writing_resumes_only_below_the_low_mark() -> None:
    world = World(CALM)
    seen: list[int] = []

    class Sender(End):
        def resume_writing(self) -> None:
            super().resume_writing()
            seen.append(self.transport.get_write_buffer_size())

    async def story() -> list[str]:
        await world.listen("b")
        ours = Sender(world.loop)
        await world.on("a", lambda: asyncio.get_running_loop().create_connection(lambda: ours, "b", 7000))
        ours.transport.set_write_buffer_limits(high=40 * KIB, low=8 * KIB)
        for _ in range(1024):
            ours.transport.write(bytes(KIB))
        await asyncio.sleep(60.0)
        return ours.told

    assert world.play(story()) == ["made", "pause", "resume"]
    assert max(seen) <= 8 * KIB


def test_who_pauses_in_the_middle_reads_the_rest_later_in_order() -> None:
    world = World(NetworkProfile(split=0.5), seed=5)
    content = random.Random(5).randbytes(5_000)

    async def story() -> tuple[bytes, bytes]:
        ours, theirs = await world.pair()
        theirs.transport.pause_reading()
        for at in range(0, 2_500, 10):
            ours.transport.write(content[at : at + 10])
        await asyncio.sleep(1.0)
        while_paused = bytes(theirs.data)
        theirs.transport.resume_reading()
        for at in range(2_500, 5_000, 10):
            ours.transport.write(content[at : at + 10])
        await asyncio.sleep(1.0)
        return while_paused, bytes(theirs.data)

    assert world.play(story()) == (b"", content)


def test_pausing_again_while_reading_what_waited_takes_effect_at_once() -> None:
    world = World(CALM)

    class OneByOne(End):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.pause_reading()

    async def story() -> list[bytes]:
        theirs = OneByOne(world.loop)
        await world.on("b", lambda: asyncio.get_running_loop().create_server(lambda: theirs, "b", 7000))
        ours = await world.dial("a", "b")
        await asyncio.sleep(0.1)
        for piece in (b"1", b"2", b"3"):
            ours.transport.write(piece)
        ours.transport.close()
        seen = []
        for _ in range(3):
            await asyncio.sleep(1.0)
            seen.append(bytes(theirs.data))
            assert "eof" not in theirs.told
            theirs.transport.resume_reading()
        await asyncio.sleep(1.0)
        return [*seen, *theirs.told]

    assert world.play(story()) == [b"1", b"12", b"123", "made", "eof", "lost"]


# -- ends


@pytest.mark.parametrize("size", [0, 100, 3 * WINDOW_BYTES])
@pytest.mark.parametrize("profile", [CALM, BAD], ids=["calm", "bad"])
def test_close_delivers_everything_and_then_the_end(size: int, profile: NetworkProfile) -> None:
    world = World(profile, seed=size)
    content = random.Random(size).randbytes(size)

    async def story() -> tuple[End, End]:
        ours, theirs = await world.pair()
        for at in range(0, size, 10 * KIB):
            ours.transport.write(content[at : at + 10 * KIB])
        ours.transport.close()
        ours.transport.write(b"too late")
        await asyncio.sleep(200.0)
        return ours, theirs

    ours, theirs = world.play(story())
    assert bytes(theirs.data) == content
    assert theirs.told == ["made", "eof", "lost"]
    assert [what for what in ours.told if what not in ("pause", "resume")] == ["made", "lost"]
    assert (ours.error, theirs.error) == (None, None)
    assert world.network.ends == {}


def test_who_has_closed_hears_of_it_at_once_and_then_nothing_more() -> None:
    """As asyncio does: the rest is the system's business, whether the other end lives or not."""
    world = World(CALM)

    async def story() -> tuple[End, End]:
        ours, theirs = await world.pair()
        world.network.cut("a", "b")
        theirs.transport.write(b"nobody wants that")
        ours.transport.close()
        await asyncio.sleep(0.1)
        return ours, theirs

    ours, theirs = world.play(story())
    assert (ours.told, ours.data) == (["made", "lost"], b"")
    assert theirs.told == ["made"]


def test_abort_tells_the_other_end_after_what_is_on_its_way() -> None:
    world = World(CALM)

    async def story() -> tuple[End, End]:
        ours, theirs = await world.pair()
        ours.transport.write(b"last words")
        ours.transport.abort()
        await asyncio.sleep(1.0)
        return ours, theirs

    ours, theirs = world.play(story())
    assert bytes(theirs.data) == b"last words"
    assert (ours.told, theirs.told) == (["made", "lost"], ["made", "lost"])
    assert ours.error is None
    assert isinstance(theirs.error, ConnectionResetError)
    assert world.network.ends == {}


def test_reset_is_heard_at_both_ends_once() -> None:
    world = World(CALM)

    async def story() -> tuple[End, End]:
        ours, theirs = await world.pair()
        assert world.network.reset("a", "b", both_know=True) == 1
        await asyncio.sleep(5.0)
        assert world.network.reset("a", "b", both_know=True) == 0
        theirs.transport.write(b"?")
        await asyncio.sleep(5.0)
        return ours, theirs

    for end in world.play(story()):
        assert end.told == ["made", "lost"]
        assert isinstance(end.error, ConnectionResetError)


def test_of_a_silent_reset_only_one_end_knows() -> None:
    world = World(CALM)

    async def story() -> tuple[End, End]:
        ours, theirs = await world.pair()
        world.network.reset("a", "b", both_know=False)
        await asyncio.sleep(5.0)
        theirs.transport.write(b"?")
        await asyncio.sleep(60.0)
        return ours, theirs

    ours, theirs = world.play(story())
    assert (ours.told, ours.data) == (["made", "lost"], b"")
    assert theirs.told == ["made"]


def test_reset_leaves_other_lines_alone() -> None:
    world = World(CALM)

    async def story() -> list[str]:
        await world.pair()
        other = await world.dial("c", "b")
        world.network.reset("b", "a", both_know=True)
        await asyncio.sleep(1.0)
        return other.told

    assert world.play(story()) == ["made"]


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
        return AsyncioNetwork(clock=SimClock(world.loop), on_fatal=deaths.append)

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


def test_a_transport_belongs_to_the_simulation() -> None:
    world = World(CALM)

    async def story() -> tuple[End, End]:
        return await world.pair()

    ours, theirs = world.play(story())
    assert transport_of(ours).out is transport_of(theirs).into
