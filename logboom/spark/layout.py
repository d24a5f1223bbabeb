"""What the columns of a DataFrame mean to the sink; settled on the driver from its schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa

from logboom.commands import ADD_NUMBERS_MAX
from logboom.errors import InvalidRequest, NoSuchPartition
from logboom.spark.options import Op, WriteOptions, ids_shown

COLUMNS: Final = ("partition", "key", "value", "headers", "op", "numbers")


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows become commands."""

    machine: str
    """State machine of the partitions written to: ``kv`` gets commands, any other the bytes of ``value``."""
    partitions: tuple[int, ...]
    """Ids a row may go to. By key: the key's hash picks one of them."""
    by_key: bool
    has_key: bool
    op: Op | None
    """None: the column ``op`` says it row by row."""
    add_columns: tuple[str, ...] = ()
    """Empty: the numbers of ``add`` are in the column ``numbers``."""
    kind: Literal["q", "d"] = "q"
    null_key: bytes | None = None
    has_headers: bool = False


def layout_of(schema: pa.Schema, options: WriteOptions, machines: Mapping[int, str]) -> Layout:
    """Check columns against options and the cluster's partitions. Raises InvalidRequest or NoSuchPartition."""
    partitions = _existing(options.partitions, machines)
    machine = _machine(partitions, machines)
    names = schema.names
    missing = [c for c in options.add_columns if c not in names]
    if missing:
        raise InvalidRequest(f"addColumns names {missing[0]!r}; the columns are {', '.join(names)}")
    strange = [n for n in names if n not in COLUMNS and n not in options.add_columns]
    if strange:
        raise InvalidRequest(
            f"column {strange[0]!r} means nothing to the sink: it takes {', '.join(COLUMNS)} and those named in "
            "addColumns; select() what is to be written, perhaps as to_json(struct(...)) in one column value"
        )
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise InvalidRequest(f"there is more than one column {twice[0]!r}; select() one of them")
    by_key = "partition" not in names
    has_key = "key" in names
    if by_key and not has_key:
        raise InvalidRequest("the sink needs a column partition or key, to know where a row goes")
    if not by_key:
        _typed(schema, "partition", pa.types.is_integer, "an integer")
    for name in ("key", "value"):
        if name in names and (name == "key" or name not in options.add_columns):
            _typed(schema, name, is_bytes, "binary or string")
    has_headers = "headers" in names and "headers" not in options.add_columns
    if has_headers:
        _typed(schema, "headers", is_headers, "map<string,binary> or array<struct<key string,value binary>>")
    if machine != "kv":
        return replace(_plain(schema, options, machine, partitions), has_headers=has_headers)
    if not has_key:
        raise InvalidRequest("commands of kv partitions need a column key")
    op = _op(schema, options)
    needs_value, needs_numbers = op in (None, "put"), op in (None, "add")
    if op is not None:
        other = [name for name in names if name not in options.add_columns]
        _no_other(other, "value", wanted=op == "put", op=op)
        _no_other(other, "numbers", wanted=op == "add" and not options.add_columns, op=op)
        if options.add_columns and op != "add":
            raise InvalidRequest(f"option addColumns goes with op=add, not op={op}")
    if op == "put" and needs_value and "value" not in names:
        raise InvalidRequest("op put needs a column value")
    kind = _numbers(schema, options) if needs_numbers else "q"
    return Layout(machine, partitions, by_key, has_key, op, options.add_columns, kind, options.null_key, has_headers)


