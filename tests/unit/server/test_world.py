"""A node takes everything of the outside from its world."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced

from chaos.sim.state_file import StateFiles
from logboom import Client, Put
from logboom.settings import Settings
from logboom.types import MIB
from server.node import Node
from server.world.disk_os import OsDisk
from server.world.offload_os import ThreadOffload
from server.world.world import World, real_world
from tests.unit.server.lone_node import fails, lone


async def put_and_get(settings: Settings, world: World | None, value: bytes) -> list[bytes | None]:
    """What was under the key before, and what is after."""
    node = Node(settings, fatal=fails, world=world)
    address = await node.start()
    try:
        async with Client(address, timeout=10) as boom:
            before = await boom.get(1, b"k")
            await boom.submit(1, Put(b"k", value))
            return [before, await boom.get(1, b"k")]  # type: ignore[list-item]
    finally:
        await node.close()


async def test_without_a_world_it_is_the_real_one(tmp_path: Path) -> None:
    settings = lone(tmp_path)
    assert await put_and_get(settings, None, b"1") == [None, b"1"]
    assert await put_and_get(settings, None, b"2") == [b"1", b"2"]
    assert (tmp_path / "data" / "partitions" / "1" / "state" / "data.mdb").exists()


@pytest.mark.parametrize(("kept", "advised"), [(0, 0), (MIB, 2)])
async def test_the_real_disk_keeps_as_much_in_the_page_cache_as_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, advised: int
) -> None:
    settings = lone(tmp_path)
    node = Node(replaced(settings, log=replaced(settings.log, page_cache_bytes=kept)), fatal=fails)
    await node.start()
    given_back: list[str] = []

    def advise(fd: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        given_back.append(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115 - what the descriptor is open on

    monkeypatch.setattr(os, "posix_fadvise", advise)
    file = node.disk.open(tmp_path / "file", create=True)
    for number in range(3):
        file.write([bytes(MIB)], offset=number * MIB)
        file.sync()
    file.close()
    assert given_back.count(str(tmp_path / "file")) == advised, "the node's own files, which are older, come first"
    await node.close()


async def test_state_files_come_from_the_world_and_are_all_that_is_asked(tmp_path: Path) -> None:
    settings, files = lone(tmp_path), StateFiles(random.Random(0))

    def world() -> World:
        return replace(real_world(page_cache_bytes=0, fatal=fails), open_state_file=files.open)

    assert await put_and_get(settings, world(), b"1") == [None, b"1"]
    assert await put_and_get(settings, world(), b"2") == [b"1", b"2"]
    state = tmp_path / "data" / "partitions" / "1" / "state"
    assert OsDisk().list(state) == []
    saved = files.open(state, settings.apply)
    with saved.view() as view:
        assert list(view.entries(b"")) == [(b"k", b"b2")]


async def test_chance_and_time_come_from_the_world(tmp_path: Path) -> None:
    class Clock:
        def __init__(self) -> None:
            self.asked = 0

        def monotonic(self) -> float:
            return asyncio.get_running_loop().time()

        def wall_ms(self) -> int:
            self.asked += 1
            return 42

    class Chance(random.Random):
        drawn = 0

        def random(self) -> float:
            self.drawn += 1
            return super().random()

    clock, rng = Clock(), Chance(1)
    world = replace(real_world(page_cache_bytes=0, fatal=fails), clock=clock, rng=rng)
    node = Node(lone(tmp_path), fatal=fails, world=world)
    async with Client(await node.start(), timeout=10) as boom:
        await boom.submit(0, Put(b"k", b"v"))
        assert [batch.timestamp_ms async for batch in boom.tail(0)] == [42]
    await node.close()
    assert clock.asked
    assert rng.drawn  # the election's time-out


async def test_threads_wait_for_the_jobs_under_way_when_closed() -> None:
    offload = ThreadOffload(workers=1, name="test")
    go, ended = threading.Event(), []

    def job() -> None:
        go.wait()
        ended.append(True)

    offload.submit(job, lambda *_: None)
    closing = asyncio.ensure_future(offload.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    assert ended
    with pytest.raises(RuntimeError):
        offload.submit(job, lambda *_: None)


async def test_a_directory_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    """Found by review: LMDB was told a name in UTF-8, and the node ended in a stack after it had made its directory."""
    settings = lone(tmp_path / os.fsdecode(b"d\xff \xc3\xa4"))
    assert await put_and_get(settings, None, b"1") == [None, b"1"]
    assert await put_and_get(settings, None, b"2") == [b"1", b"2"]
