"""Which right a request needs: of every one that there is, and what a session does about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline.backend import Backend
from dispatcher.sessions import admin, permits
from dispatcher.sessions.permits import ACTIONS, OF_ONE, RIGHTS, check
from dispatcher.sessions.service import ClientService
from dispatcher.sessions.session import Session
from logboom.access import Right, Rule, Rules
from logboom.errors import (
    InvalidRequest,
    LogboomError,
    NoSuchPartition,
    PartitionDestroyed,
    PermissionDenied,
    ProtocolError,
    Unavailable,
)
from logboom.settings import Settings
from logboom.types import CURSORS_TOKEN, PartitionId
from logboom.wire import PROTOCOL_VERSION, Frame, Kind
from tests.unit.dispatcher.connections import Connection

ANSWERS = {
    Kind.WELCOME, Kind.SUBMITTED, Kind.VALUES, Kind.ENTRIES, Kind.RECORDS, Kind.REACHED, Kind.STATUS_REPLY,
    Kind.WATERMARKS_REPLY, Kind.ADMIN_REPLY, Kind.ERROR, Kind.END, Kind.PONG, Kind.SNAPSHOT_PIECE, Kind.LOG_PIECE,
    Kind.BARRIER_PROGRESS, Kind.WATCHED, Kind.INDEX_IS, Kind.BATCHES, Kind.SKIPPED, Kind.METADATA, Kind.DATA,
}  # fmt: skip
PEERS = {kind for kind in Kind if kind >= Kind.PEER_HELLO}
CURSORS = 9
MAKES_CURSORS = {
    "action": "create_partition", "token": CURSORS_TOKEN, "state_machine": "kv", "mode": "write_ahead",
}  # fmt: skip


class Node:
    leads = False
    why: LogboomError | None = None
    """There is no such partition; None: nobody has ever heard of it."""

    def admits(self) -> bool:
        return self.leads

    def serves(self, partition_id: int) -> bool:
        return partition_id in (*range(8), CURSORS)

    def cursors_partition(self) -> PartitionId:
        return PartitionId(CURSORS)

    def missing(self, partition_id: int) -> LogboomError:
        return self.why or NoSuchPartition(f"no {partition_id}", partition_id=partition_id)


def ask(
    kind: Kind,
    header: dict[str, Any],
    *allow: str,
    partitions: str = "*",
    leads: bool = False,
    why: LogboomError | None = None,
) -> None:
    grants = Rules([Rule("me", tuple(Right(each) for each in allow), partitions)]).of(["me"])
    node = Node()
    node.leads, node.why = leads, why
    check(Frame(kind, 1, header), grants, node)


def row(partition: Any) -> list[Any]:
    return [partition, 0, 0, 1, 0, 0]


# -- all that there are


def test_every_kind_of_frame_needs_one_right_or_is_no_request() -> None:
    """Whoever adds a kind says here what it is, and in RIGHTS who may send it."""
    assert RIGHTS.keys() | ANSWERS | PEERS == set(Kind)
    assert len(RIGHTS) + len(ANSWERS) + len(PEERS) == len(Kind)


def test_every_action_of_an_operator_needs_one_right() -> None:
    assert ACTIONS.keys() == set(admin.ACTIONS)
    assert ACTIONS.keys() > set(OF_ONE)


@pytest.mark.parametrize("kind", sorted(ANSWERS | PEERS))
def test_what_is_no_request_is_none_to_whoever_has_all_rights(kind: Kind) -> None:
    with pytest.raises(ProtocolError, match="is not a request"):
        ask(kind, {}, "admin")


def test_the_protocol_says_the_same() -> None:
    page = Path(permits.__file__).parents[2] / "docs" / "protocol.md"
    table = page.read_text().partition("### Rights")[2].partition("###")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    assert rows.keys() == set(Right)
    for right, text in rows.items():
        kinds, _, actions = text.partition("ADMIN ")
        said = {Kind[name] for name in re.findall(r"\b[A-Z_]{3,}\b", kinds)}
        assert said == {kind for kind, each in RIGHTS.items() if each == right and kind is not Kind.ADMIN}
        assert set(re.findall(r"`(\w+)`", actions)) == {name for name, each in ACTIONS.items() if each == right}


# -- who may ask what

REQUESTS: list[tuple[Right, Kind, Callable[[Any], dict[str, Any]]]] = [
    (Right.WRITE, Kind.SUBMIT, lambda p: {"parts": [row(p)]}),
    (Right.WRITE, Kind.SUBMIT, lambda p: {"parts": [row(3), row(p)]}),
    (Right.READ, Kind.GET, lambda p: {"partition": p, "keys": [b"k"]}),
    (Right.READ, Kind.SCAN, lambda p: {"partition": p}),
    (Right.READ, Kind.TAIL, lambda p: {"partition": p}),
    (Right.READ, Kind.VIEW_SCAN, lambda p: {"partitions": [p]}),
    (Right.READ, Kind.LOG_SCAN, lambda p: {"partitions": [3, p]}),
    (Right.READ, Kind.DATA_READ, lambda p: {"rows": [[3, 1, None], [p, 1, None]]}),
    (Right.ADMIN, Kind.LOG_READ, lambda p: {"partition": p}),
    *(
        (Right.ADMIN, Kind.ADMIN, lambda p, action=action: {"action": action, "partition": p})  # type: ignore[misc]
        for action in sorted(OF_ONE)
    ),
]
WHOLE: list[tuple[Right, Kind, dict[str, Any]]] = [
    (Right.READ, Kind.STATUS, {"digests": True}),
    (Right.READ, Kind.VIEW_SCAN, {}),
    (Right.READ, Kind.LOG_SCAN, {"partitions": None}),
    (Right.ADMIN, Kind.SNAPSHOT_READ, {"global_index": 1, "file": "states", "offset": 0}),
    *((Right.ADMIN, Kind.ADMIN, {"action": action}) for action in sorted(ACTIONS.keys() - set(OF_ONE))
      if ACTIONS[action] is Right.ADMIN),
    (Right.ADMIN, Kind.ADMIN, {"action": "something new"}),
    (Right.ADMIN, Kind.ADMIN, {"action": ["a list"]}),
    (Right.ADMIN, Kind.ADMIN, {}),
]  # fmt: skip


@pytest.mark.parametrize(("right", "kind", "header"), REQUESTS)
def test_what_is_about_partitions_needs_the_right_in_each(
    right: Right, kind: Kind, header: Callable[[Any], dict[str, Any]]
) -> None:
    ask(kind, header(3), right)
    ask(kind, header(3), right, partitions="2-4")
    ask(kind, header(3), "admin", partitions="3")
    with pytest.raises(PermissionDenied) as caught:
        ask(kind, header(5), right, partitions="0-4,6-7")
    assert (caught.value.right, caught.value.partition_id, caught.value.principal) == (right, 5, "me")
    for other in {"status", "read", "write"} - {str(right)}:
        with pytest.raises(PermissionDenied):
            ask(kind, header(3), other)


@pytest.mark.parametrize(("right", "kind", "header"), WHOLE)
def test_what_is_about_all_needs_the_right_for_all(right: Right, kind: Kind, header: dict[str, Any]) -> None:
    ask(kind, header, right)
    for allow, partitions in (((right,), "0-4294967295,cursors"), (tuple({"read", "write"} - {str(right)}), "*")):
        with pytest.raises(PermissionDenied) as caught:
            ask(kind, header, *allow, partitions=partitions)
        assert (caught.value.right, caught.value.partition_id) == (right, None)


@pytest.mark.parametrize("kind", sorted(kind for kind, right in RIGHTS.items() if right is Right.STATUS))
def test_how_it_is_may_be_asked_by_whoever_may_do_anything(kind: Kind) -> None:
    for allow in ("read", "write", "admin"):
        ask(kind, {"partitions": [5]}, allow, partitions="3")
    with pytest.raises(PermissionDenied, match="`status`"):
        check(Frame(kind, 1, {}), Rules([Rule("you", (Right.ADMIN,))]).of(["me"]), Node())


@pytest.mark.parametrize("partition", [None, "3", 3.0, True, [3], b"3"])
@pytest.mark.parametrize(("right", "kind", "header"), REQUESTS)
def test_what_does_not_say_which_partition_is_told_so(
    right: Right, kind: Kind, header: Callable[[Any], dict[str, Any]], partition: Any
) -> None:
    with pytest.raises(InvalidRequest):
        ask(kind, header(partition), right, partitions="3")


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        (Kind.SUBMIT, {}),
        (Kind.SUBMIT, {"parts": {}}),
        (Kind.SUBMIT, {"parts": [[]]}),
        (Kind.SUBMIT, {"parts": [3]}),
        (Kind.DATA_READ, {"rows": None}),
        (Kind.DATA_READ, {"rows": ["3"]}),
        (Kind.LOG_SCAN, {"partitions": 3}),
        (Kind.GET, {}),
    ],
)
def test_nobody_gets_past_with_what_cannot_be_read(kind: Kind, header: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        ask(kind, header, "read", "write", partitions="3")


# -- cursors


def test_cursors_are_written_where_they_are() -> None:
    ask(Kind.SUBMIT, {"parts": [row(CURSORS)]}, "write", partitions="cursors")
    ask(Kind.GET, {"partition": CURSORS}, "read", partitions="3,cursors")
    with pytest.raises(PermissionDenied):
        ask(Kind.SUBMIT, {"parts": [row(3)]}, "write", partitions="cursors")
    with pytest.raises(PermissionDenied):
        ask(Kind.SUBMIT, {"parts": [row(CURSORS)]}, "write", partitions="0-7")
    with pytest.raises(PermissionDenied):  # nor by a number: who wrote 0-63 had others in mind
        ask(Kind.SUBMIT, {"parts": [row(CURSORS)]}, "write", partitions="0-63")
    ask(Kind.SUBMIT, {"parts": [row(CURSORS), row(CURSORS - 2)]}, "write", partitions="0-63,cursors")


def test_a_node_that_has_not_heard_of_them_yet_does_not_refuse_for_good() -> None:
    with pytest.raises(NoSuchPartition):
        ask(Kind.SUBMIT, {"parts": [row(12)]}, "write", partitions="cursors")
    with pytest.raises(PermissionDenied):
        ask(Kind.SUBMIT, {"parts": [row(12)]}, "write", partitions="3")


def test_a_number_lets_nobody_write_what_may_be_theirs_where_that_is_not_known() -> None:
    """A node that lagged passed it on to the leader, who does not judge again."""
    with pytest.raises(Unavailable, match="ask another"):
        ask(Kind.SUBMIT, {"parts": [row(12)]}, "write", partitions="0-63")
    with pytest.raises(NoSuchPartition):
        ask(Kind.SUBMIT, {"parts": [row(12)]}, "write", partitions="0-63", leads=True)
    with pytest.raises(PermissionDenied):
        ask(Kind.SUBMIT, {"parts": [row(12)]}, "write", partitions="0-11")


@pytest.mark.parametrize("kind", [Kind.SUBMIT, Kind.TAIL])
def test_what_a_node_knows_of_one_that_is_not_there_it_says_also_where_numbers_are_allowed(kind: Kind) -> None:
    """Of a partition that was destroyed a follower said that it might still come, until the client's time was over."""
    gone = PartitionDestroyed("partition 12 was destroyed", partition_id=12)
    opening = Unavailable("partition 12 is being opened; try again", retry_after=0.02)
    header = {"parts": [row(12)], "partition": 12}
    for why in (gone, opening):
        with pytest.raises(type(why)) as caught:
            ask(kind, header, "read", "write", partitions="0-63", why=why)
        assert caught.value is why
        with pytest.raises(PermissionDenied):
            ask(kind, header, "read", "write", partitions="0-11", why=why)