def is_bytes(kind: pa.DataType) -> bool:
    """Binary or text, in any of Arrow's layouts."""
    return is_text(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_headers(kind: pa.DataType) -> bool:
    """Names and bytes: a map, or what the source gives."""
    if pa.types.is_map(kind):
        return is_text(kind.key_type) and is_bytes(kind.item_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    names = [pair.field(k).name for k in range(pair.num_fields)]
    return names == ["key", "value"] and is_text(pair.field(0).type) and is_bytes(pair.field(1).type)


def is_text(kind: pa.DataType) -> bool:
    """A column of text, in any of Arrow's layouts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _existing(asked: tuple[int, ...] | None, machines: Mapping[int, str]) -> tuple[int, ...]:
    if not machines:
        wanted = asked[0] if asked else None
        text = "there is no partition to write to: this cluster has none"
        raise NoSuchPartition(text, partition_id=wanted, partitions=0)
    if asked is None:
        return tuple(sorted(machines))
    missing = [p for p in asked if p not in machines]
    if missing:
        raise NoSuchPartition(
            f"option partitions names {missing[0]}, which does not exist; this cluster has {ids_shown(machines)}",
            partition_id=missing[0],
            partitions=len(machines),
        )
    return asked


def _machine(partitions: tuple[int, ...], machines: Mapping[int, str]) -> str:
    kinds = sorted({machines[p] for p in partitions})
    if len(kinds) != 1:
        raise InvalidRequest(
            f"the partitions have different state machines ({', '.join(kinds)}); name partitions of one kind"
        )
    return kinds[0]


def _plain(schema: pa.Schema, options: WriteOptions, machine: str, partitions: tuple[int, ...]) -> Layout:
    odd = [n for n in ("op", "numbers") if n in schema.names] + [n for n in ("op",) if options.op is not None]
    if odd or options.add_columns:
        raise InvalidRequest(f"op, numbers and addColumns are commands of kv; these partitions run {machine}")
    if "value" not in schema.names:
        raise InvalidRequest(f"{machine} partitions need a column value")
    return Layout(
        machine,
        partitions,
        by_key="partition" not in schema.names,
        has_key="key" in schema.names,
        op="put",
        null_key=options.null_key,
    )


def _op(schema: pa.Schema, options: WriteOptions) -> Op | None:
    if "op" not in schema.names or "op" in options.add_columns:
        return options.op or ("add" if options.add_columns else "put")
    if options.op is not None:
        raise InvalidRequest("give op as an option or as a column, not both")
    _typed(schema, "op", is_text, "a string")
    return None


def _no_other(names: list[str], column: str, *, wanted: bool, op: str) -> None:
    if column in names and not wanted:
        raise InvalidRequest(f"column {column} has no meaning with op={op}; drop it")


def _numbers(schema: pa.Schema, options: WriteOptions) -> Literal["q", "d"]:
    columns = options.add_columns
    if columns:
        if len(columns) > ADD_NUMBERS_MAX:
            raise InvalidRequest(f"addColumns names {len(columns)} columns; at most {ADD_NUMBERS_MAX}")
        if len(set(columns)) != len(columns):
            raise InvalidRequest(f"addColumns names a column twice: {', '.join(columns)}")
        if "numbers" in schema.names and "numbers" not in columns:
            raise InvalidRequest("give addColumns or the column numbers, not both")
        kinds = {c: schema.field(c).type for c in columns}
    elif "numbers" in schema.names:
        kind = schema.field("numbers").type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise InvalidRequest(f"column numbers must be array<bigint> or array<double>, not {kind}")
        kinds = {"numbers": kind.value_type}
    elif options.op == "add" or "op" not in schema.names:
        raise InvalidRequest("op add needs the option addColumns or a column numbers")
    else:
        return "q"  # an op column that turns out never to say add
    for name, kind in kinds.items():
        if not (pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)):
            raise InvalidRequest(
                f"column {name}: add takes integer and floating-point numbers, not {kind}: cast() it, an amount with "
                "decimals to double or, for exact sums, to bigint in its smallest unit"
            )
    return "d" if any(map(pa.types.is_floating, kinds.values())) else "q"


def _typed(schema: pa.Schema, name: str, fits: object, wanted: str) -> None:
    kind = schema.field(name).type
    if not callable(fits) or not fits(kind):
        how = "" if name == "headers" else ": to_json() it" if pa.types.is_nested(kind) else ": cast() it"
        raise InvalidRequest(f"column {name} must be {wanted}, not {kind}{how}")
