"""Commands over several keys, as rows of JSON: what ``logboom submit`` reads and ``logboom tail`` shows.

``{"op": "txn", "compares": [{"key": …, "operator": "==", "value": …}], "then": [row, …], "otherwise": [row, …]}``:
without ``value``, or with null, the key is not there; ``numbers`` in its place are numbers. Rows are those of other
commands. ``{"op": "delete_prefix", "key": …}``, ``{"op": "delete_range", "key": …, "end": …}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from logboom.cli.common import shown, shown_numbers, to_text
from logboom.commands import Add, Cas, Command, Compare, DeleteRange, Put, Txn, from_record
from logboom.errors import InvalidRequest
from logboom.types import Record

Row = dict[str, Any]
COMPARE_FIELDS = frozenset(("key", "operator", "value", "numbers"))


def txn_of(
    row: Row,
    *,
    text: Callable[[Row, str], bytes],
    numbers: Callable[[Row], list[float]],
    command: Callable[[Row], Command | Record],
) -> Txn:
    """Of a row; how its parts are read is said by whoever reads rows. Raises UsageError, naming the field."""

    def compare(given: Row) -> Compare:
        unknown = set(given) - COMPARE_FIELDS
        if unknown:
            raise click.UsageError(f"unknown field {min(unknown)!r} of a comparison")
        value: Any = None
        if given.get("numbers") is not None and given.get("value") is not None:
            raise click.UsageError("a comparison is with 'numbers' or 'value', not both")
        if given.get("numbers") is not None:
            value = tuple(numbers(given))
        elif given.get("value") is not None:
            value = text(given, "value")
        return Compare(text(given, "key"), str(given.get("operator", "==")), value)

    compares = tuple(map(compare, _rows(row, "compares")))
    then, otherwise = (tuple(map(command, _rows(row, name))) for name in ("then", "otherwise"))
    return Txn(compares, then, otherwise)  # type: ignore[arg-type]  # which says so itself


def _rows(row: Row, name: str) -> list[Row]:
    rows = [] if row.get(name) is None else row[name]
    if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        raise click.UsageError(f"{name!r} of a txn is a list of objects")
    if any("partition" in each for each in rows):
        raise click.UsageError("all of a txn is in one partition, which stands beside `op`")
    return rows


def shown_wide(record: Record, encoding: str) -> Row:
    """A command of the log as it could be submitted, but for its key, which is beside it."""
    try:
        found = from_record(record)
    except InvalidRequest:
        return {"op": "invalid", "value": record.payload.hex()}
    if isinstance(found, Txn):
        return {
            "op": "txn",
            "compares": [
                {"key": to_text(each.key, encoding), "operator": each.operator, **_value(each.value, encoding)}
                for each in found.compares
            ],
            "then": [_row(each, encoding) for each in found.then],
            "otherwise": [_row(each, encoding) for each in found.otherwise],
        }
    return {key: value for key, value in _row(found, encoding).items() if key != "key"}


def _row(command: Command, encoding: str) -> Row:
    key = to_text(command.record().key or b"", encoding)
    if isinstance(command, Put):
        return {"op": "put", "key": key, "value": to_text(command.value, encoding)}
    if isinstance(command, Add):
        return {"op": "add", "key": key, "numbers": shown_numbers(command.numbers)}
    if isinstance(command, Cas):
        expected, value = (None if v is None else to_text(v, encoding) for v in (command.expected, command.value))
        return {"op": "cas", "key": key, "expected": expected, "value": value}
    if isinstance(command, DeleteRange):
        return {
            "op": "delete_range",
            "key": key,
            "end": None if command.end is None else to_text(command.end, encoding),
        }
    return {"op": "delete", "key": key}


def _value(value: Any, encoding: str) -> Row:
    return {"numbers": shown_numbers(value)} if isinstance(value, tuple) else {"value": shown(value, encoding)}