def test_whoever_may_write_cursors_may_have_their_partition_made_and_no_other() -> None:
    ask(Kind.ADMIN, MAKES_CURSORS, "write", partitions="cursors")
    ask(Kind.ADMIN, MAKES_CURSORS, "write")
    one, other = {"ack": "committed"}, {"linearizable": True}
    for change in (
        {"token": bytes(16)},
        {"state_machine": "log"},
        {"mode": "write_behind"},
        {"mode": None},
        one,
        other,
    ):
        with pytest.raises(PermissionDenied):
            ask(Kind.ADMIN, {**MAKES_CURSORS, **change}, "write")
    for allow, partitions in ((("read",), "*"), (("write",), "0-9")):
        with pytest.raises(PermissionDenied):
            ask(Kind.ADMIN, MAKES_CURSORS, *allow, partitions=partitions)


# -- sessions


class Named(Connection):
    peer_identities = frozenset({"me"})

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def codes(self) -> list[str]:
        return [frame.header.get("code", "") for frame in self.heard]


class Following:
    """A file of rules, which may be wrong now."""

    def __init__(self, rules: Callable[[], Rules]) -> None:
        self.rules = rules
        self.trouble = ""

    def __call__(self) -> Rules:
        return self.rules()


class Serving:
    """A node's service, by rules that a test changes."""

    def __init__(self, *rules: Rule) -> None:
        self.now = 0.0
        self.rules = Rules(rules)
        self.jobs: list[tuple[Callable[[], Rules], Callable[[Rules | None, BaseException | None], None]]] = []
        """What blocks, and who is told."""
        backend = SimpleNamespace(
            node_id="n1",
            lineage="",
            cluster=SimpleNamespace(id="here"),
            cursors_partition=lambda: None,
            serves=lambda _: True,
            members=SimpleNamespace(term=1, index=1),
            leader_address=lambda: None,
            leaderless=SimpleNamespace(ms=0, for_long=False),
            client_addresses=dict,
            partition_rows=list,
            key_partitions=list,
            clock=SimpleNamespace(monotonic=lambda: self.now),
            offload=SimpleNamespace(submit=lambda job, done: self.jobs.append((job, done))),
            barriers=SimpleNamespace(expire=lambda _: None, client_gone=lambda _: None),
        )
        self.service = ClientService(cast(Backend, backend), Settings(), rules=cast(Any, Following(lambda: self.rules)))

    def look(self) -> None:
        self.now += 1.0
        self.service._renew()
        for job, done in self.jobs:
            done(job(), None)
        self.jobs.clear()

    def session(self) -> tuple[Session, Named]:
        found, connection = self.service.accept(), Named()
        found.opened(cast(Any, connection))
        found.frame(Frame(Kind.HELLO, 1, {"version": PROTOCOL_VERSION}))
        return found, connection


