"""``logboom submit``: commands from arguments, stdin or a file."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from logboom.cli import talk
from logboom.cli.common import (
    PARTITION,
    TEXT,
    Target,
    Word,
    WordsCommand,
    cluster_options,
    encoding_option,
    on_terminal,
    output_option,
    print_rows,
    refuse_cursors,
    unread_too,
)
from logboom.cli.rows import USAGE, Row, command_of, format_of, partition_of_row, read_rows, unit_of, words_row
from logboom.cli.trickling import patient
from logboom.commands import to_record
from logboom.errors import InvalidRequest, LogboomError
from logboom.records import RecordBlock
from logboom.routing import partition_of_record
from logboom.sync_client import SyncClient
from logboom.types import PRODUCER_ID_BYTES, Receipt, Record, Status, refusal

CHUNK_RECORDS: Final = 4_000
CHUNK_BYTES: Final = 512 * 1024
FINE: Final = frozenset((Status.OK, Status.UNKNOWN_RESULT, Status.OTHERWISE, Status.MORE))
"""What is not refused."""
FINE_NAMES: Final = frozenset(status.name.lower() for status in FINE)
AS_RECORD: Final = (
    "is a log: it keeps commands as records, which `logboom tail` shows, and has no keys to get; "
    "`record PAYLOAD [KEY]`, or --raw, submits a payload"
)

HELP: Final = """Submit commands, in order, and print where they landed.

\b
A command, as arguments or one per line, is one of:
  put KEY VALUE
  delete KEY
  cas KEY EXPECTED VALUE    (only if the value is EXPECTED)
  add KEY NUMBER...
  delete-prefix PREFIX      (some at once, then `more`)
  record PAYLOAD [KEY]      (for partitions that are logs)

JSON lines, CSV and Parquet have the fields op, key, value, expected, numbers, end, partition; JSON lines
op txn with compares, then and otherwise, too. A field that the op does not take is refused, unless it is empty.

A `log` partition keeps whatever it is given as a record: a `put` sets no key there.
With --raw each line is not a command but a record's payload, whatever the file is called: all bytes up to the end of
the line, \\n or \\r\\n. An empty line is a record with an empty payload.

Without arguments and --file, commands are read from stdin. Keys and values that begin with - go behind `--`.
What comes through a pipe, or from a terminal, is submitted when no more has come for a tenth of a second. With --once
it is not, but 4,000 commands or half a MiB at a time: the same input has to make the same requests.
"""


@click.command(
    cls=WordsCommand,
    help=HELP,
    epilog="""\b
