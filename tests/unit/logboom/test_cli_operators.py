"""What operators ask for: programs get values, and what cannot be meant is not done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logboom.certs import make_test_authority
from logboom.cli.operate import problems
from logboom.errors import (
    DeadlineExceeded,
    LogboomError,
    NoSuchPartition,
    NotLeader,
    Overloaded,
    PermissionDenied,
    Unavailable,
)
from logboom.records import RecordBlock
from logboom.routing import partition_of
from logboom.sync_client import SyncClient
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_kv import Kv
from tests.unit.logboom.fake_server import FakeNode, Session, entries, fails, silent

SCRUB = {"pass": 2, "bytes": 50, "of": 200, "damaged": 3, "repaired": 1, "last_pass_s": 1.5, "open": []}


def says_all(session: Session, frame: Frame) -> None:
    header = {
        "node": "n1", "cluster": "test", "role": "leader", "term": 2, "leader": "n1", "commit_index": 90,
        "recovered": True, "waiters": 0, "uptime_s": 1.5, "version": "0", "lineage": "ab" * 16, "scrub": SCRUB,
        "members": [["n1", session.node.address, True, "voter"], ["n2", "h:1", False, "learner"]],
        "partitions": [[0, 5, 5, 4, 0, 8, "running"]], "backlog": [[0, 1, 100]], "digests": None,
        "lost": [[0, 4711, "n2: none"], [0, 4715, "n2: none"]],
    }  # fmt: skip
    session.send(frame, Kind.STATUS_REPLY, header)


def test_programs_get_values_where_people_get_texts(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.STATUS] = says_all
    (row,) = json.loads(run(capsys, "status", "-o", "json")[1])["nodes"]
    assert (row["connected"], row["members"], row["scrub"], row["lineage"]) == (1, 2, SCRUB, "ab" * 16)
    (row,) = json.loads(run(capsys, "partitions", "list", "-o", "json")[1])
    assert row["lost"] == [4711, 4715]
    table = run(capsys, "status")[1]
    assert "1/2" in table
    assert "2: 25%, 1/3 repaired" in table
    assert "members" not in table


@pytest.mark.parametrize(("about", "said"), [({"new": False}, True), ({"new": True}, False), ({}, False)])
def test_a_snapshot_that_was_not_taken_is_not_said_to_be(
    node: FakeNode, capsys: Any, about: dict[str, bool], *, said: bool
) -> None:
    """Found by reading: whoever had destroyed a partition waited for its room, snapshot after snapshot."""
    made = {"global_index": 9, "raft_index": 12, "bytes": 200, "partitions": 2, "created_ms": 0, **about}
    node.answers[Kind.ADMIN] = lambda s, f: s.send(f, Kind.ADMIN_REPLY, {"snapshot": made})
    status, out, err = run(capsys, "snapshot", "create", "-o", "json")
    assert (status, json.loads(out)["global_index"]) == (0, 9)
    assert ("nothing was written since this one" in err) is said


def test_programs_get_the_code_of_why_a_node_is_not_reached(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.STATUS] = says_all
    node.members = {"n1": node.address, "n2": "127.0.0.1:1"}
    _, away = json.loads(run(capsys, "status", "-o", "json")[1])["nodes"]
    assert (away["node"], away["role"]) == ("n2", "unreachable")
    assert away["code"] in ("unavailable", "deadline_exceeded")


def test_what_was_said_of_a_lost_batch_is_said_by_node(node: FakeNode, capsys: Any) -> None:
    row = {"first_index": 1, "last_index": 2, "digest": b"\xab", "said": {"n1": "absent", "n2": "absent"}}
    node.answers[Kind.ADMIN] = lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, {"void": row})
    void = ("partitions", "void", "0", "--index", "1")
    assert json.loads(run(capsys, *void, "-o", "json")[1])[0]["said"] == {"n1": "absent", "n2": "absent"}
    assert "n1: absent, n2: absent" in run(capsys, *void)[1]


@pytest.mark.parametrize(("where", "following"), [(["-p", "1"], 51), ([], 91)])
def test_a_cursor_is_not_set_behind_the_end_of_the_log(
    node: FakeNode, capsys: Any, where: list[str], following: int
) -> None:
    """What comes next would be passed over, and nobody would be told: a digit too many is enough."""
    store = Kv(node)
    node.answers[Kind.STATUS] = says_all
    status, out, err = run(capsys, "cursors", "set", "billing", str(following + 1), *where)
    assert (status, out, store.writes) == (1, "", 0)
    assert f"goes on at {following}" in err
    assert "--force" in err
    assert run(capsys, "cursors", "set", "billing", str(following), *where)[0] == 0
    assert run(capsys, "cursors", "set", "billing", "1000", *where, "--force")[0] == 0


def viewed(session: Session, frame: Frame) -> None:
    for partition in frame.header["partitions"]:
        block = RecordBlock.from_columns(payloads=[b"bA", b"bB"], keys=[b"user/a", b"user/b"])
        header = {"count": 2, "metadata": len(block.metadata), "data": len(block.data), "global_index": 5}
        body = [bytes(block.metadata), bytes(block.data)]
        session.send(frame, Kind.ENTRIES, {**header, "partition": partition}, body, more=True)
    session.send(frame, Kind.ENTRIES, {"count": 0, "partition": 0, "global_index": 5})


def says_partitions(*kinds: str) -> Any:
    rows = [[partition, kind, "write_ahead"] for partition, kind in enumerate(kinds)]
    about = {"partitions": rows, "key_partitions": len(rows)}
    return lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, about)


def test_keys_of_all_partitions_are_scanned_where_none_is_named(node: FakeNode, capsys: Any) -> None:
    """What is written by key is found again without knowing where keys go."""
    node.answers[Kind.ADMIN], node.answers[Kind.VIEW_SCAN] = says_partitions("kv", "log", "kv"), viewed
    status, out, _ = run(capsys, "scan", "--prefix", "user/", "--limit", "3", "-o", "jsonl")
    assert status == 0
    found = [(row["partition"], row["key"], row["value"]) for row in map(json.loads, out.splitlines())]
    assert found == [(0, "user/a", "A"), (0, "user/b", "B"), (2, "user/a", "A")]
    (asked,) = node.of(Kind.VIEW_SCAN)
    assert (asked.header["partitions"], asked.header["prefix"]) == ([0, 2], b"user/")
    status, _, err = run(capsys, "scan", "--stale")
    assert status == 2
    assert "need --partition" in err


def test_where_no_partition_has_keys_there_are_none(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.ADMIN] = says_partitions("log", "log")
    assert run(capsys, "scan") == (0, "", "")


def test_bytes_that_are_no_text_are_told_since_text_does_not_bring_them_back(node: FakeNode, capsys: Any) -> None:
    """A program that wrote back what it had read wrote something else."""
    node.answers[Kind.SCAN] = lambda session, frame: entries(session, frame, [b"\\xff", b"\xff", b"\xfe"], more=False)
    status, out, err = run(capsys, "scan", "-p", "0", "-o", "json")
    assert (status, [row["key"] for row in json.loads(out)]) == (0, ["\\xff", "\\xff", "\\xfe"])
    assert err.count("--encoding hex or base64") == err.count("\n") == 1
    status, out, err = run(capsys, "scan", "-p", "0", "-o", "json", "--encoding", "hex")
    assert (status, [row["key"] for row in json.loads(out)], err) == (0, ["5c786666", "ff", "fe"], "")


def test_where_nobody_leads_it_is_said_what_to_look_at(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.ADMIN] = fails(NotLeader("this node does not lead", leader=None))
    status, _, err = run(capsys, "members", "list", "--timeout", "1s")
    assert status == 3
    # The first while it waits for a leader, the other where the time is over in the midst of asking.
    assert "no node has led" in err or "the one before: this node does not lead" in err
    assert "logboom status" in err


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (Unavailable("there is no leader right now; try again"), "`logboom status` says which nodes can be reached"),
        (DeadlineExceeded("the deadline passed"), "`logboom status` says which nodes can be reached"),
        (
            NoSuchPartition("partition 9 does not exist", partition_id=9),
            "`logboom partitions list` says which there are",
        ),
        (Unavailable("n4 is not there", retry_after=60.0), None),
        (Overloaded("the node: node_ops is used up (2 of 2); try again"), "docs/operating.md, Overload"),
    ],
)
def test_what_to_look_at_is_said_where_the_error_cannot(
    node: FakeNode, capsys: Any, error: LogboomError, hint: str | None
) -> None:
    node.answers[Kind.GET] = fails(error)
    err = run(capsys, "get", "-p", "9", "k", "--timeout", "20s" if hint is None else "1s")[2]
    assert hint in err if hint else "logboom status" not in err


@pytest.mark.parametrize(
    ("name", "advice"), [((), "look before you send it again"), (("--once", "a"), "it is done once")]
)
def test_a_command_that_nobody_has_answered_may_have_been_submitted(
    node: FakeNode, capsys: Any, name: tuple[str, ...], advice: str
) -> None:
    """It ended with `the deadline passed before an answer came`, which says nothing of that."""
    node.answers[Kind.SUBMIT] = silent
    status, out, err = run(capsys, "submit", "-p", "0", *name, "add", "n", "1", "--timeout", "1s")
    assert (status, out) == (3, "")
    assert "may have been submitted" in err
    assert advice in err
    node.answers[Kind.SUBMIT] = fails(Unavailable("there is no leader right now"))
    assert "may have been" not in run(capsys, "submit", "-p", "0", "add", "n", "1", "--timeout", "1s")[2]


def test_a_key_that_is_not_there_is_told_with_where_it_was_looked_for(node: FakeNode, capsys: Any) -> None:
    """`submit -p 0 put k v`, as README has it, and then `get k`: it said that there is no such key."""
    node.partitions = 8
    block = RecordBlock.from_columns(payloads=[b""])
    header = {"found": [False], "metadata": len(block.metadata), "data": len(block.data), "global_index": 4}
    body = [bytes(block.metadata), bytes(block.data)]
    node.answers[Kind.GET] = lambda session, frame: session.send(frame, Kind.VALUES, header, body)
    _, _, err = run(capsys, "get", "k")
    where = partition_of(b"k", 8)
    assert f"looked for in partition {where}, where `submit --by-key` puts it" in err
    assert "looked for" not in run(capsys, "get", "-p", "0", "k")[2]


def test_a_node_that_is_up_and_linked_with_nobody_is_a_problem() -> None:
    """One that is refused by all, or whose certificate nobody trusts, looked like one that recovers."""

    def said(name: str, *linked: str) -> dict[str, Any]:
        rows = [[each, "h:1", each == name or each in linked, "voter"] for each in ("n1", "n2", "n3")]
        return {"node": name, "leader": "n1", "recovered": True, "partitions": [], "members": rows}

    alone = "has no link with any other: its log says why (`peer_refused`, `peer_not_trusted`)"
    away = Unavailable("away")
    assert problems({"n1": said("n1", "n2"), "n2": said("n2", "n1"), "n3": said("n3")}) == [f"n3 {alone}"]
    assert problems({"n1": said("n1", "n2"), "n2": said("n2", "n1"), "n3": away}) == []
    assert problems({"n1": said("n1"), "n2": away, "n3": away}) == ["no majority: n2, n3 cannot be reached"]


def test_ctrl_c_tells_that_a_command_may_have_been_submitted(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SyncClient, "submit_many", interrupted)
    status, out, err = run(capsys, "submit", "-p", "0", "put", "k", "v")
    assert (status, out) == (130, "")
    assert "may have been submitted" in err


def test_partitions_that_do_not_open_are_a_problem_once_that_lasts() -> None:
    """Found by reading: `logboom status` ended with 0."""
    rows = [["n1", "h:1", True, "voter"]]
    said: dict[str, Any] = {"node": "n1", "leader": "n1", "recovered": True, "partitions": [], "members": rows}
    why = "needs 2 more file descriptors"
    opening = [[6, "", 29], [7, "", 30], [8, why, 31]]
    assert problems({"n1": said}) == []
    assert problems({"n1": {**said, "opening": opening}}) == [
        "partition 7 on n1 has not been open for 30 s: `open` of a state machine has not returned there",
        f"partition 8 on n1 has not been open for 31 s: {why}",
    ]


def test_one_that_may_not_lead_yet_is_a_problem() -> None:
    rows = [["n1", "h:1", True, "voter"]]
    said: dict[str, Any] = {"node": "n1", "leader": "n1", "recovered": True, "partitions": [], "members": rows}
    assert problems({"n1": {**said, "waits_for": None}}) == []
    (why,) = problems({"n1": {**said, "waits_for": [3, 4711]}})
    assert why.startswith("n1 was empty, and leads nobody before it has been given")
    assert "4711" in why


def test_nodes_that_go_by_different_rules_are_a_problem(node: FakeNode, capsys: Any) -> None:
    """Who is refused by one goes to another."""

    def said(name: str, rules: str | None) -> dict[str, Any]:
        rows = [[each, "h:1", True, "voter"] for each in ("n1", "n2", "n3")]
        return {"node": name, "leader": "n1", "recovered": True, "partitions": [], "members": rows, "rules": rules}

    older = {name: value for name, value in said("n3", None).items() if name != "rules"}
    same: dict[str, Any] = {"n1": said("n1", "ab12"), "n2": said("n2", "ab12")}
    assert problems({**same, "n3": said("n3", "ab12")}) == []
    assert problems({"n1": said("n1", None), "n2": said("n2", None), "n3": older}) == []
    assert problems({**same, "n3": older}) == ["nodes go by different rules (access.file): n1 ab12, n2 ab12, n3 none"]
    refused = PermissionDenied("'me' may not", principal="me", right="status", partition_id=None)
    assert problems({**same, "n3": refused}) == ["n3 refuses us: 'me' may not"]
    wrong = {**said("n3", "ab12"), "rules_trouble": "rules.toml: rules[0].allow is empty"}
    assert problems({**same, "n3": wrong}) == [
        "n3 goes by rules of before, and would not start with its file: rules.toml: rules[0].allow is empty"
    ]


def test_the_status_is_told_without_what_one_may_not_see(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PermissionDenied("'me' may not", principal="me", right="read", partition_id=None)

    def denied(*_: Any, **__: Any) -> None:
        raise error

    node.answers[Kind.STATUS] = says_all
    healthy = run(capsys, "status")
    monkeypatch.setattr(SyncClient, "cursors", denied)
    assert json.loads(run(capsys, "status", "-o", "json")[1])["cursors"] is None
    assert run(capsys, "status") == healthy
    node.answers[Kind.STATUS] = fails(error)
    assert run(capsys, "status", "--digests") == (1, "", "logboom: 'me' may not [permission_denied]\n")


def test_who_is_refused_is_told_so_and_nobody_is_asked_again(node: FakeNode, capsys: Any) -> None:
    error = PermissionDenied("'me' may not", principal="me", right="write", partition_id=3)
    node.answers[Kind.SUBMIT] = fails(error)
    assert run(capsys, "submit", "-p", "3", "put", "k", "v") == (1, "", "logboom: 'me' may not [permission_denied]\n")
    assert len(node.of(Kind.SUBMIT)) == 1


@pytest.mark.parametrize(
    ("command", "whose"), [(["scan", "--prefix"], "logboom scan"), (["members", "add", "--timeout"], "logboom members")]
)
def test_whose_help_to_look_at_is_said_where_an_option_lacks_its_value(
    capsys: Any, command: list[str], whose: str
) -> None:
    status, _, err = run(capsys, *command)
    assert status == 2
    assert f"(see `{whose} --help`)" in err


def test_a_token_that_can_be_read_on_the_way_is_told_once(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It looks like what lets somebody in, and no node looks at it."""
    node.answers[Kind.STATUS] = says_all
    assert run(capsys, "partitions", "list")[2] == ""
    for given in ("option", "environment"):
        if given == "environment":
            monkeypatch.setenv("LOGBOOM_TOKEN", "secret")
        err = run(capsys, "partitions", "list", *(["--token", "secret"] if given == "option" else []))[2]
        assert err.count("\n") == 1
        assert "clear text" in err
        assert "certificates" in err
        assert "secret" not in err
    make_test_authority(tmp_path, ["n1"])
    with_tls = run(capsys, "partitions", "list", "--tls-dir", str(tmp_path), "--timeout", "100ms")[2]
    assert with_tls.count("\n") == 1, "nobody answers, and that is all"
    assert "clear text" not in with_tls


def test_a_node_without_a_name_is_not_all_of_them(node: FakeNode, capsys) -> None:
    node.answers[Kind.STATUS] = says_all
    status, out, err = run(capsys, "status", "--node", "")
    assert (status, out) == (2, "")
    assert "no node ''" in err
