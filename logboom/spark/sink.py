"""What a Spark task does to write: encode, number, keep a window of requests under way, report.

Exactly once: the producer is (write id, Spark partition), never the attempt; a record's
sequence is its row's position among the rows this task sends to the same logboom partition.
A second attempt with the same rows in the same order sends the same sequences, and the state
machine skips what it has seen. A stream's producer is (query, Spark partition), its epoch the
batch. ``dense`` makes it refuse a gap, so rows that overtake others
after a leader change are refused and sent again, never applied out of order.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa

from logboom.client import PATIENCE_S_MAX, Client
from logboom.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LogboomError,
    Overloaded,
    PartitionPaused,
    RecordTooLarge,
)
from logboom.records import RECORDS_MAX, RecordBlock, lengths_of
from logboom.spark.encode import Columns, blocks, columns_of, concat, in_order
from logboom.spark.layout import Layout
from logboom.spark.options import Target, Wait
from logboom.types import MIB, PRODUCER_ID_BYTES, Level, Receipt, Scope, Status

log: Final = logging.getLogger("logboom.spark")
BLOCK_BYTES_MAX: Final = 1 * MIB
COLLECT_BYTES: Final = 4 * MIB
"""Arrow batches are gathered up to this before they are sorted by partition: fewer, larger blocks."""
REQUESTS_MAX: Final = 1024
"""Under way at once per task: each takes about 15 KiB of its memory, however little it carries."""
FINE: Final = frozenset((Status.OK, Status.NOT_FOUND))
PATIENCE: Final = 0.5
"""Share of the time of a request that it stands in line at a node, where a rate holds it up."""


class Went(NamedTuple):
    """Into which cluster and history the batches of a stream went."""

    query: str
    """Empty: the last of them had no tasks, and nobody has said it."""
    cluster: str
    lineage: str
    mixed: bool = False
    """Rows of the one behind them are in another history already, as a commit has found."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """All that a task needs to know; made on the driver, the same for every attempt."""

    target: Target
    layout: Layout
    write_id: str
    wait: Wait
    barrier_timeout_ms: int
    in_flight_bytes_max: int
    report_file: str | None = None
    fail_on_rejected: bool = True
    barrier_scope: Scope = Scope.LEADER
    barrier_level: Level | None = None
    """None: as ``wait`` says."""
    producer: str | None = None
    """Who numbers the rows, if that is more than this write."""
    epoch: int = 0
    block_bytes_max: int = BLOCK_BYTES_MAX
    """Less for a cluster that does not take so much."""
    block_records_max: int = RECORDS_MAX
    """Fewer for a cluster that does not take so many."""
    sort_bytes_max: int | None = None
    """Rows are numbered in an order of their own, and a task holds no more than this of them; None: as they come."""
    went: Went | None = None
    """What the report of a stream says of the batches before; None: nothing, or it is no stream."""


class PartitionReport(msgspec.Struct, frozen=True, array_like=True):
    """What one task did to one logboom partition."""

    partition_id: int
    rows: int
    duplicate: int
    """Rows that an earlier attempt had already brought; they took no effect again."""
    first_index: int
    last_index: int
    global_index: int
    fingerprint: bytes
    """Checksums over the rows in order: against accidents, not against somebody who looks for equal ones."""


class TaskReport(msgspec.Struct, frozen=True, array_like=True):
    """What one task did."""

    write_id: str
    task: int
    """The Spark partition."""
    attempt: int
    rows: int
    parts: list[PartitionReport]
    rejected: dict[str, int]
    """Status name to count, of commands that the state machine refused."""
    unknown: int = 0
    """Commands of an earlier attempt of which nobody remembers whether they were refused."""
    cluster: str = ""
    """Empty: of a task without rows, which asked nobody."""
    lineage: str = ""

    def encode(self) -> bytes:
        """The report as it travels to the driver."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> TaskReport:
        """The inverse of ``encode``."""
        return msgspec.msgpack.decode(raw, type=cls)


class Sender(Protocol):
    """What the sink needs of a session."""

    def start(self, call: Callable[[Client], Any]) -> Future[Any]:
        """Begin a request."""
        ...


def producer_id(write_id: str, task: int) -> bytes:
    """Who numbers the rows of one Spark partition of one write."""
    name = f"{task}/{write_id}".encode()
    return hashlib.blake2b(name, digest_size=PRODUCER_ID_BYTES, person=b"logboom.spark").digest()


