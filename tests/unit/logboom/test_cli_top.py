"""``logboom top``: what two looks say of the time between them, and how it goes on and ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from logboom.cli import top as top_module
from logboom.cli.looks import Look, fitting, headline, look, node_rows, told
from logboom.errors import LogboomError, PermissionDenied, Unavailable
from logboom.sync_client import SyncClient
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, Session, fails

AWAY = Unavailable("n3 cannot be reached")


def said(name: str, *, uptime: float, logs: dict[int, tuple[int, int]], **changes: Any) -> dict[str, Any]:
    """``logs``: of each partition how many are in its log, and how many are applied."""
    return {
        "node": name, "role": "follower", "leader": "n1", "term": 2, "commit_index": 90, "recovered": True,
        "uptime_s": uptime, "members": [[each, "h:1", True, "voter"] for each in ("n1", "n2", "n3")],
        "partitions": [[p, log, log, applied, 0, 80, "running"] for p, (log, applied) in logs.items()],
        "backlog": [[p, 2, 300] for p in logs], "node_backlog": [4, 600], "lag": {"worst_ms": 12}, "sessions": 3,
        "usage": {"applied_records": 1, "applied_bytes": 1_000, "memory": 5 << 20, "disk_free": 7 << 30}, **changes,
    }  # fmt: skip


def used(applied_bytes: int) -> dict[str, Any]:
    return {"usage": {"applied_bytes": applied_bytes, "memory": 1, "disk_free": None}}


def rows(seen: Look, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.get(name) for name in names) for row in seen.nodes]


BEFORE: dict[str, dict[str, Any] | LogboomError] = {
    "n1": said("n1", uptime=10.0, logs={0: (100, 100), 1: (7, 7)}, role="leader", **used(1_000)),
    "n2": said("n2", uptime=20.0, logs={0: (100, 90), 1: (7, 7)}, **used(1_000)),
    "n3": AWAY,
}
NOW: dict[str, dict[str, Any] | LogboomError] = {
    "n1": said("n1", uptime=12.0, logs={0: (500, 450), 1: (9, 9)}, role="leader", commit_index=99, **used(5_000)),
    "n2": said("n2", uptime=24.0, logs={0: (500, 400), 1: (9, 9)}, commit_index=95, **used(9_000)),
    "n3": said("n3", uptime=0.5, logs={0: (10, 10), 1: (1, 1)}, commit_index=12, **used(100)),
}


def test_rates_are_of_the_time_between_two_looks_by_each_nodes_own_clock() -> None:
    seen = look(BEFORE, NOW, partitions=10)
    assert (seen.head["leader"], seen.head["commit_index"]) == ("n1", 99)
    assert (seen.head["commands_per_s"], seen.head["bytes_per_s"]) == (201.0, 2_000.0)
    assert rows(seen, "node", "commands_per_s", "bytes_per_s", "behind", "unapplied") == [
        ("n1", 201.0, 2_000.0, 0, 50),
        ("n2", 100.5, 2_000.0, 4, 100),
        ("n3", None, None, 87, 0),  # nothing is known of the time before
    ]
    assert rows(seen, "oldest_ms", "backlog_bytes", "memory_bytes", "disk_free_bytes")[0] == (12, 600, 1, None)


def test_the_busiest_partitions_come_first_and_say_where_most_waits() -> None:
    seen = look(BEFORE, NOW, partitions=10)
    shown = [(row["partition"], row["commands_per_s"], row["unapplied"], row["backlog_ops"]) for row in seen.partitions]
    assert shown == [(0, 200.0, 100, 2), (1, 1.0, 0, 2)]
    assert [row["partition"] for row in look(BEFORE, NOW, partitions=1).partitions] == [0]


def test_a_state_that_is_not_running_is_told_with_where() -> None:
    held = said("n2", uptime=24.0, logs={})
    held["partitions"] = [[1, 9, 9, 9, 0, 80, "paused"]]
    seen = look(BEFORE, {**NOW, "n2": held}, partitions=10)
    assert {row["partition"]: row["state"] for row in seen.partitions} == {0: "running", 1: "paused on n2"}
    assert seen.problems == ["partition 1 on n2 is paused"]
    assert told(seen) == ["unhealthy: partition 1 on n2 is paused"]


def test_a_node_that_was_started_again_has_no_rate_for_once() -> None:
    again = said("n2", uptime=1.0, logs={0: (500, 500)}, **used(10))
    assert rows(look(BEFORE, {**NOW, "n2": again}, partitions=1), "commands_per_s", "bytes_per_s")[1] == (None, None)
    later = said("n2", uptime=3.0, logs={0: (520, 500)}, **used(30))
    seen = look({**NOW, "n2": again}, {**NOW, "n2": later}, partitions=1)
    assert rows(seen, "commands_per_s", "bytes_per_s")[1] == (10.0, 10.0)


def test_whoever_leads_now_says_how_much_there_is_to_do() -> None:
    """Also one that did not lead before, or where the old one still thinks that it does."""
    other = said("n2", uptime=24.0, logs={0: (500, 400), 1: (9, 9)}, role="leader", term=3, **used(9_000))
    seen = look(BEFORE, {**NOW, "n2": other}, partitions=1)
    assert (seen.head["leader"], seen.head["term"], seen.head["commands_per_s"]) == ("n2", 3, 100.5)
    nobody = look(BEFORE, {**NOW, "n1": AWAY}, partitions=1)
    assert (nobody.head["leader"], nobody.head["commands_per_s"]) == (None, 100.5)


def test_a_node_of_a_release_that_does_not_say_what_it_takes_has_the_rest() -> None:
    older = said("n2", uptime=24.0, logs={0: (500, 400)})
    del older["usage"]
    seen = look(BEFORE, {**NOW, "n2": older}, partitions=1)
    assert rows(seen, "commands_per_s", "bytes_per_s", "memory_bytes")[1] == (100.0, None, None)


def test_who_does_not_answer_is_shown_with_why() -> None:
    refused = PermissionDenied("'me' may not", principal="me", right="status", partition_id=None)
    seen = look(BEFORE, {**NOW, "n2": refused, "n3": AWAY}, partitions=1)
    assert rows(seen, "node", "role", "code")[1:] == [
        ("n2", "refuses us", "permission_denied"),
        ("n3", "unreachable", "unavailable"),
    ]
    assert told(seen)[-2:] == ["n2: 'me' may not", "n3: n3 cannot be reached"]
    nobody = look(BEFORE, dict.fromkeys(NOW, AWAY), partitions=5)
    assert (headline(nobody), nobody.partitions, len(nobody.nodes)) == ("no node answers", [], 3)
    assert nobody.problems[0].startswith("no majority")


@pytest.mark.parametrize("width", [20, 60, 80, 100, 120, 200])
def test_a_narrow_terminal_does_without_columns_and_no_number_is_cut(width: int) -> None:
    whole = node_rows(look(BEFORE, NOW, partitions=1))
    shown = fitting(whole, width=width)
    assert list(shown[0])[:2] == ["node", "role"]
    assert "commands/s" in shown[0]
    assert all(row.items() <= other.items() for row, other in zip(shown, whole, strict=True))
    if width == 200:
        assert shown == whole
    elif width >= 60:
        lengths = [max(len(name), *(len(row[name]) for row in shown)) for name in shown[0]]
        assert sum(lengths) + 3 * len(lengths) <= width


def test_a_live_frame_holds_what_nodes_say_as_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Whoever writes `[red]` into an error gives no orders to the terminal; and partitions may all be gone."""
    monkeypatch.setenv("COLUMNS", "160")
    lost = {**NOW, "n1": Unavailable("[red]away[/nothing]")}
    frames = [
        (look({}, BEFORE, partitions=5), ["n1 leads (term 2): committed 90\n", "running"]),
        (look(BEFORE, NOW, partitions=5), ["201 commands/s, 2.0 KiB/s"]),
        (look(NOW, lost, partitions=0), ["n1: [red]away[/nothing]", "no node leads"]),
        (look(NOW, dict.fromkeys(NOW, AWAY), partitions=5), ["no node answers"]),
    ]
    for seen, words in frames:
        top_module._live(iter([seen]), 5)
        out = capsys.readouterr().out
        assert [word for word in words if word not in out.replace(" \n", "\n")] == []


