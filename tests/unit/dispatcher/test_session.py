"""A client's connection that is congested: everyone who waits for room is told of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.reading.read_rates import ReadRates
from dispatcher.reading.reads import keys_of
from dispatcher.requests import relevant as relevant_module
from dispatcher.requests.relevant import FIELDS, relevant
from dispatcher.sessions.looks import Looks
from dispatcher.sessions.service import ClientService
from dispatcher.sessions.session import Session
from dispatcher.sessions.session_counts import SessionCounts
from dispatcher.sessions.turns import TURN_S, OneATurn
from logboom.errors import InvalidRequest
from logboom.settings import NetSettings, Settings
from logboom.types import KIB, MIB
from logboom.wire import Frame, FrameDecoder, Kind
from ports.clock import Clock
from ports.net import Connection
from tests.unit.dispatcher.connections import Backend


class Congested:
    congested, queued = True, 9
    peer_identities: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.sent = 0

    def send(self, buffers: Sequence[Any]) -> None:
        self.sent += 1


def opened(connection: Any, **settings: Any) -> Session:
    session = Session(
        cast(
            ClientService,
            SimpleNamespace(
                backend=Backend(),
                sessions={},
                counts=SessionCounts(),
                tracer=None,
                settings=Settings(**settings),
                read_rates=ReadRates(per_s=0, burst_ms=0, clock=cast(Clock, Backend.clock)),
                looks=Looks(cast(Clock, Backend.clock)),
                turns=SimpleNamespace(is_over=lambda: False, now=0.0),
                one_status=OneATurn(),
            ),
        )
    )
    session.opened(cast(Connection, connection))
    return session


def test_who_follows_something_looks_in_turn_with_others_whatever_connections_he_has() -> None:
    """A fifth of the node's time is for all connections (test_looks.py): those of one certificate have one turn."""
    now, due, looked = 0.0, list[Callable[[], None]](), list[str]()
    service = ClientService(cast(Any, Backend()), Settings())

    def later(_: float, call: Callable[[], None]) -> Any:
        due.append(call)

    service.looks = Looks(cast(Clock, SimpleNamespace(monotonic=lambda: now)), later=later)

    def look(who: str) -> None:
        nonlocal now
        now += TURN_S
        looked.append(who)

    for who in ("much", "much", "little", "", ""):
        connection, session = Congested(), Session(service)
        connection.peer_identities = frozenset({who} - {""})
        session.opened(cast(Connection, connection))
        for _ in range(2):
            session._waits.later(0.0, partial(look, who))
    while due:
        due.pop(0)()
    assert looked == ["much", *2 * ["much", "little", "", ""], "much"]


