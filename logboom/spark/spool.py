"""A state on its way into a task: in memory, and behind that in a file.

A node holds on to a state for whoever reads it only as long as he goes on taking (for the time of the request, and in
all ``reads.hold_ms``), and half of one view and half of another are no view. So where a task works slowly, all of it is
taken from the node all the same, and lies on this machine's disk until the task comes to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from logboom.client.reads import close_now
from logboom.errors import DeadlineExceeded
from logboom.records import RecordBlock

log: Final = logging.getLogger("logboom.spark")
DIRECTORIES: Final = "SPARK_LOCAL_DIRS"
"""Where Spark has its tasks keep what does not fit into memory; an environment variable of its workers."""
HEAD: Final = struct.Struct("<QIII")
"""What stands in front of each block in the file: global index, how many records, bytes of metadata, of data."""

Block = tuple[int, RecordBlock]


class Spool:
    """Between the loop, which fetches, and the thread that takes: first in, first out."""

    def __init__(
        self, *, memory_bytes: int, file_bytes_max: int, patience: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        """``patience``: so many seconds in all it is waited for the taker before anything goes to the disk."""
        self._memory_bytes = memory_bytes
        self._file = _File(file_bytes_max)
        self._patience = patience
        self._loop = loop
        self._room = asyncio.Event()
        self._changed = threading.Condition()
        self._blocks: list[Block] = []
        self._bytes = 0
        self._ended = False
        self._error: BaseException | None = None

    # -- on the loop

    async def fill(self, blocks: AsyncIterator[Block]) -> None:
        """Fetch until the end, waiting while there is no room anywhere."""
        try:
            async for block in blocks:
                await self._put(block)
        except BaseException as error:
            self._error = error
            raise
        finally:
            await close_now(blocks)
            with self._changed:
                self._ended = True
                self._changed.notify()

    async def _put(self, block: Block) -> None:
        while True:
            self._room.clear()
            if self._keep(block):
                return
            if self._patience > 0:
                await self._wait()
            elif await self._file.append(block):
                with self._changed:
                    self._changed.notify()
                return
            else:
                await self._room.wait()

    def _keep(self, block: Block) -> bool:
        """In memory: if there is room, and nothing in the file that comes before it."""
        size = block[1].nbytes
        with self._changed:
            if self._file.unread or (self._blocks and self._bytes + size > self._memory_bytes):
                return False
            self._blocks.append(block)
            self._bytes += size
            self._changed.notify()
            return True

    async def _wait(self) -> None:
        began = self._loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._room.wait()
        self._patience -= self._loop.time() - began

    # -- in the thread that takes

    def take(self) -> list[Block] | None:
        """What comes next, once it is there; None at the end. Raises what fetching raised, behind all that had come."""
        with self._changed:
            self._changed.wait_for(lambda: self._blocks or self._file.unread or self._ended)
            found, self._blocks, self._bytes = self._blocks, [], 0
            is_over = not found and not self._file.unread
        if is_over:
            if isinstance(self._error, DeadlineExceeded) and self._file.was_full:
                raise DeadlineExceeded(
                    f"{self._error.message}; the task works too slowly for that, and there was no more room to keep "
                    "what it had not come to: raise maxSpillBytes, or give Spark's local directories a larger disk",
                    outcome="not_applied",
                ) from self._error
            if self._error is not None:
                raise self._error
            return None
        found = found or [self._file.read()]
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._room.set)
        return found

    def close(self) -> None:
        """Nobody takes any more: the file goes."""
        self._file.close()


class _File:
    """Blocks one behind the other, in a file without a name: it goes with the process, whatever ends that."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # The collector may end whoever takes, and with it this, within anything on the thread that is writing.
        self._lock = threading.RLock()
        self._file: Any = None
        self._closed = threading.Event()
        self._begin = self._end = 0
        self.was_full = False
        """There was no room, once at least."""
        self.unread = 0
        """Blocks. With none nobody reads."""

    async def append(self, block: Block) -> bool:
        """False: there is no room, until it has been read; or, if the disk takes nothing, for good."""
        global_index, records = block
        metadata, data = records.metadata, records.data
        if not self.unread:
            self._begin = self._end = 0
        if self._end + HEAD.size + len(metadata) + len(data) > self._bytes_max:
            self._tell(f"maxSpillBytes is {self._bytes_max}")
            return False
        head = HEAD.pack(global_index, records.count, len(metadata), len(data))
        try:
            await asyncio.to_thread(self._write, b"".join((head, metadata, data)))
        except (OSError, RuntimeError) as error:  # the disk is full, or there is no thread to be had
            self._bytes_max = 0
            self._tell(str(error))
            return False
        return True

    def _tell(self, why: str) -> None:
        if not self.was_full:
            self.was_full = True
            log.warning(
                "no more of the state is kept on this machine's disk (%s): the node waits for the task, and gives it "
                "up if that takes too long",
                why,
            )

    def _write(self, raw: bytes) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            if self._file is None:
                self._file = _nameless()
            if self._closed.is_set():  # since
                self._file.close()
                return
            try:
                self._file.seek(self._end)
                rest = memoryview(raw)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except ValueError:  # it is closed
                if not self._closed.is_set():
                    raise
                return
            self._end += len(raw)
            self.unread += 1

    def read(self) -> Block:
        """The first that has not been read, of those that there are."""
        with self._lock:
            self._file.seek(self._begin)
            head = self._file.read(HEAD.size)
            global_index, count, metadata, data = HEAD.unpack(head)
            raw = memoryview(self._file.read(metadata + data))
            self._begin += HEAD.size + metadata + data
            self.unread -= 1
        return global_index, RecordBlock.parse(count, raw[:metadata], raw[metadata:])

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            if self._file is not None:
                self._file.close()


def _nameless() -> Any:
    """A file in a directory of Spark's, or, without one that takes it, of the system's. Raises OSError."""
    for directory in os.environ.get(DIRECTORIES, "").split(","):
        if directory:
            with suppress(OSError):
                return tempfile.TemporaryFile(dir=directory, prefix="logboom-", buffering=0)
    return tempfile.TemporaryFile(prefix="logboom-", buffering=0)
