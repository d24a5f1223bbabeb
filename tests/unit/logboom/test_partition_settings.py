"""How writes to a partition are answered, set by a client, and at the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from logboom import Client
from logboom.errors import IncompatibleVersion, InvalidRequest, NotLeader, PartitionDestroyed, UnknownOutcome
from logboom.types import PARTITION_SETTINGS, Ack
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, Session, cluster, fails

NOW = {"partition": 2, "ack": "durable", "linearizable": True}
Ask = Callable[[Client], Coroutine[Any, Any, Any]]
ASKED: list[Ask] = [
    lambda boom: boom.set_partition(2, ack="durable"),
    lambda boom: boom.create_partition(linearizable=False),
]


def takes(node: FakeNode, answer: dict[str, Any] = NOW) -> None:
    """It leads, and is of this release."""
    node.features = [PARTITION_SETTINGS]
    node.answers[Kind.ADMIN] = lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, answer)


def follows(node: FakeNode, leader: FakeNode) -> None:
    """A node of a release before: it refuses for good what it does not know, though it does not lead."""

    def answer(session: Session, frame: Frame) -> None:
        if frame.header["action"] == "members":
            session.fail(frame, NotLeader("another leads", leader=leader.address))
        else:
            session.fail(frame, InvalidRequest("action must be one of those of then"))

    node.answers[Kind.ADMIN] = answer
    node.leader = None


def actions(node: FakeNode) -> list[str]:
    return [frame.header["action"] for frame in node.of(Kind.ADMIN)]


async def test_what_is_asked_and_told() -> None:
    async with cluster() as [node], Client(node.address) as boom:
        takes(node, {**NOW, "more": 1})
        assert await boom.set_partition(2, ack="durable") == NOW
        assert await boom.set_partition(2, ack=Ack.APPLIED, linearizable=False) == NOW
        assert await boom.create_partition(ack="committed", linearizable=True) == 2
        assert await boom.create_partition() == 2
        asked = [frame.header for frame in node.of(Kind.ADMIN)]
        assert [(each["action"], each.get("ack"), each.get("linearizable")) for each in asked] == [
            ("set_partition", "durable", None),
            ("set_partition", "applied", False),
            ("create_partition", "committed", True),
            ("create_partition", None, None),
        ]
        assert [each.keys() & {"ack", "linearizable"} for each in asked[::3]] == [{"ack"}, set()]
        assert len({each["token"] for each in asked}) == 4
        assert all(type(each.get("ack")) in (str, type(None)) for each in asked)


async def test_who_asks_again_does_so_with_the_same_token() -> None:
    """The first one may be under way at the same leader."""
    async with cluster() as [node], Client(node.address) as boom:
        takes(node)
        node.once(Kind.ADMIN, fails(UnknownOutcome("leadership was lost before it was committed; ask again")))
        assert await boom.set_partition(2, ack="durable") == NOW
        first, second = (frame.header for frame in node.of(Kind.ADMIN))
        assert first["token"] == second["token"]


@pytest.mark.parametrize(
    "wrong", [{}, {"ack": "soon"}, {"ack": "snapshotted"}, {"ack": 3}, {"linearizable": 1}, {"linearizable": "yes"}]
)
async def test_what_can_never_be_is_not_asked(wrong: dict[str, Any]) -> None:
    async with cluster() as [node], Client(node.address) as boom:
        takes(node)
        with pytest.raises(InvalidRequest):
            await boom.set_partition(2, **wrong)
        if wrong:
            with pytest.raises(InvalidRequest):
                await boom.create_partition(**wrong)
        assert not node.of(Kind.ADMIN)


@pytest.mark.parametrize("ask", ASKED)
async def test_a_leader_of_an_earlier_release_is_not_asked(ask: Ask) -> None:
    """It would create the partition, and leave out what it does not know."""
    async with cluster() as [node], Client(node.address) as boom:
        takes(node)
        node.features = ["ack"]
        with pytest.raises(IncompatibleVersion, match="n1, which leads, is of an earlier release"):
            await ask(boom)
        assert actions(node) == ["members"]
        await boom.create_partition()
        assert actions(node) == ["members", "create_partition"]


@pytest.mark.parametrize("ask", ASKED)
async def test_a_follower_of_an_earlier_release_says_who_leads(ask: Ask) -> None:
    async with cluster(2) as [leader, follower], Client(follower.address) as boom:
        takes(leader)
        follows(follower, leader)
        await ask(boom)
        assert actions(follower) == ["members"]
        assert len(actions(leader)) == 1


# -- the command


def test_set_says_what_counts(node: FakeNode, capsys: Any) -> None:
    takes(node)
    command = ["partitions", "set", "2", "--ack", "durable", "--linearizable"]
    assert run(capsys, *command)[1].split() == ["partition", "2", "ack", "durable", "linearizable", "yes"]
    status, out, err = run(capsys, *command, "-o", "json")
    assert (status, json.loads(out), err) == (0, NOW, "")
    run(capsys, "partitions", "set", "2", "--no-linearizable")
    asked = [frame.header for frame in node.of(Kind.ADMIN)]
    assert [(each["partition"], each.get("ack"), each["linearizable"]) for each in asked] == [
        (2, "durable", True),
        (2, "durable", True),
        (2, None, False),
    ]


def test_create_takes_the_same(node: FakeNode, capsys: Any) -> None:
    takes(node)
    assert run(capsys, "partitions", "create", "--ack", "committed", "--no-linearizable")[0] == 0
    header = node.of(Kind.ADMIN)[-1].header
    assert (header["action"], header["ack"], header["linearizable"]) == ("create_partition", "committed", False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["2"], "say what to set"), (["2", "--ack", "soon"], "soon"), (["x", "--ack", "durable"], "x")],
)
def test_set_of_nothing_is_a_wrong_command(node: FakeNode, capsys: Any, arguments: list[str], says: str) -> None:
    takes(node)
    status, out, err = run(capsys, "partitions", "set", *arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert not node.of(Kind.ADMIN)


def test_what_stands_against_it_is_told(node: FakeNode, capsys: Any) -> None:
    takes(node)
    node.answers[Kind.ADMIN] = fails(PartitionDestroyed("partition 2 was destroyed", partition_id=2))
    status, out, err = run(capsys, "partitions", "set", "2", "--ack", "durable")
    assert (status, out) == (1, "")
    assert "partition 2 was destroyed" in err
    node.features = ["ack"]
    node.answers[Kind.ADMIN] = lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, {"members": {}})
    status, out, err = run(capsys, "partitions", "set", "2", "--ack", "durable")
    assert (status, out) == (2, "")
    assert "upgrade it" in err


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, [{}, {}]),
        (
            {"acknowledgement": {"ack": "applied", "linearizable": False, "partitions": [[1, "committed", True]]}},
            [{"ack": "applied", "linearizable": False}, {"ack": "committed", "linearizable": True}],
        ),
    ],
)
def test_every_node_says_what_counts_there(node: FakeNode, capsys: Any, said: Any, expected: Any) -> None:
    """One of a release before says nothing of it."""

    def status(session: Session, frame: Frame) -> None:
        header = {
            "node": "n1", "cluster": "test", "role": "leader", "term": 2, "leader": "n1", "commit_index": 9,
            "recovered": True, "waiters": 0, "uptime_s": 1.5, "members": [["n1", node.address, True, "voter"]],
            "version": "0", "partitions": [[p, 5, 5, 4, 0, 8, "running"] for p in (0, 1)], "backlog": [],
            "digests": None, **said,
        }  # fmt: skip
        session.send(frame, Kind.STATUS_REPLY, header)

    node.answers[Kind.STATUS] = status
    rows = {"partitions": [[p, "kv", "write_ahead"] for p in (0, 1)], "key_partitions": 2}
    node.answers[Kind.ADMIN] = lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, rows)
    for command in (["partitions", "list"], ["status"]):
        found = json.loads(run(capsys, *command, "-o", "json")[1])
        shown = found["partitions"] if command == ["status"] else found
        assert [{k: row[k] for k in ("ack", "linearizable") if k in row} for row in shown] == expected
