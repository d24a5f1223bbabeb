"""What ``logboom submit`` reads: one command per argument list, line, JSON object, CSV row or Parquet row.

Every source gives *rows*, dicts with the fields below; ``command_of`` makes commands of them.

========== =======================================================================
op         ``put`` (default with ``value``), ``delete``, ``cas``, ``add``, ``record``
key        which key
value      of put and cas; the payload of ``record``
expected   of cas; absent: the key must not exist
numbers    of add: a list, or text with spaces between
partition  where to, instead of ``-p``
========== =======================================================================
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from logboom.cli.common import to_bytes
from logboom.commands import Add, Cas, Command, Delete, Put
from logboom.errors import LogboomError
from logboom.types import Record

Row = dict[str, Any]

FIELDS: Final = frozenset(("op", "key", "value", "expected", "numbers", "partition"))
USAGE: Final = "put KEY VALUE | delete KEY | cas KEY EXPECTED VALUE | add KEY NUMBER... | record PAYLOAD [KEY]"
SUFFIXES: Final = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


def words_row(words: list[str]) -> Row:
    """The command-line form. Raises UsageError."""
    op, rest = words[0].lower(), words[1:]
    match op, rest:
        case "put", [key, value]:
            return {"op": op, "key": key, "value": value}
        case "delete", [key]:
            return {"op": op, "key": key}
        case "cas", [key, expected, value]:
            return {"op": op, "key": key, "expected": expected, "value": value}
        case "add", [key, _, *_]:
            return {"op": op, "key": key, "numbers": rest[1:]}
        case "record", [payload] | [payload, _]:
            return {"op": op, "value": payload, **({"key": rest[1]} if len(rest) > 1 else {})}
        case _:
            raise click.UsageError(f"cannot read {shlex.join(words)!r}; a command is {USAGE}")


def command_of(row: Row, encoding: str) -> Command | Record:
    """The command of a row. Raises UsageError, naming the field."""
    unknown = set(row) - FIELDS
    if unknown:
        raise click.UsageError(f"unknown field {min(unknown)!r}; known are {', '.join(sorted(FIELDS))}")
    op = str(row.get("op") or ("add" if row.get("numbers") is not None else "put")).lower()
    if op == "record":
        key = row.get("key")
        return Record(_bytes(row, "value", encoding), None if key is None else _bytes(row, "key", encoding))
    key_bytes = _bytes(row, "key", encoding)
    if op == "put":
        return Put(key_bytes, _bytes(row, "value", encoding))
    if op == "delete":
        return Delete(key_bytes)
    if op == "cas":
        expected = None if row.get("expected") is None else _bytes(row, "expected", encoding)
        return Cas(key_bytes, expected, None if row.get("value") is None else _bytes(row, "value", encoding))
    if op == "add":
        return Add(key_bytes, *_numbers(row))
    raise click.UsageError(f"unknown op {op!r}; a command is {USAGE}")


def partition_of_row(row: Row) -> int | None:
    """The row's own partition, if it names one."""
    wanted = row.get("partition")
    if wanted is None or wanted == "":
        return None
    try:
        return int(wanted)
    except (TypeError, ValueError):
        raise click.UsageError(f"partition {wanted!r} is not a number") from None


def _bytes(row: Row, name: str, encoding: str) -> bytes:
    value = row.get(name)
    if value is None:
        raise click.UsageError(f"a command without {name!r}: {row}")
    if isinstance(value, bytes):
        return value
    return to_bytes(value if isinstance(value, str) else json.dumps(value), encoding)


def _numbers(row: Row) -> list[float]:
    numbers = row.get("numbers", row.get("value"))
    if numbers is None:
        raise click.UsageError(f"an add without 'numbers': {row}")
    items = numbers.split() if isinstance(numbers, str) else numbers if isinstance(numbers, list) else [numbers]
    try:
        read: list[float] = [_number(item) for item in items]
    except ValueError:
        raise click.UsageError(f"add takes numbers, not {numbers!r}") from None
    # One kind per vector: a single fraction makes all of them floats.
    return [float(n) for n in read] if any(isinstance(n, float) for n in read) else read


def _number(item: Any) -> float:
    if isinstance(item, int | float) and not isinstance(item, bool):
        return item
    try:
        return int(item)
    except (TypeError, ValueError):
        return float(item)


# -- files


def format_of(path: str, wanted: str | None) -> str:
    """The format asked for, or what the name says; lines otherwise."""
    return wanted or SUFFIXES.get(Path(path).suffix.lower(), "lines")


def read_rows(file: BinaryIO, form: str, *, raw: bool) -> Iterator[Row]:
    """Rows of an open file, as they are read. Raises UsageError, naming the line."""
    if form == "parquet":
        yield from _parquet(file)
        return
    reader = {"lines": _raw_line if raw else _line, "jsonl": _json_line}.get(form)
    if reader is not None:
        yield from _by_line(file, reader)
        return
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        rows = csv.DictReader(text, strict=True)
        for row in rows:
            if None in row:
                raise click.UsageError(f"line {rows.line_num}: more columns than the first line names")
            yield {name: value for name, value in row.items() if value not in (None, "")}
    except (csv.Error, UnicodeDecodeError) as error:
        raise click.UsageError(f"not CSV in UTF-8: {error}") from None
    finally:
        text.detach()


def _by_line(file: BinaryIO, reader: Callable[[bytes], Row]) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        stripped = line.rstrip(b"\r\n")
        if not stripped:
            continue
        try:
            yield reader(stripped)
        except (click.UsageError, LogboomError, ValueError) as error:
            raise click.UsageError(f"line {number}: {error}") from None


def _line(line: bytes) -> Row:
    return words_row(shlex.split(line.decode("utf-8", "surrogateescape")))


def _raw_line(line: bytes) -> Row:
    return {"op": "record", "value": line}


def _json_line(line: bytes) -> Row:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise click.UsageError(f"expected a JSON object, not {row!r}")
    return row


def _parquet(file: BinaryIO) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        source = parquet.ParquetFile(file)
        unknown = set(source.schema_arrow.names) - FIELDS
        if unknown:
            raise click.UsageError(f"unknown column {min(unknown)!r}; known are {', '.join(sorted(FIELDS))}")
        for batch in source.iter_batches(batch_size=8192):
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if value is not None}
    except (pyarrow.ArrowException, OSError) as error:
        raise click.UsageError(f"not a Parquet file that can be read: {error}") from None
