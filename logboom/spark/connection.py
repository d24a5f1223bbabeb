"""One client per cluster and process, on a thread of its own: Spark reuses its Python workers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from logboom.certs import client_context
from logboom.client import Client
from logboom.spark.options import Target

T = TypeVar("T")
_END: Final[Any] = object()


class Session:
    """A client and the event loop it lives on, for code that blocks and wants many requests under way."""

    def __init__(self, target: Target) -> None:
        """Raises ConfigError for TLS files that are missing, InvalidRequest for bad endpoints."""
        tls = client_context(target.tls_dir) if target.tls_dir is not None else None
        self.client = Client(target.endpoints, token=target.token, tls=tls, timeout=target.request_timeout_ms / 1000)
        self._loop = asyncio.new_event_loop()
        # A daemon: Spark ends its workers without asking.
        threading.Thread(target=self._loop.run_forever, name="logboom-spark", daemon=True).start()

    def start(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin a request; its result or error comes through the future."""
        return asyncio.run_coroutine_threadsafe(call(self.client), self._loop)

    def run(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """A request, and its result."""
        future = self.start(call)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, call: Callable[[Client], AsyncIterator[T]], *, timeout: float | None = None) -> Iterator[T]:
        """A stream, item by item; ``timeout`` (seconds) bounds the wait for each. Raises TimeoutError."""

        async def begin() -> AsyncIterator[T]:
            return call(self.client)

        items = self.run(lambda _: begin())

        async def step() -> Any:
            async with asyncio.timeout(timeout):
                return await anext(items, _END)

        try:
            while (item := self.run(lambda _: step())) is not _END:
                yield item
        finally:
            closing = getattr(items, "aclose", None)
            if closing is not None:
                self.run(lambda _: closing())


_sessions: dict[tuple[int, Target], Session] = {}
_lock = threading.Lock()


def session(target: Target) -> Session:
    """The process's session for a cluster; made on first use, and again after a fork."""
    key = (os.getpid(), target)
    with _lock:
        found = _sessions.get(key)
        if found is None:
            found = _sessions[key] = Session(target)
        return found
