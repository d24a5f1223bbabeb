"""The simulated network: streams as TCP's, backpressure, and how they end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.sim.network import WINDOW_BYTES, NetworkProfile
from logboom.types import KIB
from tests.unit.chaos.sim_world import CALM, End, World, transport_of

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


def test_of_a_silent_reset_only_one_end_knows_until_the_other_writes() -> None:
    world = World(CALM)

    async def story() -> tuple[End, End]:
        ours, theirs = await world.pair()
        world.network.reset("a", "b", both_know=False)
        await asyncio.sleep(5.0)
        assert theirs.told == ["made"]
        theirs.transport.write(b"?")
        await asyncio.sleep(60.0)
        return ours, theirs

    ours, theirs = world.play(story())
    assert (ours.told, ours.data) == (["made", "lost"], b"")
    assert theirs.told == ["made", "lost"]
    assert 5.0 < theirs.at["lost"] < 6.0
    assert isinstance(theirs.error, ConnectionResetError)


def test_reset_leaves_other_lines_alone() -> None:
    world = World(CALM)

    async def story() -> list[str]:
        await world.pair()
        other = await world.dial("c", "b")
        world.network.reset("b", "a", both_know=True)
        await asyncio.sleep(1.0)
        return other.told

    assert world.play(story()) == ["made"]


def test_a_transport_belongs_to_the_simulation() -> None:
    world = World(CALM)

    async def story() -> tuple[End, End]:
        return await world.pair()

    ours, theirs = world.play(story())
    assert transport_of(ours).out is transport_of(theirs).into
