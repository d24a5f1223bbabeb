"""``get``, ``scan``, ``tail``, ``barrier``: state, logs, and waiting for them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from logboom.cli.common import (
    F,
    PartitionIds,
    Target,
    cluster_options,
    encoding_option,
    output_option,
    print_one,
    print_rows,
    print_stream,
    shown,
    talk,
    to_bytes,
    to_text,
    watermark_row,
)
from logboom.client.reads import LogBatch
from logboom.commands import OP_ADD, OP_CAS, OP_DELETE, OP_PUT, unpack_numbers
from logboom.errors import InvalidRequest
from logboom.routing import partition_of
from logboom.types import Record


def _freshness(command: F) -> F:
    for option in (
        click.option("--node", help="Ask this node (id or address)."),
        click.option("--stale", is_flag=True, help="Whatever the node has."),
        click.option("--at-least", type=click.IntRange(0), metavar="G", help="Any node that has applied this far."),
    ):
        option(command)
    return command


@click.command(epilog="Example:  logboom get -p 3 greeting")
@click.argument("keys", nargs=-1, required=True)
@click.option("-p", "--partition", type=click.IntRange(0), help="Which partition; without it, by key.")
@_freshness
@encoding_option
@output_option
@cluster_options
def get(
    target: Target,
    keys: tuple[str, ...],
    partition: int | None,
    at_least: int | None,
    stale: bool,
    node: str | None,
    encoding: str,
    output: str,
) -> None:
    """Values of keys, linearizable unless told otherwise. Exit status 1 if a key is not there."""
    wanted = [to_bytes(key, encoding) for key in keys]
    found: dict[bytes, Any] = {}
    with target.connect() as client:
        count = client.key_partitions() if partition is None else 0
        groups: dict[int, list[bytes]] = {}
        for key in wanted:
            where = partition_of(key, count) if partition is None else partition
            groups.setdefault(where, []).append(key)
        for where, group in groups.items():
            values = client.get_many(where, group, at_least=at_least, stale=stale, node=node)
            found.update(zip(group, values, strict=True))
    rows = [{"key": to_text(key, encoding), "value": shown(found[key], encoding)} for key in wanted]
    print_rows(rows, output)
    missing = [row["key"] for row in rows if row["value"] is None]
    if missing:
        talk(f"logboom: no such key: {', '.join(map(str, missing))}")
        sys.exit(1)


@click.command(epilog="Example:  logboom scan -p 3 --prefix user/ --limit 10")
@click.option("-p", "--partition", type=click.IntRange(0), required=True)
@click.option("--prefix", help="Keys that begin so.")
@click.option("--start", help="First key.")
@click.option("--end", help="Where to stop, exclusive.")
@click.option("--limit", type=click.IntRange(0), default=0, help="At most so many; 0: all.")
@_freshness
@encoding_option
@output_option
@cluster_options
def scan(
    target: Target,
    partition: int,
    prefix: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    at_least: int | None,
    stale: bool,
    node: str | None,
    encoding: str,
    output: str,
) -> None:
    """Keys of a range, ascending, and their values."""

    def bound(text: str | None) -> bytes | None:
        return None if text is None else to_bytes(text, encoding)

    with target.connect() as client:
        entries = client.scan(
            partition,
            prefix=bound(prefix),
            start=bound(start),
            end=bound(end),
            limit=limit,
            at_least=at_least,
            stale=stale,
            node=node,
        )
        print_stream(({"key": to_text(k, encoding), "value": shown(v, encoding)} for k, v in entries), output)


@click.command(epilog="Examples:  logboom tail -p 3 -f      logboom tail --start-global 100 -o jsonl")
@click.option("-p", "--partition", type=click.IntRange(0), help="One partition; without it, all in global order.")
@click.option("--start", type=click.IntRange(0), default=0, help="First index; 0: the earliest.")
@click.option("--start-global", type=click.IntRange(0), default=0, help="Without -p: first global index.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is appended (with -p).")
@click.option("--limit", type=click.IntRange(0), default=0, help="At most so many records; 0: all.")
@click.option("--node", help="Ask this node (id or address).")
@click.option("--raw", is_flag=True, help="Payload bytes instead of kv commands.")
@encoding_option
@output_option
@cluster_options
def tail(
    target: Target,
    partition: int | None,
    start: int,
    start_global: int,
    follow: bool,
    limit: int,
    node: str | None,
    raw: bool,
    encoding: str,
    output: str,
) -> None:
    """The committed log of a partition, or of all partitions in global order."""
    if partition is None and (follow or start or node):
        raise click.UsageError("--follow, --start and --node need --partition")
    if partition is not None and start_global:
        raise click.UsageError("--start-global is for all partitions; with --partition use --start")
    if follow and output == "json":
        raise click.UsageError("a JSON array would never end: use -o jsonl with --follow")
    with target.connect() as client:
        kinds = {} if raw else client.state_machines()
        batches: Iterable[LogBatch]
        if partition is None:
            batches = client.scan_log(start_global=start_global)
        else:
            batches = client.tail(partition, start=start, follow=follow, node=node)
        print_stream(_log_rows(batches, kinds, encoding, limit), output)


def _log_rows(
    batches: Iterable[LogBatch], kinds: dict[int, str], encoding: str, limit: int
) -> Iterator[dict[str, Any]]:
    left = limit
    for batch in batches:
        for offset, record in enumerate(batch.records.records()):
            kv = kinds.get(batch.partition_id) == "kv"
            yield {
                "partition": batch.partition_id,
                "index": batch.first_index + offset,
                "global_index": batch.global_index,
                "timestamp_ms": batch.timestamp_ms,
                "key": None if record.key is None else to_text(record.key, encoding),
                **(_command(record, encoding) if kv else {"payload": to_text(record.payload, encoding)}),
            }
            left -= 1
            if left == 0:
                return


def _command(record: Record, encoding: str) -> dict[str, Any]:
    """A kv payload, readable; what cannot be read is shown as it is."""
    op, body = record.payload[:1], record.payload[1:]
    if op == bytes((OP_PUT,)):
        return {"op": "put", "value": to_text(body, encoding)}
    if op == bytes((OP_DELETE,)):
        return {"op": "delete", "value": None}
    if op == bytes((OP_CAS,)) and len(body) >= 5:
        length = int.from_bytes(body[1:5], "little")
        expected = to_text(body[5 : 5 + length], encoding) if body[0] & 1 else None
        value = to_text(body[5 + length :], encoding) if body[0] & 2 else None
        return {"op": "cas", "value": value, "expected": expected}
    if op == bytes((OP_ADD,)):
        try:
            return {"op": "add", "value": list(unpack_numbers(body))}
        except InvalidRequest:
            return {"op": "invalid", "value": record.payload.hex()}
    return {"op": "invalid", "value": record.payload.hex()}


@click.command(epilog="Example:  logboom barrier -g 1200 -p 0,1,2 --scope all --timeout 5s")
@click.option("-g", "--global-index", type=click.IntRange(0), required=True, help="Wait until this is reached.")
@click.option("-p", "--partitions", type=PartitionIds(), help="Such as 0,3,5-9; without it, all.")
@click.option("--scope", type=click.Choice(["node", "leader", "quorum", "all"]), default="node", show_default=True)
@click.option("--level", type=click.Choice(["ordered", "durable", "applied"]), default="applied", show_default=True)
@click.option("--wait-blocked", is_flag=True, help="Wait for paused partitions too, instead of failing at once.")
@click.option("--node", help="Ask this node (id or address); scope node.")
@output_option
@cluster_options
def barrier(
    target: Target,
    global_index: int,
    partitions: list[int] | None,
    scope: str,
    level: str,
    wait_blocked: bool,
    node: str | None,
    output: str,
) -> None:
    """Wait until partitions have come as far as a global index. Exit status 1 when time runs out."""
    with target.connect() as client:
        result = client.barrier(
            global_index,
            partitions=partitions,
            scope=scope,
            level=level,
            wait_blocked=wait_blocked,
            node=node,
        )
    rows = [watermark_row(mark) for mark in result.watermarks]
    if output == "table":
        talk(f"{result.node_id} has reached {result.global_index} ({level})")
        print_rows(rows, output)
    else:
        print_one({"global_index": result.global_index, "node": result.node_id, "watermarks": rows}, output)
