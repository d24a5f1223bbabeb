"""Threads for blocking work, where there are not as many as were asked for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from server.world.offload_os import SlowOffload, ThreadOffload


def no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


async def test_jobs_are_done_by_the_threads_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    offload = ThreadOffload(workers=4, name="few")
    busy, done = threading.Event(), asyncio.Queue[int | None]()
    offload.submit(lambda: busy.wait(60), lambda _, __: None)
    with monkeypatch.context() as patched:
        no_more(patched)
        for number in range(3):
            offload.submit(lambda number=number: number, lambda found, _: done.put_nowait(found))  # type: ignore[misc]
        last = asyncio.ensure_future(offload.run(lambda: 3))
        await asyncio.sleep(0)
    busy.set()
    async with asyncio.timeout(60):
        assert [await done.get() for _ in range(3)] == [0, 1, 2]
        assert await last == 3
    await offload.close()


async def test_without_a_single_thread_there_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    no_more(monkeypatch)
    with pytest.raises(OSError, match="limit of processes"):
        ThreadOffload(workers=4, name="none")


@pytest.mark.parametrize("error", [StopIteration(5), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_whatever_a_job_raises_who_waits_is_told(error: BaseException) -> None:
    """Found by review: of a StopIteration nobody was told, for ever; SystemExit ended the loop, and the node."""
    offload = ThreadOffload(workers=1, name="one")

    def job() -> None:
        raise error

    with pytest.raises(RuntimeError, match="a job raised"):
        await asyncio.wait_for(offload.run(job), 20)
    await offload.close()


async def test_a_pool_is_closed_where_no_further_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: a node at its limit of processes ended as after a failure when it was told to stop."""
    offload, done = ThreadOffload(workers=1, name="one"), list[int | None]()
    busy = threading.Event()
    offload.submit(lambda: busy.wait(60), lambda _, __: None)
    offload.submit(lambda: 1, lambda found, _: done.append(found))
    asyncio.get_running_loop().call_later(0.01, busy.set)
    no_more(monkeypatch)
    await asyncio.wait_for(offload.close(), 20)
    await asyncio.sleep(0)
    assert done == [1], "what was submitted before is done"


async def test_a_job_that_is_given_up_keeps_its_thread_and_no_others() -> None:
    offload, busy, done = SlowOffload(name="slow"), threading.Event(), asyncio.Queue[int | None]()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hangs() -> int:
        loop.call_soon_threadsafe(begun.set)
        busy.wait(60)
        return 1

    offload.submit(hangs, lambda found, _: done.put_nowait(found))
    await begun.wait()
    offload.give_up()
    assert offload.place() is None
    assert await asyncio.wait_for(offload.run(lambda: 2), 20) == 2
    closing = asyncio.ensure_future(offload.close())
    await asyncio.sleep(0.02)
    assert not closing.done(), "it may still be where it was: nobody takes away what it uses"
    busy.set()
    await asyncio.wait_for(closing, 20)
    assert await done.get() == 1
