"""A small world for the parent log: virtual time, memory disks that lose unsynced bytes, FIFO links that break.

The code under test is the production code; only clock, disk, network and offload are replaced.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgpack

from logboom.errors import LogboomError
from logboom.settings import Member
from logboom.types import NodeId
from logboom.wire import PREFIX, PREFIX_BYTES, Frame, FrameDecoder, Kind
from ports.net import Buffer, Connection, ConnectionHandler, ConnectionLimits
from raftlog.entries.configuration import Configuration
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership

T = TypeVar("T")


class _NoSelector:
    """Advances virtual time instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is scheduled: the world stands still")
        self.loop.now += max(timeout, 0.0)
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without I/O whose clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._selector = _NoSelector(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now

    def _process_events(self, events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class VirtualClock:
    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop

    def monotonic(self) -> float:
        return self.loop.now

    def wall_ms(self) -> int:
        return int(self.loop.now * 1000)


class VirtualOffload:
    """Runs jobs after a random virtual time; a dead node's jobs do not come back."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, slowest: float = 0.004) -> None:
        self.loop = loop
        self.rng = rng
        self.slowest = slowest
        self.dead = False

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        delay = self.rng.uniform(0.0001, self.slowest)
        # A crash before half-time: nothing of it happened; after it: it did, and nobody heard.
        self.loop.call_later(delay / 2, self._run, job, done, delay / 2)

    def _run(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None], rest: float) -> None:
        if self.dead:
            return
        try:
            result, error = job(), None
        except Exception as caught:  # noqa: BLE001 - handed over, as the port says
            result, error = None, caught
        self.loop.call_later(rest, lambda: None if self.dead else done(result, error))

    async def run(self, job: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = self.loop.create_future()
        self.submit(job, lambda r, e: answer.set_exception(e) if e else answer.set_result(r))  # type: ignore[arg-type]
        return await answer


class MemoryFile:
    def __init__(self, path: Path, content: bytearray, disk: MemoryDisk) -> None:
        self.path = path
        self.content = content
        self.disk = disk

    def read(self, *, offset: int, length: int) -> bytes:
        return bytes(self.content[offset : offset + length])

    def read_anew(self, *, offset: int, length: int) -> bytes:
        return self.read(offset=offset, length=length)

    def write(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        raw = b"".join(bytes(b) for b in buffers)
        if len(self.content) < offset + len(raw):
            self.content.extend(bytes(offset + len(raw) - len(self.content)))
        self.disk.unsynced.setdefault(self.path, []).append((offset, raw))
        self.content[offset : offset + len(raw)] = raw
        return len(raw)

    def write_synced(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        written = self.write(buffers, offset=offset)
        self.sync()
        return written

    def sync(self) -> None:
        self.disk.unsynced.pop(self.path, None)
        self.disk.stable[self.path] = bytes(self.content)

    def size(self) -> int:
        return len(self.content)

    def truncate(self, size: int) -> None:
        del self.content[size:]

    def allocate(self, size: int) -> None:
        if len(self.content) < size:
            self.content.extend(bytes(size - len(self.content)))

    def close(self) -> None:
        pass


class MemoryDisk:
    """Names survive as soon as they are made; bytes only once synced, else at random."""

    def __init__(self) -> None:
        self.files: dict[Path, bytearray] = {}
        self.stable: dict[Path, bytes] = {}
        self.unsynced: dict[Path, list[tuple[int, bytes]]] = {}

    def crash(self, rng: random.Random) -> None:
        """Power loss: each unsynced write is kept, lost or torn."""
        for path in self.files:
            survivor = bytearray(self.stable.get(path, b"").ljust(len(self.files[path]), b"\0"))
            for offset, raw in self.unsynced.get(path, []):
                fate = rng.random()
                kept = raw if fate < 0.3 else raw[: rng.randrange(len(raw) + 1)] if fate < 0.5 else b""
                survivor[offset : offset + len(kept)] = kept
            self.files[path] = survivor
            self.stable[path] = bytes(survivor)
        self.unsynced.clear()

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> MemoryFile:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(path)
            self.files[path] = bytearray()
        return MemoryFile(path, self.files[path], self)

    def exists(self, path: Path) -> bool:
        return path in self.files

    def list(self, directory: Path) -> list[str]:
        return sorted(p.name for p in self.files if p.parent == directory)

    def make_directories(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self.make_directory(path)

    def make_directory(self, path: Path) -> None:
        pass

    def read_file(self, path: Path) -> bytes:
        return bytes(self.files[path])

    def replace_file(self, path: Path, *content: Buffer) -> None:
        self.stable[path] = b"".join(content)
        self.files[path] = bytearray(self.stable[path])

    def rename(self, source: Path, target: Path) -> None:
        self.files[target] = self.files.pop(source)

    def remove(self, path: Path) -> None:
        del self.files[path]

    def sync_directory(self, path: Path) -> None:
        pass

    def free_bytes(self, path: Path) -> int:
        return 1 << 40


class MemoryConnection:
    """One end. Frames go through the real encoder and decoder."""

    def __init__(self, net: MemoryNetwork, here: str, there: str, handler: ConnectionHandler) -> None:
        self.net, self.here, self.there, self.handler = net, here, there, handler
        self.other: MemoryConnection | None = None
        self.open = True
        self.last = 0.0
        self.decoder = FrameDecoder(frame_bytes_max=1 << 24)
        self.peer_identities: frozenset[str] = frozenset()
        self.congested = False
        self.queued = self.left_bytes = 0

    @property
    def arriving(self) -> Frame | None:
        return self.decoder.arriving

    @property
    def remote(self) -> str:
        return self.there

    def authenticated(self) -> None:
        pass

    def send(self, buffers: Sequence[Buffer], *, frames: int = 1) -> None:
        if self.open and self.other is not None:
            self.net.carry(self, b"".join(bytes(b) for b in buffers))

    def arrive(self, raw: bytes) -> None:
        if not self.open:
            return
        try:
            frames: list[Frame] = self.decoder.feed(raw)
        except LogboomError:
            self.abort()
            return
        for frame in frames:
            if self.open:
                self.handler.frame(frame)
        if self.open:
            self.handler.read_done()

    def flush(self) -> None:
        pass

    def hold_back(self, seconds: float) -> None:
        self.net.held_back.append((self.there, seconds))

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        if self.open:
            self.open = False
            self.net.loop.call_soon(self.handler.closed, None)
            if self.other is not None:
                self.net.loop.call_at(max(self.last, self.net.loop.now) + 1e-7, self.other.abort)

    def abort(self) -> None:
        for end in (self, self.other):
            if end is not None and end.open:
                end.open = False
                self.net.loop.call_soon(end.handler.closed, None)


class MemoryListener:
    def __init__(self, net: MemoryNetwork, address: str) -> None:
        self.net, self.address = net, address

    async def close(self) -> None:
        self.net.listeners.pop(self.address, None)


class MemoryNetwork:
    """Delays, and cuts between addresses ("n1:1"): a cut resets connections and refuses new ones."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.listeners: dict[str, Callable[[], ConnectionHandler]] = {}
        self.connections: list[MemoryConnection] = []
        self.cuts: set[frozenset[str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.held_back: list[tuple[str, float]] = []
        self.flips = 0.0
        """Share of the acknowledgements of which a bit is changed on the way."""
        self.flipped = 0

    def of(self, address: str) -> BoundNetwork:
        return BoundNetwork(self, address)

    def carry(self, end: MemoryConnection, raw: bytes) -> None:
        delay = self.rng.uniform(0.0002, 0.003) + self.slow.get((end.here, end.there), 0.0)
        end.last = max(self.loop.now + delay, end.last + 1e-7)
        if self.flips and raw[4] == Kind.RAFT and self.rng.random() < self.flips:
            raw = self._changed(raw)
        other = end.other
        if other is not None:
            self.loop.call_at(end.last, other.arrive, raw)

    def _changed(self, raw: bytes) -> bytes:
        """A low bit of what a follower says that it holds."""
        start = PREFIX_BYTES + PREFIX.unpack_from(raw)[4]
        message = msgpack.unpackb(raw[start:])
        if not message.get("success"):
            return raw
        message["next_node_idx"] ^= 1 << self.rng.randrange(3)
        self.flipped += 1
        return raw[:start] + bytes(msgpack.packb(message, use_bin_type=True))

    def cut(self, a: str, b: str) -> None:
        self.cuts.add(frozenset((a, b)))
        for end in [c for c in self.connections if {c.here, c.there} == {a, b}]:
            end.abort()
        self.connections = [c for c in self.connections if c.open]

    def heal(self, a: str, b: str) -> None:
        self.cuts.discard(frozenset((a, b)))

    def kill(self, address: str) -> None:
        """The process is gone: its connections break, it hears nothing any more."""
        self.listeners.pop(address, None)
        for end in [c for c in self.connections if address in (c.here, c.there)]:
            end.abort()
        self.connections = [c for c in self.connections if c.open]


class BoundNetwork:
    """The network as one address sees it."""

    def __init__(self, net: MemoryNetwork, address: str) -> None:
        self.net, self.address = net, address

    async def listen(
        self, address: str, handler: Callable[[], ConnectionHandler], *, limits: ConnectionLimits, tls: object
    ) -> MemoryListener:
        self.net.listeners[address] = handler
        return MemoryListener(self.net, address)

    async def dial(
        self, address: str, handler: ConnectionHandler, *, limits: ConnectionLimits, tls: object
    ) -> Connection:
        make = self.net.listeners.get(address)
        if make is None or frozenset((self.address, address)) in self.net.cuts:
            raise ConnectionRefusedError(address)
        ours = MemoryConnection(self.net, self.address, address, handler)
        theirs = MemoryConnection(self.net, address, self.address, make())
        ours.other, theirs.other = theirs, ours
        self.net.connections += [ours, theirs]
        theirs.handler.opened(theirs)
        handler.opened(ours)
        return ours


def expect_typed(error: BaseException | None) -> None:
    """Errors in the world must be logboom's own."""
    if error is not None and not isinstance(error, LogboomError | OSError):
        raise error


def voters(*ids: NodeId) -> Configuration:
    """What a cluster of these begins with."""
    members = [Member(id=n, peer_address=f"{n}:1", client_address=f"{n}:2") for n in ids]
    return Configuration.of_settings(tuple(members))


def membership_of(journal: Journal, own: NodeId, *others: NodeId) -> Membership:
    """A node of a cluster in which all of these have voted from the beginning."""
    return Membership(node_id=own, journal=journal, begins=voters(own, *others))
