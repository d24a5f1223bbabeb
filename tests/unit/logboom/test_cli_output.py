"""What the command line writes where a reader has gone, or a locale lacks the characters. In a process of its own."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from logboom import Add, Compare, Txn
from logboom.cli import cli
from logboom.cli.common import print_one, print_stream, shown
from logboom.cli.read import _command
from logboom.cli.rows import command_of
from server.directory.manifest import sealed


def _manifest(tmp_path: Path) -> Path:
    file = tmp_path / "manifest.json"
    content = {"cluster": "zwölf €", "format": 2, "members": ["n1"], "node": "n1", "partitions": []}
    file.write_bytes(sealed(content))
    return file


def _inspect(file: Path, stdout: int, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "logboom", "inspect", "manifest", str(file)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_a_reader_that_has_what_it_wanted_makes_no_failure(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = _inspect(_manifest(tmp_path), writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_the_locale_cannot_show_is_escaped(tmp_path: Path) -> None:
    done = _inspect(_manifest(tmp_path), subprocess.PIPE, PYTHONIOENCODING="latin-1:strict")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "zwölf \\u20ac".encode("latin-1") in done.stdout


def commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    if not isinstance(command, click.Group):
        yield command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, context)


def test_every_output_may_be_a_table_json_or_lines_of_it() -> None:
    found = {
        tuple(option.type.choices)
        for command in commands(cli, click.Context(cli))
        for option in command.params
        if "--output" in option.opts and isinstance(option.type, click.Choice)
    }
    assert found == {("table", "json", "jsonl")}


def test_a_value_gives_no_orders_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2Jgone\nn9  leader\t\u202e\x9b"
    print_one({"value": evil}, "table")
    print_stream([{"key": evil, "value": "zwölf €"}], "table")
    shown = "\\x1b[2Jgone\\nn9  leader\\t\\u202e\\x9b"
    assert capsys.readouterr().out == f"value  {shown}\n{shown}\tzwölf €\n"


def test_a_command_that_is_a_container_s_first_process_ends_when_it_is_told_to() -> None:
    code = "import os, sys; os.getpid = lambda: 1; from logboom.cli import main; main(sys.argv[1:])"
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", code, "tail", "-p", "0", "--endpoints", endpoint]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                server.settimeout(60)
                connection, _ = server.accept()
                with connection:
                    process.terminate()
                    # The kernel gives a first process no signal that it has no handler for; any other ends with -15.
                    assert process.wait(60) == 128 + signal.SIGTERM
            finally:
                process.kill()


def test_numbers_that_json_has_none_of_are_texts_that_are_read_again() -> None:
    """`-o json` gave NaN and Infinity, which are no JSON, and which other programs refuse."""
    numbers = (math.nan, math.inf, -math.inf, 1.5)
    row = {"op": "add", "key": "k", "numbers": shown(numbers, "text")}
    written = json.dumps(row, allow_nan=False)
    assert json.loads(written)["numbers"] == ["NaN", "Infinity", "-Infinity", 1.5]
    assert command_of(json.loads(written), "text").record().payload == Add(b"k", *numbers).record().payload
    assert shown((1, -(2**63)), "text") == [1, -(2**63)]
    for each in (Add(b"k", math.inf).record(), Txn([Compare(b"k", "==", (math.nan,))], [Add(b"k", math.inf)]).record()):
        assert "Infinity" in json.dumps(_command(each, "text"), allow_nan=False)


@pytest.mark.parametrize("encoding", ["latin-1", "koi8-r", "ascii", "utf-8"])
@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_json_is_json_whatever_characters_stdout_has(tmp_path: Path, encoding: str, output: str) -> None:
    r"""What a locale has no character for was written as `\xf6` or `\U0001f980`, which no other program reads."""
    file = tmp_path / "manifest.json"
    name = "zwölf € 🦀"
    file.write_bytes(sealed({"cluster": name, "format": 2, "members": ["n1"], "node": "n1", "partitions": []}))
    done = subprocess.run(
        [sys.executable, "-m", "logboom", "inspect", "manifest", str(file), "-o", output],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout.decode())
    assert (found[0] if isinstance(found, list) else found)["cluster"] == name
    assert done.stdout.isascii() == (encoding != "utf-8")
