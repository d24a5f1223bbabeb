"""``logboom submit`` behind a pipe: what has come is sent, though no more comes; and Ctrl-C says what was not."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logboom.cli import trickling
from logboom.commands import Put
from logboom.wire import Kind
from tests.unit.logboom.command_line import run, until
from tests.unit.logboom.fake_server import FakeNode, silent

LINES = {
    "lines": [b"put a 1\n", b"put b 2\n"],
    "jsonl": [b'{"key": "a", "value": "1"}\n', b'{"key": "b", "value": "2"}\n'],
    "csv": [b"key,value\na,1\n", b"b,2\n"],
}


@contextmanager
def submitting(node: FakeNode, *how: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "logboom", "submit", "-p", "0", "--endpoints", node.address, *how]
    options = {"stdin": subprocess.PIPE, **options}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[bytes], text: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


@pytest.mark.parametrize("form", LINES)
def test_what_comes_little_by_little_is_sent_as_it_comes(node: FakeNode, form: str) -> None:
    """`tail -f x | logboom submit` sent nothing before 4,000 lines had come, or half a MiB, or the end."""
    with submitting(node, "--format", form, "-o", "json") as process:
        wanted = [Put(b"a", b"1").record().payload, Put(b"b", b"2").record().payload]
        for count, line in enumerate(LINES[form], 1):
            say(process, line)
            until(lambda count=count: len(node.log.get(0, [])) >= count)
            assert node.log[0] == wanted[:count]
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert b'"records": 2' in out


def parts_of(node: FakeNode) -> list[list[int]]:
    """First number and count of each request."""
    return [[row[1], row[3]] for frame in node.of(Kind.SUBMIT) for row in frame.header["parts"]]


def test_under_a_name_pauses_are_nothing(node: FakeNode) -> None:
    """The nodes did not know parts of another run again: refusals were UNKNOWN_RESULT, and logs had all of it twice."""
    with submitting(node, "--once", "monday") as process:
        say(process, LINES["lines"][0])
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4 * trickling.QUIET_S + 1.0)
        assert not node.of(Kind.SUBMIT)
        _, err = process.communicate(LINES["lines"][1], timeout=60)
    assert (process.returncode, err) == (0, b"")
    with submitting(node, "--once", "monday") as process:
        _, err = process.communicate(b"".join(LINES["lines"]), timeout=60)
    assert b"2 of 2 commands were submitted as 'monday' before" in err
    assert parts_of(node) == [[0, 2]] * 2


def test_half_a_line_waits_for_the_other_half(node: FakeNode) -> None:
    with submitting(node, "--raw") as process:
        say(process, b"one\ntw")
        until(lambda: node.log.get(0))
        assert node.log[0] == [b"one"]
        process.communicate(b"o\nthree", timeout=60)
    assert process.returncode == 0
    assert node.log[0] == [b"one", b"two", b"three"]


def test_what_always_comes_is_sent_too(node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each 50 ms is never a tenth of a second late."""
    monkeypatch.setattr(trickling, "LONGEST_S", 0.0)
    monkeypatch.setattr(trickling, "BUFFER_BYTES", 4)
    reading, writing = os.pipe()
    os.write(writing, b"a\nb\nc\nd\n" * 2)
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run(capsys, "submit", "-p", "0", "--raw")[0] == 0
    assert node.log[0] == [b"a", b"b", b"c", b"d"] * 2
    assert len(node.of(Kind.SUBMIT)) == 4


def test_a_regular_file_is_read_as_ever(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"x\n" * 3_000)
    with path.open("rb") as stdin, submitting(node, "--raw", stdin=stdin) as process:
        assert process.wait(60) == 0
        assert trickling.patient(stdin, lambda: None) is None
    assert len(node.log[0]) == 3_000
    assert len(node.of(Kind.SUBMIT)) == 1


def test_who_interrupts_what_is_under_way_is_told_so(node: FakeNode) -> None:
    node.answers[Kind.SUBMIT] = silent
    with submitting(node, "--raw") as process:
        say(process, b"one\ntwo\n")
        until(lambda: node.of(Kind.SUBMIT))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"0 commands were submitted before line 1; lines 1 to 2 may be, too" in err


class Interrupted(io.RawIOBase):
    """Two lines, and then Ctrl-C."""

    def __init__(self) -> None:
        self._left = b"one\ntwo\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise KeyboardInterrupt
        said, self._left = self._left, b""
        buffer[: len(said)] = said
        return len(said)


def test_who_interrupts_before_anything_is_sent_is_told_so(
    node: FakeNode, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was said, as where there had been no line."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Interrupted())))
    status, out, err = run(capsys, "submit", "-p", "0", "--raw")
    assert (status, out) == (130, "")
    assert err.strip() == "logboom: 2 commands were read, and none of them was submitted"
    assert not node.of(Kind.SUBMIT)
