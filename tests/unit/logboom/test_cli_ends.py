"""How commands end before their time: nobody reads what they write, Ctrl-C, no answer; and who is asked before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from logboom.cli import members as members_module
from logboom.errors import (
    BarrierTimeout,
    CorruptData,
    DeadlineExceeded,
    InvalidRequest,
    Unavailable,
    UnknownOutcome,
)
from logboom.records import RecordBlock
from logboom.sync_client import SyncClient
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, Session, fails, members, records, silent

MARKS = [[0, 5, 5, 4, 0, 8, "running"]]


def one_record(session: Session, frame: Frame) -> None:
    """And then none, for ever."""
    records(session, frame, 1, 1, [b"first"])


def one_mark(session: Session, frame: Frame) -> None:
    """And then none, for ever."""
    about = {"node": "n1", "commit_index": 9, "minimum": 8, "watermarks": MARKS, "gone": []}
    session.send(frame, Kind.WATCHED, {**about, "first": True, "whole": True}, more=True)


@pytest.mark.parametrize(
    "command", [["tail", "-p", "0", "-f", "--raw"], ["tail", "-f", "-o", "jsonl"], ["watermarks", "-f", "-o", "jsonl"]]
)
@pytest.mark.parametrize("reader", ["pipe", "gone"])
def test_what_follows_ends_when_nobody_reads_it_any_more(node: FakeNode, command: list[str], reader: str) -> None:
    """`logboom tail -f | head -1` stayed until the next record came, which may be tomorrow."""
    node.features = ["log_scan"]
    node.answers[Kind.TAIL] = one_record
    node.answers[Kind.LOG_SCAN] = silent
    node.answers[Kind.ADMIN] = lambda session, frame: session.send(
        frame, Kind.ADMIN_REPLY, {"partitions": [[0, "log", "write_ahead"]], "key_partitions": 1}
    )
    node.answers[Kind.WATCH] = one_mark
    started = [sys.executable, "-m", "logboom", *command, "--endpoints", node.address]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if reader == "pipe" and command[:2] != ["tail", "-f"]:
                assert process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "method", "says"),
    [
        (["members", "add", "n4=h:1@h:2"], "add_member", ["n4 may have been taken in", "`logboom members remove n4`"]),
        (["members", "add", "n4=h:1@h:2"], "member_list", ["n4 is taken in", "its id is not used after that"]),
        (["members", "promote", "n4"], "promote_member", ["may have been done", "`logboom members list`"]),
        (["members", "promote", "n4"], "member_list", ["n4 is to vote"]),
        (["members", "update", "n1", "--client-address", "h:9"], "update_member", ["`logboom members list`"]),
        (["members", "remove", "n4"], "remove_member", ["may have been done", "`logboom members list`"]),
        (["members", "transfer", "n4"], "transfer", ["may have been done", "`logboom members list`"]),
        (["partitions", "create"], "create_partition", ["may have been done", "`logboom partitions list`"]),
        (["partitions", "destroy", "0", "--yes"], "destroy_partition", ["`logboom partitions list`"]),
        (["partitions", "set", "0", "--ack", "durable"], "set_partition", ["`logboom partitions list`"]),
        (["snapshot", "create"], "create_snapshot", ["goes on", "`logboom snapshot list`"]),
    ],
)
@pytest.mark.parametrize("how", [interrupted, DeadlineExceeded("not done in time")])
def test_what_may_stand_half_done_is_said(
    node: FakeNode,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    method: str,
    says: list[str],
    how: Any,
) -> None:
    def ends(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt if how is interrupted else how

    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n2", "voter"), ("n3", "voter"), ("n4", "joining"))
    monkeypatch.setattr(SyncClient, "cursors_partition", lambda *_, **__: None)
    monkeypatch.setattr(SyncClient, method, ends)
    status, out, err = run(capsys, *command)
    assert (status, out) == (130 if how is interrupted else 3, "")
    assert all(each in err for each in says), err


def test_who_is_taken_in_stays_so_whatever_becomes_of_waiting_for_it(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaderless(*_: Any, **__: Any) -> None:
        raise Unavailable("there is no leader right now")

    node.answers[Kind.ADMIN] = members(("n1", "voter"), ("n4", "joining"))
    monkeypatch.setattr(SyncClient, "member_list", leaderless)
    status, _, err = run(capsys, "members", "add", "n4=h:1@h:2")
    assert status == 3
    assert "n4 is taken in" in err


def removed(node: FakeNode) -> list[str]:
    return [frame.header["id"] for frame in node.of(Kind.ADMIN) if frame.header["action"] == "member_remove"]


THREE = (("n1", "voter"), ("n2", "voter"), ("n3", "voter"))


@pytest.mark.parametrize(
    ("seats", "says"),
    [
        (THREE, "Voters left: 2. None of them may fail; `logboom members add`"),
        ((*THREE, ("n4", "voter")), ""),
        ((*THREE, ("n4", "learner")), "Voters left: 2. None of them may fail"),
    ],
)
def test_a_script_is_not_asked_and_told_what_is_left(node: FakeNode, capsys: Any, seats: Any, says: str) -> None:
    node.answers[Kind.ADMIN] = members(*seats)
    status, _, err = run(capsys, "members", "remove", "n2")
    assert (status, removed(node)) == (0, ["n2"])
    assert says in err if says else err == ""


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("", 130)])
def test_a_person_is_asked_before_a_member_is_removed(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    """Its id is never used again: what is removed by mistake comes back as another one, with an empty disk."""
    monkeypatch.setattr(members_module, "on_terminal", lambda _: True)
    reading, writing = os.pipe()
    os.write(writing, answer.encode())
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        node.answers[Kind.ADMIN] = members(*THREE)
        found, _, err = run(capsys, "members", "remove", "n2")
        assert (found, removed(node)) == (status, ["n2"] if status == 0 else [])
        assert "Voters left: 2. None of them may fail. Go on?" in err
        assert ("nothing was changed" in err) == (status == 1)
        if status == 0:
            assert "Go on?" not in run(capsys, "members", "remove", "n3", "--yes")[2]


def test_what_is_refused_anyway_is_not_asked_about(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members_module, "on_terminal", lambda _: True)
    node.answers[Kind.ADMIN] = members(*THREE)
    assert run(capsys, "members", "remove", "n9")[0] == 0  # as the nodes say it
    assert removed(node) == ["n9"]


def unread(
    node: FakeNode | None,
    *command: str,
    said: bytes = b"",
    program: Sequence[str] = ("-m", "logboom"),
    stderr: bool = False,
) -> tuple[int, str]:
    """The exit status of a command whose stdout nobody reads, and its stderr; nor ``stderr``."""
    reading, writing = os.pipe()
    os.close(reading)
    where = [] if node is None else ["--endpoints", node.address]
    try:
        done = subprocess.run(
            [sys.executable, *program, *command, *where],
            stdout=writing, stderr=writing if stderr else subprocess.PIPE, input=said, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    return done.returncode, "" if stderr else done.stderr.decode()


def test_what_is_half_in_is_told_also_where_nobody_reads_the_rest(node: FakeNode) -> None:
    """`submit | less` that was left ended with 0, and said nothing, though the cluster had gone."""
    refused = fails(InvalidRequest("no more"))
    node.once(Kind.SUBMIT, lambda session, frame: session.usual(frame), refused)
    lines = b"".join(b"record %d\n" % k for k in range(5_000))
    status, told = unread(node, "submit", "-p", "0", said=lines)
    assert status == 2
    assert "no more" in told
    assert "4000 commands" in told.replace(",", "")


def test_a_key_that_is_not_there_is_so_also_where_nobody_reads_it(node: FakeNode) -> None:
    block = RecordBlock.from_columns(payloads=[b""])
    about = {"found": [False], "metadata": len(block.metadata), "data": len(block.data), "global_index": 1}
    body = [bytes(block.metadata), bytes(block.data)]
    node.answers[Kind.GET] = lambda session, frame: session.send(frame, Kind.VALUES, about, body)
    status, told = unread(node, "get", "-p", "0", "k")
    assert (status, "no such key" in told) == (1, True)


def test_damage_is_damage_also_where_nobody_reads_which(tmp_path: Any) -> None:
    directory = tmp_path / "n1"
    directory.mkdir()
    (directory / "manifest.json").write_text("{}")
    status, told = unread(None, "verify", str(directory))
    assert (status, "is damaged" in told) == (5, True)
    assert unread(None, "verify", str(directory), stderr=True) == (5, ""), "verify 2>&1 | head"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["get", "-p", "0", "k"], 1),
        (["submit", "-p", "0", "put", "k", "v"], 4),
        (["members", "promote", "n9"], 4),
        (["inspect", "manifest", __file__], 4),
        (["nonsense"], 2),
        (["get"], 2),
        ([], 2),
        (["node", "--config", "/nowhere.toml", "--check"], 2),
    ],
)
def test_what_went_wrong_did_so_also_where_nobody_reads_stderr(node: FakeNode, command: list[str], status: int) -> None:
    """Found by review: `logboom verify … 2>&1 | head` ended with 0 for damage, other commands with 0 or 1."""
    block = RecordBlock.from_columns(payloads=[b""])
    about = {"found": [False], "metadata": len(block.metadata), "data": len(block.data), "global_index": 1}
    body = [bytes(block.metadata), bytes(block.data)]
    node.answers[Kind.GET] = lambda session, frame: session.send(frame, Kind.VALUES, about, body)
    node.answers[Kind.SUBMIT] = node.answers[Kind.ADMIN] = fails(CorruptData("it is"))
    where = node if command[:1] and command[0] in ("get", "submit", "members") and len(command) > 1 else None
    assert unread(where, *command, stderr=True)[0] == status


BREAKS = """
import chaos.sim.main as sim
from chaos.sim.runner import Ran
from chaos.sim.simulation import Failure, Outcome
from logboom.cli import main


