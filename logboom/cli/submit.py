"""``logboom submit``: commands from arguments, stdin or a file."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from logboom.cli.common import Target, cluster_options, encoding_option, output_option, print_rows, talk
from logboom.cli.rows import USAGE, Row, command_of, format_of, partition_of_row, read_rows, words_row
from logboom.commands import to_record
from logboom.records import RecordBlock
from logboom.routing import partition_of
from logboom.sync_client import SyncClient
from logboom.types import PRODUCER_ID_BYTES, Receipt, Record, Status

CHUNK_RECORDS: Final = 4_000
CHUNK_BYTES: Final = 512 * 1024


@click.command(
    epilog="""\b
Examples:
  logboom submit -p 3 put greeting hello
  logboom submit --by-key --file commands.jsonl
  printf 'put a 1\\nadd n 5\\n' | logboom submit -p 0"""
)
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
@click.option("-p", "--partition", type=click.IntRange(0), help="Where to.")
@click.option("--by-key", is_flag=True, help="Route each command by its key.")
@click.option("-f", "--file", "path", help="Read commands from here; - is stdin.")
@click.option("--format", "form", type=click.Choice(["lines", "jsonl", "csv", "parquet"]), help="Default: by name.")
@click.option("--raw", is_flag=True, help="Every line is one record's payload, as it is (for `log` partitions).")
@click.option(
    "--wait", type=click.Choice(["committed", "durable", "applied"]), help="Default: the partition's own, or applied."
)
@click.option("--once", metavar="NAME", help="Submitting the same input again under this name takes no effect.")
@encoding_option
@output_option
@cluster_options
def submit(
    target: Target,
    words: tuple[str, ...],
    partition: int | None,
    by_key: bool,
    path: str | None,
    form: str | None,
    raw: bool,
    wait: str | None,
    once: str | None,
    encoding: str,
    output: str,
) -> None:
    """Submit commands, in order, and print where they landed.

    A command, as arguments or one per line, is one of:
    put KEY VALUE, delete KEY, cas KEY EXPECTED VALUE, add KEY NUMBER..., record PAYLOAD [KEY].
    JSON lines, CSV and Parquet have the fields op, key, value, expected, numbers, partition.
    Without arguments and --file, commands are read from stdin.
    """
    if by_key and partition is not None:
        raise click.UsageError("give --partition or --by-key, not both")
    if words and path:
        raise click.UsageError("give a command or --file, not both")
    if not words and path is None and sys.stdin.isatty():
        raise click.UsageError(f"nothing to submit; a command is {USAGE}")
    with target.connect() as client:
        totals = _Totals(client, partition=partition, by_key=by_key, wait=wait, once=once)
        if words:
            rows: Iterable[Row] = [words_row(list(words))]
            totals.send(rows, encoding)
        else:
            _from_file(totals, path or "-", form, raw=raw, encoding=encoding)
    print_rows(totals.rows(), output)
    if totals.refused:
        talk(f"logboom: {totals.refused} of {totals.sent} commands took no effect; `results` says why [refused]")
        sys.exit(1)


def _from_file(totals: _Totals, path: str, form: str | None, *, raw: bool, encoding: str) -> None:
    with _opened(path) as file, _progress(file, path) as source:
        rows = read_rows(source, format_of(path, form), raw=raw)
        while chunk := list(islice(rows, CHUNK_RECORDS)):
            totals.send(chunk, encoding)
    if not totals.sent:
        talk("logboom: the input was empty")


def _opened(path: str) -> AbstractContextManager[BinaryIO]:
    if path == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None


def _progress(file: BinaryIO, path: str) -> AbstractContextManager[BinaryIO]:
    if path == "-" or not sys.stderr.isatty():
        return nullcontext(file)
    from rich.console import Console
    from rich.progress import wrap_file

    size = Path(path).stat().st_size
    return wrap_file(file, size, description="submitting", console=Console(stderr=True), transient=True)


class _Totals:
    """Submits chunk by chunk, each partition's records in order, and adds the receipts up."""

    def __init__(
        self, client: SyncClient, *, partition: int | None, by_key: bool, wait: str | None, once: str | None
    ) -> None:
        self._client = client
        self._partition = partition
        self._by_key = by_key
        self._wait = wait
        self._producer = None
        if once is not None:
            self._producer = hashlib.blake2b(once.encode(), digest_size=PRODUCER_ID_BYTES).digest()
        self._sequences: Counter[int] = Counter()
        self._count: int | None = None
        self._parts: dict[int, dict[str, Any]] = {}
        self.sent = 0
        self.refused = 0

    def send(self, rows: Iterable[Row], encoding: str) -> None:
        """Submit rows; returns once they are as far as ``wait`` says."""
        for parts in _bounded(self._where(row, encoding) for row in rows):
            self._send_parts(parts)

    def _where(self, row: Row, encoding: str) -> tuple[int, Record]:
        record = to_record(command_of(row, encoding))
        own = partition_of_row(row)
        if own is not None:
            return own, record
        if self._partition is not None:
            return self._partition, record
        if not self._by_key:
            raise click.UsageError("where to? give --partition or --by-key")
        if not record.key:
            raise click.UsageError("--by-key needs a key in every record")
        if self._count is None:
            self._count = self._client.key_partitions()
        return partition_of(record.key, self._count), record

    def _send_parts(self, parts: dict[int, list[Record]]) -> None:
        if self._producer is None:
            for receipt in self._client.submit_many(parts, wait=self._wait).parts:
                self._add(receipt)
            return
        for partition, records in parts.items():
            block = RecordBlock.from_records(records)
            sequence = self._sequences[partition]
            self._sequences[partition] += block.count
            receipt = self._client.submit_block(
                partition, block, wait=self._wait, producer_id=self._producer, sequence=sequence
            )
            self._add(receipt)

    def _add(self, receipt: Receipt) -> None:
        total = self._parts.setdefault(
            receipt.partition_id,
            {
                "partition": receipt.partition_id,
                "records": 0,
                "first_index": receipt.first_index,
                "last_index": 0,
                "global_index": 0,
                "duplicate": 0,
                "results": {} if receipt.results is not None else None,
            },
        )
        total["records"] += receipt.count
        total["last_index"] = receipt.last_index
        total["global_index"] = max(total["global_index"], receipt.global_index)
        total["duplicate"] += receipt.duplicate
        self.sent += receipt.count
        for status, count in Counter(receipt.results or ()).items():
            total["results"][status.name.lower()] = total["results"].get(status.name.lower(), 0) + count
            if status not in (Status.OK, Status.UNKNOWN_RESULT):
                self.refused += count

    def rows(self) -> list[dict[str, Any]]:
        """Per partition, for output."""
        return [self._parts[p] for p in sorted(self._parts)]


def _bounded(placed: Iterable[tuple[int, Record]]) -> Iterator[dict[int, list[Record]]]:
    """Requests of at most CHUNK_BYTES (one record may be more)."""
    parts: dict[int, list[Record]] = {}
    size = 0
    for partition, record in placed:
        nbytes = len(record.payload) + len(record.key or b"") + 16
        if parts and size + nbytes > CHUNK_BYTES:
            yield parts
            parts, size = {}, 0
        parts.setdefault(partition, []).append(record)
        size += nbytes
    if parts:
        yield parts
