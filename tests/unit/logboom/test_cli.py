"""The command line: what it sends, what it prints, and what it exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from logboom.cli import COMMANDS, cli, exit_status
from logboom.cli.common import Duration, PartitionIds
from logboom.cli.operate import problems
from logboom.commands import Add, Put
from logboom.errors import BY_CODE, Unavailable
from logboom.records import RecordBlock
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, Session, entries, fails, records

HUGE = "9" * 24


def status_of(role: str = "leader", state: str = "running", leader: str | None = "n1") -> Any:
    def answer(session: Session, frame: Any) -> None:
        header = {
            "node": session.node.name, "cluster": "test", "role": role, "term": 2, "leader": leader, "commit_index": 9,
            "recovered": True, "waiters": 0, "uptime_s": 1.5,
            "members": [[name, at, True, "voter"] for name, at in session.node.members.items()],
            "version": "0", "partitions": [[0, 5, 5, 4, 0, 8, state]], "backlog": [[0, 1, 100]],
            "digests": [[0, 8, b"\xab"]] if frame.header["digests"] else None,
        }  # fmt: skip
        session.send(frame, Kind.STATUS_REPLY, header)

    return answer


def said_by(node: str, roles: dict[str, str]) -> dict[str, Any]:
    members = [[name, "127.0.0.1:1", True, role] for name, role in roles.items()]
    return {"node": node, "leader": "n1", "recovered": True, "partitions": [], "members": members}


# -- in general


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS), ["partitions", "list"], ["partitions", "pause"]]
)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(cli, [*command, "--help"])
    assert result.exit_code == 0
    assert "xample" in result.output or command in ([], ["partitions"])


def test_examples_of_help_are_not_broken_over_lines() -> None:
    """They are pasted. Of groups' commands, too."""

    def look(command: click.Command, path: list[str]) -> None:
        shown = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).output
        for line in (command.epilog or "").replace("\b", "").splitlines():
            assert line.strip() in shown
            assert line.count("logboom ") <= 1
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                look(found, [*path, name])

    look(cli, [])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["bogus"], "No such command"),
        (["put", "a", "b"], "`logboom submit -p PARTITION put ...`"),
        (["del", "a"], "`logboom submit -p PARTITION delete ...`"),
        (["watch", "a"], "`logboom tail -p PARTITION --follow`"),
        (["submit", "-p", "0", "putt", "a", "b"], "put KEY VALUE"),
        (["submit", "put", "a", "b"], "--partition or --by-key"),
        (["submit", "-p", "0", "--by-key", "put", "a", "b"], "not both"),
        (["submit", "-p", "0", "-f", "/nowhere/x", "--wait", "durable"], "No such file"),
        (["submit", "-p", "0", "--raw", "put", "a", "b"], "do not go with a command"),
        (["submit", "-p", "0", "--format", "csv", "put", "a", "b"], "do not go with a command"),
        *(
            (["submit", "-p", "0", "--raw", "--format", form, "-f", "/nowhere/x"], f"does not go with --format {form}")
            for form in ("jsonl", "csv", "parquet")
        ),
        (["submit", "-p", "0", "--raw", "--encoding", "hex", "-f", "/nowhere/x"], "does not go with --encoding hex"),
        (["get"], "KEYS"),
        (["barrier", "-g", "x"], "'x' is not a valid integer"),
        (["barrier"], "give one of"),
        (["barrier", "-g", "1", "--at", "now"], "give one of"),
        (["barrier", "--at", "yesterday"], "is not a time"),
        (["barrier", "--receipt", "3"], "3:1200"),
        (["barrier", "--receipt", "3:1", "-p", "3"], "no --partitions"),
        (["barrier", "-g", "1", "--mode", "most"], "neither all nor any"),
        (["barrier", "-g", "1", "-p", "3-1"], "0,3,5-9"),
        (["status", "--timeout", "soon"], "500ms"),
        (["tail", "--start", "3"], "--partition"),
        (["get", "-p", "0", "--encoding", "hex", "xyz"], "not hex"),
        (["barrier", "-g", "1", "-p", "²"], "0,3,5-9"),
        (["barrier", "-g", "1", "-p", "0-4000000000"], "more partitions than"),
        (["barrier", "-g", "1", "-p", "9999999999"], "more partitions than"),
        (["barrier", "-g", "1", "--mode", "²"], "neither all nor any"),
        (["barrier", "-g", HUGE], "is more than"),
        (["barrier", "--receipt", f"0:{HUGE}"], "3:1200"),
        (["barrier", "--receipt", "9999999999:1"], "3:1200"),
        (["barrier", "--at", "0001-01-01"], "is not a time"),
        (["get", "-p", HUGE, "k"], "is more than"),
        (["get", "-p", "0", "--at-least", HUGE, "k"], "is more than"),
        (["get", "-p", "0", "--timeout", f"{HUGE}h", "k"], "longer than a year"),
        (["get", "-p", "0", "--timeout", "0", "k"], "500ms"),
        (["scan", "-p", "0", "--limit", HUGE], "is more than"),
        (["tail", "--start-global", HUGE], "is more than"),
        (["tail", "-p", "0", "--start", HUGE], "is more than"),
        (["watermarks", "-p", HUGE], "0,3,5-9"),
        (["partitions", "destroy", HUGE, "--yes"], "is more than"),
        (["partitions", "void", "0", "--index", HUGE], "is more than"),
        (["partitions", "create", "--state-machine", "\udcff"], "not UTF-8"),
        (["submit", "-p", HUGE, "put", "a", "b"], "is more than"),
        (["submit", "-p", "0", "--once", "\udcff", "put", "a", "b"], "not UTF-8"),
        (["cursors", "set", "\udcff", "5"], "not UTF-8"),
        (["cursors", "delete", "x", "-p", HUGE, "--yes"], "is more than"),
        (["members", "promote", "\udcff"], "not UTF-8"),
        (["status", "--token", "\udcff"], "not UTF-8"),
        (["status", "--endpoints", "a..b:7701"], "'a..b:7701'"),
        (["status", "--endpoints", f"127.0.0.1:1,{'a' * 64}:7701"], "no host has such a name"),
        (["certs", "--dir", "/proc/nowhere", "--nodes", ""], "at least one"),
        (["certs", "--dir", "/proc/nowhere", "--nodes", "n1,ä"], "'ä'"),
        (["certs", "--dir", "/proc/nowhere", "--nodes", "../n1"], "'../n1'"),
        (["certs", "--dir", "/proc/nowhere", "--nodes", "client"], "'client'"),
        (["certs", "--dir", "/proc/nowhere", "--nodes", "n1", "--hosts", "ä"], "'ä'"),
        (["certs", "--dir", "/proc/nowhere", "--nodes", "n1", "--days", "9999999"], "9999999"),
        (["node", "--id", "n1"], "logboom local"),
        (["node", "--config", "/nowhere/n.toml"], "No such file"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(node: FakeNode, capsys, args: list[str], says: str) -> None:
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_without_a_cluster_it_says_how_to_name_one(monkeypatch, capsys) -> None:
    monkeypatch.delenv("LOGBOOM_ENDPOINTS", raising=False)
    status, _, err = run(capsys, "status")
    assert status == 2
    assert "--endpoints" in err
    assert "LOGBOOM_ENDPOINTS" in err


def test_unreachable_is_3(capsys) -> None:
    status, out, err = run(capsys, "get", "-p", "0", "k", "--endpoints", "127.0.0.1:1", "--timeout", "200ms")
    assert (status, out) == (3, "")
    assert "127.0.0.1:1" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["backup", "/proc/nowhere", "--endpoints", "127.0.0.1:1"], 1, "[io]"),
        (["verify", "{dir}"], 2, "[wrong_node]"),
        (["restore", "{dir}", "--config", "{dir}/n1.toml"], 2, "[wrong_node]"),
        (["inspect", "journal", "{dir}"], 2, "[invalid_request]"),
        (["inspect", "manifest", "{dir}/n1.toml"], 4, "[corrupt_data]"),
        (["inspect", "places", "{dir}/n1.toml"], 4, "[corrupt_data]"),
        (["inspect", "aof", "{dir}/n1.toml"], 4, "[corrupt_data]"),
        (["inspect", "snapshot", "{dir}/n1.toml"], 4, "[corrupt_data]"),
        (["inspect", "journal", "{dir}/n1.toml"], 4, "[corrupt_data]"),
        (["inspect", "batches", "{dir}/n1.toml"], 4, "[corrupt_data]"),
        (["inspect", "backup", "{dir}/n1.toml"], 4, "[corrupt_data]"),
    ],
)
def test_what_works_on_files_has_its_status(tmp_path: Path, capsys, args: list[str], status: int, says: str) -> None:
    settings = '[cluster]\nmembers = "n1=a:1@a:2"\n[node]\nid = "n1"\ndata_dir = "d"\n'
    (tmp_path / "n1.toml").write_text(settings)
    found, out, err = run(capsys, *(arg.format(dir=tmp_path) for arg in args))
    assert (found, out) == (status, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [("overloaded", 1), ("no_such_partition", 2), ("deadline_exceeded", 3), ("corrupt_data", 4), ("error", 4)],
)
def test_errors_of_the_node_have_their_status(node: FakeNode, capsys, code: str, status: int) -> None:
    node.answers[Kind.SUBMIT] = fails(BY_CODE[code]("because", retry_after=60.0))
    found, _, err = run(capsys, "submit", "-p", "0", "put", "a", "b", "--timeout", "5s")
    assert found == status
    assert "because" in err
    assert f"[{code}]" in err


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_code_has_an_exit_status(code: str) -> None:
    assert exit_status(BY_CODE[code]("x")) in (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("5s", 5.0), ("2m", 120.0), ("1.5", 1.5), ("1h", 3600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_nothing_is_a_duration_where_that_means_something() -> None:
    assert Duration(zero=True).convert("0", None, None) == 0.0


def test_lists_of_partitions() -> None:
    assert PartitionIds().convert("5-7,0, 5", None, None) == [5, 6, 7, 0]


# -- reading


def test_get_prints_values_and_misses(node: FakeNode, capsys) -> None:
    block = RecordBlock.from_columns(payloads=[b"b\xff", b""])
    body = [bytes(block.metadata), bytes(block.data)]
    header = {"found": [True, False], "metadata": len(body[0]), "data": len(body[1]), "global_index": 4}
    node.answers[Kind.GET] = lambda s, f: s.send(f, Kind.VALUES, header, body)
    status, out, err = run(capsys, "get", "-p", "0", "6161", "62", "--encoding", "hex", "-o", "json")
    assert status == 1
    assert json.loads(out) == [{"key": "6161", "value": "ff"}, {"key": "62", "value": None}]
    assert "no such key: 62" in err
    assert node.of(Kind.GET)[0].header["keys"] == [b"aa", b"b"]


def test_get_with_no_staleness_is_asked_so(node: FakeNode, capsys) -> None:
    block = RecordBlock.from_columns(payloads=[b"bv"])
    body = [bytes(block.metadata), bytes(block.data)]
    header = {"found": [True], "metadata": len(body[0]), "data": len(body[1]), "global_index": 4}
    node.answers[Kind.GET] = lambda s, f: s.send(f, Kind.VALUES, header, body)
    assert run(capsys, "get", "-p", "0", "k", "--max-staleness", "0")[0] == 0
    asked = node.of(Kind.GET)[0].header
    assert (asked["read"], asked["max_staleness_ms"]) == ("bounded", 0)


def test_scan_and_tail_stream(node: FakeNode, capsys) -> None:
    node.answers[Kind.SCAN] = lambda s, f: entries(s, f, [b"a", b"b"], more=False)
    assert run(capsys, "scan", "-p", "0", "--prefix", "x")[1] == "a\tA\nb\tB\n"
    assert node.of(Kind.SCAN)[0].header["prefix"] == b"x"

    def tail(session: Session, frame: Any) -> None:
        records(session, frame, 3, 7, [Put(b"k", b"v").record().payload, Add(b"k", 4).record().payload, b"?"])
        session.send(frame, Kind.END, {"next_index": 6})

    node.answers[Kind.TAIL] = tail
    _, out, _ = run(capsys, "tail", "-p", "1", "--start", "3", "-o", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["index"], row["op"], row["value"]) for row in rows] == [
        (3, "put", "v"),
        (4, "add", [4]),
        (5, "invalid", "3f"),
    ]
    assert run(capsys, "tail", "-p", "1", "--limit", "1", "--raw")[1].count("\n") == 1


def test_barrier_sends_what_was_asked(node: FakeNode, capsys) -> None:
    status, out, _ = run(
        capsys, "barrier", "-g", "9", "-p", "0-1", "--level", "durable", "--timeout", "5s", "-o", "json"
    )
    assert status == 0
    assert json.loads(out)["global_index"] == 9
    header = node.of(Kind.BARRIER)[0].header
    assert (header["global_index"], header["partitions"], header["level"]) == (9, [0, 1], "durable")
    assert 4000 < header["timeout_ms"] <= 5000
    node.answers[Kind.BARRIER] = fails(BY_CODE["barrier_blocked"]("partition 1 is paused"))
    status, _, err = run(capsys, "barrier", "-g", "9")
    assert status == 1
    assert "paused" in err


def test_barrier_takes_receipts_and_modes(node: FakeNode, capsys) -> None:
    status, out, _ = run(
        capsys, "barrier", "--receipt", "0:7", "--receipt", "3:9", "--mode", "1", "--scope", "quorum",
        "--level", "snapshotted", "-o", "json",
    )  # fmt: skip
    assert status == 0
    assert json.loads(out)["global_index"] == 7  # one of them has been reached, whichever
    header = node.of(Kind.BARRIER)[0].header
    assert (header["targets"], header["mode"], header["scope"], header["level"]) == (
        [[0, 7], [3, 9]], 1, "quorum", "snapshotted",
    )  # fmt: skip


def test_of_a_partitions_receipts_barrier_takes_the_highest(node: FakeNode, capsys) -> None:
    assert run(capsys, "barrier", "--receipt", "3:13", "--receipt", "0:7", "--receipt", "3:12")[0] == 0
    assert node.of(Kind.BARRIER)[0].header["targets"] == [[0, 7], [3, 13]]


@pytest.mark.parametrize("output", ["table", "jsonl"])
def test_barrier_shows_where_the_partitions_are(node: FakeNode, capsys, output: str) -> None:
    def progress(session: Session, frame: Frame) -> None:
        told = {"node": "n1", "frontiers": [[0, 3], [1, 9]], "reached": 1, "needed": 2}
        session.send(frame, Kind.BARRIER_PROGRESS, told, more=True)
        session.send(frame, Kind.REACHED, {"node": "n1", "watermarks": [], "frontiers": [[0, 9]]})

    node.answers[Kind.BARRIER] = progress
    status, out, err = run(capsys, "barrier", "-g", "9", "--watch", "-o", output)
    assert status == 0
    if output == "jsonl":
        first, last = map(json.loads, out.splitlines())
        assert (first["reached"], first["needed"], first["frontiers"]) == (1, 2, {"0": 3, "1": 9})
        assert last["global_index"] == 9
    else:
        assert "1 of 2 partitions; partition 0 is at 3" in err


@pytest.mark.parametrize("follow", [True, False])
def test_watermarks_are_shown_once_or_as_they_move(node: FakeNode, capsys, follow: bool) -> None:
    def watched(session: Session, frame: Frame) -> None:
        head = {"node": "n1", "commit_index": 9, "whole": True, "gone": []}
        for n in (1, 2):
            row = [0, n, n, n, 0, n, "running"]
            told = {**head, "minimum": n, "watermarks": [row], "first": n == 1}
            session.send(frame, Kind.WATCHED, told, more=True)
        session.fail(frame, BY_CODE["partition_destroyed"]("partition 0 was destroyed"))

    node.answers[Kind.WATCH] = watched
    status, out, err = run(capsys, "watermarks", "-p", "0", "-o", "jsonl", *(["--follow"] if follow else []))
    minima = [json.loads(line)["minimum"] for line in out.splitlines()]
    # Whoever has not seen one yet when the next one comes is told the newer.
    assert minima[-1] == 2 and minima == sorted(set(minima)) if follow else len(minima) == 1
    assert status == (1 if follow else 0)
    assert ("destroyed" in err) == follow


# -- operating


def test_partitions_that_were_made_are_told_when_another_could_not_be(node: FakeNode, capsys) -> None:
    made = iter((4, 5))

    def answer(session: Session, frame: Frame) -> None:
        if frame.header["action"] != "create_partition":
            session.send(frame, Kind.ADMIN_REPLY, {"partitions": [], "key_partitions": 4})
        elif (partition := next(made, None)) is not None:
            session.send(frame, Kind.ADMIN_REPLY, {"partition": partition})
        else:
            session.fail(frame, BY_CODE["invalid_request"]("there are 6 partitions, and cannot be more"))

    node.answers[Kind.ADMIN] = answer
    status, out, err = run(capsys, "partitions", "create", "--count", "3", "-o", "json")
    assert (status, json.loads(out)) == (2, [{"partition": 4}, {"partition": 5}])
    assert "cannot be more" in err


def test_status_when_all_is_well(node: FakeNode, capsys) -> None:
    node.answers[Kind.STATUS] = status_of()
    status, out, err = run(capsys, "status", "-o", "json", "--digests")
    assert (status, err) == (0, "")
    about = json.loads(out)
    assert about["healthy"] is True
    assert about["nodes"][0]["role"] == "leader"
    assert about["partitions"][0] | {"lag": 1, "backlog_bytes": 100, "digest": "ab"} == about["partitions"][0]
    assert run(capsys, "status")[1].splitlines()[0].split()[:3] == ["node", "role", "term"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [(status_of(state="damaged"), "partition 0 on n1 is damaged"), (status_of(leader=None), "no node leads")],
)
def test_status_of_a_sick_cluster_is_5(node: FakeNode, capsys, answer, says: str) -> None:
    node.answers[Kind.STATUS] = answer
    status, out, err = run(capsys, "status", "-o", "json")
    assert status == 5
    assert says in err
    assert json.loads(out)["healthy"] is False


def test_a_minority_that_is_away_is_told_and_no_failure(node: FakeNode, capsys) -> None:
    node.answers[Kind.STATUS] = status_of()
    node.members = {"n1": node.address, "n2": "127.0.0.1:1", "n3": node.address}
    status, out, err = run(capsys, "status")
    assert status == 0
    assert "unreachable" in out
    assert "n2 cannot be reached" in err
    node.members["n3"] = "127.0.0.1:2"
    assert run(capsys, "status")[0] == 5


def test_partitions_are_listed_and_held(node: FakeNode, capsys) -> None:
    node.answers[Kind.STATUS] = status_of()
    node.answers[Kind.ADMIN] = lambda s, f: s.send(f, Kind.ADMIN_REPLY, {"state": "paused"})
    _, out, _ = run(capsys, "partitions", "list", "-o", "jsonl")
    assert json.loads(out)["state_machine"] == "kv"
    status, out, _ = run(capsys, "partitions", "pause", "3", "--node", "n1", "-o", "json")
    assert status == 0
    assert json.loads(out) == {"partition": 3, "node": "n1", "state": "paused"}
    assert node.of(Kind.ADMIN)[0].header == {"action": "pause", "partition": 3}
    status, _, err = run(capsys, "partitions", "pause", "3", "--node", "n7")
    assert status == 2
    assert "members are n1" in err


def test_certs_are_made_once(capsys, tmp_path: Path) -> None:
    where = str(tmp_path / "tls")
    assert run(capsys, "certs", "--dir", where, "--nodes", "n1,n2")[0] == 0
    files = {path.name: path.stat().st_mode & 0o777 for path in Path(where).iterdir()}
    assert set(files) == {
        "ca.pem", "client-ca.pem", "n1.pem", "n1.key", "n2.pem", "n2.key", "client.pem", "client.key"
    }  # fmt: skip
    assert set(files.values()) == {0o600}
    status, _, err = run(capsys, "certs", "--dir", where, "--nodes", "n1")
    assert status == 2
    assert "already holds an authority" in err
    assert run(capsys, "certs", "--dir", where, "--nodes", "n1", "--if-missing")[0] == 0


def test_a_configuration_can_be_checked_without_starting(capsys, tmp_path: Path) -> None:
    path = tmp_path / "n1.toml"
    path.write_text('[cluster]\nmembers = "n1=a:1@a:2"\n[node]\nid = "n1"\ndata_dir = "d"\n')
    assert run(capsys, "node", "--config", str(path), "--check")[0] == 0
    for more, word in (
        ("[raft]\nheartbeat = 1\n", "did you mean raft.heartbeat_ms"),
        ("[tls]\ndirectory = '/nope'\n", "/nope"),
        ('[admission]\nsignals = ["disk_fre"]\n', "admission signal 'disk_fre' is not known"),
        ('[cluster.overrides."0"]\nstate_machine = "kw"\n', "'kw' is not known"),
    ):
        other = tmp_path / "other.toml"
        other.write_text(path.read_text() + more)
        status, _, err = run(capsys, "node", "--config", str(other), "--check")
        assert status == 2
        assert word in err


def test_a_majority_is_one_of_those_who_vote() -> None:
    away = Unavailable("away")
    roles = {"n1": "voter", "n2": "voter", "n3": "voter", "n4": "learner", "n5": "joining"}
    reached: dict[str, Any] = {node: said_by(node, roles) for node in ("n1", "n2")}
    assert problems({**reached, "n3": away, "n4": away, "n5": away}) == []
    learners: dict[str, Any] = {node: said_by(node, roles) for node in ("n1", "n4", "n5")}
    assert problems({**learners, "n2": away, "n3": away}) == ["no majority: n2, n3 cannot be reached"]
    rejoins = {**reached["n2"], "role": "rejoining", "recovered": False}
    waits = "n2 has lost its journal, and waits to be taken back by the leader"
    assert problems({**reached, "n2": rejoins}) == [waits]
    assert problems({**reached, "n2": rejoins, "n3": away}) == [
        "no majority: n3 cannot be reached; n2 gives no vote",
        waits,
    ]