def write_task(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], *, task: int, attempt: int, sender: Sender
) -> TaskReport:
    """Write all rows of a task; returns when every one has been applied. Raises the errors of ``logboom.errors``."""
    run = _Run(plan, task, sender)
    try:
        for columns in _collected(plan, batches):
            run.send(columns)
        run.drain(0)
    except BaseException:
        run.give_up()
        raise
    return run.report(attempt)


def _collected(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[Columns]:
    """Rows as commands, about as many at once as may be under way; all of them if they are to be sorted."""
    limit = plan.sort_bytes_max
    collected: list[Columns] = []
    size = 0
    for whole in batches:
        for batch in _pieces(whole):
            columns = columns_of(batch, plan.layout)
            collected.append(columns if limit is None else columns.copied())
            size += columns.nbytes
            if limit is None and size >= min(COLLECT_BYTES, plan.in_flight_bytes_max):
                yield concat(collected)
                collected, size = [], 0
            elif limit is not None and size > limit:
                raise InvalidRequest(
                    f"a task has more than {limit} bytes of rows to sort: make batches smaller (maxOffsetsPerTrigger) "
                    "or tasks more, raise maxSortBytes, or say rowOrder=input if rows come in the same order every time"
                )
    if collected:
        together = concat(collected)
        collected.clear()
        if limit is not None:
            together = in_order(together)
        yield together


def _pieces(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    """Spark may hand over 64 MiB at once: encode it in steps, so that memory stays bounded."""
    if not batch.num_rows:
        return
    rows = max(1, batch.num_rows * COLLECT_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


class _Part:
    """Running sums of one logboom partition."""

    def __init__(self) -> None:
        self.rows = self.duplicate = self.last_index = self.global_index = 0
        self.first_index: int | None = None
        self._sums = [0] * 5

    def add(self, block: RecordBlock) -> None:
        # A stream for each column, so that the result does not depend on where blocks were cut.
        lengths = np.stack([lengths_of(e) for e in (block.payload_ends, block.key_ends)], axis=1)
        streams = [lengths.tobytes(), bytes(block.key_bytes), bytes(block.data)]
        if block.has_headers:
            raw, ends = block.packed_headers()
            streams += [lengths_of(ends).tobytes(), bytes(raw)]
        for place, stream in enumerate(streams):
            self._sums[place] = google_crc32c.extend(self._sums[place], stream)
        self.rows += block.count

    def landed(self, receipt: Receipt) -> None:
        self.duplicate += receipt.duplicate
        self.first_index = receipt.first_index if self.first_index is None else self.first_index
        self.last_index = max(self.last_index, receipt.last_index)
        self.global_index = max(self.global_index, receipt.global_index)

    def report(self, partition_id: int) -> PartitionReport:
        return PartitionReport(
            partition_id,
            self.rows,
            self.duplicate,
            self.first_index or 0,
            self.last_index,
            self.global_index,
            b"".join(each.to_bytes(4, "little") for each in self._sums),
        )


@dataclass(slots=True)
class _Sent:
    """A request under way."""

    answer: Future[Receipt]
    partition_id: int
    first: int
    """Its first row, among those of the task for this partition."""
    block: RecordBlock
    landed: int
    """How many had been answered when it was sent."""

    @property
    def has_landed(self) -> bool:
        """The request was answered, and not with an error."""
        answer = self.answer
        return answer.done() and not answer.cancelled() and answer.exception() is None

    @property
    def has_run_out(self) -> bool:
        """Its time is over; more of it may help."""
        answer = self.answer
        return answer.done() and not answer.cancelled() and _is_late(answer.exception())

    def named(self, task: int) -> str:
        """Its rows, for whoever looks for them."""
        rows = self.block.count
        last, alone = self.first + rows, self.block.keys()[0] if rows == 1 else b""
        which = f"row {last}" if rows == 1 else f"rows {self.first + 1} to {last}"
        key = f", key {alone.decode(errors='backslashreplace')!r}" if alone else ""
        return f"{which} of those that task {task} has for partition {self.partition_id}{key}"


class _Run:
    """One attempt of one task."""

    def __init__(self, plan: WritePlan, task: int, sender: Sender) -> None:
        self._plan = plan
        self._task = task
        self._sender = sender
        self._producer = producer_id(plan.producer or plan.write_id, task)
        self._parts: dict[int, _Part] = {}
        self._window: deque[_Sent] = deque()
        self._bytes = 0
        self._landed = 0
        """How many were answered, and are no more in the window."""
        self._rejected: Counter[str] = Counter()
        self._unknown = 0

    def send(self, columns: Columns) -> None:
        """Start every block of these rows, waiting whenever the window is full."""
        limit = min(self._plan.block_bytes_max, self._plan.in_flight_bytes_max)
        for partition_id, block in blocks(columns, bytes_max=limit, records_max=self._plan.block_records_max):
            self.drain(max(0, self._plan.in_flight_bytes_max - block.nbytes), requests=REQUESTS_MAX - 1)
            part = self._parts.setdefault(partition_id, _Part())
            first = part.rows
            part.add(block)
            self._window.append(
                _Sent(self._start(partition_id, block, first), partition_id, first, block, self._landed)
            )
            self._bytes += block.nbytes

    def _start(
        self, partition_id: int, block: RecordBlock, first: int, *, admission_wait: float | None = None
    ) -> Future[Receipt]:
        # Always until applied: refusals (a gap, a command that is no command) are decided at apply.
        return self._sender.start(
            lambda client: client.submit_block(
                partition_id,
                block,
                wait="applied",
                timeout=self._plan.target.request_timeout_ms / 1000,
                admission_wait=admission_wait,
                producer_id=self._producer,
                epoch=self._plan.epoch,
                sequence=first,
                dense=True,
                line=self,  # an attempt waits for none of another's
            )
        )

    def drain(self, allowed: int, *, requests: int = 0) -> None:
        """Wait until at most ``allowed`` bytes, in at most so many requests, are unacknowledged."""
        while self._bytes > allowed or len(self._window) > requests:
            sent = self._window[0]
            try:
                receipt = sent.answer.result()
            except RecordTooLarge as error:
                message = f"{sent.named(self._task)}: {error.message}"
                raise RecordTooLarge(message, outcome=error.outcome, **error.fields) from error
            except LogboomError as error:
                if not self._goes_on(sent, error):
                    raise
                continue
            self._window.popleft()
            self._landed += 1
            self._bytes -= sent.block.nbytes
            self._parts[sent.partition_id].landed(receipt)
            self._judge(receipt.results or (), sent.block.count)

    def _goes_on(self, sent: _Sent, error: LogboomError) -> bool:
        """What ran out of time is sent again, as long as others land, or a rate is all that holds it up.

        A task may have more under way than a cluster, or a rate, takes in the time of one request. And many tasks may
        share a rate: none of them is to fail because it was the turn of others all that time. Those say that they wait.
        """
        landed = self._landed + sum(each.has_landed for each in self._window)
        rate = _rate_of(error)
        if not _is_late(error) or (landed <= sent.landed and rate is None):
            return False
        late = [each for each in self._window if each.has_run_out]
        why = "others were taken meanwhile" if rate is None else f"{rate} lets it in later"
        log.warning("task %d: %s; going on, as %s (%d again)", self._task, error, why, len(late))
        wait = min(self._plan.target.request_timeout_ms / 1000 * PATIENCE, PATIENCE_S_MAX)
        patience = None if rate is None else wait
        for each in late:
            each.answer = self._start(each.partition_id, each.block, each.first, admission_wait=patience)
            each.landed = landed
        return True

    def _judge(self, results: tuple[Status, ...], rows: int) -> None:
        if not results:
            return
        alike = results.count(results[0]) == len(results)  # as nearly always: nothing is done for each row
        counts = {results[0]: rows} if alike else Counter(results)
        for status, count in counts.items():
            if status == Status.UNKNOWN_RESULT:
                self._unknown += count
            elif status not in FINE:
                self._rejected[status.name] += count

    def give_up(self) -> None:
        """Cancel what is under way; what was applied stays, and the next attempt's is recognised."""
        for sent in self._window:
            sent.answer.cancel()

    def report(self, attempt: int) -> TaskReport:
        parts = [part.report(p) for p, part in sorted(self._parts.items())]
        rows = sum(p.rows for p in parts)
        return TaskReport(self._plan.write_id, self._task, attempt, rows, parts, dict(self._rejected), self._unknown)


def _is_late(error: BaseException | None) -> bool:
    """It was tried until its deadline."""
    if isinstance(error, PartitionPaused):
        return False  # at once: somebody has to resume it
    return isinstance(error, LogboomError) and (error.retryable or isinstance(error, DeadlineExceeded))


def _rate_of(error: BaseException | None) -> str | None:
    """The setting of the rate that it was refused for, or the attempt before it. Whoever waits is let in by any."""
    while error is not None:
        limit = error.fields.get("limit") if isinstance(error, Overloaded) else None
        if isinstance(limit, str) and (limit.endswith("_per_s") or limit == "node_pace"):
            return limit
        error = error.__cause__
    return None


def check_write_id(write_id: str) -> str:
    """Raises InvalidRequest for one that cannot be a name."""
    if not write_id.strip() or len(write_id) > 512:
        raise InvalidRequest("writeId must have 1 to 512 characters")
    return write_id
