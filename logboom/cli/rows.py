"""What ``logboom submit`` reads: one command per argument list, line, JSON object, CSV row or Parquet row.

Every source gives *rows*, dicts with the fields below, and the number of the line that each ends in (of the row, in
Parquet); ``command_of`` makes commands of them.

========== =======================================================================
op         ``put`` (default with ``value``), ``delete``, ``cas``, ``add``, ``record``, ``delete_prefix``,
           ``delete_range``; in JSON lines ``txn`` (see ``txns``)
key        which key
value      of put and cas; the payload of ``record``
expected   of cas; absent: the key must not exist
numbers    of add: a list, or text with spaces between
end        of delete_range: where to stop, exclusive; absent: behind the last key
partition  where to, instead of ``-p``
========== =======================================================================

A field with a value that the op does not take is refused: a put with ``expected`` would be one without a condition.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from logboom.cli.common import PARTITION_MAX, to_bytes
from logboom.cli.txns import txn_of
from logboom.commands import Add, Cas, Command, Delete, DeletePrefix, DeleteRange, Put
from logboom.errors import LogboomError
from logboom.types import MIB, Record

Row = dict[str, Any]

TAKES: Final = {
    "put": frozenset(("key", "value")),
    "delete": frozenset(("key",)),
    "cas": frozenset(("key", "expected", "value")),
    "add": frozenset(("key", "numbers", "value")),
    "record": frozenset(("key", "value")),
    "delete_prefix": frozenset(("key",)),
    "delete_range": frozenset(("key", "end")),
}
"""Beside ``op`` and ``partition``."""
FIELDS: Final = frozenset(("op", "partition")).union(*TAKES.values())
TXN_FIELDS: Final = frozenset(("op", "compares", "then", "otherwise", "partition"))
FIELD_CHARACTERS_MAX: Final = 128 * MIB
"""Of a CSV field: as much as ``log.batch_bytes_max`` may be set to, in hexadecimal. Nodes say what they take."""
_DIGITS: Final = re.compile("[0-9]{1,10}")
USAGE: Final = (
    "put KEY VALUE | delete KEY | cas KEY EXPECTED VALUE | add KEY NUMBER... | delete-prefix PREFIX | "
    "record PAYLOAD [KEY]"
)
SUFFIXES: Final = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


def words_row(words: list[str]) -> Row:
    """The command-line form. Raises UsageError."""
    op, rest = words[0].lower().replace("-", "_"), words[1:]
    match op, rest:
        case "put", [key, value]:
            return {"op": op, "key": key, "value": value}
        case "delete" | "delete_prefix", [key]:
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
    default = "add" if row.get("numbers") is not None else "put"
    op = default if row.get("op") in (None, "") else str(row["op"]).lower()
    known = TXN_FIELDS if op == "txn" else FIELDS
    unknown = set(row) - known
    if unknown:
        raise click.UsageError(f"unknown field {min(unknown)!r}; known are {', '.join(sorted(known))}")
    if op != "txn":
        _check_fields(row, op)
    if op == "record":
        key = row.get("key")
        return Record(_bytes(row, "value", encoding), None if key is None else _bytes(row, "key", encoding))
    if op == "txn":
        return txn_of(
            row,
            text=lambda given, name: _bytes(given, name, encoding),
            numbers=_numbers,
            command=lambda given: command_of(given, encoding),
        )
    key_bytes = _bytes(row, "key", encoding)
    if op == "put":
        return Put(key_bytes, _bytes(row, "value", encoding))
    if op == "delete":
        return Delete(key_bytes)
    if op == "cas":
        expected = None if row.get("expected") is None else _bytes(row, "expected", encoding)
        return Cas(key_bytes, expected, None if row.get("value") is None else _bytes(row, "value", encoding))
    if op == "delete_prefix":
        return DeletePrefix(key_bytes)
    if op == "delete_range":
        return DeleteRange(key_bytes, None if row.get("end") is None else _bytes(row, "end", encoding))
    return Add(key_bytes, *_numbers(row))


def _check_fields(row: Row, op: str) -> None:
    """The op of a row is one, and takes whatever has a value."""
    takes = TAKES.get(op)
    if takes is None:
        raise click.UsageError(f"unknown op {op!r}; a command is {USAGE}")
    for name, value in row.items():
        if value is not None and name not in takes and name not in ("op", "partition"):
            others = ", ".join(each for each, theirs in TAKES.items() if name in theirs)
            raise click.UsageError(f"{op} takes no {name!r}, which is for {others}")
    if op == "add" and row.get("numbers") is not None and row.get("value") is not None:
        raise click.UsageError("add takes 'numbers' or 'value', not both")


def partition_of_row(row: Row) -> int | None:
    """The row's own partition, if it names one."""
    wanted = row.get("partition")
    if wanted is None or wanted == "":
        return None
    found: int | None = None
    if isinstance(wanted, str) and _DIGITS.fullmatch(wanted.strip()):
        found = int(wanted)
    elif isinstance(wanted, int) and not isinstance(wanted, bool):
        found = wanted
    elif isinstance(wanted, float) and wanted.is_integer():  # a column of whole numbers with gaps has become floats
        found = int(wanted)
    if found is None or not 0 <= found <= PARTITION_MAX:
        raise click.UsageError(f"partition {wanted!r} is not the number of one")
    return found