async def test_two_scans_that_wait_for_room_both_go_on() -> None:
    """Found by reading: the second one took the place of the first, which waited for ever."""
    connection = Congested()
    session = opened(connection)
    scans = [asyncio.ensure_future(session.answering._uncongested()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(scan.done() for scan in scans)
    connection.congested = False
    session.drained()
    async with asyncio.timeout(1):
        await asyncio.gather(*scans)


async def test_scans_that_are_given_up_leave_nothing_behind() -> None:
    """Who does not read may ask and cancel as often as it likes."""
    session = opened(Congested())
    scans = [asyncio.ensure_future(session.answering._uncongested()) for _ in range(3)]
    await asyncio.sleep(0)
    for scan in scans:
        scan.cancel()
    await asyncio.gather(*scans, return_exceptions=True)
    assert not session.answering._waiting


async def test_the_end_of_a_scan_waits_for_room_as_its_pieces_do() -> None:
    """Simulator, seed 188: the last piece was sent behind one that filled the buffer, its reader cut as too slow."""

    class Filling(Congested):
        def send(self, buffers: Sequence[Any]) -> None:
            super().send(buffers)
            self.congested = True

    async def chunks() -> AsyncGenerator[tuple[dict[str, Any], list[Any]], None]:
        for number in range(2):
            yield {"count": number}, [b"x"]

    connection = Filling()
    connection.congested = False
    session = opened(connection)
    frame = Frame(Kind.SCAN, 1, {"partition": 0})
    scan = asyncio.ensure_future(session.answering._stream(frame, Kind.ENTRIES, chunks(), patience=60.0))
    while not session.answering._waiting and not scan.done():  # noqa: ASYNC110 - it is a task of this loop
        await asyncio.sleep(0)
    assert (connection.sent, scan.done()) == (1, False)
    connection.congested = False
    session.drained()
    async with asyncio.timeout(1):
        await scan
    assert connection.sent == 2


async def test_tails_that_end_once_there_is_room_do_not_trip_each_other() -> None:
    connection = Congested()
    session = opened(connection)
    session._introduced = True
    for request_id in (1, 2):
        session.frame(Frame(Kind.TAIL, request_id, {"partition": 0, "credit": 1}))
    assert connection.sent == 0
    connection.congested = False
    session.drained()
    assert connection.sent == 2


async def test_pieces_of_a_backup_are_read_one_at_a_time() -> None:
    """Found by reading: four thousand requests of one connection would have been four gigabytes of answers."""
    connection = Congested()
    connection.congested = False
    session = opened(connection)
    session._introduced = True
    under_way, most = 0, 0

    async def read(frame: Frame) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return SimpleNamespace(header={}, body=[])

    session._backend.snapshots = SimpleNamespace(serving=SimpleNamespace(read=read))  # type: ignore[assignment]
    for request_id in range(1, 9):
        session.frame(Frame(Kind.SNAPSHOT_READ, request_id, {}))
    async with asyncio.timeout(1):
        await asyncio.gather(*session.answering._tasks.values())
    assert (connection.sent, most) == (8, 1)


async def test_what_is_cancelled_in_the_turn_in_which_it_came_gives_its_place_back() -> None:
    """Found by reading: its task never began, hence never ended; after four thousand the connection was of no use."""
    connection = Congested()
    session = opened(connection)
    session._introduced = True
    for request_id in range(1, 9):
        session.frame(Frame(Kind.STATUS, request_id, {}))
        session.frame(Frame(Kind.CANCEL, request_id, {}))
    async with asyncio.timeout(1):
        while session.answering._tasks:  # noqa: ASYNC110 - they end in the next turns
            await asyncio.sleep(0)
    assert connection.sent == 0


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_what_a_request_does_not_have_is_not_held_with_it(kind: Kind) -> None:
    """Where it waited, what nobody looks at took seventy times its size for as long."""
    known = dict.fromkeys(sorted(FIELDS[kind]), 1)
    frame = Frame(kind, 7, {"junk": [{}] * 9, **known}, memoryview(b"body"), 1, 99)
    assert relevant(frame) == frame._replace(header=known)
    assert relevant(frame._replace(header=known)).header is known


def test_the_protocol_says_the_same_fields() -> None:
    page = (Path(relevant_module.__file__).parents[2] / "docs" / "protocol.md").read_text()
    for kind, fields in FIELDS.items():
        (row,) = re.findall(rf"^\| {kind.name} {kind.value}\b[^|]*\| ([^|]*) \|", page, re.MULTILINE)
        more = FIELDS[Kind.SCAN] - {"partition"} if "as SCAN" in row else set()
        assert fields <= set(re.findall(r"`(\w+)`", row)) | more, kind


async def test_requests_under_way_are_together_as_large_as_one_may_be() -> None:
    connection = Heard()
    session = opened(connection, net=NetSettings(client_frame_bytes=64 * KIB))
    session._introduced = True
    waits: list[asyncio.Future[None]] = []

    async def read(frame: Frame) -> Any:
        waits.append(asyncio.get_running_loop().create_future())
        await waits[-1]
        return SimpleNamespace(header={}, body=[])

    session._backend.snapshots = SimpleNamespace(serving=SimpleNamespace(read=read))  # type: ignore[assignment]
    for request_id, size in ((1, 100 * KIB), (2, 1)):
        session.frame(Frame(Kind.SNAPSHOT_READ, request_id, {}, size=size))
    assert [(frame.request_id, frame.header["code"]) for frame in connection.frames] == [(2, "quota_exceeded")]
    session.frame(Frame(Kind.CANCEL, 1, {}))
    async with asyncio.timeout(1):
        while session.answering._tasks:  # noqa: ASYNC110 - they end in the next turns
            await asyncio.sleep(0)
    for request_id, size in ((3, 60 * KIB), (4, 4 * KIB), (5, 1)):
        session.frame(Frame(Kind.SNAPSHOT_READ, request_id, {}, size=size))
    assert [frame.request_id for frame in connection.frames] == [2, 5]
    session.answering.close()


async def test_of_a_crowd_of_statuses_each_turn_of_the_loop_has_one() -> None:
    """Three thousand of them, in 63 KB, kept a leader from its heartbeats for two seconds."""
    connection, turns = Heard(), list[int]()
    session = opened(connection)
    session._introduced = True
    turn = 0

    async def status(**_: Any) -> dict[str, Any]:
        turns.append(turn)
        return {}

    session._service.status = status  # type: ignore[method-assign]
    for request_id in range(1, 6):
        session.frame(Frame(Kind.STATUS, request_id, {}))
    while session.answering._tasks:
        await asyncio.sleep(0)
        turn += 1
        assert turn < 100
    assert len(connection.frames) == 5
    assert len(set(turns)) == 5


@pytest.mark.parametrize("kind", [Kind.WATERMARKS, Kind.WATCH, Kind.STATUS, Kind.ADMIN, Kind.INDEX_AT, Kind.DATA_READ])
async def test_whatever_comes_in_crowds_waits_for_its_turn(kind: Kind) -> None:
    session = opened(Heard())
    session._introduced = True
    held: list[Frame] = []
    session._service.turns.is_over = lambda: True  # type: ignore[method-assign]
    session.submits._hold = held.append  # type: ignore[method-assign]
    session.frame(Frame(kind, 1, {}))
    assert [frame.kind for frame in held] == [kind]
    assert not session.answering._tasks


class Heard:
    congested, remote = False, "?"

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, buffers: Sequence[Any]) -> None:
        self.frames += FrameDecoder(frame_bytes_max=MIB).feed(b"".join(buffers))


async def test_an_answer_that_would_cut_the_connection_is_an_error_instead() -> None:
    connection = Heard()
    session = opened(connection, net=NetSettings(client_send_buffer_bytes=KIB))
    session.reply(1, Kind.VALUES, {"metadata": 0}, [bytes(2 * KIB)])
    session.reply(2, Kind.SUBMITTED, {"parts": [[0, 1, 2, 3, 0, bytes(2 * KIB)]]})
    session.reply(3, Kind.VALUES, {"metadata": 0}, [bytes(KIB)])
    told = [(frame.request_id, frame.header.get("code"), frame.header.get("outcome")) for frame in connection.frames]
    assert told == [(1, "record_too_large", "not_applied"), (2, "record_too_large", "unknown"), (3, None, None)]


@pytest.mark.parametrize(
    ("held", "told"), [(object(), {}), (1 << 70, {}), (bytes(2 * KIB), {}), ("\udcff", {"why": "\\udcff"})]
)
async def test_an_error_that_cannot_be_sent_as_it_is_is_told_without_what_it_holds(
    held: Any, told: dict[str, str]
) -> None:
    """One that a user's machine raised in a `get`: nobody was answered, and whoever asked waited for his deadline."""
    connection = Heard()
    session = opened(connection, net=NetSettings(client_send_buffer_bytes=KIB))
    session.fail(1, InvalidRequest("no such colour", why=held))
    session.fail(2, InvalidRequest("\udcff" + "x" * 4 * KIB))
    (first, second) = [frame.header for frame in connection.frames]
    assert (first["code"], first["fields"]) == ("invalid_request", told)
    assert "no such colour" in first["message"]
    assert len(second["message"]) < KIB


async def test_so_is_one_whose_message_has_no_text() -> None:
    """What raises where it is shown raised where the answer was made: there was none."""

    class Entry:
        def __repr__(self) -> str:
            raise AttributeError("gone")

    connection, message = Heard(), cast(Any, Entry())
    opened(connection).fail(1, InvalidRequest(message))
    [frame] = connection.frames
    assert (frame.header["code"], frame.header["message"]) == ("invalid_request", "InvalidRequest")


@pytest.mark.parametrize(
    ("header", "body", "found"),
    [
        ({"keys": [b"a", b""]}, b"", [b"a", b""]),
        ({"lengths": [1, 0, 2]}, b"abc", [b"a", b"", b"bc"]),
        ({"lengths": [1, 1]}, b"abc", None),
        ({"lengths": [1, 3]}, b"abc", None),
        ({"lengths": [-1, 4]}, b"abc", None),
        ({"lengths": [True]}, b"a", None),
        ({"lengths": 3}, b"abc", None),
        ({"lengths": []}, b"", None),
        ({"lengths": [0] * 10_001}, b"", None),
        ({"keys": ["a"]}, b"", None),
        ({}, b"", None),
    ],
)
def test_keys_come_in_the_header_or_in_the_body(header: Any, body: bytes, found: list[bytes] | None) -> None:
    frame = Frame(Kind.GET, 1, header, memoryview(body))
    if found is not None:
        assert keys_of(frame) == found
    else:
        with pytest.raises(InvalidRequest):
            keys_of(frame)