def broken(seed):
    return Ran(Outcome(seed, failure=Failure("I8", "a story", 1.5)), 0.01)


def run(parameters, *, timeline, until):
    timeline.lines.extend(["a line of it"] * 10_000)
    return broken(parameters.seed)


sim.run, sim.run_many = run, lambda seeds, **_: map(broken, seeds)
main()
"""
"""The simulator, in which an invariant breaks in every run."""


@pytest.mark.parametrize("which", [["--seed", "7", "--trace"], ["--seed", "7", "--seeds", "2"]])
def test_an_invariant_that_broke_did_so_also_where_nobody_reads_the_timeline(which: list[str]) -> None:
    """`logboom chaos sim --seed 7 --trace | head` ended with 0 whatever came of it."""
    status, told = unread(None, "chaos", "sim", *which, program=("-c", BREAKS))
    assert (status, "FAILED I8 seed=7" in told) == (1, True)
    assert unread(None, "chaos", "sim", *which, program=("-c", BREAKS), stderr=True) == (1, "")


RUN_BREAKS = """
import contextlib
import time
from types import SimpleNamespace

import chaos.nemesis as nemesis
from chaos.history import History
from chaos.verdict import Observed
from logboom.cli import main


async def play(cluster, *, seed, seconds):
    cluster.directory.mkdir(parents=True)
    return Observed(History(time.monotonic_ns), seed=seed, seconds=seconds)


