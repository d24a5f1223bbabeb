"""One client per cluster and process, on a thread of its own: Spark reuses its Python workers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from logboom.client import Client
from logboom.spark.options import Target
from logboom.sync_client import Background

T = TypeVar("T")


class Session:
    """A client and the event loop it lives on, for code that blocks and wants many requests under way."""

    def __init__(self, target: Target) -> None:
        """Raises ConfigError for TLS files that are missing, InvalidRequest for bad endpoints."""
        timeout = target.request_timeout_ms / 1000
        client = Client(target.endpoints, token=target.token, tls=target.tls_dir, timeout=timeout)
        self._background = Background(client, name="logboom-spark")

    @property
    def block_bytes(self) -> int:
        """How much for one partition a request to this cluster carries; known when a node has answered."""
        return self._background.client.part_bytes

    def start(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin a request; its result or error comes through the future."""
        return self._background.start(call)

    def run(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """A request, and its result."""
        return self._background.run(call)

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
    ) -> Iterator[list[T]]:
        """A stream, all that has come each time; at most ``bytes_max`` and one item lie here meanwhile.

        ``timeout`` (seconds) bounds the wait for more. Raises TimeoutError.
        """
        ahead = _Ahead[T](size, bytes_max, self._background.loop)
        filling = self.start(lambda client: ahead.fill(call(client)))
        try:
            while (found := ahead.take(timeout)) is not None:
                yield found
        finally:
            # Also of a reader that stops half-way (limit): the stream ends at the node.
            filling.cancel()

    def iterate(self, call: Callable[[Client], AsyncIterator[T]]) -> Iterator[T]:
        """A stream, item by item."""
        return self._background.iterate(call)


class _Ahead(Generic[T]):
    """Between the loop, which fetches, and the thread that takes."""

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


def session(target: Target) -> Session:
    """The process's session for a cluster; made on first use, and again after a fork."""
    key = (os.getpid(), target)
    with _lock:
        found = _sessions.get(key)
        if found is None:
            found = _sessions[key] = Session(target)
        return found
