"""What the commands share: how to reach a cluster, how to read bytes and durations, how to print rows."""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import math
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import IO, Any, Final, TypeVar

import click

from logboom.cli import PORTS, STDOUT, nobody_reads, talk
from logboom.client import IN_CLEAR
from logboom.commands import Value
from logboom.config import PARTITIONS_MAX
from logboom.errors import InvalidRequest
from logboom.sync_client import SyncClient
from logboom.types import NUMBER_MAX, Watermark

F = TypeVar("F", bound=Callable[..., Any])
Row = Mapping[str, Any]

PARTITION_MAX: Final = (1 << 32) - 1
"""What nodes take of ids."""
DURATION_S_MAX: Final = 366 * 86_400.0
ALONE_S: Final = 3.0
"""Without an answer: then it is said that there is none."""
HEADING: Final = 5
TEXT_COLUMN: Final = 12
"""Columns of a table that does not fit are no narrower: what a heading, and a text, is folded to."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|)")
NUMBER: Final = "\0"
"""In front of a word that would be taken for an option; arguments of processes have no such character."""
_NEGATIVE: Final = re.compile(r"-\.?[0-9][0-9.eE+_-]*")
_NO_JSON: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
_PARTITIONS: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")


class Duration(click.ParamType[float]):
    """``500ms``, ``5s``, ``2m``, or plain seconds; becomes seconds. Up to a year; 0 only with ``zero``."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See the class."""
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(str(value))
        if found is None or (float(found[1]) == 0 and not self._zero):
            self.fail(f"{value!r} is not a duration such as 500ms, 5s or 2m", param, ctx)
        seconds = float(found[1]) * _UNITS[found[2]]
        if seconds > DURATION_S_MAX:
            self.fail(f"{value!r} is longer than a year", param, ctx)
        return seconds


class Whole(click.IntRange):
    """A whole number, from ``low`` to as far as nodes take it."""

    def __init__(self, low: int = 0, most: int = NUMBER_MAX) -> None:
        super().__init__(low)
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See the class."""
        found = int(super().convert(value, param, ctx))
        if found > self._most:
            self.fail(f"{found} is more than {self._most}", param, ctx)
        return found


INDEX: Final = Whole()
PARTITION: Final = Whole(most=PARTITION_MAX)


class Text(click.ParamType[str]):
    """What goes to a node as text: bytes that are not UTF-8 are refused."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See the class."""
        try:
            str(value).encode()
        except UnicodeEncodeError:
            self.fail(f"{value!r} is not UTF-8", param, ctx)
        return str(value)


TEXT: Final = Text()


class When(click.ParamType[datetime]):
    """ISO 8601, in UTC if it names no zone, as everything that is shown; or ``now``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """See the class."""
        try:
            when = datetime.now(UTC) if value == "now" else datetime.fromisoformat(str(value))
            when = (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):  # also the first and last of days: elsewhere they are in another year
            when = None
        if when is None or when.timestamp() < 0:
            self.fail(f"{value!r} is not a time such as 2026-11-22T03:05:00Z, with +01:00 for Z, or now", param, ctx)
        return when


class Word(click.ParamType[str]):
    """What ``WordsCommand`` takes as its arguments."""

    name = "word"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See the class."""
        return str(value).removeprefix(NUMBER)


class WordsCommand(click.Command):
    """Numbers below zero among its words are words; what else begins with a dash is told where it goes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command."""
        marked: list[str] = []
        for arg in args:
            before = marked[-1] if marked else ""
            free = not before.startswith("-") or before == "-"
            marked.append(NUMBER + arg if free and _NEGATIVE.fullmatch(arg) else arg)
        try:
            return super().parse_args(ctx, marked)
        except click.NoSuchOption as error:
            say = f"{error.format_message().rstrip('.')}; keys and values that begin with - go behind `--`"
            raise click.UsageError(say, ctx) from None


