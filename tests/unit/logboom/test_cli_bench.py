"""``logboom bench``: it writes where it is told to and nowhere else, counts what comes of it, and leaves nothing."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.cli import bench, load
from logboom.cli.load import KEYS, Latencies, Load, Tally
from logboom.errors import DeadlineExceeded, LogboomError, NoSuchPartition, Overloaded, PermissionDenied, Unavailable
from logboom.records import RecordBlock
from logboom.sync_client import SyncClient
from logboom.types import CURSORS_TOKEN
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, Session, fails, silent

MADE = 9
DENIED = PermissionDenied("'me' may not", principal="me", right="write", partition_id=0)
LIMITED = Overloaded("full", partition_id=0, limit="node_ops", maximum=1, used=1, retry_after=0.001)
SHORT = ("--seconds", "150ms", "-o", "json")


def keys(node: FakeNode) -> Counter[bytes]:
    """How often each was written."""
    found: Counter[bytes] = Counter()
    for frame in node.of(Kind.SUBMIT):
        at = 0
        for _, _, _, count, metadata, data in frame.header["parts"]:
            block = RecordBlock.parse(count, frame.body[at : at + metadata], frame.body[at + metadata :][:data])
            found.update(key or b"" for key in block.keys() or [])
            at += metadata + data
    return found


# -- where it writes


@pytest.mark.parametrize(
    "how", [[], ["--clients", "3", "--in-flight", "5"], ["--block", "50", "--in-flight", "2"], ["--wait", "durable"]]
)
def test_it_writes_into_the_partitions_that_are_named_and_says_how_much(
    node: FakeNode, capsys: Any, how: list[str]
) -> None:
    status, out, err = run(capsys, "bench", "-p", "1,3", "--size", "7", *how, *SHORT)
    assert (status, err) == (0, "")
    row = json.loads(out)
    assert set(node.log) == set(row["partitions"]) == {1, 3}
    assert row["commands"] == sum(map(len, node.log.values())) == row["requests"] * row["block"] > 0
    assert all(len(payload) == 1 + 7 for payloads in node.log.values() for payload in payloads)
    assert (row["errors"], row["unanswered"]) == ({}, 0)
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert row["seconds"] >= 0.15
    assert row["commands_per_s"] == pytest.approx(row["commands"] / row["seconds"], rel=0.01)
    assert row["mb_per_s"] == pytest.approx(row["commands_per_s"] * 7 / 1e6, abs=0.01)
    written = keys(node)
    assert len(written) <= KEYS
    assert all(key.startswith(b"logboom-bench/") for key in written)
    clients = {frame.header["producer"] for frame in node.of(Kind.SUBMIT)}
    assert len(clients) == row["clients"]


def test_it_writes_into_all_of_a_kind_where_it_is_told_to(node: FakeNode, capsys: Any) -> None:
    assert run(capsys, "bench", "--all", "kv", *SHORT)[0] == 0
    assert set(node.log) == {0, 1, 2, 3}
    status, out, err = run(capsys, "bench", "--all", "log", *SHORT)
    assert (status, out) == (2, "")
    assert "--create log makes one of its own" in err


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ([], "this writes: say where to"),
        (["-p", "0", "--all", "kv"], "one of --partitions, --all and --create"),
        (["-p", "0", "--create", "kv"], "one of --partitions, --all and --create"),
        (["-p", "0", "--count", "2"], "--count goes with --create"),
        (["-p", "0", "--clients", "9", "--in-flight", "8"], "--in-flight 9, or more"),
        (["-p", "0", "--block", "1000", "--size", "1000000"], "more than any cluster takes"),
        (["-p", "7"], "partition 7 does not exist"),
        (["-p", "0", "--seconds", "0s"], "not a duration"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(
    node: FakeNode, capsys: Any, how: list[str], says: str
) -> None:
    Creates(node)
    status, out, err = run(capsys, "bench", *how)
    assert (status, out, node.of(Kind.SUBMIT)) == (2, "", [])
    assert says in err


def test_partitions_of_other_machines_and_that_of_cursors_are_not_written_to(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SyncClient, "state_machines", lambda _: {0: "kv", 1: "orders"})
    monkeypatch.setattr(SyncClient, "cursors_partition", lambda *_, **__: 4)
    for partition, says in (("0,1", "partition 1 is of 'orders'"), ("4", "logboom cursors")):
        status, _, err = run(capsys, "bench", "-p", partition)
        assert (status, node.of(Kind.SUBMIT)) == (2, [])
        assert says in err


# -- partitions of its own


class Creates:
    """A node that creates partitions, and destroys them."""

    def __init__(self, node: FakeNode) -> None:
        self.there: list[int] = []
        self.created = 0
        self.refuses: LogboomError | None = None
        node.answers[Kind.ADMIN] = self.admin

    def admin(self, session: Session, frame: Frame) -> None:
        header = frame.header
        if header["action"] == "create_partition":
            assert header["token"] != CURSORS_TOKEN
            if self.created == 2:
                session.fail(frame, PermissionDenied("no more", principal="me", right="admin", partition_id=None))
                return
            self.there.append(MADE + self.created)
            self.created += 1
            session.send(frame, Kind.ADMIN_REPLY, {"partition": self.there[-1]})
        elif header["action"] == "destroy_partition":
            if self.refuses is not None:
                session.fail(frame, self.refuses)
                return
            self.there.remove(header["partition"])
            session.send(frame, Kind.ADMIN_REPLY, {"partition": header["partition"]})
        else:
            rows = [[p, "kv", "write_ahead"] for p in (0, 1, 2, 3, *self.there)]
            session.send(frame, Kind.ADMIN_REPLY, {"partitions": rows, "key_partitions": 4})


def test_partitions_of_its_own_are_gone_at_the_end_and_no_other_is_touched(node: FakeNode, capsys: Any) -> None:
    creates = Creates(node)
    status, out, err = run(capsys, "bench", "--create", "log", "--count", "2", *SHORT)
    assert (status, err, creates.created, creates.there) == (0, "", 2, [])
    assert set(node.log) == set(json.loads(out)["partitions"]) == {MADE, MADE + 1}
    assert set(keys(node)) <= {b""}


def test_those_that_were_made_are_gone_where_another_could_not_be(node: FakeNode, capsys: Any) -> None:
    creates = Creates(node)
    status, out, err = run(capsys, "bench", "--create", "kv", "--count", "3", *SHORT)
    assert (status, out, err) == (1, "", "logboom: no more [permission_denied]\n")
    assert (creates.created, creates.there, node.of(Kind.SUBMIT)) == (2, [], [])


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (Unavailable("there is no leader"), 3)])
def test_they_are_gone_also_after_ctrl_c_and_after_a_failure(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    """And what was seen until then is shown."""
    creates = Creates(node)
    drive = bench.drive

    async def breaks(clients: Any, tally: Tally, say: Any) -> None:
        await drive(clients, tally, say)
        raise error

    monkeypatch.setattr(bench, "drive", breaks)
    found, out, _ = run(capsys, "bench", "--create", "kv", *SHORT)
    assert (found, creates.created, creates.there) == (status, 1, [])
    assert json.loads(out)["commands"] == len(node.log[MADE])


def test_what_could_not_be_destroyed_is_told(node: FakeNode, capsys: Any) -> None:
    creates = Creates(node)
    creates.refuses = PermissionDenied("not you", principal="me", right="admin", partition_id=None)
    status, _, err = run(capsys, "bench", "--create", "kv", *SHORT)
    assert (status, creates.there) == (1, [MADE])
    assert f"`logboom partitions destroy {MADE} --yes`" in err
    assert "not you [permission_denied]" in err


# -- what comes of it


def test_failures_are_counted_by_code_and_it_goes_on(node: FakeNode, capsys: Any) -> None:
    well: Any = lambda session, frame: session.usual(frame)  # noqa: E731 - as the others
    late, refused = fails(DeadlineExceeded("late")), fails(LIMITED)
    node.once(Kind.SUBMIT, well, well, late, refused, well, late, well, fails(DENIED))
    alone = ("--in-flight", "1", "--seconds", "1h", "--timeout", "1s")
    status, out, err = run(capsys, "bench", "-p", "0", *alone, "-o", "json")
    row = json.loads(out)
    # Of what is refused for now the client tells nobody, as long as it has time to send it again.
    assert (row["commands"], row["errors"]) == (4, {"deadline_exceeded": 2, "permission_denied": 1})
    assert (status, err) == (1, "logboom: 'me' may not [permission_denied]\n")


def test_where_everything_fails_it_ends_as_the_last_request_did(node: FakeNode, capsys: Any) -> None:
    node.answers[Kind.SUBMIT] = fails(DeadlineExceeded("late"))
    status, out, err = run(capsys, "bench", "-p", "0", *SHORT, "--timeout", "1s")
    row = json.loads(out)
    assert (row["commands"], row["p50_ms"], row["max_ms"]) == (0, None, None)
    assert row["errors"]["deadline_exceeded"] >= row["in_flight"]
    assert status == 3
    assert "late" in err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DENIED, 1),
        (NoSuchPartition("gone", partition_id=9, partitions=1), 2),
    ],
)
def test_what_will_not_get_better_ends_it(node: FakeNode, capsys: Any, error: LogboomError, status: int) -> None:
    node.answers[Kind.SUBMIT] = fails(error)
    found, out, err = run(capsys, "bench", "-p", "0", "--seconds", "1h", "--timeout", "1s")
    assert (found, out) == (status, "")
    assert f"[{error.code}]" in err


def test_who_has_no_answer_at_the_end_is_not_waited_for_much_longer(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "DRAIN_S", 0.05)
    node.answers[Kind.SUBMIT] = silent
    status, out, err = run(capsys, "bench", "-p", "0", "--in-flight", "6", *SHORT)
    row = json.loads(out)
    assert (status, row["commands"], row["unanswered"], row["errors"]) == (1, 0, 6, {})
    assert "nothing was acknowledged" in err


def test_on_a_terminal_each_second_is_told(node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "TELL_S", 0.05)
    monkeypatch.setattr(bench, "on_terminal", lambda _: True)
    status, out, err = run(capsys, "bench", "-p", "0", *SHORT)
    assert (status, json.loads(out)["errors"]) == (0, {})
    lines = err.splitlines()
    assert lines
    assert all("commands/s" in line and "MB/s" in line for line in lines)


@given(st.lists(st.floats(min_value=0, max_value=10_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_share_of_latencies_is_what_it_is_but_for_two_in_a_hundred(seconds: list[float], share: float) -> None:
    kept = Latencies()
    for each in seconds:
        kept.add(each)
    true = sorted(seconds)[math.ceil(share * len(seconds)) - 1]
    found = kept.at(share)
    assert found is not None
    assert min(true, kept.max_s) <= found + 1e-12
    assert found <= max(true, 1e-6) * 1.021
    assert (kept.count, kept.max_s) == (len(seconds), max(seconds))
    assert Latencies().at(share) is None


def test_time_without_answers_counts() -> None:
    """Of ten seconds in which all came in the first, nine were lost; of answers that came late, all."""
    tally = Tally(Load({0: "kv"}, 10.0, size=1, clients=1, in_flight=1, block=1, wait=None, timeout=1.0))
    tally.begins(100.0)
    tally.answered(101.0, 0.5)
    tally.ends(115.0)
    assert (tally.seconds, tally.row()["commands_per_s"]) == (10.0, 0.1)
    tally.answered(112.0, 11.0)
    tally.ends(115.0)
    assert tally.seconds == 12.0
    tally.begins(100.0)
    tally.answered(101.0, 0.5)
    tally.ends(104.0)  # Ctrl-C
    assert tally.seconds == 4.0


def test_a_process_that_was_started_without_stdout_writes_all_the_same(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with a stack, behind all of its work."""
    monkeypatch.setattr(sys, "stdout", None)
    assert run(capsys, "bench", "-p", "0", *SHORT) == (0, "", "")
    assert node.log[0]
