"""The client for code that blocks: the same calls, the same arguments, the same errors."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from logboom.client import Client
from logboom.errors import InvalidRequest
from logboom.types import GlobalLogIndex

P = ParamSpec("P")
T = TypeVar("T")
_END: Any = object()


async def _end(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    await client.close()
    await loop.shutdown_asyncgens()


async def _aclose(iterator: AsyncIterator[Any]) -> None:
    closing = getattr(iterator, "aclose", None)
    if closing is not None:
        await closing()


def _wait(future: Future[T]) -> T:
    """The result. Interrupted (Ctrl-C), it cancels the work."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    """The same method, with its signature and documentation, that waits for the result."""

    @wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda client: method(client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Client, P], AsyncIterator[T]],
) -> Callable[Concatenate[SyncClient, P], Iterator[T]]:
    """The same for methods that give one item after the other."""

    @wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._iterate(lambda client: method(client, *args, **kwargs))

    return call


class SyncClient:
    """See ``Client`` for arguments and errors. Safe to use from several threads, and after a fork."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._make: Callable[[], Client] = lambda: Client(*args, **kwargs)
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._inherited: list[object] = []
        self._closed = False
        self._start()

    def _start(self) -> tuple[asyncio.AbstractEventLoop, Client]:
        if self._pid != os.getpid():
            # First use here. Threads do not survive a fork, so a child starts its own; another thread of the
            # parent may have held the lock just then. What the parent had is kept, so that nothing closes it here.
            self._lock = threading.Lock()
            self._inherited.append((self._loop, self._client))
            self._pid, self._loop, self._client = os.getpid(), None, None
        with self._lock:
            if self._closed:
                raise InvalidRequest("this client is closed")
            if self._loop is None or self._client is None:
                self._client = self._make()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="logboom", daemon=True)
                self._thread.start()
            return self._loop, self._client

    def _run(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        loop, client = self._start()
        return _wait(asyncio.run_coroutine_threadsafe(call(client), loop))

    def _iterate(self, call: Callable[[Client], AsyncIterator[T]]) -> Iterator[T]:
        loop, client = self._start()

        async def begin() -> AsyncIterator[T]:
            return call(client)  # on the loop: deadlines are by its clock

        iterator = _wait(asyncio.run_coroutine_threadsafe(begin(), loop))

        turn = asyncio.Lock()  # an interrupted step has ended before the iterator is closed
        steps: set[asyncio.Task[Any]] = set()

        async def step() -> Any:
            steps.add(cast("asyncio.Task[Any]", asyncio.current_task()))
            async with turn:
                item = await anext(iterator, _END)
            steps.clear()
            return item

        async def end() -> None:
            for task in steps:
                task.cancel()  # Ctrl-C may have come before anybody waited for it
            async with turn:
                await _aclose(iterator)

        try:
            while (item := _wait(asyncio.run_coroutine_threadsafe(step(), loop))) is not _END:
                yield item
        finally:
            if not loop.is_closed():  # closing the client has ended it already
                _wait(asyncio.run_coroutine_threadsafe(end(), loop))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the background thread. Idempotent."""
        if self._pid != os.getpid():
            self._closed = True
            return
        with self._lock:
            self._closed = True
            loop, client, thread = self._loop, self._client, self._thread
            self._loop = self._client = self._thread = None
        if loop is None or client is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end(client, loop), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    @property
    def last_seen(self) -> GlobalLogIndex:
        """See Client."""
        return self._start()[1].last_seen

    partitions = _blocking(Client.partitions)
    key_partitions = _blocking(Client.key_partitions)
    state_machines = _blocking(Client.state_machines)
    members = _blocking(Client.members)
    submit = _blocking(Client.submit)
    submit_many = _blocking(Client.submit_many)
    submit_by_key = _blocking(Client.submit_by_key)
    submit_block = _blocking(Client.submit_block)
    submit_blocks = _blocking(Client.submit_blocks)
    barrier = _blocking(Client.barrier)
    barrier_watch = _iterating(Client.barrier_watch)
    watermarks_stream = _iterating(Client.watermarks_stream)
    index_at = _blocking(Client.index_at)
    token = _blocking(Client.token)
    get = _blocking(Client.get)
    get_many = _blocking(Client.get_many)
    scan = _iterating(Client.scan)
    scan_view = _iterating(Client.scan_view)
    scan_blocks = _iterating(Client.scan_blocks)
    tail = _iterating(Client.tail)
    tail_metadata = _iterating(Client.tail_metadata)
    fetch = _blocking(Client.fetch)
    scan_log = _iterating(Client.scan_log)

    def cursor(self, name: str, partition_id: int | None = None) -> SyncCursor:
        """See Client."""
        return SyncCursor(self, name, partition_id)

    cursor_position = _blocking(Client.cursor_position)
    commit_cursor = _blocking(Client.commit_cursor)
    delete_cursor = _blocking(Client.delete_cursor)
    cursors = _blocking(Client.cursors)
    status = _blocking(Client.status)
    status_all = _blocking(Client.status_all)
    watermarks = _blocking(Client.watermarks)
    admin = _blocking(Client.admin)
    create_partition = _blocking(Client.create_partition)
    destroy_partition = _blocking(Client.destroy_partition)
    void_batch = _blocking(Client.void_batch)
    create_snapshot = _blocking(Client.create_snapshot)
    snapshots = _blocking(Client.snapshots)
    read_snapshot = _blocking(Client.read_snapshot)
    read_log = _blocking(Client.read_log)
    member_list = _blocking(Client.member_list)
    add_member = _blocking(Client.add_member)
    promote_member = _blocking(Client.promote_member)
    remove_member = _blocking(Client.remove_member)
    transfer = _blocking(Client.transfer)


class SyncCursor:
    """See ``logboom.client.cursors.Cursor``."""

    def __init__(self, client: SyncClient, name: str, partition_id: int | None) -> None:
        self._client = client
        self.name = name
        self.partition_id = partition_id

    def position(self, *, timeout: float | None = None) -> int:
        """See Cursor."""
        return self._client.cursor_position(self.name, self.partition_id, timeout=timeout)

    def commit(self, position: int, *, force: bool = False, timeout: float | None = None) -> int:
        """See Cursor."""
        return self._client.commit_cursor(self.name, self.partition_id, position, force=force, timeout=timeout)

    def delete(self, *, timeout: float | None = None) -> None:
        """See Cursor."""
        self._client.delete_cursor(self.name, self.partition_id, timeout=timeout)
