"""Log lines when whoever reads them is slow, or reads no more: in a process of its own, with a pipe."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

import pytest

from server.world.log_lines import Lines

HEAD = """
import os, structlog
from server.world import logs
logs.configure(level="info", form="json", node="n1", queue_bytes=300_000, drain_s=30)
log = structlog.get_logger()
"""
MANY = "for number in range(5_000):\n    log.info('line', number=number, why='x' * 100)\n"
"""Far more than a pipe and the queue take."""


@contextmanager
def process(code: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Its stderr is a pipe that nobody reads but the test. It says on stdout how far it is."""
    with subprocess.Popen(
        [sys.executable, "-c", HEAD + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def said(stream: IO[str] | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cast(IO[str], stream)]


def test_nobody_waits_for_whoever_reads_no_more_and_what_was_lost_is_said_when_he_reads_again() -> None:
    code = f"{MANY}print('on', flush=True)\ninput()\nlog.info('later')\nprint(logs.lost(), flush=True)"
    with process(code) as running:
        assert cast(IO[str], running.stdout).readline() == "on\n"
        cast(IO[str], running.stdin).write("\n")
        cast(IO[str], running.stdin).flush()
        lost = int(cast(IO[str], running.stdout).readline())
        rows = said(running.stderr)
        assert running.wait(30) == 0
    numbers = [row["number"] for row in rows if row["event"] == "line"]
    assert numbers == list(range(len(numbers)))
    (told,) = [row for row in rows if row["event"] == "log_lines_lost"]
    assert (told["node"], told["level"]) == ("n1", "warning")
    assert told["lines"] in (lost, lost - 1)  # with or without the later one
    assert len(numbers) + told["lines"] + sum(row["event"] == "later" for row in rows) == 5_001


def test_it_ends_though_nobody_reads() -> None:
    short = "logs.configure(level='info', form='json', queue_bytes=300_000, drain_s=0.1)\n"
    with process(f"{short}{MANY}logs.ending()\nlog.critical('stopping')\nlogs.drain()\nos._exit(5)") as running:
        assert running.wait(30) == 5
    with process(f"{short}{MANY}raise SystemExit(3)") as running:
        assert running.wait(30) == 3


def test_the_last_words_come_out_whatever_waits_before_them() -> None:
    code = "logs.ending()\nlog.critical('stopping')\nlogs.say('the end')\nlogs.drain()\nos._exit(5)"
    with process(f"{MANY}print('full', flush=True)\n{code}") as running:
        assert cast(IO[str], running.stdout).readline() == "full\n"
        lines = list(cast(IO[str], running.stderr))
        assert running.wait(30) == 5
    assert lines[-1] == "the end\n"
    assert [json.loads(line)["event"] for line in lines[-3:-1]] == ["log_lines_lost", "stopping"]


def test_nothing_is_lost_and_nothing_torn_in_a_pipe_that_does_not_block() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    code = "logs.configure(level='info', form='json', queue_bytes=10_000_000, drain_s=30)\n" + MANY
    with subprocess.Popen([sys.executable, "-c", HEAD + code], stderr=write) as running, os.fdopen(read) as pipe:
        os.close(write)
        try:
            assert [row["number"] for row in said(pipe)] == list(range(5_000))
            assert running.wait(30) == 0
        finally:
            running.kill()


def test_a_line_that_is_larger_than_the_queue_is_written() -> None:
    with process("log.info('large', why='x' * 500_000)") as running:
        assert [row["event"] for row in said(running.stderr)] == ["large"]


@pytest.mark.parametrize("begun", [0, 3])
def test_what_could_not_be_written_is_told_of_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch, begun: int) -> None:
    """A disk that was full has half of a line."""
    there, full = bytearray(), [True]

    def write(_: int, raw: memoryview) -> int:
        if full[0] and len(there) == begun:
            raise OSError(errno.ENOSPC, "full")
        room = begun if full[0] else len(raw)
        there.extend(raw[:room])
        return room

    monkeypatch.setattr(os, "write", write)
    lines = Lines()
    lines.start()
    lines.queue_bytes = 1_000
    for text in ("one\n", "two\n"):
        lines.write(text)
        lines.drain(30)
    full[0] = False
    lines.write("three\n")
    lines.drain(30)
    monkeypatch.undo()
    told = b"\n2 log lines were lost\nthree\n" if begun else b"2 log lines were lost\nthree\n"
    assert bytes(there) == b"one\n"[:begun] + told
    assert lines.lost == 2


def test_no_time_to_drain_in_is_too_long() -> None:
    with process(
        "logs.configure(level='info', form='json', drain_s=1e30)\nlog.info('a')\nlogs.drain()\nos._exit(5)"
    ) as running:
        assert [row["event"] for row in said(running.stderr)] == ["a"]
        assert running.wait(30) == 5