def _bytes(row: Row, name: str, encoding: str) -> bytes:
    value = row.get(name)
    if value is None:
        raise click.UsageError(f"a command without {name!r}: {row}")
    if isinstance(value, bytes):
        return value
    try:
        return to_bytes(value if isinstance(value, str) else json.dumps(value), encoding)
    except (TypeError, ValueError, RecursionError):
        raise click.UsageError(f"{name!r} is no text and no bytes, but {type(value).__name__}") from None


def _numbers(row: Row) -> list[float]:
    numbers = row.get("value") if row.get("numbers") is None else row["numbers"]
    if numbers is None:
        raise click.UsageError(f"an add without 'numbers': {row}")
    items = numbers.split() if isinstance(numbers, str) else numbers if isinstance(numbers, list) else [numbers]
    try:
        return [_number(item) for item in items]
    except (TypeError, ValueError, OverflowError):
        raise click.UsageError(f"add takes numbers, not {numbers!r}") from None


def _number(item: Any) -> float:
    if isinstance(item, bool):
        raise TypeError("true and false are no numbers")
    if isinstance(item, int | float):
        return item
    if isinstance(item, Decimal):
        if item != item.to_integral_value():
            raise click.UsageError(
                f"add takes integer and floating-point numbers, not decimals like {item}: write an amount as double "
                "or, for exact sums, as a whole number of its smallest unit"
            )
        return int(item)
    if isinstance(item, str | bytes):
        with suppress(ValueError):
            return int(item)
    return float(item)  # of half precision, say: int() would cut it


# -- files


def unit_of(form: str) -> str:
    """What the numbers of rows count."""
    return "row" if form == "parquet" else "line"


def format_of(path: str, wanted: str | None) -> str:
    """The format asked for, or what the name says; lines otherwise."""
    return wanted or SUFFIXES.get(Path(path).suffix.lower(), "lines")


def read_rows(file: BinaryIO, form: str, *, raw: bool) -> Generator[tuple[int, Row], None, None]:
    """Rows of an open file and their lines, as they are read. Raises UsageError, naming the line.

    To be closed before the file.
    """
    if form == "parquet":
        yield from enumerate(_parquet(file), 1)
        return
    if form == "csv":
        yield from _csv(file)
    elif raw:
        yield from _payloads(file)
    else:
        yield from _by_line(file, _json_line if form == "jsonl" else _line)


def _csv(file: BinaryIO) -> Iterator[tuple[int, Row]]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")  # spreadsheets begin with its mark
    csv.field_size_limit(FIELD_CHARACTERS_MAX)  # of the process: 128 KiB, unless it is said
    rows = csv.DictReader(text, strict=True)
    try:
        if twice := _twice(rows.fieldnames or ()):
            raise click.UsageError(f"line {rows.line_num}: it names the column {twice} twice")
        for row in rows:
            if None in row:
                raise click.UsageError(f"line {rows.line_num}: more columns than the first line names")
            yield rows.line_num, {name: value for name, value in row.items() if value not in (None, "")}
    except csv.Error as error:
        raise click.UsageError(f"line {rows.reader.line_num}: not CSV: {error}") from None
    except UnicodeDecodeError as error:  # which is read ahead
        raise click.UsageError(f"not UTF-8, somewhere behind line {rows.line_num}: {error}") from None
    finally:
        text.detach()


def _twice(names: Sequence[str]) -> str | None:
    """A column that would hide another one. Those without a name, which spreadsheets leave behind the last, do not."""
    return next((name for name in names if name and names.count(name) > 1), None)


def _by_line(file: BinaryIO, reader: Callable[[bytes], Row]) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(file, 1):
        stripped = line.rstrip(b"\r\n")
        if number == 1:
            stripped = stripped.removeprefix(BOM_UTF8)
        if not stripped or stripped.isspace():
            continue
        try:
            yield number, reader(stripped)
        except (click.UsageError, LogboomError, ValueError) as error:
            raise click.UsageError(f"line {number}: {error}") from None
        except RecursionError:
            raise click.UsageError(f"line {number}: nested too deeply") from None


def _line(line: bytes) -> Row:
    return words_row(shlex.split(line.decode("utf-8", "surrogateescape")))


def _payloads(file: BinaryIO) -> Iterator[tuple[int, Row]]:
    """Whatever is on a line, but for its end."""
    for number, line in enumerate(file, 1):
        yield number, {"op": "record", "value": line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")}


def _json_line(line: bytes) -> Row:
    try:
        row = _JSON.decode(line.removeprefix(BOM_UTF8).decode())
    except ValueError as error:
        raise click.UsageError(f"not JSON, one object on each line: {error}") from None
    if not isinstance(row, dict):
        raise click.UsageError(f"expected a JSON object, one object on each line, not {type(row).__name__}")
    if b"\\u" in line or not line.isascii():
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise click.UsageError("half of a surrogate pair is no text") from None
    return row


def _object(pairs: list[tuple[str, Any]]) -> Row:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise click.UsageError(f"it names {twice!r} twice in one object")
    return made


_JSON: Final = json.JSONDecoder(object_pairs_hook=_object)


def _parquet(file: BinaryIO) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        source = parquet.ParquetFile(file)
        unknown = set(source.schema_arrow.names) - FIELDS
        if unknown:
            raise click.UsageError(f"unknown column {min(unknown)!r}; known are {', '.join(sorted(FIELDS))}")
        if twice := _twice(source.schema_arrow.names):
            raise click.UsageError(f"it has more than one column {twice}")
        for batch in source.iter_batches(batch_size=8192):
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if value is not None}
    except (pyarrow.ArrowException, OSError) as error:
        raise click.UsageError(f"not a Parquet file that can be read: {error}") from None
