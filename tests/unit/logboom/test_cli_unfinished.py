"""What a command did not come to is no success, and what was refused is no wrong usage."""

from __future__ import annotations

import json
import time
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from logboom.commands import Add, Put
from logboom.sync_client import SyncClient
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_kv import Kv
from tests.unit.logboom.fake_server import FakeNode, Session, members


@pytest.mark.parametrize("args", [("add", "n4=h:1@h:2"), ("promote", "n4")])
def test_a_member_that_does_not_vote_yet_is_no_success(node: FakeNode, capsys: Any, args: tuple[str, ...]) -> None:
    """`members add n4=... && members remove n2` is two voters of three otherwise."""
    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n4", "joining"))
    status, out, err = run(capsys, "members", *args, "--timeout", "300ms", "-o", "json")
    assert status == 1
    assert [row["role"] for row in json.loads(out)] == ["voter", "joining"]
    assert "n4 is taken in and has not caught up yet" in err
    assert "is its address right" not in err
    status, _, err = run(capsys, "members", *args, "--timeout", "300ms", "--no-wait")
    assert (status, err) == (0, "")


def test_a_member_that_nobody_reaches_may_have_a_wrong_address(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n4", "joining"), connected=False)
    assert run(capsys, "members", "add", "n4=h:1@h:2", "--timeout", "300ms")[0] == 1
    assert "`logboom members update n4`" in run(capsys, "members", "promote", "n4", "--timeout", "300ms")[2]


def test_a_member_that_moves_nowhere_is_refused_here(node: FakeNode, capsys: Any) -> None:
    asked = list[Any]()

    def answer(session: Session, frame: Frame) -> None:
        asked.append(frame.header)
        members(("n1", "voter"))(session, frame)

    node.answers[Kind.ADMIN] = answer
    status, _, err = run(capsys, "members", "update", "n1")
    assert status == 2
    assert "--peer-address, --client-address" in err
    assert run(capsys, "members", "update", "n1", "--peer-address", "h:9")[0] == 0
    first, header = asked
    assert (first["action"], first["leader"]) == ("members", True), "one that does not lead may not know the other"
    assert (header["action"], header["id"], header["peer_address"]) == ("member_update", "n1", "h:9")
    assert "client_address" not in header, "what is not said stays"


def test_one_that_is_removed_while_it_is_waited_for_is_no_success_either(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.ADMIN] = members(("n1", "voter"), removed=("n4",))
    status, _, err = run(capsys, "members", "add", "n4=h:1@h:2")
    assert status == 1
    assert "n4 was removed meanwhile" in err


def test_a_member_that_votes_is(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n4", "voter"))
    assert run(capsys, "members", "add", "n4=h:1@h:2")[0] == 0


@pytest.mark.parametrize(
    ("role", "option", "says"),
    [
        ("learner", (), "`logboom members promote n4`"),
        ("learner", ("--no-wait",), "`logboom members promote n4`"),
        ("voter", ("--learner",), "n4 votes already"),
        ("joining", ("--learner",), "votes once it has caught up"),
    ],
)
def test_a_member_that_stays_what_it_was_is_no_success_and_not_waited_for(
    node: FakeNode, capsys: Any, role: str, option: tuple[str, ...], says: str
) -> None:
    """It was taken in as something else before, and to take it in again changes nothing."""
    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n4", role))
    status, out, err = run(capsys, "members", "add", "n4=h:1@h:2", *option, "-o", "json")
    assert status == 1
    assert [row["role"] for row in json.loads(out)] == ["voter", role]
    assert says in err
    assert [frame.header["action"] for frame in node.of(Kind.ADMIN)] == ["member_add"]


def test_a_learner_that_was_asked_for_is_one(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n4", "learner"))
    status, _, err = run(capsys, "members", "add", "n4=h:1@h:2", "--learner")
    assert (status, err) == (0, "")


def test_what_is_refused_is_no_wrong_usage(node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Kv(node)
    monkeypatch.setattr(SyncClient, "commit_cursor", lambda *_, **__: 100)
    status, out, err = run(capsys, "cursors", "set", "billing", "1", "-p", "1")
    assert (status, out) == (1, "")
    assert err == "logboom: billing is at 100 already: --force moves it back [failed]\n"


@pytest.mark.parametrize(
    ("args", "commands"),
    [
        (["add", "n", "-5"], [Add(b"n", -5)]),
        (["add", "n", "5", "-2", "-.5", "-1e3"], [Add(b"n", 5.0, -2.0, -0.5, -1000.0)]),
        (["put", "k", "-1", "-o", "json"], [Put(b"k", b"-1")]),
        (["put", "-7", "v"], [Put(b"-7", b"v")]),
        (["--", "add", "n", "-5"], [Add(b"n", -5)]),
        (["--", "put", "k", "-v"], [Put(b"k", b"-v")]),
    ],
)
def test_numbers_below_zero_are_no_options(node: FakeNode, capsys: Any, args: list[str], commands: list[Any]) -> None:
    assert run(capsys, "submit", "-p", "0", *args)[0] == 0
    assert node.log[0] == [command.record().payload for command in commands]
    assert run(capsys, "submit", *args[:3], "-p", "1")[0] == (0 if "--" not in args else 2)


@pytest.mark.parametrize("command", [["submit", "-p", "0", "put", "k", "-v"], ["get", "-p", "0", "-key"]])
def test_what_begins_with_a_dash_is_told_where_it_goes(node: FakeNode, capsys: Any, command: list[str]) -> None:
    status, _, err = run(capsys, *command)
    assert status == 2
    assert "behind `--`" in err


def test_an_option_that_wants_a_value_does_not_get_a_number_as_a_word(node: FakeNode, capsys: Any) -> None:
    status, _, err = run(capsys, "submit", "-p", "-5", "put", "a", "b")
    assert status == 2
    assert "-5 is not in the range" in err


@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        ("2024-06-01", 1717200000),
        ("2024-06-01T02:03:04", 1717207384),
        ("2024-06-01T02:03:04Z", 1717207384),
        ("2024-06-01T02:03:04.500Z", 1717207384.5),
        ("2024-06-01T04:03:04+02:00", 1717207384),
        ("2024-06-01 02:03:04", 1717207384),
    ],
)
def test_times_are_taken_as_logs_have_them_and_without_a_zone_are_utc(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch, when: str, seconds: float
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    node.answers[Kind.TAIL] = lambda s, f: s.send(f, Kind.END, {"next_index": 1})
    node.answers[Kind.INDEX_AT] = lambda s, f: s.send(f, Kind.INDEX_IS, {"global_index": 0, "cluster": "test"})
    try:
        run(capsys, "tail", "-p", "0", "--start-time", when)
        run(capsys, "barrier", "--at", when)
    finally:
        monkeypatch.undo()
        time.tzset()
    (tail,), (index_at,) = node.of(Kind.TAIL), node.of(Kind.INDEX_AT)
    assert tail.header["start_time_ms"] == int(seconds * 1000)
    assert index_at.header["timestamp_ms"] == int(seconds * 1000) + 1  # the clock is beyond it


@pytest.mark.parametrize(
    ("name", "text"),
    [("x.csv", "key,value\r\na,1\r\n"), ("x.txt", "put a 1\n"), ("x.jsonl", '{"key": "a", "value": "1"}\n')],
)
def test_files_as_spreadsheets_and_editors_write_them_are_read(
    node: FakeNode, capsys: Any, tmp_path: Path, name: str, text: str
) -> None:
    """They begin with the mark of byte order, which nobody sees: the first column was another one then."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig", newline="")
    status, _, err = run(capsys, "submit", "-p", "0", "-f", str(path))
    assert (status, err) == (0, "")
    assert node.log[0] == [Put(b"a", b"1").record().payload]


def test_what_is_raw_keeps_every_byte(node: FakeNode, capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(BOM_UTF8 + b"1\n")
    assert run(capsys, "submit", "-p", "0", "-f", str(path), "--raw")[0] == 0
    assert node.log[0] == [BOM_UTF8 + b"1"]


@pytest.mark.parametrize("text", ['[{"key": "a", "value": "1"}]', '{\n "key": "a",\n "value": "1"\n}\n'])
def test_json_that_is_not_one_object_per_line_is_told_so(
    node: FakeNode, capsys: Any, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    status, _, err = run(capsys, "submit", "-p", "0", "-f", str(path))
    assert status == 2
    assert "line 1: " in err
    assert "one object on each line" in err


def test_a_cursor_in_a_partition_that_is_not_there_is_not_set(node: FakeNode, capsys: Any) -> None:
    """It would be a new one, and the consumer that was meant would go on as before."""
    Kv(node)
    status, out, err = run(capsys, "cursors", "set", "billing", "100", "-p", "99")
    assert (status, out) == (2, "")
    assert "partition 99 does not exist" in err
    assert all(frame.header["action"] == "partitions" for frame in node.of(Kind.ADMIN))  # creates none
    assert not node.of(Kind.SUBMIT)
