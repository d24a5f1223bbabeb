"""``get``, ``scan``, ``tail``: state and logs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

import click

from logboom.cli import talk
from logboom.cli.common import (
    INDEX,
    PARTITION,
    TEXT,
    Duration,
    F,
    Target,
    When,
    Word,
    WordsCommand,
    cluster_options,
    encoding_option,
    output_option,
    print_rows,
    print_stream,
    shown,
    shown_numbers,
    to_bytes,
    to_text,
    unread_too,
)
from logboom.cli.ends import while_read
from logboom.cli.txns import shown_wide
from logboom.client.log_batches import LogBatch
from logboom.commands import OP_ADD, OP_CAS, OP_DELETE, OP_PUT, Value, unpack_numbers
from logboom.errors import InvalidRequest, LogboomError, Voided
from logboom.routing import partition_of
from logboom.sync_client import SyncClient
from logboom.types import Record, WideRecord

AGAIN_S: Final = 2.0
"""For somebody to say of what kind a partition is that was not there a moment ago."""
LATER_S: Final = 5.0
"""Where nobody could: they are asked again after that."""


def _freshness(command: F) -> F:
    for option in (
        click.option("--node", help="Ask this node (id or address)."),
        click.option("--stale", is_flag=True, help="Whatever the node has."),
        click.option("--at-least", type=INDEX, metavar="G", help="Any node that has applied this far."),
        click.option(
            "--max-staleness", type=Duration(zero=True), help="Any node that has what was committed so long ago."
        ),
    ):
        option(command)
    return command


@click.command(cls=WordsCommand, epilog="Example:  logboom get -p 3 greeting")
@click.argument("keys", nargs=-1, required=True, type=Word())
@click.option("-p", "--partition", type=PARTITION, help="Which partition; without it, by key.")
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
    max_staleness: float | None,
    node: str | None,
    encoding: str,
    output: str,
) -> None:
    """Values of keys, linearizable unless told otherwise. Exit status 1 if a key is not there."""
    wanted = [to_bytes(key, encoding) for key in keys]
    found: dict[bytes, Any] = {}
    with target.connect() as client:
        fresh = not stale and at_least is None and max_staleness is None  # as others are read where nobody leads
        count = client.key_partitions(linearizable=fresh) if partition is None else 0
        groups: dict[int, list[bytes]] = {}
        for key in wanted:
            where = partition_of(key, count) if partition is None else partition
            groups.setdefault(where, []).append(key)
        for where, group in groups.items():
            values = client.get_many(
                where, group, at_least=at_least, stale=stale, max_staleness=max_staleness, node=node
            )
            found.update(zip(group, values, strict=True))
    rows = [{"key": to_text(key, encoding), "value": shown(found[key], encoding)} for key in wanted]
    with unread_too():
        print_rows(rows, output)
    missing = [key for key in wanted if found[key] is None]
    if missing:
        talk(f"logboom: no such key: {', '.join(to_text(key, encoding) for key in missing)}")
        if partition is None:
            looked = sorted({partition_of(key, count) for key in missing})
            named = f"partition{'s' if len(looked) > 1 else ''} {', '.join(map(str, looked))}"
            talk(f"logboom: looked for in {named}, where `submit --by-key` puts it; -p looks elsewhere")
        sys.exit(1)


@click.command(
    epilog="\b\nExamples:\n  logboom scan -p 3 --prefix user/ --limit 10\n  logboom scan --prefix user/ -o jsonl"
)
@click.option("-p", "--partition", type=PARTITION, help="One partition; without it, all that have keys.")
@click.option("--prefix", help="Keys that begin so.")
@click.option("--start", help="First key.")
@click.option("--end", help="Where to stop, exclusive.")
@click.option("--limit", type=INDEX, default=0, help="At most so many; 0: all.")
@_freshness
@encoding_option
@output_option
@cluster_options
def scan(
    target: Target,
    partition: int | None,
    prefix: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    at_least: int | None,
    stale: bool,
    max_staleness: float | None,
    node: str | None,
    encoding: str,
    output: str,
) -> None:
    """Keys of a range, ascending, and their values.

    Without -p of all partitions that have keys, one after the other, all as of one moment.

    Columns: the partition (without -p), key, value. `-o jsonl` names them.
    """
    if partition is None and (stale or max_staleness is not None):
        raise click.UsageError("--stale and --max-staleness need --partition")

    def bound(text: str | None) -> bytes | None:
        return None if text is None else to_bytes(text, encoding)

    how: dict[str, Any] = {"prefix": bound(prefix), "start": bound(start), "end": bound(end)}
    how |= {"at_least": at_least, "node": node}
    with target.connect() as client:
        rows: Iterator[dict[str, Any]]
        if partition is None:
            view = islice(client.scan_view(**how), limit or None)
            rows = ({"partition": each.partition_id, **_entry(each.key, each.value, encoding)} for each in view)
        else:
            entries = client.scan(partition, limit=limit, stale=stale, max_staleness=max_staleness, **how)
            rows = (_entry(key, value, encoding) for key, value in entries)
        print_stream(rows, output)


def _entry(key: bytes, value: Value, encoding: str) -> dict[str, Any]:
    return {"key": to_text(key, encoding), "value": shown(value, encoding)}


TAIL_HELP: Final = """The committed log of a partition, or of all partitions in global order.

