"""A simulated network of byte streams between hosts, under asyncio's own transports.

Streams behave as TCP's: bytes arrive whole and in order, or late, or the connection breaks.
A lost packet is a delay, a cut line is silence until it heals or somebody gives up. Writes are
split and merged on the way. A process that is killed resets its connections; a host that loses
power says nothing, and the other end finds out when it asks.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c

from chaos.sim.loop import Process, SimLoop

WINDOW_BYTES: Final = 256 * 1024
RETRANSMIT_S: Final = 0.2
PIECE_BYTES: Final = 128
"""What is written goes in such pieces on a thin line,"""
PIECES_ON_THE_WAY: Final = 4
"""and so many of them at a time: the rest waits at the sender, and may go faster once the line is not thin any more."""


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """How bad the lines are on a quiet day."""

    delay_min_s: float = 0.0001
    delay_max_s: float = 0.002
    loss: float = 0.0
    """Share of writes that need another packet."""
    split: float = 0.02
    """Share of writes that arrive in two parts."""
    bytes_per_s: float = 200e6
    window_bytes: int = WINDOW_BYTES
    """In flight or unread per direction; more waits at the sender."""
    crowd_s: float = 0.0
    """What clients send comes to nodes at multiples of this, so that several meet in one turn; 0: whenever it comes."""


class _Way:
    """One direction of a connection."""

    __slots__ = (
        "arrives", "dst", "fin", "flight", "flying", "held", "receiver", "sender", "src", "unsent", "unsent_bytes",
    )  # fmt: skip

    def __init__(self, src: str, dst: str) -> None:
        self.src, self.dst = src, dst
        self.sender: SimTransport | None = None
        self.receiver: SimTransport | None = None
        self.arrives = 0.0
        self.flight = 0
        self.flying: deque[bytes | None] = deque()
        """Sent. Whenever something arrives it is the first of these: a late one is not overtaken."""
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.held: deque[bytes | None] = deque()
        """Arrived, and the receiver does not read; None: the end."""
        self.fin = False


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: SimNetwork, protocol: Any, owner: Process | None, out: _Way, into: _Way, peer: tuple[str, int]
    ) -> None:
        super().__init__({"peername": peer})
        self.network, self.protocol, self.owner = network, protocol, owner
        self.out, self.into = out, into
        out.sender, into.receiver = self, self
        self.gone = False
        """connection_lost was, or is about to be, called."""
        self._closing = False
        self._reading = True
        self._high, self._low = 65536, 16384
        self._full = False

    # -- asyncio.Transport

    def write(self, data: Any) -> None:
        if data and not self._closing:
            self.network.carry(self.out, bytes(data))
            self._watch_buffer()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.out.fin = True
            if not self.out.unsent:
                self.network.finish(self.out)

    def abort(self) -> None:
        self._closing = True
        if not self.gone:
            self.network.reset_seen_by_other(self)
            self.lose(None)

    def get_write_buffer_size(self) -> int:
        return self.out.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self.into.held:
            self.network.loop.run_as(self.owner, self._read_held)

    def is_reading(self) -> bool:
        return self._reading

    # -- from the network

    def lose(self, error: Exception | None) -> None:
        """The connection is over for this end; it hears of it in a moment."""
        if self.gone:
            return
        self.gone = self._closing = True
        self.out.unsent.clear()
        self.out.unsent_bytes = 0
        self.network.forget(self)
        self.network.loop.run_as(self.owner, self.protocol.connection_lost, error)

    def arrive(self, data: bytes | None) -> None:
        """Bytes, or None: the other end has closed."""
        if self.gone:
            return
        if self._closing:  # what is still unsent may go out, nobody here listens any more
            if data is None:
                self.lose(None)
            return
        if not self._reading or self.into.held:
            self.into.held.append(data)
            return
        self._take(data)

    def _take(self, data: bytes | None) -> None:
        if data is None:
            self.protocol.eof_received()
            self.close()
            self.lose(None)
            return
        self.network.consumed(self.into, len(data))
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            self._fill(self.protocol, memoryview(data))
        else:
            self.protocol.data_received(data)

    def _fill(self, protocol: asyncio.BufferedProtocol, data: memoryview) -> None:
        while data and not self.gone:
            room = memoryview(protocol.get_buffer(-1))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            protocol.buffer_updated(size)

    def _read_held(self) -> None:
        held = self.into.held
        while held and self._reading and not self.gone:
            self._take(held.popleft())

    def _watch_buffer(self) -> None:
        if not self._full and self.out.unsent_bytes > self._high:
            self._full = True
            self.protocol.pause_writing()

    def sent(self) -> None:
        """Some of the buffer went out."""
        if self._full and self.out.unsent_bytes <= self._low and not self.gone:
            self._full = False
            self.network.loop.run_as(self.owner, self.protocol.resume_writing)


class _Socket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimServer:
    """A bound port (asyncio.Server's methods)."""

    def __init__(self, network: SimNetwork, address: tuple[str, int], factory: Any, owner: Process | None) -> None:
        self.network, self.address, self.factory, self.owner = network, address, factory, owner
        self.sockets = [_Socket(address)]

    def close(self) -> None:
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]

    async def wait_closed(self) -> None:
        """At once."""