# -- the command


class Clock:
    """Nobody waits; Ctrl-C comes when it has been asked to for so many times."""

    def __init__(self, sleeps: int) -> None:
        self.now, self.left = 0.0, sleeps

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.now, self.left = self.now + seconds, self.left - 1


def grows(*, name: str = "n1") -> Callable[[Session, Frame], None]:
    """Ten commands, each time that it is asked, in a second of its own clock."""
    asked = 0

    def answer(session: Session, frame: Frame) -> None:
        nonlocal asked
        asked += 1
        header = said(name, uptime=float(asked), logs={0: (10 * asked, 10 * asked)}, role="leader", **used(100 * asked))
        header["members"] = [[each, address, True, "voter"] for each, address in session.node.members.items()]
        session.send(frame, Kind.STATUS_REPLY, {**header, "digests": None, "waiters": 0, "version": "0"})

    return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(sleeps=1_000)
    monkeypatch.setattr(top_module, "time", clock)
    return clock


@pytest.mark.parametrize("how", [["-o", "json"], ["--once", "-o", "jsonl"], ["--once", "-o", "json", "--every", "9s"]])
def test_one_frame_has_the_rates_of_two_looks(node: FakeNode, capsys: Any, clock: Clock, how: list[str]) -> None:
    node.answers[Kind.STATUS] = grows()
    status, out, err = run(capsys, "top", *how)
    seen = json.loads(out)
    assert (status, err, len(out.splitlines())) == (0, "", 1)
    assert (seen["leader"], seen["commands_per_s"], seen["bytes_per_s"]) == ("n1", 10.0, 100.0)
    assert (seen["healthy"], len(seen["nodes"]), len(seen["partitions"])) == (True, 1, 1)
    assert clock.now == (9.0 if "9s" in how else 1.0)