def may(*allow: Right, principal: str = "me", partitions: str = "*") -> Rule:
    return Rule(principal, allow, partitions)


def test_whoever_is_in_no_rule_is_told_so_and_cut() -> None:
    serving = Serving(may(Right.ADMIN, principal="you"))
    _, connection = serving.session()
    assert (connection.codes(), connection.closed, connection.introduced) == (["permission_denied"], True, False)
    assert connection.heard[0].header["fields"] == {"principal": "me", "right": "status", "partition_id": None}


def test_what_is_refused_never_comes_to_whoever_does_it_and_is_counted() -> None:
    serving = Serving(may(Right.READ))
    session, connection = serving.session()
    session.submits.submit = fails  # type: ignore[method-assign]
    session.answering.answer = fails  # type: ignore[method-assign]
    for request_id, (kind, header) in enumerate(
        [(Kind.SUBMIT, {"parts": [row(3)]}), (Kind.ADMIN, {"action": "transfer"}), (Kind.PING, {})], 2
    ):
        session.frame(Frame(kind, request_id, header))
    assert connection.codes() == ["", "permission_denied", "permission_denied", ""]
    assert connection.heard[1].header["outcome"] == "not_applied"
    assert not connection.closed
    assert serving.service.counts.denied == {Right.WRITE: 1, Right.ADMIN: 1}
    assert serving.service.counts.errors == {"permission_denied": 2}


