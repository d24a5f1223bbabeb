"""A connection's submits: cancelled, disconnected, refused too often."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from dispatcher.requests.requests import SubmitRequest
from dispatcher.sessions.service import ClientService
from dispatcher.sessions.session import Session
from dispatcher.sessions.turns import TURN_S
from logboom.errors import LogboomError, Overloaded, Unavailable
from logboom.records import RecordBlock
from logboom.settings import AdmissionSettings, ClusterSettings, NetSettings, Settings
from logboom.types import Record
from logboom.wire import Frame, Kind

RECORDS = RecordBlock.from_records([Record(b"x")])


class Connection:
    congested = False
    peer_identities: frozenset[str] = frozenset()
    remote = "somewhere"

    def __init__(self) -> None:
        self.sent = 0
        self.reading = True
        self.paused = 0
        self.aborted = False
        self.resumed = asyncio.Event()

    def send(self, buffers: Any) -> None:
        self.sent += 1

    def flush(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False
        self.paused += 1

    def resume_reading(self) -> None:
        self.reading = True
        self.resumed.set()

    def abort(self) -> None:
        self.aborted = True


class Backend:
    """Answers when the test says so; ``waits``: what it takes is not admitted yet."""

    node_id = "n1"
    streams_open = 0
    streams_logs = 0
    settings = Settings()

    def __init__(self) -> None:
        self.now = 0.0
        self.clock = SimpleNamespace(monotonic=lambda: self.now)
        self.asked: list[tuple[SubmitRequest, Any, Any]] = []
        self.waits = False
        self.cancelled: list[Any] = []
        self.gone: list[Any] = []
        self.submitting = SimpleNamespace(cancel=self.cancelled.append, gone=self.gone.append)
        self.barriers = SimpleNamespace(client_gone=lambda _: None)
        self.cluster = ClusterSettings()

    def submit(self, request: SubmitRequest, done: Any, owner: Any) -> Any:
        self.asked.append((request, done, owner))
        return len(self.asked) if self.waits else None


class Desk:
    def __init__(self, **settings: Any) -> None:
        self.backend = Backend()
        backend: Any = self.backend
        admission = AdmissionSettings(**settings)
        self.service: Any = ClientService(backend, Settings(admission=admission))  # type: ignore[arg-type]
        self.connection, self.session = self.connect()

    def connect(self) -> tuple[Connection, Session]:
        connection, session = Connection(), Session(self.service)
        session.opened(connection)  # type: ignore[arg-type]
        session._introduced = True
        return connection, session

    def submit(self, request_id: int = 1, session: Session | None = None, **more: Any) -> None:
        header = {
            "producer": bytes(16),
            "wait": "committed",
            "epoch": 0,
            "timeout_ms": 1000,
            "parts": [[0, 0, 0, 1, len(RECORDS.metadata), len(RECORDS.data)]],
            **more,
        }
        body = memoryview(bytes(RECORDS.metadata) + bytes(RECORDS.data))
        (session or self.session).frame(Frame(Kind.SUBMIT, request_id, header, body))

    def answer(self, error: LogboomError) -> None:
        self.backend.asked.pop(0)[1](error)

    def refuse(self, count: int) -> None:
        for k in range(count):
            self.submit(k + 1)
            self.answer(Overloaded("no", retry_after=0.05))


async def test_what_waits_is_given_up_when_it_is_cancelled_and_nothing_else_is() -> None:
    desk = Desk()
    desk.submit(1)
    desk.backend.waits = True
    desk.submit(2)
    for request_id in (1, 2, 3):
        desk.session.frame(Frame(Kind.CANCEL, request_id, {}))
    assert desk.backend.cancelled == [2]


async def test_what_was_answered_is_not_cancelled_any_more() -> None:
    desk = Desk()
    desk.backend.waits = True
    desk.submit(1)
    desk.answer(Unavailable("no"))
    desk.session.frame(Frame(Kind.CANCEL, 1, {}))
    desk.session.closed(None)
    assert (desk.backend.cancelled, desk.backend.gone) == ([], [])


async def test_whoever_disconnects_waits_no_more() -> None:
    desk = Desk()
    desk.backend.waits = True
    desk.submit(1)
    desk.session.closed(None)
    assert desk.backend.gone == [desk.session]
    assert desk.backend.asked[0][2] is desk.session


async def test_of_two_with_one_number_neither_waits_when_who_asked_is_gone() -> None:
    """One went on waiting, and was written: the answer of the other had taken it off the list."""
    desk = Desk()
    desk.backend.waits = True
    desk.submit(7)
    desk.submit(7)
    desk.answer(Unavailable("no"))
    desk.session.frame(Frame(Kind.CANCEL, 7, {}))
    assert desk.backend.cancelled == [2]
    desk.session.closed(None)
    assert desk.backend.gone == [desk.session]


async def test_shares_go_by_the_certificate_or_else_by_the_connection() -> None:
    desk = Desk()
    desk.submit(1)
    desk.submit(2)
    _, other = desk.connect()
    desk.submit(1, other)
    named, third = desk.connect()
    named.peer_identities = frozenset({"spark", "batch"})
    desk.submit(1, third, principal="somebody else", admission_wait_ms=700)
    requests = [asked[0] for asked in desk.backend.asked]
    assert [request.principal for request in requests] == ["n1#1", "n1#1", "n1#2", "batch"]
    assert [request.admit_by for request in requests] == [0.0, 0.0, 0.0, 0.7]


async def test_a_deadline_is_no_further_away_than_is_set() -> None:
    desk = Desk()
    desk.service.settings = Settings(net=NetSettings(request_ms_max=300))  # type: ignore[call-arg]
    _, session = desk.connect()
    desk.submit(1, session, admission_wait_ms=700)
    request, _, _ = desk.backend.asked[0]
    assert (request.deadline, request.admit_by) == (0.3, 0.3)


async def test_a_connection_that_is_refused_again_and_again_is_not_read_for_a_while() -> None:
    desk = Desk(refusals_max=3, retry_after_ms=10)
    desk.refuse(2)
    assert desk.connection.reading
    desk.refuse(1)
    assert not desk.connection.reading
    async with asyncio.timeout(5):
        await desk.connection.resumed.wait()
    desk.refuse(2)
    assert desk.connection.paused == 1


async def test_now_and_then_is_not_too_often() -> None:
    desk = Desk(refusals_max=3, retry_after_ms=10)
    for _ in range(10):
        await asyncio.sleep(0)
        desk.backend.now += 0.011
        desk.refuse(1)
    assert desk.connection.paused == 0


async def test_the_brake_goes_with_the_connection() -> None:
    desk = Desk(refusals_max=1, retry_after_ms=10)
    desk.refuse(1)
    desk.session.closed(None)
    await asyncio.sleep(0.05)
    assert not desk.connection.reading  # nobody has touched it any more


class Busy(Backend):
    """Each request takes a little more than half a turn."""

    def submit(self, request: SubmitRequest, done: Any, owner: Any) -> Any:
        self.now += 0.6 * TURN_S
        return super().submit(request, done, owner)


def busy(connections: int) -> tuple[Desk, list[tuple[Connection, Session]]]:
    desk = Desk()
    backend: Any = Busy()
    desk.backend = backend
    desk.service = ClientService(backend, Settings())  # type: ignore[arg-type]
    return desk, [desk.connect() for _ in range(connections)]


async def test_however_many_ask_at_once_the_loop_has_its_turn_between() -> None:
    desk, sessions = busy(4)
    for request_id in (1, 2, 3):
        for _, session in sessions:
            desk.submit(request_id, session)
    assert len(desk.backend.asked) == 2
    assert not any(connection.reading for connection, _ in sessions)
    per_turn = []
    while len(desk.backend.asked) < 12:
        before = len(desk.backend.asked)
        await asyncio.sleep(0)
        per_turn.append(len(desk.backend.asked) - before)
    assert max(per_turn) == 2
    assert all(connection.reading for connection, _ in sessions)
    order = [sessions.index(next(pair for pair in sessions if pair[1] is owner)) for _, _, owner in desk.backend.asked]
    assert sorted(order[:6]) != [0, 0, 0, 1, 1, 1]  # connections take turns
    for k in range(4):
        mine = [request.deadline for (request, _, _), who in zip(desk.backend.asked, order, strict=True) if who == k]
        assert mine == sorted(mine)


async def test_what_is_held_back_counts_from_when_it_came_and_can_be_cancelled() -> None:
    desk, sessions = busy(2)
    (_, first), (_, second) = sessions
    for request_id in (1, 2, 3, 4):
        desk.submit(request_id, first)
    came = desk.backend.now
    desk.submit(9, second)
    first.frame(Frame(Kind.CANCEL, 3, {}))
    second.closed(None)
    desk.backend.now += 0.5
    for _ in range(9):
        await asyncio.sleep(0)
    assert len(desk.backend.asked) == 3
    assert all(request.deadline <= came + 1.0 for request, _, _ in desk.backend.asked)
    assert sessions[0][0].reading


class Counted(int):
    """A request id that notes how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


