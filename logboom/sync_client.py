"""The client for code that blocks: the same calls, the same arguments, the same errors."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from logboom.background import Background, closed_error
from logboom.client import Client
from logboom.client.home import Unportable
from logboom.sync_sender import SyncSender
from logboom.types import GlobalLogIndex

P = ParamSpec("P")
T = TypeVar("T")

PLAIN: Final = frozenset({int, float, bool, bytes, str, list, tuple, type(None)})
"""Types of what can be read as often as one likes."""

_forking = threading.Lock()
"""Held while a client is made that of a child. Of this process: what the parent's threads held is not held here."""


def _forked() -> None:
    global _forking  # noqa: PLW0603 - one for each process
    _forking = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]], *, takes: bool = True
) -> Callable[Concatenate[SyncClient, P], T]:
    """The same method, with its signature and documentation, that waits for the result. ``takes``: see ``_with``."""

    @wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        running = self._start()
        running.check_thread()  # before a generator is run
        return running.run(_with(method, *args, **kwargs) if takes else lambda client: method(client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Client, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[SyncClient, P], Generator[T, None, None]]:
    """The same for methods that give one item after the other."""

    @wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        running = self._start()
        running.check_thread()  # before a generator is run
        yield from running.iterate(_with(method, *args, **kwargs))

    return call


def _with(method: Callable[Concatenate[Client, P], T], *args: P.args, **kwargs: P.kwargs) -> Callable[[Client], T]:
    """With what was given; generators are run here, by whoever calls.

    On the client's own thread they would keep all other calls, for ever if they wait for what one of those gives.
    """
    rows: Any = list(map(_taken, args))
    named: Any = {name: _taken(each) for name, each in kwargs.items()}
    return lambda client: method(client, *rows, **named)


def _taken(given: Any) -> Any:
    if _is_kept(given):
        return given
    if isinstance(given, Mapping):
        return {key: _listed(each) for key, each in given.items()}
    return _listed(given)


def _listed(given: Any) -> Any:
    if _is_kept(given) or isinstance(given, Sequence | Mapping) or not isinstance(given, Iterable):
        return given
    return list(given)


def _is_kept(given: Any) -> bool:
    """At once: what most calls are given, and callbacks, which may be iterable as well."""
    return type(given) in PLAIN or callable(given)


def _as_made(_: Callable[P, Client]) -> Callable[[Callable[..., None]], Callable[Concatenate[SyncClient, P], None]]:
    """With what the other client is made with, for type checkers and ``help``."""
    return wraps(Client.__init__, assigned=())


class SyncClient(Unportable):
    """See ``Client`` for arguments and errors. Safe to use from several threads, and after a fork.

    A forked child is another producer, whatever ``producer_id`` says: its numbering begins at 0, too.
    Callbacks (``select``, ``on_void``) run on its own thread; calls in there are refused. What gives commands, keys or
    partitions one after the other (a generator) runs on the thread of whoever calls, before anything is asked.
    One that nobody refers to any more is closed.
    """

    @_as_made(Client)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._args, self._kwargs = args, kwargs
        self._lock = threading.Lock()
        self._pid = 0
        self._running: Background | None = None
        self._inherited: list[object] = []
        self._closed = False
        self._start()

    def _start(self) -> Background:
        running = self._running
        if running is not None and running.pid == os.getpid() and not self._closed:
            return running
        if self._pid != os.getpid():
            with _forking:
                if self._pid != os.getpid():  # another thread was first
                    self._begin_here()
        with self._lock:
            if self._closed:
                raise closed_error()
            if self._running is None:
                self._running = Background(Client(*self._args, **self._kwargs))
                self._left = weakref.finalize(self, self._running.abandon)
                self._left.atexit = False  # whoever ends without closing is not waited for
            return self._running

    def _begin_here(self) -> None:
        """First use in this process.

        Threads do not survive a fork, so a child starts its own; another thread of the parent may have held the lock
        just then. What the parent had is kept, so that nothing closes it here.
        """
        self._lock = threading.Lock()
        self._inherited.append(self._running)
        self._running = None
        if self._pid:  # what a child sends under the parent's numbers counts as sent before
            self._kwargs = {**self._kwargs, "producer_id": None, "rng": None}
        self._pid = os.getpid()  # last: whoever sees it goes on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the background thread. Idempotent; call it again if Ctrl-C came."""
        if self._pid != os.getpid():
            self._closed = True
            return
        running = self._running
        if running is not None:
            running.check_thread()
        with self._lock:
            self._closed = True
            running = self._running
        if running is not None:
            try:
                running.close()
            finally:
                if running.loop.is_closed():  # else it is to be called again; an error at the end is told once
                    self._left.detach()
                    self._running = None

    @property
    def producer_id(self) -> bytes:
        """See Client. A forked child has another one."""
        return self._start().client.producer_id

    @property
    def timeout(self) -> float:
        """See Client."""
        return self._start().client.timeout

    @property
    def admission_wait(self) -> float:
        """See Client."""
        return self._start().client.admission_wait

    @property
    def last_seen(self) -> GlobalLogIndex:
        """See Client."""
        return self._start().client.last_seen

    @property
    def part_bytes(self) -> int:
        """See Client."""
        return self._start().client.part_bytes

    @property
    def part_records(self) -> int:
        """See Client."""
        return self._start().client.part_records

    @property
    def block_records(self) -> int:
        """See Client."""
        return self._start().client.block_records

    @property
    def superseded(self) -> bool:
        """See Client."""
        return self._start().client.superseded

    @property
    def has_met(self) -> bool:
        """See Client."""
        return self._start().client.has_met

    partitions = _blocking(Client.partitions)
    refresh_partitions = _blocking(Client.refresh_partitions)
    key_partitions = _blocking(Client.key_partitions)
    state_machines = _blocking(Client.state_machines)
    members = _blocking(Client.members)
    submit = _blocking(Client.submit, takes=False)  # it refuses what has no length

    def sender(
        self,
        partition_id: int,
        *,
        wait: str | None = None,
        timeout: float | None = None,
        admission_wait: float | None = None,
    ) -> SyncSender:
        """See Client."""
        return SyncSender(
            self._start,
            lambda client: client.sender(partition_id, wait=wait, timeout=timeout, admission_wait=admission_wait),
        )

    submit_many = _blocking(Client.submit_many)
    submit_by_key = _blocking(Client.submit_by_key)
    submit_block = _blocking(Client.submit_block, takes=False)  # its ``line`` may be anything that has a hash
    submit_blocks = _blocking(Client.submit_blocks)
    delete_prefix = _blocking(Client.delete_prefix)
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
    cursors_partition = _blocking(Client.cursors_partition)
    status = _blocking(Client.status)
    status_all = _blocking(Client.status_all)
    watermarks = _blocking(Client.watermarks)
    admin = _blocking(Client.admin)
    create_partition = _blocking(Client.create_partition)
    destroy_partition = _blocking(Client.destroy_partition)
    set_partition = _blocking(Client.set_partition)
    void_batch = _blocking(Client.void_batch)
    create_snapshot = _blocking(Client.create_snapshot)
    snapshots = _blocking(Client.snapshots)
    read_snapshot = _blocking(Client.read_snapshot)
    read_log = _blocking(Client.read_log)
    member_list = _blocking(Client.member_list)
    add_member = _blocking(Client.add_member)
    update_member = _blocking(Client.update_member)
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