def fails(_: Frame) -> None:
    raise AssertionError("it was refused")


def test_whoever_tries_again_and_again_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "dispatcher.sessions.service.log",
        SimpleNamespace(
            warning=lambda event, **what: lines.append({"event": event, **what}), debug=lambda *_, **__: None
        ),
    )
    serving = Serving(may(Right.READ))
    session, _ = serving.session()
    for request_id in range(1_000):
        session.frame(Frame(Kind.SUBMIT, request_id, {"parts": [row(3)]}))
    assert len(lines) == 20
    assert lines[0] == {
        "event": "access_denied", "remote": "somewhere", "principal": "me", "right": "write", "partition_id": None,
    } | {"partition_id": 3}  # fmt: skip
    assert serving.service.counts.denied[Right.WRITE] == 1_000


async def test_whose_rights_are_others_now_is_cut_and_nobody_else() -> None:
    """A stream that began under the rules before would go on for ever."""
    serving = Serving(may(Right.READ), may(Right.ADMIN, principal="you"))
    _, connection = serving.session()
    serving.look()
    serving.rules = Rules([may(Right.READ), may(Right.WRITE, principal="you")])
    serving.look()
    assert not connection.closed
    serving.rules = Rules([may(Right.READ, partitions="3"), may(Right.ADMIN, principal="you")])
    serving.look()
    assert connection.closed
    assert serving.session()[1].codes() == [""]
    serving.rules = Rules([may(Right.ADMIN, principal="you")])
    serving.look()
    assert serving.session()[1].codes() == ["permission_denied"]


def test_rules_are_looked_at_off_the_loop_one_look_at_a_time() -> None:
    """A thousand of them take thirty milliseconds to read: a leader would fall silent for more."""
    serving = Serving(may(Right.READ))
    for _ in range(100):
        serving.now += 1.0
        serving.service._renew()
    assert len(serving.jobs) == 1
    (_, done), before = serving.jobs.pop(), serving.service.rules
    done(None, OSError("a disk that hangs"))
    assert serving.service.rules is before
    serving.service._renew()
    assert not serving.jobs
    serving.look()
    assert not serving.jobs


async def test_without_rules_everybody_may_do_everything() -> None:
    serving = Serving(may(Right.READ, principal="you"))
    serving.service.rules = None
    session, connection = serving.session()
    asked: list[Frame] = []
    session.answering.answer = asked.append  # type: ignore[method-assign]
    session.frame(Frame(Kind.ADMIN, 2, {"action": "transfer"}))
    assert (connection.codes(), len(asked)) == ([""], 1)