async def test_to_cancel_what_is_held_back_looks_at_nothing_else_that_is() -> None:
    """All that was held was gone through for each: 1,400 that were cancelled in the same read held the loop."""
    desk, sessions = busy(1)
    (_, session), count = sessions[0], 100
    for request_id in range(1, 3 + count):
        desk.submit(Counted(request_id), session)
    Counted.compared = 0
    for request_id in range(3, 3 + count, 2):
        session.frame(Frame(Kind.CANCEL, Counted(request_id), {}))
    desk.submit(Counted(3), session)  # which is another one by now
    assert Counted.compared <= 10 * count
    for _ in range(2 * count):
        await asyncio.sleep(0)
    assert len(desk.backend.asked) == 2 + count // 2 + 1
    assert sessions[0][0].reading


async def test_whoever_holds_and_cancels_has_no_more_turns_than_others() -> None:
    """Each time it took another place in the queue."""
    desk, sessions = busy(2)
    (_, first), (_, second) = sessions
    for request_id in range(1, 13):
        desk.submit(request_id, first)
        if 2 < request_id < 9:
            first.frame(Frame(Kind.CANCEL, request_id, {}))
    for request_id in range(1, 5):
        desk.submit(request_id, second)
    for _ in range(9):
        await asyncio.sleep(0)
    order = [sessions.index(next(pair for pair in sessions if pair[1] is owner)) for _, _, owner in desk.backend.asked]
    assert order == [0, 0, *[0, 1] * 4]