class PartitionIds(click.ParamType[list[int]]):
    """Ids of partitions: ``0,3,5-9``."""

    name = "partitions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """See the class."""
        if isinstance(value, list):
            return value
        found: dict[int, None] = {}
        for part in str(value).split(","):
            ends = _PARTITIONS.fullmatch(part.strip())
            first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends is not None else (1, 0)
            if last < first:
                self.fail(f"{value!r} is not a list of partitions such as 0,3,5-9", param, ctx)
            if last > PARTITION_MAX or len(found) + last - first >= PARTITIONS_MAX:
                self.fail(f"{value!r} names more partitions than there can be", param, ctx)
            found.update(dict.fromkeys(range(first, last + 1)))
        return list(found)


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command talks to."""

    endpoints: str
    tls_dir: str | None
    token: str | None
    timeout: float

    def connect(self) -> SyncClient:
        """A client; connects when it is first used. Raises InvalidRequest or ConfigError."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", IN_CLEAR)  # it has been said, in a line
            client = SyncClient(self.endpoints, tls=self.tls_dir, token=self.token, timeout=self.timeout)
        if self.timeout > ALONE_S:
            timer = threading.Timer(ALONE_S, self._tell_if_alone, (weakref.ref(client),))
            timer.daemon = True  # who has ended is not waited for
            timer.start()
        return client

    def _tell_if_alone(self, client: weakref.ref[SyncClient]) -> None:
        """Who waits for nothing but a time-out may want to look at the address."""
        found = client()
        with suppress(InvalidRequest):  # it is closed
            if found is not None and not found.has_met:
                trying = f"trying for {self.timeout:g} s (--timeout); {PORTS}"
                talk(f"logboom: no node has answered yet ({self.endpoints}); {trying}")


def cluster_options(command: F) -> F:
    """``--endpoints``, ``--tls-dir``, ``--token``, ``--timeout``: the command gets one ``target``."""

    def wrapped(endpoints: str | None, tls_dir: str | None, token: str | None, timeout: float, **rest: Any) -> Any:
        if not endpoints:
            raise click.UsageError("no cluster given: use --endpoints host:port,... or set LOGBOOM_ENDPOINTS")
        for endpoint in endpoints.split(","):
            try:
                endpoint.rpartition(":")[0].encode("idna")
            except UnicodeError:
                raise click.UsageError(f"endpoint {endpoint!r}: no host has such a name") from None
        if token and not tls_dir:
            talk(f"logboom: {IN_CLEAR}")
        return command(target=Target(endpoints, tls_dir or None, token, timeout), **rest)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--timeout", type=Duration(), default="30s", show_default=True, help="Deadline of each request."),
        click.option(
            "--token", type=TEXT, envvar="LOGBOOM_TOKEN", help="Reserved: no node looks at it; use certificates."
        ),
        click.option("--tls-dir", envvar="LOGBOOM_TLS_DIR", help="ca.pem, client.pem and client.key; LOGBOOM_TLS_DIR."),
        click.option("--endpoints", envvar="LOGBOOM_ENDPOINTS", help="host:port,host:port,...; LOGBOOM_ENDPOINTS."),
    ):
        option(wrapped)
    return wrapped  # type: ignore[return-value]


def output_option(command: F) -> F:
    """``-o table|json|jsonl``."""
    kinds = click.Choice(["table", "json", "jsonl"])
    return click.option("-o", "--output", type=kinds, default="table", show_default=True)(command)


def encoding_option(command: F) -> F:
    """``--encoding``: how bytes are written, in arguments, files and output."""
    return click.option(
        "--encoding",
        type=click.Choice(["text", "hex", "base64"]),
        default="text",
        show_default=True,
        help="How keys and values are written here.",
    )(command)


# -- bytes


def to_bytes(text: str, encoding: str) -> bytes:
    """What the user wrote, as bytes. Raises UsageError."""
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise click.UsageError(f"{text!r} is not {encoding}: {error}") from None
    return text.encode("utf-8", "surrogateescape")


def to_text(raw: bytes, encoding: str) -> str:
    """Bytes, as the user wants to see them."""
    if encoding == "hex":
        return raw.hex()
    if encoding == "base64":
        return base64.b64encode(raw).decode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        _tell_once("some bytes are no text, and are shown as \\x..: --encoding hex or base64 shows them as they are")
        return raw.decode("utf-8", "backslashreplace")


def _tell_once(message: str) -> None:
    """To the human, once in a command."""
    context = click.get_current_context(silent=True)
    if context is not None and not context.meta.get(message):
        context.meta[message] = True
        talk(f"logboom: {message}")


def on_terminal(stream: IO[Any] | None) -> bool:
    """Whether a stream is a terminal. None: the process was started without that stream."""
    return stream is not None and stream.isatty()


def shown(value: Value | None, encoding: str) -> Any:
    """A stored value for output: text, a list of numbers, or None."""
    if value is None or not isinstance(value, bytes):
        return None if value is None else shown_numbers(value)
    return to_text(value, encoding)


def shown_numbers(numbers: Iterable[float]) -> list[float | str]:
    """JSON has no such numbers as NaN and Infinity: they are texts, which ``submit`` reads."""
    return [n if math.isfinite(n) else _NO_JSON.get(n, "NaN") for n in numbers]


# -- rows


@contextmanager
def unread_too() -> Iterator[None]:
    """For a command whose exit status is a verdict: it has one also where nobody reads what it prints (`| head`)."""
    try:
        yield
    except BrokenPipeError:
        nobody_reads(STDOUT)


def print_rows(rows: Iterable[Row], output: str, *, title: str = "") -> None:
    """A table, a JSON array, or JSON lines (written as they come)."""
    if output == "jsonl":
        print_stream(rows, output)
    elif output == "json":
        click.echo(_json(list(rows)))
    else:
        _table(list(rows), title)


def print_stream(rows: Iterable[Row], output: str) -> None:
    """Rows as they come: JSON lines, tab-separated columns; only a JSON array must see the end first."""
    if output == "json":
        click.echo(_json(list(rows)))
        return
    for row in rows:
        click.echo(_json(row) if output == "jsonl" else "\t".join(map(_cell, row.values())))


def print_one(row: Row, output: str) -> None:
    """A single object: names and values below each other, or JSON."""
    if output == "table":
        width = max(map(len, row), default=0)
        for name, value in row.items():
            click.echo(f"{name:<{width}}  {_cell(value)}")
    else:
        click.echo(_json(row))


def _json(given: Any) -> str:
    """In characters that stdout has: what it escapes itself is not always an escape of JSON's."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return json.dumps(given, ensure_ascii=codecs.lookup(encoding).name != "utf-8")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(_cell, value))
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_cell(item)}" for name, item in value.items())
    text = str(value)
    # Whoever wrote it does not give orders to the terminal of whoever looks, nor begins a line of its own.
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _table(rows: list[Row], title: str) -> None:
    if not rows:
        return
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    if on_terminal(sys.stdout) and _framed(names, cells, numeric, title):
        return
    widths = [max(len(line[k]) for line in [names, *cells]) for k in range(len(names))]
    for line in [names, *cells]:
        columns = zip(line, widths, numeric, strict=True)
        click.echo("  ".join(f"{c:>{w}}" if right else f"{c:<{w}}" for c, w, right in columns).rstrip())


