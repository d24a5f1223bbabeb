"""The async client. See ``Client``."""

from __future__ import annotations

import os
import random
import ssl
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

from logboom.certs import renewed_client
from logboom.client import tracing
from logboom.client.attempts import seconds
from logboom.client.cluster import Cluster
from logboom.client.cursors import Cursors
from logboom.client.home import Unportable
from logboom.client.log_reading import LogReading
from logboom.client.operations import Operations
from logboom.client.parts import Part, check_floor, check_partition, check_sequence, checked, checked_producer
from logboom.client.prefixes import Removal
from logboom.client.reads import Reader
from logboom.client.sender import Sender
from logboom.client.state_reading import StateReading
from logboom.client.submits import Submitter
from logboom.client.waits import Waits
from logboom.commands import COMMANDS, Command, DeletePrefix, to_record
from logboom.errors import InvalidRequest
from logboom.records import RecordBlock
from logboom.routing import partition_of_record
from logboom.types import (
    CURSORS,
    MIB,
    PRODUCER_ID_BYTES,
    GlobalLogIndex,
    Level,
    Receipt,
    Receipts,
    Record,
    Token,
)

Submittable = Command | Record
SUBMITTABLE: Final = (*COMMANDS, Record)
WAITS: Final = {str(level): level for level in (Level.COMMITTED, Level.DURABLE, Level.APPLIED)}
PATIENCE_S_MAX: Final = 3600
IN_CLEAR: Final = "the token goes over the wire in clear text, and no node looks at it: use certificates in its place"
"""A warning of whoever gives one without TLS."""