@pytest.mark.parametrize("output", ["json", "jsonl", "table"])
def test_a_process_that_was_started_without_stdout_shows_nothing(
    node: FakeNode, capsys: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """As with `>&-`: Python's is None then."""
    node.answers[Kind.STATUS] = grows()
    monkeypatch.setattr(sys, "stdout", None)
    assert run(capsys, "top", "--once", "-o", output)[:2] == (0, "")


def test_without_a_terminal_a_table_is_shown_once(node: FakeNode, capsys: Any, clock: Clock) -> None:
    node.answers[Kind.STATUS] = grows()
    status, out, err = run(capsys, "top")
    assert (status, err) == (0, "n1 leads (term 2): committed 90, 10 commands/s, 100 B/s\n")
    assert [line.split()[:5] for line in out.splitlines() if line.startswith("n1")] == [
        ["n1", "leader", "90", "10", "100"]
    ]


def test_it_goes_on_until_ctrl_c_and_ends_well(node: FakeNode, capsys: Any, clock: Clock) -> None:
    node.answers[Kind.STATUS] = grows()
    clock.left = 4 * 3
    status, out, _ = run(capsys, "top", "-o", "jsonl")
    frames = [json.loads(line) for line in out.splitlines()]
    assert (status, [frame["commands_per_s"] for frame in frames]) == (0, [10.0] * 3)


def test_it_goes_on_without_nodes_that_are_away_and_without_any(
    node: FakeNode, capsys: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {"n1": NOW["n1"], "n2": AWAY}
    looks: list[Any] = [BEFORE, NOW, two, Unavailable("there is nobody"), Unavailable("there is nobody"), NOW]

    def next_look(*_: Any, **__: Any) -> Any:
        found = looks.pop(0)
        if isinstance(found, LogboomError):
            raise found
        return found

    monkeypatch.setattr(SyncClient, "status_all", next_look)
    clock.left = 4 * (len(looks) - 1)
    status, out, _ = run(capsys, "top", "-o", "jsonl")
    frames = [json.loads(line) for line in out.splitlines()]
    assert (status, [frame["leader"] for frame in frames]) == (0, ["n1", "n1", None, None, "n1"])
    assert [[row["role"] for row in frame["nodes"]] for frame in frames[1:4]] == [
        ["leader", "unreachable"], ["unreachable"] * 2, ["unreachable"] * 2
    ]  # fmt: skip
    assert [frame["commands_per_s"] for frame in frames] == [201.0, None, None, None, None]


def test_where_nobody_answers_the_first_look_there_is_nothing_to_show(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.STATUS] = fails(PermissionDenied("no", principal="me", right="status", partition_id=None))
    assert run(capsys, "top")[0] == 1
    assert run(capsys, "top", "--endpoints", "127.0.0.1:1", "--timeout", "100ms")[0] == 3


def test_frames_end_when_nobody_reads_them_any_more(node: FakeNode) -> None:
    """Not at the next one, which may be an hour away."""
    node.answers[Kind.STATUS] = grows()
    command = ["top", "-o", "jsonl", "--every", "500ms", "--endpoints", node.address]
    with subprocess.Popen(
        [sys.executable, "-m", "logboom", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["leader"] == "n1"
            process.stdout.close()
            assert process.wait(60) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()