def cluster(wires, *, directory, **_):
    return SimpleNamespace(directory=directory, addresses={}, start=lambda: None, stop=lambda: None)


nemesis.Wires, nemesis.WiredCluster, nemesis.play = contextlib.nullcontext, cluster, play
nemesis.check = lambda seen: [("I8", ["a story"] * STORIES)]
main()
"""
"""A fault run in which a check fails, or none, without nodes."""


@pytest.mark.parametrize("stories", [0, 1])
def test_a_check_that_failed_did_so_also_where_nobody_reads_what_came_of_it(tmp_path: Path, stories: int) -> None:
    program = ("-c", RUN_BREAKS.replace("STORIES", str(stories)))
    status, told = unread(None, "chaos", "run", "--seed", "7", "--dir", str(tmp_path), program=program)
    assert status == stories
    assert ("replay: logboom chaos run --seed 7 --seconds 60" in told) == bool(stories)
    assert [path.name for path in tmp_path.iterdir()] == ["run-7"] * stories
    also = tmp_path / "also"
    assert unread(None, "chaos", "run", "--seed", "7", "--dir", str(also), program=program, stderr=True)[0] == stories


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_which_batches_are_void_is_told_if_the_next_one_cannot_be(node: FakeNode, capsys: Any, how: str) -> None:
    """For good they were, and nobody said which."""
    row = {
        "partition": 0, "first_index": 4, "last_index": 6, "digest": b"d" * 16, "global_index": 9, "applied": 0,
        "said": {"n1": "absent"}, "void": True,
    }  # fmt: skip
    second = fails(InvalidRequest("n2 has it")) if how == "refused" else fails(UnknownOutcome("lost"))
    node.answers[Kind.ADMIN] = second
    node.once(Kind.ADMIN, lambda session, frame: session.send(frame, Kind.ADMIN_REPLY, {"void": row}))
    void = ("partitions", "void", "0", "--index", "5", "--index", "9", "--yes", "--timeout", "1")
    status, out, err = run(capsys, *void, "--endpoints", node.address, "-o", "jsonl")
    assert status == (2 if how == "refused" else 3)
    assert [json.loads(line)["last_index"] for line in out.splitlines()] == [6]
    assert ("record 9 may have been declared void" in err) == (how == "lost")


@pytest.mark.parametrize("reached", [False, True])
def test_a_barrier_that_is_not_reached_is_not_also_where_nobody_reads_how_far_it_is(
    node: FakeNode, reached: bool
) -> None:
    """`logboom barrier --watch -o jsonl | head -1 && deploy` went on at the first step that had no reader."""

    def answer(session: Session, frame: Frame) -> None:
        for step in (1, 2, 3):
            told = {"node": "n1", "frontiers": [[0, step]], "reached": 0, "needed": 1}
            session.send(frame, Kind.BARRIER_PROGRESS, told, more=True)
        if reached:
            session.send(frame, Kind.REACHED, {"node": "n1", "watermarks": MARKS, "frontiers": [[0, 9]]})
        else:
            session.fail(frame, BarrierTimeout("not yet", target=9, behind=[0], watermarks=MARKS, frontiers=[[0, 3]]))

    node.answers[Kind.BARRIER] = answer
    how = ("barrier", "-g", "9", "-p", "0", "--watch", "--timeout", "500ms", "-o", "jsonl")
    status, told = unread(node, *how)
    assert (status, "not yet" in told) == ((0, False) if reached else (1, True))