async def test_what_fails_unexpectedly_when_its_turn_comes_costs_its_own_connection_alone() -> None:
    """All that were held back with it were never looked at again, nor read."""
    desk, sessions = busy(3)
    submit, failing = desk.backend.submit, sessions[1][1]

    def fails(request: SubmitRequest, done: Any, owner: Any) -> Any:
        if owner is failing:
            raise ValueError("nobody thought of that")
        return submit(request, done, owner)

    for request_id in (1, 2, 3):
        for _, session in (sessions[0], sessions[2]):
            desk.submit(request_id, session)
    desk.submit(4, failing)
    desk.submit(5, failing)
    desk.backend.submit = fails  # type: ignore[method-assign]
    for _ in range(9):
        await asyncio.sleep(0)
    assert [connection.aborted for connection, _ in sessions] == [False, True, False]
    assert len(desk.backend.asked) == 6
    assert all(connection.reading for connection, _ in (sessions[0], sessions[2]))


async def test_a_crowd_of_barriers_leaves_the_loop_its_turn_and_loses_none() -> None:
    desk, sessions = busy(2)
    begun: list[tuple[int, int]] = []
    for k, (_, session) in enumerate(sessions):

        def begin(frame: Frame, came: float, k: int = k) -> None:
            desk.backend.now += 0.6 * TURN_S
            begun.append((k, frame.request_id))

        session.begin = begin  # type: ignore[method-assign]
    for request_id in range(1, 9):
        for _, session in sessions:
            session.frame(Frame(Kind.BARRIER if request_id % 2 else Kind.GET, request_id, {}))
    assert len(begun) == 2
    sessions[1][1].frame(Frame(Kind.CANCEL, 8, {}))
    per_turn = []
    while len(begun) < 15:
        before = len(begun)
        await asyncio.sleep(0)
        per_turn.append(len(begun) - before)
    assert max(per_turn) == 2
    assert all(connection.reading for connection, _ in sessions)
    assert [number for k, number in begun if k == 0] == list(range(1, 9))
    assert [number for k, number in begun if k == 1] == list(range(1, 8))