class Client(Operations, StateReading, LogReading, Cursors, Waits, Unportable):
    """A connection to a logboom cluster: finds the leader, retries, applies nothing twice.

    ::

        async with Client("127.0.0.1:7701,127.0.0.1:7702,127.0.0.1:7703") as boom:
            receipt = await boom.submit(3, [Put(b"k", b"v"), Add(b"n", 1)])
            await boom.barrier(receipt.global_index, partitions=[3])
            await boom.get(3, b"k")

    ``timeout`` (seconds) is the default deadline of every call. ``tls`` is a directory as ``logboom certs``
    writes it, or a context. ``token`` is reserved: no node looks at it, what lets anybody in are certificates; without
    TLS a warning says that it can be read on the way. ``admission_wait`` (seconds) is the default of every submit.
    ``max_in_flight_bytes``: submits beyond it wait for earlier ones to be answered.
    ``rng``: all chance, the producer id too, comes from it. For tests: equal seeds would be one producer.
    A client belongs to the event loop that it is first used on, and to the process that it was made in: a forked child
    makes another. One that nobody closes leaves its connections open as long as anybody holds it, or anything that it
    gave, and something is under way.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        token: str | None = None,
        tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
        producer_id: bytes | None = None,
        timeout: float = 30.0,
        admission_wait: float = 0.0,
        max_in_flight_bytes: int = 64 * MIB,
        rng: random.Random | None = None,
    ) -> None:
        """Raises InvalidRequest for bad endpoints or a bad producer id, ConfigError for TLS files.

        A ``producer_id`` of one's own must never have been used before: numbering begins at 0.
        """
        random_bytes = os.urandom if rng is None else rng.randbytes
        self.producer_id = random_bytes(PRODUCER_ID_BYTES) if producer_id is None else checked_producer(producer_id)
        self.timeout = timeout
        self.admission_wait = admission_wait
        if token and tls is None:
            warnings.warn(IN_CLEAR, stacklevel=2)
        context = tls if tls is None or isinstance(tls, ssl.SSLContext) else renewed_client(os.fspath(tls))
        self._cluster = Cluster(endpoints, tls=context, token=token, rng=rng)
        self._reader = Reader(self._cluster)
        self._submitter = Submitter(
            self._cluster, self.producer_id, in_flight_bytes_max=max_in_flight_bytes, seen=self._reader.seen
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up on what is open and close the connections. Idempotent."""
        if not self._cluster.is_left:
            self._cluster.begin()
            await self._submitter.close()
            await self._cluster.close()

    @property
    def last_seen(self) -> GlobalLogIndex:
        """The session token: highest global index in any receipt or read so far."""
        return self._reader.last_seen

    @property
    def part_bytes(self) -> int:
        """How much a request should carry for one partition: what this cluster takes, as far as a node has said it."""
        return self._submitter.part_bytes

    @property
    def part_records(self) -> int:
        """How many records a request should carry for one partition, as far as a node has said it."""
        return self._submitter.part_records

    @property
    def block_records(self) -> int:
        """How many records a block of one's own may have for one partition, as far as a node has said it."""
        return self._cluster.block_records

    async def token(self) -> Token:
        """``last_seen`` and whose it is, to be handed to another client."""
        await self._cluster.acquaint(deadline=self._deadline(None))
        await self._cluster.meet(deadline=self._deadline(None))
        return Token(str(self._cluster.id), self.last_seen, self._cluster.lineage or "")

    async def partitions(self) -> list[int]:
        """Ids of all, but the one for cursors, as this client learned when it first connected, or missed one.

        What a node has said that follows nobody counts only where nobody leads: else whoever leads is asked.
        """
        await self._cluster.know_partitions(deadline=self._deadline(None))
        return [row[0] for row in self._cluster.partitions if CURSORS not in row[3:]]

    async def state_machines(self) -> dict[int, str]:
        """Ids of all partitions, but the one for cursors, and the state machine of each."""
        await self.partitions()
        return {row[0]: row[1] for row in self._cluster.partitions if CURSORS not in row[3:]}

    # -- writing

    async def submit(
        self,
        partition_id: int,
        commands: Submittable | Sequence[Submittable],
        *,
        wait: str | None = None,
        timeout: float | None = None,
        admission_wait: float | None = None,
        producer_id: bytes | None = None,
        epoch: int = 0,
        sequence: int | None = None,
        floor: int = 0,
        dense: bool = False,
        traceparent: str | None = None,
    ) -> Receipt:
        """Submit commands to one partition, in order, as one request.

        ``wait``: ``committed`` (ordered and held by a majority), ``durable`` or ``applied``
        (effects visible; ``receipt.results`` has a Status per command); None: what the partition's settings
        say, ``applied`` unless somebody chose otherwise. Raises the errors of
        ``logboom.errors``; ``error.outcome`` says what may have happened.

        A ``log`` partition keeps commands as the records that they are: OK, and no effect (``commands.from_record``).

        A client numbers its commands itself, so that its own retries take effect once. To be safe over
        restarts of *your* process, give ``producer_id`` (16 bytes) and the ``sequence`` of the first command;
        ``dense`` refuses gaps, a higher ``epoch`` fences off whoever uses an older one. Numbers may have gaps, but
        a partition remembers so many separate ranges of a producer (`apply.producer_ranges_max`), and refuses another
        one with QuotaExceeded. ``floor``: nothing below will be sent there again, which settles them; what comes from
        below all the same is taken for done. The first sequence that is not answered yet will do, or this one.

        A node that is overloaded refuses at once, and the client tries again until ``timeout``. With
        ``admission_wait`` (seconds) the node keeps the request in a queue for so long, in which its turn comes sooner.

        Txn, DeleteRange and DeletePrefix are over several keys of a `kv` partition. Refused with IncompatibleVersion
        while a member is of a release that does not know them, with Unavailable until each has said.

        ``traceparent`` (W3C): which span asks, for nodes that trace; else OpenTelemetry's current one, if sampled.
        """
        traceparent = tracing.parent(traceparent)
        alone = isinstance(commands, SUBMITTABLE) or not isinstance(commands, Sequence)
        rows: Any = [commands] if alone else commands
        if not rows:
            raise InvalidRequest("no commands given")
        if producer_id is None and (sequence is not None or dense or epoch or floor):
            raise InvalidRequest(
                "sequence, floor, dense and epoch go with a producer_id: this client numbers its own commands"
            )
        if len(rows) == 1 and producer_id is None and sequence is None and traceparent is None:
            check_partition(partition_id)
            level, deadline, patience = self._terms(wait, timeout, admission_wait)
            record, submitter = to_record(rows[0]), self._submitter
            answer = submitter.try_single(partition_id, record, level, deadline, patience)
            if answer is not None:
                return await answer
            answer = await submitter.single_in_turn(
                partition_id, record, wait=level, deadline=deadline, admission_wait=patience
            )
            return await answer
        return await self.submit_block(
            partition_id,
            RecordBlock.from_records(map(checked, rows)),
            wait=wait,
            timeout=timeout,
            admission_wait=admission_wait,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            floor=floor,
            dense=dense,
            traceparent=traceparent,
        )

    def sender(
        self,
        partition_id: int,
        *,
        wait: str | None = None,
        timeout: float | None = None,
        admission_wait: float | None = None,
    ) -> Sender:
        """For many single commands to one partition: ``send`` gives a future for each, and needs no task.

        ``wait``, ``timeout`` (of each) and ``admission_wait`` as in ``submit``. Its commands are in no trace.
        """
        check_partition(partition_id)
        level, patience = self._said(wait, admission_wait)
        return Sender(
            self._cluster,
            self._submitter,
            partition_id,
            wait=level,
            timeout=seconds(self.timeout if timeout is None else timeout),
            admission_wait=patience,
        )

    async def submit_many(
        self,
        commands: Mapping[int, Submittable | Sequence[Submittable]],
        *,
        wait: str | None = None,
        timeout: float | None = None,
        admission_wait: float | None = None,
        traceparent: str | None = None,
    ) -> Receipts:
        """One request over several partitions: ordered as a whole or not at all."""
        if not isinstance(commands, Mapping):
            raise InvalidRequest(f"commands of several partitions are {{partition: commands}}, not {commands!r:.80}")
        blocks = {p: RecordBlock.from_records(map(checked, _rows(given))) for p, given in commands.items()}
        return await self.submit_blocks(
            blocks, wait=wait, timeout=timeout, admission_wait=admission_wait, traceparent=traceparent
        )

    async def submit_by_key(
        self,
        commands: Submittable | Iterable[Submittable],
        *,
        wait: str | None = None,
        timeout: float | None = None,
        admission_wait: float | None = None,
        traceparent: str | None = None,
    ) -> Receipts:
        """Route every command by its key; one atomic request, one receipt per partition.

        Keys go to the partitions that the cluster began with, however many are created or destroyed later: a key
        always has the same one. If that was destroyed, PartitionDestroyed.
        """
        deadline = self._deadline(timeout)
        count = await self.key_partitions(timeout=timeout)
        by_partition: dict[int, list[Record]] = {}
        for command in _rows(commands):
            record = checked(command)
            if not record.key:
                raise InvalidRequest("submit_by_key needs a key in every record")
            by_partition.setdefault(partition_of_record(record, count), []).append(record)
        if not by_partition:
            raise InvalidRequest("no commands given")
        left = max(0.0, deadline - self._cluster.now)
        return await self.submit_many(
            by_partition, wait=wait, timeout=left, admission_wait=admission_wait, traceparent=traceparent
        )

    async def delete_prefix(self, partition_id: int, prefix: bytes, *, timeout: float | None = None) -> None:
        """Remove the keys of a `kv` partition that begin with ``prefix`` and are there when this is called.

        Not all at once: 1,024 keys, or 4 MiB, at a time, the least first. ``timeout`` counts for all of it. Where nodes
        have rules of access it takes `read` as well as `write`: it looks how many there are. An error has the outcome
        ``unknown`` where some are removed: call it again, it goes on with what is left.
        """
        checked(DeletePrefix(prefix))  # or it is refused after keys were looked at
        removal = Removal(
            now=lambda: self._cluster.now,
            deadline=self._deadline(timeout),
            scan=lambda start, end, limit, left: self.scan(
                partition_id, start=start, end=end, limit=limit, timeout=left
            ),
            remove=lambda command, left: self.submit(partition_id, command, wait="applied", timeout=left),
        )
        await removal.run(prefix)

    async def submit_blocks(
        self,
        blocks: Mapping[int, RecordBlock],
        *,
        wait: str | None = None,
        timeout: float | None = None,
        admission_wait: float | None = None,
        traceparent: str | None = None,
    ) -> Receipts:
        """Columnar form of ``submit_many``: no per-record work."""
        if not isinstance(blocks, Mapping):
            raise InvalidRequest(f"blocks are {{partition: RecordBlock}}, not {blocks!r:.80}")
        if not blocks:
            raise InvalidRequest("no records given")
        for block in blocks.values():
            _check_block(block)
        level, deadline, patience = self._terms(wait, timeout, admission_wait)
        receipts = await self._submitter.blocks(
            dict(blocks),
            wait=level,
            deadline=deadline,
            admission_wait=patience,
            traceparent=tracing.parent(traceparent),
        )
        self._reader.seen(receipts.global_index)
        return receipts

    async def submit_block(
        self,
        partition_id: int,
        block: RecordBlock,
        *,
        wait: str | None = None,
        timeout: float | None = None,
        admission_wait: float | None = None,
        producer_id: bytes | None = None,
        epoch: int = 0,
        sequence: int | None = None,
        floor: int = 0,
        dense: bool = False,
        line: Hashable = None,
        traceparent: str | None = None,
    ) -> Receipt:
        """Columnar form of ``submit``; with ``producer_id`` and ``sequence``, under the caller's own numbering.

        ``dense`` requests wait for those before them, of the same ``line``: two that number the same do not.
        """
        check_partition(partition_id)
        if (producer_id is None) != (sequence is None):
            raise InvalidRequest("give producer_id and sequence together, or neither")
        if producer_id is None and (dense or epoch or floor):
            raise InvalidRequest("floor, dense and epoch go with a producer_id")
        if producer_id is None or sequence is None:
            one = {partition_id: block}
            receipts = await self.submit_blocks(
                one, wait=wait, timeout=timeout, admission_wait=admission_wait, traceparent=traceparent
            )
            return receipts.parts[0]
        _check_block(block)
        check_sequence(sequence)
        check_floor(floor, sequence)
        level, deadline, patience = self._terms(wait, timeout, admission_wait)
        receipt = await self._submitter.numbered(
            Part(partition_id, sequence, block, floor),
            wait=level,
            deadline=deadline,
            producer_id=checked_producer(producer_id),
            epoch=epoch,
            dense=dense,
            line=line,
            admission_wait=patience,
            traceparent=tracing.parent(traceparent),
        )
        self._reader.seen(receipt.global_index)
        return receipt

    def _terms(
        self, wait: Any, timeout: float | None, admission_wait: float | None
    ) -> tuple[Level | None, float, float]:
        """What every submit may say: its level, its deadline, and for how long a node may queue it."""
        level, patience = self._said(wait, admission_wait)
        return level, self._deadline(timeout), patience

    def _said(self, wait: Any, admission_wait: float | None) -> tuple[Level | None, float]:
        level = WAITS.get(wait) if isinstance(wait, str) else None
        if level is None and wait is not None:
            raise InvalidRequest(f"wait must be committed, durable or applied, not {wait!r}")
        patience = self.admission_wait if admission_wait is None else admission_wait
        if seconds(patience, "admission_wait") > PATIENCE_S_MAX:
            raise InvalidRequest(f"admission_wait must be 0 to {PATIENCE_S_MAX} seconds, not {patience!r}")
        return level, patience


def _rows(given: Any) -> Iterable[Any]:
    """A lone command is one of them."""
    return [given] if isinstance(given, SUBMITTABLE) or not isinstance(given, Iterable) else given


def _check_block(given: Any) -> None:
    if not isinstance(given, RecordBlock):
        raise InvalidRequest(f"a block is a RecordBlock, not {given!r:.80}")
