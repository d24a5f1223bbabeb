"""``logboom submit``: what it says of what its commands did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logboom.cli.submit import CHUNK_RECORDS
from logboom.types import Status
from logboom.wire import Kind
from tests.unit.logboom.command_line import run
from tests.unit.logboom.fake_server import FakeNode, Session


def test_commands_without_effect_are_1(node: FakeNode, capsys) -> None:
    rows = [[0, 1, 1, 1, 0, b"\x02"]]
    node.answers[Kind.SUBMIT] = lambda s, f: s.send(f, Kind.SUBMITTED, {"parts": rows, "commit_index": 1})
    status, out, err = run(capsys, "submit", "-p", "0", "cas", "a", "b", "c", "-o", "jsonl")
    assert status == 1
    assert json.loads(out)["results"] == {"mismatch": 1}
    assert err == (
        "logboom: 1 of 1 commands took no effect (1 mismatch: cas, or a comparison, that found another value) "
        "[refused]\n"
    )


def test_each_status_is_told_in_words(node: FakeNode, capsys, tmp_path: Path) -> None:
    said = bytes((Status.OVERFLOW, Status.OK, 77, Status.WRONG_TYPE, Status.OVERFLOW))
    rows = [[0, 1, 5, 1, 0, said]]
    node.answers[Kind.SUBMIT] = lambda s, f: s.send(f, Kind.SUBMITTED, {"parts": rows, "commit_index": 1})
    path = tmp_path / "x"
    path.write_text("add k 1\n" * 5)
    status, _, err = run(capsys, "submit", "-p", "0", "-f", str(path))
    assert status == 1
    assert "4 of 5 commands took no effect (1 other_77; 2 overflow: add that leaves the 64-bit range; 1 wrong" in err


def test_who_sends_a_command_to_a_log_is_told_that_it_is_one(
    node: FakeNode, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [[0, "kv", "write_ahead"], [1, "log", "write_ahead"]]
    monkeypatch.setattr(FakeNode, "rows", property(lambda _: kinds))
    path = tmp_path / "x"
    path.write_text("put k v\n" * 2)
    status, _, err = run(capsys, "submit", "-p", "1", "-f", str(path))
    assert status == 0
    assert err.count("partition 1 is a log: it keeps commands as records") == 1
    for args in (["-p", "1", "record", "v"], ["-p", "1", "--raw", "-f", str(path)], ["-p", "0", "put", "k", "v"]):
        status, _, err = run(capsys, "submit", *args)
        assert (status, err) == (0, "")


@pytest.mark.parametrize("once", [[], ["--once", "load-1"]])
def test_results_that_only_some_requests_have_are_added_up(node: FakeNode, capsys, tmp_path: Path, once: list) -> None:
    """Nodes told them of what was sent again, to who waited for less, too: nothing behind that was sent any more."""

    def some(session: Session, frame: Any) -> None:
        first = not node.global_index
        rows = [[*where, None if first else bytes((Status.MISMATCH,))] for *where, _ in node.submit(frame)]
        session.send(frame, Kind.SUBMITTED, {"parts": rows, "commit_index": node.global_index})

    node.answers[Kind.SUBMIT] = some
    path = tmp_path / "x"
    path.write_text("".join(f"put k{k} v\n" for k in range(CHUNK_RECORDS + 10)))
    status, out, err = run(capsys, "submit", "-p", "0", "--wait", "committed", "-f", str(path), "-o", "json", *once)
    assert (json.loads(out)[0]["records"], json.loads(out)[0]["results"]) == (CHUNK_RECORDS + 10, {"mismatch": 10})
    assert status == 1
    assert f"10 of {CHUNK_RECORDS + 10} commands took no effect (10 mismatch: " in err


def test_an_empty_name_is_none_to_submit_under(node: FakeNode, capsys) -> None:
    """Of a variable that is not set: the second input of all that had none took no effect, with exit status 0."""
    status, out, err = run(capsys, "submit", "-p", "0", "--once", "", "put", "a", "1")
    assert (status, out) == (2, "")
    assert "--once" in err
    assert not node.of(Kind.SUBMIT)