Examples:
  logboom submit -p 3 put greeting hello
  logboom submit --by-key --file commands.jsonl
  printf 'put a 1\\nadd n 5\\n' | logboom submit -p 0""",
)
@click.argument("words", nargs=-1, type=Word(), metavar="[COMMAND...]")
@click.option("-p", "--partition", type=PARTITION, help="Where to.")
@click.option("--by-key", is_flag=True, help="Route each command by its key.")
@click.option("-f", "--file", "path", help="Read commands from here; - is stdin.")
@click.option("--format", "form", type=click.Choice(["lines", "jsonl", "csv", "parquet"]), help="Default: by name.")
@click.option("--raw", is_flag=True, help="Every line is one record's payload, as it is (for `log` partitions).")
@click.option(
    "--wait", type=click.Choice(["committed", "durable", "applied"]), help="Default: the partition's own, or applied."
)
@click.option(
    "--once", type=TEXT, metavar="NAME", help="Submitting the same input again under this name takes no effect."
)
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
    """See HELP."""
    if by_key and partition is not None:
        raise click.UsageError("give --partition or --by-key, not both")
    if words and path is not None:
        raise click.UsageError("give a command or --file, not both")
    if once == "":
        raise click.UsageError("--once wants a name: under an empty one the next input would take no effect")
    if words and (raw or form):
        raise click.UsageError("--raw and --format say how a file or stdin is read: they do not go with a command")
    if raw and form not in (None, "lines"):
        raise click.UsageError(f"--raw takes lines as they are: it does not go with --format {form}")
    if raw and encoding != "text":
        raise click.UsageError(f"--raw takes lines as they are: it does not go with --encoding {encoding}")
    if not words and path is None and on_terminal(sys.stdin):
        raise click.UsageError(f"nothing to submit; a command is {USAGE}")
    with target.connect() as client:
        totals = _Totals(client, partition=partition, by_key=by_key, wait=wait, once=once, encoding=encoding)
        if words:
            _one(totals, words)
        else:
            _from_file(totals, "-" if path is None else path, form, raw=raw, output=output)
    with unread_too():
        print_rows(totals.rows(), output)
    if once is not None:
        totals.tell_before(once)
    totals.tell_more()
    if totals.refused:
        totals.tell_refused()
        sys.exit(1)


def _one(totals: _Totals, words: tuple[str, ...]) -> None:
    try:
        totals.send([(0, words_row(list(words)))])
    except KeyboardInterrupt:
        talk("logboom: the command may have been submitted, or may be yet: nobody has waited for the answer")
        raise
    except LogboomError as error:
        if error.outcome == "unknown":
            totals.tell_doubt()
        raise


def _from_file(totals: _Totals, path: str, form: str | None, *, raw: bool, output: str) -> None:
    kind = "lines" if raw else format_of(path, form)
    try:
        with (
            _opened(path) as file,
            _source(file, path, kind, totals.lull) as source,
            closing(read_rows(source, kind, raw=raw)) as rows,
        ):
            totals.send(rows, unit_of(kind))
    except BaseException as error:  # also Ctrl-C: whoever goes on must know from where
        if totals.refused:
            totals.tell_refused()
        if story := totals.story(error):
            talk(f"logboom: {story}")
        if totals.sent:
            with suppress(OSError):  # nobody reads it, or its disk is full: that is not what went wrong
                print_rows(totals.rows(), output)
        raise
    if not totals.sent:
        talk("logboom: the input was empty")


def _opened(path: str) -> AbstractContextManager[BinaryIO]:
    if path == "-":
        # Without a stdin, Python's is None.
        if sys.stdin is None:
            raise click.UsageError(f"nothing to submit: stdin is closed; a command is {USAGE}")
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise click.UsageError(f"{path or repr(path)}: {error.strerror}") from None


def _source(file: BinaryIO, path: str, kind: str, lull: Callable[[], None] | None) -> AbstractContextManager[BinaryIO]:
    """With a bar that shows how much is read; or, where it comes when it comes, with what has come sent meanwhile."""
    arriving = patient(file, lull) if lull is not None and kind != "parquet" else None
    if arriving is not None:
        return nullcontext(arriving)
    if path == "-" or not on_terminal(sys.stderr):
        return nullcontext(file)
    from rich.console import Console
    from rich.progress import wrap_file

    size = Path(path).stat().st_size
    return wrap_file(file, size, description="submitting", console=Console(stderr=True), transient=True)


class _Chunk:
    """One request: its records, and the lines that they come from."""

    def __init__(self) -> None:
        self.parts: dict[int, list[Record]] = {}
        self.count = self.first = self.last = self._size = 0

    def has_room(self, record: Record, records_max: int, bytes_max: int) -> bool:
        """For one more; a single one may be more than that."""
        return not self.count or (self.count < records_max and self._size + _nbytes(record) <= bytes_max)

    def add(self, line: int, partition: int, record: Record) -> None:
        """Behind the others."""
        self.first, self.last = self.first if self.count else line, line
        self.parts.setdefault(partition, []).append(record)
        self.count, self._size = self.count + 1, self._size + _nbytes(record)


def _nbytes(record: Record) -> int:
    return len(record.payload) + len(record.key or b"") + 16


class _Totals:
    """Submits chunk by chunk, each partition's records in order, and adds the receipts up."""

    def __init__(
        self,
        client: SyncClient,
        *,
        partition: int | None,
        by_key: bool,
        wait: str | None,
        once: str | None,
        encoding: str,
    ) -> None:
        self._client = client
        self._encoding = encoding
        self._partition = partition
        self._by_key = by_key
        self._wait = wait
        self._producer = None
        if once is not None:
            self._producer = hashlib.blake2b(once.encode(), digest_size=PRODUCER_ID_BYTES).digest()
        self._users = set[int]()
        """Partitions that users may write to."""
        self._plain = set[int]()
        """And logs that were sent a command."""
        self._sequences: Counter[int] = Counter()
        self._count: int | None = None
        self._parts: dict[int, dict[str, Any]] = {}
        self._unit = "line"
        self._ahead = _Chunk()
        """What has been read, and is not submitted yet."""
        self._under_way: _Chunk | None = None
        self._before = 0
        """Commands that were sent before that one."""
        self._next = 1
        """The first line that is in no request yet."""
        self.sent = 0
        self.refused = 0

    def send(self, rows: Iterable[tuple[int, Row]], unit: str = "line") -> None:
        """Submit rows; returns once they are as far as ``wait`` says.

        Raises UsageError, naming the line: then nothing is sent of its chunk, nor behind it.
        """
        self._unit = unit
        for line, row in rows:
            partition, record = self._where(line, row)
            if not self._ahead.has_room(record, *self._room()):
                self.flush()
            self._ahead.add(line, partition, record)
        self.flush()

    @property
    def lull(self) -> Callable[[], None] | None:
        """What is done where no more comes for now; None: nothing, whatever the pauses of an input are.

        Under a name nodes go by where a request begins and ends: they remember what it was answered, of exactly that.
        """
        return self.flush if self._producer is None else None

    def flush(self) -> None:
        """Submit what has been read, if anything has that is not yet."""
        chunk = self._ahead
        if chunk.count:
            self._under_way, self._before, self._ahead = chunk, self.sent, _Chunk()
            self._send_parts(chunk.parts)
            self._under_way, self._next = None, chunk.last + 1

    def _room(self) -> tuple[int, int]:
        """Records and bytes of a request: no more than this cluster takes for one partition."""
        client = self._client
        return min(CHUNK_RECORDS, client.part_records), min(CHUNK_BYTES, client.part_bytes)

    def story(self, error: BaseException) -> str:
        """How much of the input is in after an error; empty if nothing is."""
        chunk, unit = self._under_way, self._unit
        before, start = (self.sent, self._next) if chunk is None else (self._before, chunk.first)
        done = f"{before} commands were submitted before {unit} {start}"
        # Under a name, a request's partitions are sent one after the other.
        none = self._producer is None and isinstance(error, LogboomError) and error.outcome == "not_applied"
        if chunk is None and not before and isinstance(error, KeyboardInterrupt) and self._ahead.count:
            return f"{self._ahead.count} commands were read, and none of them was submitted"
        if chunk is None or none:
            return f"{done}, none from there on" if before else ""
        return f"{done}; {unit}s {start} to {chunk.last} may be, too"

    def tell_doubt(self) -> None:
        """Say on stderr that a command may have been submitted, and what can be done then."""
        again = (
            "look before you send it again"
            if self._producer is None
            else "sent again, under that name, it is done once"
        )
        talk(f"logboom: the command may have been submitted, or may be yet: {again}")

    def tell_before(self, once: str) -> None:
        """Say on stderr that some had been before: nodes go by the name, and by a command's place in the input."""
        before = sum(row["duplicate"] for row in self._parts.values())
        if before:
            talk(
                f"logboom: {before} of {self.sent} commands were submitted as {once!r} before, and what they say now "
                "took no effect; nobody has compared it"
            )

    def tell_refused(self) -> None:
        """Say on stderr that some were refused, and why."""
        counts = Counter[str]()
        for row in self._parts.values():
            counts.update({name: n for name, n in (row["results"] or {}).items() if name not in FINE_NAMES})
        why = "; ".join(refusal(name, count) for name, count in sorted(counts.items()))
        talk(f"logboom: {self.refused} of {self.sent} commands took no effect ({why}) [refused]")

    def tell_more(self) -> None:
        """Say on stderr that there may be more keys to remove."""
        if any("more" in (row["results"] or ()) for row in self._parts.values()):
            how = "submit it again" if self._producer is None else "submit it under another name, or without --once,"
            talk(f"logboom: not all keys were removed at once (`more`): {how} for the rest")

    def _where(self, line: int, row: Row) -> tuple[int, Record]:
        try:
            command = command_of(row, self._encoding)
            record = to_record(command)
            own = partition_of_row(row)
            given = own if own is not None else self._partition
            if given is None:
                self._check_route(record)
            else:
                self._check_users(given)
                self._tell_of_log(given, command)
        except (click.UsageError, InvalidRequest) as error:
            raise click.UsageError(f"{self._unit} {line}: {error}" if line else str(error)) from None
        if given is not None:
            return given, record
        if self._count is None:
            self._count = self._client.key_partitions()
        try:
            return partition_of_record(record, self._count), record
        except InvalidRequest as error:
            raise click.UsageError(f"{self._unit} {line}: {error}" if line else str(error)) from None

    def _check_users(self, partition: int) -> None:
        if partition in self._users:
            return
        self._users.update(self._client.partitions())
        if partition not in self._users:
            refuse_cursors(self._client, partition)
            self._users.add(partition)  # or the nodes say what it is

    def _tell_of_log(self, partition: int, command: object) -> None:
        """Once for each: who sends a `put` there may look for the key."""
        if isinstance(command, Record) or partition in self._plain:
            return
        if self._client.state_machines().get(partition) == "log":
            self._plain.add(partition)
            talk(f"logboom: partition {partition} {AS_RECORD}")

    def _check_route(self, record: Record) -> None:
        if not self._by_key:
            raise click.UsageError("where to? give --partition or --by-key")
        if not record.key:
            raise click.UsageError("--by-key needs a key in every record")

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
                "results": None,
            },
        )
        total["records"] += receipt.count
        total["last_index"] = receipt.last_index
        total["global_index"] = max(total["global_index"], receipt.global_index)
        total["duplicate"] += receipt.duplicate
        self.sent += receipt.count
        if receipt.results is None:
            return
        if total["results"] is None:  # an older node tells them below `applied` of what is sent again
            total["results"] = {}
        for status, count in Counter(receipt.results).items():
            total["results"][status.name.lower()] = total["results"].get(status.name.lower(), 0) + count
            if status not in FINE:
                self.refused += count

    def rows(self) -> list[dict[str, Any]]:
        """Per partition, for output."""
        return [self._parts[p] for p in sorted(self._parts)]
