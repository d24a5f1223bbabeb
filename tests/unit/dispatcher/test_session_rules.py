"""What a session refuses, cuts and shows: changes of single operators and statements there no unit test saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.barriers.goals import Want
from dispatcher.pipeline.backend import Backend
from dispatcher.sessions import members
from dispatcher.sessions.looks import Looks
from dispatcher.sessions.service import ClientService
from dispatcher.sessions.session import Session
from dispatcher.sessions.session_counts import SessionCounts
from logboom.errors import IncompatibleVersion, InvalidRequest, NotLeader, QuotaExceeded, Unavailable
from logboom.settings import Settings
from logboom.types import PartitionId, Scope
from logboom.wire import PROTOCOL_VERSION, Frame, Kind
from tests.unit.dispatcher.barrier_desk import A, B
from tests.unit.dispatcher.connections import Connection
from tests.unit.dispatcher.waits_world import World


@pytest.fixture
def session() -> tuple[Session, Connection]:
    backend = SimpleNamespace(
        node_id="n1",
        lineage="",
        cluster=SimpleNamespace(id="here"),
        members=SimpleNamespace(term=1, index=1),
        leader_address=lambda: None,
        client_addresses=dict,
        partition_rows=list,
        key_partitions=list,
        clock=SimpleNamespace(monotonic=lambda: 0.0),
        leaderless=SimpleNamespace(ms=7, for_long=False),
    )
    service = SimpleNamespace(
        backend=backend,
        sessions={},
        counts=SessionCounts(),
        tracer=None,
        settings=Settings(),
        rules=None,
        looks=Looks(cast(Any, backend.clock)),
    )
    found, connection = Session(cast(ClientService, service)), Connection()
    found.opened(cast(Any, connection))
    return found, connection


class TestIntroduction:
    @pytest.mark.parametrize(
        ("frame", "code"),
        [
            (Frame(Kind.PING, 1, {}), "unauthenticated"),
            (Frame(Kind.HELLO, 1, {"version": PROTOCOL_VERSION + 1}), IncompatibleVersion.code),
            (Frame(Kind.HELLO, 1, {"version": PROTOCOL_VERSION, "cluster": "there"}), InvalidRequest.code),
        ],
    )
    def test_who_fails_it_is_told_why_and_cut(
        self, session: tuple[Session, Connection], frame: Frame, code: str
    ) -> None:
        session[0].frame(frame)
        (heard,) = session[1].heard
        assert (heard.kind, heard.header["code"]) == (Kind.ERROR, code)
        assert session[1].closed
        assert not session[1].introduced

    def test_what_is_refused_later_costs_nobody_his_connection(self, session: tuple[Session, Connection]) -> None:
        session[0].frame(Frame(Kind.HELLO, 1, {"version": PROTOCOL_VERSION}))
        session[0].submits.submit = refuses  # type: ignore[method-assign]
        session[0].frame(Frame(Kind.SUBMIT, 2, {}))
        session[0].frame(Frame(Kind.PING, 3, {}))
        assert [frame.kind for frame in session[1].heard] == [Kind.WELCOME, Kind.ERROR, Kind.PONG]
        assert not session[1].closed

    def test_who_is_about_to_be_cut_is_told_why(self, session: tuple[Session, Connection]) -> None:
        session[0].refuse(QuotaExceeded("too much", limit=1, used=2, retry_after=1.0))
        assert [(frame.kind, frame.request_id) for frame in session[1].heard] == [(Kind.ERROR, 0)]


def refuses(_: Frame) -> None:
    raise InvalidRequest("nonsense")


class TestBarriers:
    @pytest.mark.parametrize(
        ("scope", "reach"),
        [("node", Scope.NODE), ("leader", Scope.NODE), ("quorum", Scope.QUORUM), ("all", Scope.ALL)],
    )
    def test_they_wait_for_as_many_nodes_as_was_asked_for(self, scope: str, reach: Scope) -> None:
        world, wants = World(), list[Want]()
        world.raft.admits = True
        world.barriers.add = lambda want, **_: wants.append(want)  # type: ignore[assignment, method-assign, return-value]
        world.ask(Kind.BARRIER, {"global_index": 1, "scope": scope})
        assert [want.reach for want in wants] == [reach]

    @pytest.mark.parametrize("target", ["1", 1.5, True, None, [1]])
    def test_what_is_no_number_is_no_target(self, target: object) -> None:
        with pytest.raises(InvalidRequest, match="a target is"):
            World().ask(Kind.BARRIER, {"targets": [[0, target]]})


class TestBeforeItHasRecovered:
    """Whatever was shown before the start is not known yet (I7)."""

    def test_watermarks_are_not_shown(self) -> None:
        world = World()
        world.is_recovered = False
        with pytest.raises(Unavailable):
            world.waits.watermarks(Frame(Kind.WATERMARKS, 1, {}))
        with pytest.raises(Unavailable):
            world.ask(Kind.WATCH, {})
        assert world.sent == []
        assert world.timers == []

    def test_of_all_that_there_are_those_are_that_have(self) -> None:
        """One that is created while they are watched begins later."""
        world, hidden = World(), {B}
        world.recovered = lambda partitions=None: not hidden & set(partitions or hidden)  # type: ignore[method-assign]
        world.named.check_shown = lambda _: None  # type: ignore[method-assign]
        world.ask(Kind.WATCH, {})
        assert shown(world) == {p for p in world.partition_ids() if p != B}
        hidden.clear()
        world.sent.clear()
        world.tick()
        assert shown(world) == {B}

    def test_one_that_was_named_was_looked_at_when_that_was_asked(self) -> None:
        world = World()
        world.ask(Kind.WATCH, {"partitions": [A]})
        assert shown(world) == {A}


def shown(world: World) -> set[PartitionId]:
    return {row[0] for _, _, header, _ in world.sent for row in header["watermarks"]}


@pytest.mark.parametrize(
    ("asked", "leads", "refused"), [(True, False, True), (True, True, False), (None, False, False)]
)
async def test_the_leaders_members_are_given_by_the_leader_alone(
    monkeypatch: pytest.MonkeyPatch, *, asked: bool | None, leads: bool, refused: bool
) -> None:
    monkeypatch.setattr(members, "members", lambda _: ["all of them"])
    raft = SimpleNamespace(engine=SimpleNamespace(is_leader=leads))
    backend = cast(Backend, SimpleNamespace(raft=raft, leader_address=lambda: "n2:1"))
    header = {"action": "members", "leader": asked}
    if refused:
        with pytest.raises(NotLeader) as raised:
            await members.act(backend, header, 1.0)
        assert raised.value.leader == "n2:1"
    else:
        assert await members.act(backend, header, 1.0) == {"members": ["all of them"]}


@pytest.mark.parametrize(("header", "to"), [({}, None), ({"id": None}, None), ({"id": "n2"}, "n2"), ({"id": ""}, "")])
async def test_leadership_is_handed_to_whoever_is_nearest_only_where_nobody_is_named(
    monkeypatch: pytest.MonkeyPatch, header: dict[str, Any], to: str | None
) -> None:
    """An empty name was nobody: it is no voter's, and refused."""
    asked: list[str | None] = []

    async def hand_over(_: Backend, to: str | None, __: float) -> None:
        asked.append(to)

    monkeypatch.setattr(members, "hand_over", hand_over)
    monkeypatch.setattr(members, "members", lambda _: ["all of them"])
    await members.act(cast(Backend, SimpleNamespace()), {"action": "transfer", **header}, 1.0)
    assert asked == [to]