\b
Columns: partition, index, global index, time (ms since 1970), key, and then
  of kv       the command and its values; of a cas the new one comes first,
              then the expected one
  of others   the payload
`-o jsonl` names them.

Without -p the leader says which partitions there are. While nobody leads, --node reads those that this node knows.
"""


@click.command(
    help=TAIL_HELP,
    short_help="The log of a partition, or of all in global order.",
    epilog="\b\nExamples:\n  logboom tail -p 3 -f\n  logboom tail --start-global 100 -o jsonl",
)
@click.option("-p", "--partition", type=PARTITION, help="One; without it all that there are now, in global order.")
@click.option("--start", type=INDEX, default=0, help="First index (with -p); 0: the earliest.")
@click.option("--start-global", type=INDEX, default=0, help="First global index.")
@click.option(
    "--start-time", type=When(), help="What was written from then on (ISO 8601, UTC if it names no zone; or `now`)."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is appended.")
@click.option("--applied", is_flag=True, help="Only what has taken effect at the node.")
@click.option("--key-prefix", help="Only records whose keys begin so (with -p).")
@click.option("--header", type=TEXT, metavar="NAME[=VALUE]", help="Only records with this header (with -p).")
@click.option("--from-first", is_flag=True, help="Where records have been removed, begin with the first that is there.")
@click.option("--limit", type=INDEX, default=0, help="At most so many records; 0: all.")
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
    start_time: datetime | None,
    follow: bool,
    applied: bool,
    key_prefix: str | None,
    header: str | None,
    from_first: bool,
    limit: int,
    node: str | None,
    raw: bool,
    encoding: str,
    output: str,
) -> None:
    """See TAIL_HELP."""
    if partition is None and (start or key_prefix is not None or header is not None):
        raise click.UsageError("--start, --key-prefix and --header need --partition")
    if follow and output == "json":
        raise click.UsageError("a JSON array would never end: use -o jsonl with --follow")
    how: dict[str, Any] = {
        "start_global": start_global,
        "start_time": start_time,
        "follow": follow,
        "level": "applied" if applied else "durable",
        "on_compacted": "first" if from_first else "error",
        "node": node,
    }
    with target.connect() as client, while_read(client):
        is_kv: Callable[[int], bool] = (lambda _: False) if raw else _Machines(client, node).is_kv
        batches: Iterable[LogBatch]
        if partition is None:
            batches = client.scan_log(on_void=_tell_of_void, **how)
        else:
            prefix = None if key_prefix is None else to_bytes(key_prefix, encoding)
            wanted = None if header is None else _header(header, encoding)
            batches = client.tail(
                partition, start=start, key_prefix=prefix, header=wanted, on_void=_tell_of_void, **how
            )
        print_stream(_log_rows(batches, is_kv, encoding, limit), output)


def _header(text: str, encoding: str) -> tuple[str, bytes | None]:
    name, given, value = text.partition("=")
    return name, to_bytes(value, encoding) if given else None


def _tell_of_void(gap: Voided) -> None:
    talk(f"logboom: {gap.message}")


class _Machines:
    """Which partitions are `kv`. The node that was met first may not have heard of one that is new."""

    def __init__(self, client: SyncClient, node: str | None) -> None:
        self._client, self._node = client, node
        self._found = client.state_machines()
        self._ask_at = -math.inf

    def is_kv(self, partition: int) -> bool:
        """Asked for anew if nobody has said: until there is an answer, but in an outage not of each batch."""
        if partition not in self._found and time.monotonic() >= self._ask_at:
            try:
                self._client.refresh_partitions(node=self._node, timeout=AGAIN_S)
                self._found |= self._client.state_machines()
                self._found.setdefault(partition, "")
            except LogboomError:  # for now it is shown as it is
                self._ask_at = time.monotonic() + LATER_S
        return self._found.get(partition) == "kv"


def _log_rows(
    batches: Iterable[LogBatch], is_kv: Callable[[int], bool], encoding: str, limit: int
) -> Iterator[dict[str, Any]]:
    left = limit
    for batch in batches:
        kv = is_kv(batch.partition_id)
        for index, record in zip(batch.indexes().tolist(), batch.records.records(), strict=True):
            yield {
                "partition": batch.partition_id,
                "index": index,
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
    if isinstance(record, WideRecord) and record.payload[:1] > bytes((OP_ADD,)):
        return shown_wide(record, encoding)
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
            return {"op": "add", "value": shown_numbers(unpack_numbers(body))}
        except InvalidRequest:
            return {"op": "invalid", "value": record.payload.hex()}
    return {"op": "invalid", "value": record.payload.hex()}