async def test_a_crowd_of_scans_leaves_the_loop_its_turn_and_gets_its_credit() -> None:
    """Each went through all logs as soon as it was read: 1,770 over a thousand, in one read, took half a minute."""
    desk, sessions = busy(1)
    session, credit = sessions[0][1], dict[int, int]()

    class Opened(SimpleNamespace):
        def add_credit(self, nbytes: int) -> None:
            credit[self.number] += nbytes

    def made(frame: Frame, *_: Any) -> Any:
        desk.backend.now += 0.6 * TURN_S
        credit[frame.request_id] = 0
        return Opened(number=frame.request_id, width=1, move=lambda: None, close=lambda: None)

    session._streams._made = made  # type: ignore[method-assign]
    for request_id in range(1, 201):
        session.frame(Frame(Kind.LOG_SCAN if request_id % 2 else Kind.TAIL, request_id, {}))
        session.frame(Frame(Kind.CREDIT, request_id, {"bytes": request_id}))
    session.frame(Frame(Kind.CANCEL, 200, {}))
    most = before = len(credit)
    for _ in range(1_000):
        await asyncio.sleep(0)
        most, before = max(most, len(credit) - before), len(credit)
    assert most == 2
    assert credit == {number: number for number in range(1, 200)}
    assert (len(session._streams._feeds), sessions[0][0].reading) == (199, True)


async def test_credit_waits_for_nothing_but_what_it_is_for() -> None:
    """Behind whatever else its connection held back it reached no stream that was open, and nothing came from there."""
    desk, sessions = busy(1)
    session, credit = sessions[0][1], list[tuple[int, int]]()
    feed = SimpleNamespace(add_credit=lambda nbytes: credit.append((1, nbytes)))
    session._streams._feeds[1] = feed  # type: ignore[assignment]
    for request_id in range(2, 6):
        desk.submit(request_id, session)
    assert not sessions[0][0].reading
    session.frame(Frame(Kind.CREDIT, 1, {"bytes": 7}))
    assert credit == [(1, 7)]
    session.frame(Frame(Kind.CREDIT, 1, {"bytes": "many"}))
    assert sessions[0][0].sent == 1  # it is told at once, too


async def test_whoever_asks_for_much_keeps_nobody_who_asks_for_little() -> None:
    """A frame of each had its turn, whatever it took: small ones waited for a large one each, for seconds in all."""
    desk, sessions = busy(2)
    begun = [0, 0]
    for k, (_, session) in enumerate(sessions):

        def begin(_: Frame, __: float, k: int = k) -> None:
            desk.backend.now += (2 * TURN_S, TURN_S / 100)[k]
            begun[k] += 1

        session.begin = begin  # type: ignore[method-assign]
    for request_id in range(1, 51):
        for _, session in sessions:
            session.frame(Frame(Kind.TAIL, request_id, {}))
    per_turn = []
    for _ in range(10):
        before = begun[0]
        await asyncio.sleep(0)
        per_turn.append(begun[0] - before)
    assert begun[1] == 50
    assert per_turn == [1] * 10
    assert (sessions[0][0].reading, sessions[1][0].reading) == (False, True)


async def test_what_is_held_back_keeps_its_deadline() -> None:
    """It got all of it once more when its turn came: work for somebody who had gone, when there was most to do."""
    desk, sessions = busy(1)
    session, deadlines, failed = sessions[0][1], list[float](), dict[int, LogboomError]()
    session.fail = failed.__setitem__  # type: ignore[method-assign]

    async def get(_: Frame, deadline: float) -> None:
        deadlines.append(deadline)

    session.answering._get = get  # type: ignore[method-assign]
    came = desk.backend.now
    while session._service.turns.is_over() is False:
        desk.backend.now += TURN_S
    for request_id, timeout_ms in ((1, 60_000), (2, 1), (3, 60_000)):
        session.frame(Frame(Kind.GET, request_id, {"timeout_ms": timeout_ms}))
    held = desk.backend.now
    desk.backend.now += 1.0
    for _ in range(9):
        await asyncio.sleep(0)
    assert came < held
    assert deadlines == [held + 60.0, held + 60.0]
    assert {number: error.code for number, error in failed.items()} == {2: "deadline_exceeded"}