def _framed(names: list[str], cells: list[list[str]], numeric: list[bool], title: str) -> bool:
    """A table as wide as the terminal. Headings and long texts are folded, numbers never; False: there is no room."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    room = console.width - 3 * len(names) - 1
    longest = [max(len(line[k]) for line in cells) for k in range(len(names))]
    folded = sum(max(len(name), most) for name, most in zip(names, longest, strict=True)) > room
    least = [
        max(most, min(len(name), HEADING)) if right else min(max(len(name), most), TEXT_COLUMN)
        for name, most, right in zip(names, longest, numeric, strict=True)
    ]
    if folded and sum(least) > room:
        return False
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for name, right, width in zip(names, numeric, least, strict=True):
        fixed = width if folded and right else None
        table.add_column(
            name,
            justify="right" if right else "left",
            overflow="fold",
            width=fixed,
            min_width=width if folded else None,
        )
    for line in cells:
        table.add_row(*map(escape, line))
    console.print(table)
    return True


def refuse_cursors(client: SyncClient, partition: int) -> None:
    """Raises InvalidRequest for the partition of cursors, which is nobody's to write to, or to destroy."""
    if partition == client.cursors_partition():
        raise InvalidRequest(
            f"partition {partition} holds the positions of all named consumers (`logboom cursors list`): "
            "`logboom cursors set` moves one, `logboom cursors delete` forgets one"
        )


def watermark_row(mark: Watermark) -> dict[str, Any]:
    """A watermark for output, under the names of the specification."""
    return {
        "partition": mark.partition_id,
        "state": mark.state,
        "log_index": mark.log_index,
        "durable_index": mark.durable_index,
        "applied_index": mark.applied_index,
        "snapshot_index": mark.snapshot_index,
        "applied_global_index": mark.applied_global_index,
    }
