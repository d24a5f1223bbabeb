"""Scans of one partition: so many and no more, and whoever ends, however, lets the state go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.reading.read_rates import ReadRates
from dispatcher.reading.scans import View
from dispatcher.sessions.looks import Looks
from dispatcher.sessions.session import Session
from logboom.commands import Put
from logboom.config import SCANS_MAX, check
from logboom.errors import ConfigError, QuotaExceeded, Unavailable
from logboom.records import RecordBlock
from logboom.settings import ApplySettings, NetSettings, ReadSettings, Settings
from logboom.state_machine import ApplyBatch, Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from logboom.wire import Frame, FrameDecoder, Kind
from partitions.machines.kv import KvMachine
from partitions.machines.kv_file import READERS_MAX, KvFile
from tests.unit.dispatcher.scans_world import SCAN, Backend, Machine, scan

PATIENCE_MS = 20


async def test_one_more_than_there_may_be_is_told_when_to_come_again() -> None:
    backend = Backend(scans_max=2)
    first, second = scan(backend), scan(backend)
    await anext(first)
    await anext(second)
    with pytest.raises(QuotaExceeded) as refused:
        await anext(scan(backend))
    assert (refused.value.limit, refused.value.used, refused.value.retry_after) == (2, 2, 0.1)
    assert backend.machine.open == 2
    await first.aclose()
    assert [header["count"] async for header, _ in scan(backend)] == [1, 1]
    await second.aclose()
    backend.check_nothing_is_left()


async def test_one_that_fails_or_is_given_up_leaves_nothing() -> None:
    backend = Backend(scans_max=1)
    given_up = scan(backend)
    await anext(given_up)
    with pytest.raises(asyncio.CancelledError):
        await given_up.athrow(asyncio.CancelledError())
    backend.check_nothing_is_left()
    fails = scan(backend)
    await anext(fails)
    backend.run = lambda _: (_ for _ in ()).throw(Unavailable("gone"))  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await anext(fails)
    backend.check_nothing_is_left()


class Unread:
    """A client that takes nothing, or as much at a time as ``takes`` says."""

    congested, remote = True, "?"
    peer_identities: frozenset[str] = frozenset()

    def __init__(self, takes: int = 0) -> None:
        self._queued, self._takes = 1000, takes
        self.frames: list[Frame] = []

    @property
    def queued(self) -> int:
        self._queued -= self._takes
        self.congested = self._queued > 0
        return self._queued

    def send(self, buffers: Any) -> None:
        self.frames += FrameDecoder(frame_bytes_max=1 << 20).feed(b"".join(buffers))


async def heard(connection: Unread, backend: Any, *, per_s: int = 0, **reads: int) -> list[Frame]:
    """What a scan is answered with over it; ``per_s``: how fast its client may read."""
    settings = Settings(net=NetSettings(frame_ms=PATIENCE_MS), reads=ReadSettings(**reads))
    clock: Any = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
    service: Any = SimpleNamespace(
        backend=backend,
        sessions={},
        counts=SimpleNamespace(failed=lambda _: None),
        tracer=None,
        settings=settings,
        read_rates=ReadRates(per_s=per_s, burst_ms=0, clock=clock),
        looks=Looks(clock),
    )
    session = Session(service)
    session.opened(connection)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await session.answering._guarded(Frame(Kind.SCAN, 7, SCAN), session.answering._scan)
    assert not session.answering._waiting
    return connection.frames


async def test_what_nobody_takes_ends_and_lets_the_state_go() -> None:
    """Found by reading: for as long as the client liked it kept the file from using anything again."""
    backend = Backend(scans_max=1)
    (frame,) = await heard(Unread(), backend)
    assert (frame.kind, frame.header["code"], frame.header["outcome"]) == (
        Kind.ERROR, "deadline_exceeded", "not_applied",
    )  # fmt: skip
    backend.check_nothing_is_left()


async def test_what_is_taken_slowly_does_not() -> None:
    backend = Backend(scans_max=1)
    frames = await heard(Unread(takes=200), backend)
    assert [frame.kind for frame in frames] == [Kind.ENTRIES] * 2
    backend.check_nothing_is_left()


async def test_what_is_taken_a_byte_at_a_time_does_in_the_end() -> None:
    """Known: a few bytes now and then kept the state for as long as the client liked."""
    backend, connection = Backend(scans_max=1), Unread(takes=1)
    (frame,) = await heard(connection, backend, hold_ms=5 * PATIENCE_MS)
    assert (frame.kind, frame.header["code"], frame.header["outcome"]) == (
        Kind.ERROR, "deadline_exceeded", "not_applied",
    )  # fmt: skip
    assert "in all" in frame.header["message"]
    assert connection.congested
    backend.check_nothing_is_left()


async def test_what_its_rate_would_keep_for_longer_than_a_slow_client_may_ends() -> None:
    """A scan holds on to the state as it was: not for hours, however low the rate is."""
    backend, connection = Backend(scans_max=1), Unread()
    connection.congested = False
    connection._queued = 0
    first, last = await heard(connection, backend, per_s=1, hold_ms=5 * PATIENCE_MS)
    assert first.kind is Kind.ENTRIES
    assert (last.kind, last.header["code"]) == (Kind.ERROR, "deadline_exceeded")
    assert "reads.principal_bytes_per_s" in last.header["message"]
    backend.check_nothing_is_left()
    frames = await heard(connection, backend, per_s=1_000_000)
    assert [frame.kind for frame in frames[2:]] == [Kind.ENTRIES] * 2


def test_the_file_has_room_for_all_of_them_and_for_everybody_else(tmp_path: Path) -> None:
    """Found by reading: 256 scans that were open took the last place, and the partition was paused for good."""
    machine = KvMachine(KvFile(tmp_path, ApplySettings()))
    at = Position(PartitionLogIndex(1), GlobalLogIndex(1))
    records = RecordBlock.from_records([Put(b"k%d" % k, b"v").record() for k in range(3)])
    batch = ApplyBatch(at.applied_index, at.applied_global_index, 0, 3, records.nbytes, bytes(16), records)
    machine.apply([batch], lambda _: (at, {}))
    machine.checkpoint()
    scans = [machine.scan(start=b"", end=None, limit=0, chunk=1) for _ in range(SCANS_MAX)]
    for each in scans:
        next(each)
    assert READERS_MAX >= 2 * SCANS_MAX
    with machine.dump() as dump:
        assert len(list(dump.entries())) == 3
        machine.apply([batch], lambda _: (at, {}))
        machine.checkpoint()
        assert machine.get([b"k1"])[0] == [b"v"]
        assert len(machine.digest()[0]) == 16
        assert sum(piece.nbytes for piece in machine.scrub()) > 0
    for each in scans:
        each.close()
    machine.close()


def test_more_than_it_has_room_for_cannot_be_set() -> None:
    check(Settings(reads=ReadSettings(scans_max=SCANS_MAX - 16)))
    for reads in (ReadSettings(scans_max=SCANS_MAX - 15), ReadSettings(scans_max=0), ReadSettings(views_max=0)):
        with pytest.raises(ConfigError, match="reads"):
            check(Settings(reads=reads))


def test_a_view_that_is_being_read_closes_afterwards() -> None:
    machine: Any = Machine()
    rest = machine.scan(start=b"", end=None, limit=0, chunk=1)
    view = View(machine, next(rest), rest)
    with view._lock:  # somebody reads
        view.close()
        assert machine.open == 1
    assert view.more() is None
    assert machine.open == 0
    view.close()