class SimNetwork:
    """Hosts by name; a process is on the host of its name."""

    def __init__(self, loop: SimLoop, rng: random.Random, profile: NetworkProfile) -> None:
        self.loop, self.rng, self.profile = loop, rng, profile
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.ends: dict[SimTransport, None] = {}
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): nothing gets through."""
        self.slow: dict[tuple[str, str], float] = {}
        """(from, to): seconds more."""
        self.lossy: dict[tuple[str, str], float] = {}
        """(from, to): share of writes that need another packet."""
        self.thin: dict[tuple[str, str], float] = {}
        """(from, to): bytes a second, of each connection."""
        self._stuck: list[_Way] = []
        """Once for everything that should have arrived on it."""
        self._unaccepted: dict[_Way, Process | None] = {}
        """Ways back from a listener's process that does not know of them yet."""
        self.bytes = 0
        self.nodes: frozenset[str] = frozenset()
        """Hosts to which clients come in crowds."""
        self._crowds: dict[float, list[_Way]] = {}
        """What arrives then."""
        loop.network = self

    # -- connections

    def bind(self, factory: Any, host: str, port: int) -> SimServer:
        address = (host, port)
        holder = self.listeners.get(address)
        if holder is not None and holder.owner is not None and holder.owner.alive:
            raise OSError(98, "Address already in use")
        server = self.listeners[address] = SimServer(self, address, factory, self.loop.current)
        return server

    async def connect(self, factory: Any, host: str, port: int) -> tuple[SimTransport, Any]:
        owner = self.loop.current
        here = owner.name if owner is not None else "?"
        await asyncio.sleep(2 * self._delay(here, host))
        server = self.listeners.get((host, port))
        if (here, host) in self.cuts or (host, here) in self.cuts or server is None:
            if server is None and not ((here, host) in self.cuts or (host, here) in self.cuts):
                raise ConnectionRefusedError(111, f"Connection refused: {host}:{port}")
            await self.loop.create_future()  # silence, until the caller has had enough
        assert server is not None
        there, back = _Way(here, host), _Way(host, here)
        protocol = factory()
        ours = SimTransport(self, protocol, owner, there, back, (host, port))
        # An accepting process that does not run (stopped) still has a kernel that accepts.
        self.ends[ours] = None
        self._unaccepted[back] = server.owner
        self.loop.run_as(server.owner, self._accept, server, back, there, here)
        protocol.connection_made(ours)
        return ours, protocol

    def _accept(self, server: SimServer, out: _Way, into: _Way, peer: str) -> None:
        self._unaccepted.pop(out, None)
        protocol = server.factory()
        theirs = SimTransport(self, protocol, server.owner, out, into, (peer, 1))
        self.ends[theirs] = None
        if out.receiver is None or (out.receiver.gone and not into.fin):
            self.loop.run_as(server.owner, theirs.lose, None)
        protocol.connection_made(theirs)
        theirs._read_held()  # noqa: SLF001 - its own module

    def forget(self, end: SimTransport) -> None:
        self.ends.pop(end, None)

    # -- bytes

    def carry(self, way: _Way, data: bytes) -> None:
        if (way.src, way.dst) not in self.thin:
            self._carry(way, data)
            return
        for at in range(0, len(data), PIECE_BYTES):
            self._carry(way, data[at : at + PIECE_BYTES])

    def _window(self, way: _Way) -> int:
        return PIECES_ON_THE_WAY * PIECE_BYTES if (way.src, way.dst) in self.thin else self.profile.window_bytes

    def _carry(self, way: _Way, data: bytes) -> None:
        if way.flight >= self._window(way) or way.unsent:
            way.unsent.append(data)
            way.unsent_bytes += len(data)
            return
        if len(data) > 1 and self.rng.random() < self.profile.split:
            at = self.rng.randrange(1, len(data))
            self._send(way, data[:at])
            data = data[at:]
        self._send(way, data)

    def finish(self, way: _Way) -> None:
        """Everything is sent: now the end. Who closes has heard it all."""
        self._send(way, None)
        if way.sender is not None:
            way.sender.lose(None)

    def _send(self, way: _Way, data: bytes | None) -> None:
        size = 0 if data is None else len(data)
        way.flight += size
        delay, rate = self._delay(way.src, way.dst), self.thin.get((way.src, way.dst))
        if rate is None:
            way.arrives = max(self.loop.now + (delay + size / self.profile.bytes_per_s), way.arrives + 1e-7)
        else:
            way.arrives = max(self.loop.now + delay, way.arrives + 1e-7) + size / rate
        way.flying.append(data)
        crowd_s = self.profile.crowd_s
        if crowd_s and way.dst in self.nodes and way.src not in self.nodes:
            self._join_crowd(way, math.ceil(way.arrives / crowd_s) * crowd_s)
        else:
            self.loop.run_as(None, self._arrive, way, delay=way.arrives - self.loop.now)

    def _join_crowd(self, way: _Way, when: float) -> None:
        way.arrives = when
        crowd = self._crowds.setdefault(when, [])
        if not crowd:
            self.loop.run_as(None, self._crowd_arrives, when, delay=when - self.loop.now)
        crowd.append(way)

    def _crowd_arrives(self, when: float) -> None:
        for way in self._crowds.pop(when):
            self.loop.run_as(None, self._arrive, way)  # all of them before anything that comes of the first

    def _delay(self, src: str, dst: str) -> float:
        profile, rng = self.profile, self.rng
        delay = profile.delay_min_s + (profile.delay_max_s - profile.delay_min_s) * rng.random()
        if self.slow or self.lossy or profile.loss:
            delay += self.slow.get((src, dst), 0.0)
            loss = max(profile.loss, self.lossy.get((src, dst), 0.0))
            again = RETRANSMIT_S
            while loss and rng.random() < loss and again < 4.0:
                delay += again
                again *= 2
        return delay

    def _arrive(self, way: _Way) -> None:
        if (way.src, way.dst) in self.cuts:
            self._stuck.append(way)
            return
        data = way.flying.popleft()
        receiver = way.receiver
        if receiver is None:  # not accepted yet
            way.held.append(data)
            return
        if data is not None:
            self.bytes += len(data)
            self.loop.trace ^= google_crc32c.value(data)
        owner = receiver.owner
        if owner is not None and not owner.alive:
            return
        if receiver.gone:
            if data is not None:
                self._send_reset(receiver.out)  # a kernel says so of a connection that it does not know
            return
        if owner is not None and (owner.stopped or owner.slow):
            self.loop.run_as(owner, receiver.arrive, data)
        else:
            self.loop.current = owner  # the last thing that this event does
            receiver.arrive(data)

    def consumed(self, way: _Way, size: int) -> None:
        way.flight -= size
        sender = way.sender
        if sender is None or not way.unsent:
            return
        while way.unsent and way.flight < self._window(way):
            data = way.unsent.popleft()
            way.unsent_bytes -= len(data)
            self._send(way, data)
        if way.fin and not way.unsent:
            self.finish(way)
        sender.sent()

    # -- faults

    def cut(self, src: str, dst: str) -> None:
        """From now on nothing gets from ``src`` to ``dst``."""
        self.cuts.add((src, dst))

    def heal(self, src: str | None = None, dst: str | None = None) -> None:
        """The line works again (None: all lines); what was sent meanwhile arrives."""
        self.cuts = {c for c in self.cuts if (src is not None and c[0] != src) or (dst is not None and c[1] != dst)}
        stuck, self._stuck = self._stuck, []
        for way in stuck:
            delay = self._delay(way.src, way.dst) if (way.src, way.dst) not in self.cuts else 0.0
            way.arrives = max(self.loop.now + delay, way.arrives + 1e-7)
            self.loop.run_as(None, self._arrive, way, delay=way.arrives - self.loop.now)

    def reset(self, a: str, b: str, *, both_know: bool) -> int:
        """Break the connections between two hosts; else only ``a`` knows, and ``b`` finds out by itself."""
        ends = [end for end in self.ends if (end.out.src, end.out.dst) == (a, b)]
        for end in ends:
            if both_know:
                self.reset_seen_by_other(end)
            end.lose(ConnectionResetError(104, "Connection reset by peer"))
        return len(ends)

    def reset_seen_by_other(self, end: SimTransport) -> None:
        """The other end hears of it after what is on its way."""
        if end.out.receiver is not None and not end.out.receiver.gone:
            self._send_reset(end.out)

    def _send_reset(self, way: _Way) -> None:
        way.arrives = max(self.loop.now + self._delay(way.src, way.dst), way.arrives + 1e-7)
        self.loop.run_as(None, self._reset_arrives, way, delay=way.arrives - self.loop.now)

    def _reset_arrives(self, way: _Way) -> None:
        if (way.src, way.dst) in self.cuts:
            self.loop.run_as(None, self._reset_arrives, way, delay=RETRANSMIT_S)
            return
        if way.receiver is not None and not way.receiver.gone:
            way.receiver.lose(ConnectionResetError(104, "Connection reset by peer"))

    def process_ended(self, process: Process, *, silently: bool) -> None:
        """Its ports and connections are gone. ``silently``: with its host; the others find out late."""
        self.listeners = {a: s for a, s in self.listeners.items() if s.owner is not process}
        ways = [way for way, owner in self._unaccepted.items() if owner is process]
        for way in ways:
            del self._unaccepted[way]
        for end in [end for end in self.ends if end.owner is process]:
            self.forget(end)
            end.gone = True
            end.out.unsent.clear()  # it was in the memory of the process
            end.out.unsent_bytes = 0
            ways.append(end.out)
        for way in ways:
            if not silently:
                self._send_reset(way)
            else:
                self.loop.run_as(None, self._reset_arrives, way, delay=5 * RETRANSMIT_S)
