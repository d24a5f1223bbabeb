"""One client per cluster and process, on a thread of its own: Spark reuses its Python workers.

A few of them: a token is part of what they are for, and in a process that lives for months many come and go. Those that
were used last stay; of the others those close that have nothing under way.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from logboom.background import Background
from logboom.client import Client
from logboom.spark.options import Target
from logboom.spark.spool import Block, Spool

T = TypeVar("T")
SESSIONS_MAX: Final = 8
"""Kept open when nothing is under way on them."""


async def all_or_none(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once. If one fails the others end, too: what they have open at a node is closed."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Session:
    """A client and the event loop it lives on, for code that blocks and wants many requests under way."""

    def __init__(self, target: Target) -> None:
        """Raises ConfigError for TLS files that are missing, InvalidRequest for bad endpoints."""
        self._target = target
        # The collector may end a stream, and with it what is under way, within anything on this thread.
        self._lock = threading.RLock()
        self._under_way = 0
        self._left = False
        self._background: Background | None = self._made()

    def _made(self) -> Background:
        target = self._target
        timeout = target.request_timeout_ms / 1000
        client = Client(target.endpoints, token=target.token, tls=target.tls_dir, timeout=timeout)
        return Background(client, name="logboom-spark")

    @contextmanager
    def _used(self) -> Iterator[Background]:
        """The client, and nobody closes it meanwhile; another one if the last was closed."""
        with self._lock:
            if self._background is None:
                self._background = self._made()
            found = self._background
            self._under_way += 1
        try:
            yield found
        finally:
            self._done()

    def _done(self, _: object = None) -> None:
        found = None
        with self._lock:
            self._under_way -= 1
            if self._left and not self._under_way:
                found, self._background = self._background, None
        if found is not None:
            found.abandon()  # this may be its own thread

    def leave(self) -> None:
        """Nobody is given it any more: ``rest``, or whenever nothing is under way."""
        self._left = True
        self.rest()

    def rest(self) -> None:
        """Close the client, unless something is under way. Whoever has the session still may go on using it."""
        with self._lock:
            if self._under_way:
                return
            found, self._background = self._background, None
        if found is not None:
            found.close()

    @property
    def resting(self) -> bool:
        """There is no client."""
        return self._background is None

    @property
    def superseded(self) -> bool:
        """Its cluster was restored since, and answers it no more."""
        found = self._background
        return found is not None and found.client.superseded

    @property
    def block_bytes(self) -> int:
        """How much for one partition a request to this cluster carries; known when a node has answered."""
        with self._used() as background:
            return background.client.part_bytes

    @property
    def block_records(self) -> int:
        """How many records for one partition a request to this cluster carries, at most."""
        with self._used() as background:
            return background.client.block_records

    def start(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin a request; its result or error comes through the future."""
        with self._used() as background:
            begun = background.start(call)
            with self._lock:
                self._under_way += 1
        begun.add_done_callback(self._done)
        return begun

    def run(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """A request, and its result."""
        with self._used() as background:
            return background.run(call)

    def refresh(self, *, at_least: int | None = None, node: str | None = None) -> None:
        """Learn which partitions there are by now, as the leader, or a node that may be behind, knows it.

        A session outlasts what it was told when it connected: others create and destroy partitions.
        """
        self.run(lambda client: client.refresh_partitions(at_least=at_least, node=node))

    def prefetch(
        self,
        call: Callable[[Client], AsyncIterator[T]],
        *,
        size: Callable[[T], int],
        bytes_max: int,
        timeout: float | None = None,
        glances: int = 0,
        hopeless: Callable[[], bool] = bool,
    ) -> Iterator[list[T]]:
        """A stream, all that has come each time; at most ``bytes_max`` and one item lie here meanwhile.

        ``timeout`` (seconds) bounds the wait for more; so often within it ``hopeless`` says whether there is any use
        in waiting on. Raises TimeoutError.
        """
        with self._used() as background:
            ahead = _Ahead[T](size, bytes_max, background.loop)
            filling = background.start(lambda client: ahead.fill(call(client)))
            try:
                while (found := _patiently(ahead, timeout, glances, hopeless)) is not None:
                    yield found
            finally:
                # Also of a reader that stops half-way (limit): the stream ends at the node.
                filling.cancel()

    def spooled(
        self,
        call: Callable[[Client], AsyncIterator[Block]],
        *,
        memory_bytes: int,
        file_bytes_max: int,
        patience: float,
    ) -> Iterator[Block]:
        """A state, block by block, which the node is rid of however slowly it is taken (see ``spool``)."""
        with self._used() as background:
            spool = Spool(
                memory_bytes=memory_bytes, file_bytes_max=file_bytes_max, patience=patience, loop=background.loop
            )

            async def fill(client: Client) -> None:
                await spool.fill(call(client))  # on the loop: deadlines are by its clock

            filling = background.start(fill)
            try:
                while (found := spool.take()) is not None:
                    yield from found
            finally:
                filling.cancel()
                spool.close()


def _patiently(ahead: _Ahead[T], timeout: float | None, glances: int, hopeless: Callable[[], bool]) -> list[T] | None:
    if timeout is None:
        return ahead.take(None)
    end, share = time.monotonic() + timeout, timeout / (glances + 1)
    for _ in range(glances):
        try:
            return ahead.take(min(share, max(0.0, end - time.monotonic())))
        except TimeoutError:
            if hopeless():
                raise
    return ahead.take(max(0.0, end - time.monotonic()))


class _Ahead(Generic[T]):
    """What has come of a stream, between the loop, which fetches, and the thread that takes."""

    def __init__(self, size: Callable[[T], int], bytes_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self._size = size
        self._bytes_max = bytes_max
        self._loop = loop
        self._room = asyncio.Event()
        self._changed = threading.Condition()
        self._items: list[T] = []
        self._bytes = 0
        self._ended = False
        self._error: BaseException | None = None

    async def fill(self, items: AsyncIterator[T]) -> None:
        """On the loop: fetch until the end, waiting while there is no room."""
        try:
            async for item in items:
                with self._changed:
                    self._items.append(item)
                    self._bytes += self._size(item)
                    full = self._bytes >= self._bytes_max
                    if full:
                        self._room.clear()
                    self._changed.notify()
                if full:
                    await self._room.wait()
        except BaseException as error:
            self._error = error
            raise
        finally:
            closing = getattr(items, "aclose", None)
            if closing is not None:
                await closing()
            with self._changed:
                self._ended = True
                self._changed.notify()

    def take(self, timeout: float | None) -> list[T] | None:
        """In the thread: all there is, or None at the end. Raises what fetching raised, and TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._items or self._ended, timeout):
                raise TimeoutError
            found, self._items, self._bytes = self._items, [], 0
        if found:
            self._loop.call_soon_threadsafe(self._room.set)
            return found
        if self._error is not None:
            raise self._error
        return None


_sessions: dict[tuple[int, Target], Session] = {}
_lock = threading.Lock()


def _forked() -> None:
    # Another thread of the parent may have held it just then.
    global _lock  # noqa: PLW0603 - of the process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def session(target: Target, *, but: Session | None = None) -> Session:
    """The process's session for a cluster; made on first use, and again after a fork, or a restore.

    ``but``: one that was found to be of another history.
    """
    pid = os.getpid()
    with _lock:
        before = _sessions.pop((pid, target), None)
        found = Session(target) if before is None or before is but or before.superseded else before
        _sessions[pid, target] = found  # the last: ascending by their last use
        unused = [(key, each) for key, each in _sessions.items() if key[0] == pid][:-SESSIONS_MAX]
    if before is not None and before is not found:
        before.leave()
    for key, each in unused:
        each.rest()
        if each.resting:
            with _lock:
                forgotten = _sessions.get(key) is each
                if forgotten:
                    del _sessions[key]
            if forgotten:
                each.leave()  # whoever has it still may use it once more: nobody else would close what that makes
    return found
