"""Scans over the state of one partition, and how many may be open.

Each holds on to the state as it was when it began: the file behind it reuses nothing meanwhile, and has room for so
many who look at it, among them whoever applies.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from dispatcher.reading import reads
from dispatcher.reading.asking import Asking
from dispatcher.reading.surroundings import Asker, Surroundings
from dispatcher.requests.requests import field_of
from logboom.commands import Value
from logboom.errors import CorruptData, InvalidRequest, QuotaExceeded
from logboom.state_machine import Machine, Position
from logboom.types import PartitionId
from partitions.machines.guarded import Guarded

log = structlog.get_logger(__name__)

SCAN_CHUNK: Final = 1_000
PIECE_BYTES: Final = 1024 * 1024
"""Of a chunk leave in one frame; a larger entry goes alone."""
TOGETHER_BYTES: Final = 256 * 1024
"""Chunks of fewer keys than usual are put together up to this."""
Rows = tuple[list[tuple[bytes, Value]], Position]


def rows_of(
    machine: Machine, *, start: bytes, end: bytes | None, limit: int, chunk: int = SCAN_CHUNK
) -> Iterator[Rows]:
    """What ``machine.scan`` gives, which is called with the first chunk: off the loop. Raises InvalidRequest, too.

    Machines of users go by the number of keys alone: what does not fit into a frame leaves in several. ``chunk``: so
    many keys are in the first one at most; behind it small ones are put together.
    """
    chunks = machine.scan(start=start, end=end, limit=limit, chunk=chunk)
    try:
        pieces = ((piece, position) for rows, position in chunks for piece in _pieces(rows))
        yield from pieces if chunk >= SCAN_CHUNK else _together(pieces)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


def _together(pieces: Iterator[Rows]) -> Iterator[Rows]:
    first = next(pieces, None)
    if first is not None:
        yield first
    rows: list[tuple[bytes, Value]] = []
    nbytes = 0
    for piece, position in pieces:
        size = size_of(piece)
        if rows and (len(rows) + len(piece) > SCAN_CHUNK or nbytes + size > TOGETHER_BYTES):
            yield rows, position
            rows, nbytes = [], 0
        rows.extend(piece)
        nbytes, last = nbytes + size, position
    if rows:
        yield rows, last


def size_of(rows: list[tuple[bytes, Value]]) -> int:
    """About so many bytes."""
    return sum(len(key) + len(value) * (1 if isinstance(value, bytes) else 8) for key, value in rows)


def _pieces(rows: list[tuple[Any, Any]]) -> Iterator[list[tuple[bytes, Value]]]:
    first = nbytes = 0
    for at, (key, value) in enumerate(rows):
        if not isinstance(key, bytes) or not isinstance(value, bytes | tuple):
            raise InvalidRequest(
                f"the state machine gave {key!r:.40} with {value!r:.40}: both are bytes, or the value numbers"
            )
        size = len(key) + len(value) * (1 if isinstance(value, bytes) else 8)
        if nbytes and nbytes + size > PIECE_BYTES:
            yield rows[first:at]
            first, nbytes = at, 0
        nbytes += size
    yield rows[first:] if first else rows


class View:
    """One partition's: the first chunk, if that has been read, and what comes after."""

    def __init__(self, machine: Machine, first: Rows | None, rest: Iterator[Rows]) -> None:
        self.machine = machine
        """Whose state it is; another one may have taken its place since."""
        self.threads: Asking
        """What it is read on, and left."""
        self.first = first
        self.first_bytes = 0 if first is None else size_of(first[0])
        self._rest = rest
        self._lock = threading.Lock()
        self._closed = False

    def more(self) -> Rows | None:
        """The next chunk; off the loop."""
        with self._lock:
            rows = None if self._closed else next(self._rest, None)
        if self._closed:
            self.close()
        return rows

    def close(self) -> None:
        """Let the state go: now, or when the read that is under way ends."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                close = getattr(self._rest, "close", None)
                if close is not None:
                    close()
            finally:
                self._lock.release()


def let_go(partition_id: PartitionId, view: View) -> None:
    """Nobody reads it any more. A user's machine may raise anything then; or wait, for whoever applies to it, say.

    So that is done off the loop.
    """
    if isinstance(view.machine, Guarded):
        with suppress(RuntimeError):  # the node is being closed
            view.threads.begin(partial(_close, partition_id, view), lambda *_: None)
            return
    _close(partition_id, view)


def _close(partition_id: PartitionId, view: View) -> None:
    try:
        view.close()
    except Exception as error:  # others have to be closed
        log.exception("view_not_closed", partition=partition_id, error=repr(error))


class Scans:
    """The scans of one node that are open."""

    def __init__(self, backend: Surroundings, *, scans_max: int) -> None:
        self._backend = backend
        self._scans_max = scans_max
        self.open = 0

    async def scan(
        self, header: Mapping[str, Any], deadline: float, *, asker: Asker | None = None
    ) -> AsyncGenerator[tuple[dict[str, Any], list[Any]], None]:
        """Headers and bodies of ENTRIES, one chunk each; a chunk may be empty.

        Raises QuotaExceeded, and what any read raises.
        """
        backend = self._backend
        partition_id = await reads.partition_of_read(backend, header, deadline)
        start, end = reads.scan_range(header)
        limit = field_of(header, "limit", int, 0)
        await reads.make_fresh(backend, header, partition_id, deadline, asker=asker)
        if self.open >= self._scans_max:
            raise QuotaExceeded("too many scans are open", limit=self._scans_max, used=self.open, retry_after=0.1)
        self.open += 1
        try:
            with backend.using(partition_id) as machine:
                view = View(machine, None, rows_of(machine, start=start, end=end, limit=limit))
                view.threads = backend.threads_of(partition_id, machine)
                try:
                    while (rows := await view.threads.run(view.more)) is not None:
                        yield reads.entries(*rows)
                        if partition_id not in backend.workers:
                            raise backend.missing(partition_id)
                except CorruptData as error:
                    reads.state_damaged(backend, partition_id, machine, error)
                    raise
                finally:
                    let_go(partition_id, view)
        finally:
            self.open -= 1
