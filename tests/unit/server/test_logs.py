"""Log lines as a node writes them: in a process of its own, since logging is set up once per process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def logged(code: str, *, level: str = "info", form: str = "json") -> list[str]:
    """The lines on stderr after ``code`` has logged through ``log``."""
    script = f"import structlog\nfrom server.world.logs import configure\nconfigure(level={level!r}, form={form!r})\n"
    result = subprocess.run(
        [sys.executable, "-c", f"{script}log = structlog.get_logger()\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == ""  # stdout belongs to commands and their results
    return result.stderr.splitlines()


def parsed(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("form", ["json", "auto"])
def test_without_a_terminal_each_event_is_one_json_line(form: str) -> None:
    rows = parsed(
        logged("log.info('up', node='n1'); log.warning('two\\nlines', raw=b'\\xff', who=object())", form=form)
    )
    assert [(row["event"], row["level"]) for row in rows] == [("up", "info"), ("two\nlines", "warning")]
    assert rows[0]["node"] == "n1"
    assert rows[0]["timestamp"].endswith("Z")


def test_an_error_with_its_traceback_is_one_line_too() -> None:
    (row,) = parsed(logged("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    log.error('bad', exc_info=error)"))
    assert "ZeroDivisionError" in row["exception"]
    assert "Traceback" in row["exception"]


@pytest.mark.parametrize(("level", "count"), [("debug", 3), ("info", 2), ("WARNING", 1), ("error", 0)])
def test_the_level_is_the_least_that_is_written(level: str, count: int) -> None:
    assert len(logged("log.debug('d'); log.info('i'); log.warning('w')", level=level)) == count


def test_console_is_for_people() -> None:
    (line,) = logged("log.info('up', node='n1')", form="console")
    assert "up" in line
    assert "n1" in line
    assert not line.startswith("{")


def test_every_line_says_which_node_and_libraries_log_the_same_way() -> None:
    rows = parsed(
        logged(
            "import logging, warnings\n"
            "configure(level='info', form='json', node='n7')\n"
            "log.info('up'); log.info('other', node='n8')\n"
            "logging.getLogger('asyncio').error('Task %s', 'x')\n"
            "logging.getLogger('asyncio').debug('much')\n"
            "warnings.warn('careful')\n"
            "try:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.getLogger('lib').exception('bad')",
        )
    )
    assert [(row["event"], row["node"]) for row in rows[:3]] == [("up", "n7"), ("other", "n8"), ("Task x", "n7")]
    assert (rows[2]["logger"], rows[2]["level"]) == ("asyncio", "error")
    assert rows[3]["level"] == "warning"
    assert "careful" in rows[3]["event"]
    assert "ZeroDivisionError" in rows[4]["exception"]
    assert len(rows) == 5
    assert all(row["timestamp"].endswith("Z") for row in rows)


@pytest.mark.parametrize("gone", ["2>/dev/full", "2>&-", "2> >(exec 2>&-; exit 0)"])
def test_nothing_comes_of_a_line_that_cannot_be_written(gone: str) -> None:
    code = (
        "import logging, structlog, sys, time\n"
        "from server.world.logs import configure, keep_standard_streams, say\n"
        "keep_standard_streams()\n"
        "configure(level='info', form='auto')\n"
        "for _ in range(1000):\n    structlog.get_logger().info('up'); logging.getLogger('lib').error('bad')\n"
        "say('the end')\n"
        "held = open(sys.argv[1], 'wb')\n"
        "print('done', held.fileno() > 2)"
    )
    result = subprocess.run(
        ["bash", "-c", f'exec "$0" -c "$1" /dev/null {gone}', sys.executable, code],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == "done True\n"


def test_what_the_collector_finds_while_a_line_is_written_is_logged_too() -> None:
    """A task whose error nobody has looked at, say."""
    code = (
        "import gc\n"
        "from server.world import logs\n"
        "class Lost:\n"
        "    def __init__(self): self.me = self\n"
        "    def __del__(self): log.error('lost')\n"
        "write = logs._LINES.write\n"
        "def interrupted(text):\n"
        "    gc.collect()\n"
        "    return write(text)\n"
        "logs._LINES.write = interrupted\n"
        "Lost()\n"
        "log.info('line')"
    )
    assert [row["event"] for row in parsed(logged(code))] == ["lost", "line"]
