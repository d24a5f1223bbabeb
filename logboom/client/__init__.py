"""The async client. See ``Client``."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Self

from logboom.certs import client_context
from logboom.client.cluster import Cluster
from logboom.client.operations import Operations
from logboom.client.parts import Part, check_partition
from logboom.client.reads import LogBatch, Reader
from logboom.client.submits import Submitter
from logboom.commands import COMMANDS, Command, Value, to_record
from logboom.errors import InvalidRequest
from logboom.records import RecordBlock
from logboom.routing import partition_of
from logboom.types import (
    MIB,
    PRODUCER_ID_BYTES,
    BarrierResult,
    GlobalLogIndex,
    Level,
    Receipt,
    Receipts,
    Record,
    Scope,
)

Submittable = Command | Record
SUBMITTABLE: Final = (*COMMANDS, Record)
WAITS: Final = {str(level): level for level in (Level.COMMITTED, Level.DURABLE, Level.APPLIED)}
AtLeast = int | Literal["session"] | None


class Client(Operations):
    """A connection to a logboom cluster: finds the leader, retries, applies nothing twice.

    ::

        async with Client("127.0.0.1:7701,127.0.0.1:7702,127.0.0.1:7703") as boom:
            receipt = await boom.submit(3, [Put(b"k", b"v"), Add(b"n", 1)])
            await boom.barrier(receipt.global_index, partitions=[3])
            await boom.get(3, b"k")

    ``timeout`` (seconds) is the default deadline of every call. ``tls`` is a directory as ``logboom certs``
    writes it, or a context. ``max_in_flight_bytes``: submits beyond it wait for earlier ones to be answered.
    ``rng``: all chance, the producer id too, comes from it. For tests: equal seeds would be one producer.
    One client belongs to one event loop.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        token: str | None = None,
        tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
        producer_id: bytes | None = None,
        timeout: float = 30.0,
        max_in_flight_bytes: int = 64 * MIB,
        rng: random.Random | None = None,
    ) -> None:
        """Raises InvalidRequest for bad endpoints or a producer id that is not 16 bytes, ConfigError for TLS files.

        A ``producer_id`` of one's own must never have been used before: numbering begins at 0.
        """
        random_bytes = os.urandom if rng is None else rng.randbytes
        self.producer_id = random_bytes(PRODUCER_ID_BYTES) if producer_id is None else _producer(producer_id)
        self.timeout = timeout
        context = tls if tls is None or isinstance(tls, ssl.SSLContext) else client_context(os.fspath(tls))
        self._cluster = Cluster(endpoints, tls=context, token=token, rng=rng)
        self._submitter = Submitter(self._cluster, self.producer_id, in_flight_bytes_max=max_in_flight_bytes)
        self._reader = Reader(self._cluster)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up on what is open and close the connections."""
        await self._submitter.close()
        await self._cluster.close()

    @property
    def last_seen(self) -> GlobalLogIndex:
        """The session token: highest global index in any receipt or read so far."""
        return self._reader.last_seen

    async def partitions(self) -> list[int]:
        """Ids of all partitions, as they were when this client connected last, or changed or missed one itself."""
        cluster, deadline = self._cluster, self._deadline(None)
        if not cluster.partitions:
            await cluster.retry(cluster.any, lambda node: cluster.know_partitions(at=node), deadline=deadline)
        return [row[0] for row in self._cluster.partitions]

    async def key_partitions(self) -> int:
        """Keys are routed over the partitions from 0 to this, exclusive (``logboom.routing``)."""
        await self.partitions()
        return self._cluster.key_partitions

    async def state_machines(self) -> dict[int, str]:
        """Ids of all partitions, and the state machine of each."""
        await self.partitions()
        return {row[0]: row[1] for row in self._cluster.partitions}

    async def members(self) -> dict[str, str]:
        """Node ids and their client addresses."""
        await self.partitions()
        return dict(self._cluster.members)

    # -- writing

    async def submit(
        self,
        partition_id: int,
        commands: Submittable | Sequence[Submittable],
        *,
        wait: str = "applied",
        timeout: float | None = None,
        producer_id: bytes | None = None,
        epoch: int = 0,
        sequence: int | None = None,
        dense: bool = False,
    ) -> Receipt:
        """Submit commands to one partition, in order, as one request.

        ``wait``: ``committed`` (ordered and held by a majority), ``durable`` or ``applied``
        (effects visible; ``receipt.results`` has a Status per command). Raises the errors of
        ``logboom.errors``; ``error.outcome`` says what may have happened.

        A client numbers its commands itself, so that its own retries take effect once. To be safe over
        restarts of *your* process, give ``producer_id`` (16 bytes) and the ``sequence`` of the first command;
        ``dense`` refuses gaps, a higher ``epoch`` fences off whoever uses an older one.
        """
        alone = isinstance(commands, SUBMITTABLE) or not isinstance(commands, Sequence)
        rows: Any = [commands] if alone else commands
        if not rows:
            raise InvalidRequest("no commands given")
        if len(rows) == 1 and producer_id is None and sequence is None:
            receipt = await self._submitter.single(
                partition_id, to_record(rows[0]), wait=_level(wait), deadline=self._deadline(timeout)
            )
            self._reader.seen(receipt.global_index)
            return receipt
        return await self.submit_block(
            partition_id,
            RecordBlock.from_records(map(to_record, rows)),
            wait=wait,
            timeout=timeout,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            dense=dense,
        )

    async def submit_many(
        self,
        commands: Mapping[int, Sequence[Submittable]],
        *,
        wait: str = "applied",
        timeout: float | None = None,
    ) -> Receipts:
        """One request over several partitions: ordered as a whole or not at all."""
        blocks = {p: RecordBlock.from_records(map(to_record, rows)) for p, rows in commands.items()}
        return await self.submit_blocks(blocks, wait=wait, timeout=timeout)

    async def submit_by_key(
        self, commands: Iterable[Submittable], *, wait: str = "applied", timeout: float | None = None
    ) -> Receipts:
        """Route every command by its key; one atomic request, one receipt per partition.

        Keys go to the partitions that the cluster began with, however many are created or destroyed later: a key
        always has the same one. If that was destroyed, PartitionDestroyed.
        """
        count = await self.key_partitions()
        by_partition: dict[int, list[Record]] = {}
        for command in commands:
            record = to_record(command)
            if not record.key:
                raise InvalidRequest("submit_by_key needs a key in every record")
            by_partition.setdefault(partition_of(record.key, count), []).append(record)
        if not by_partition:
            raise InvalidRequest("no commands given")
        return await self.submit_many(by_partition, wait=wait, timeout=timeout)

    async def submit_blocks(
        self, blocks: Mapping[int, RecordBlock], *, wait: str = "applied", timeout: float | None = None
    ) -> Receipts:
        """Columnar form of ``submit_many``: no per-record work."""
        if not blocks:
            raise InvalidRequest("no records given")
        receipts = await self._submitter.blocks(dict(blocks), wait=_level(wait), deadline=self._deadline(timeout))
        self._reader.seen(receipts.global_index)
        return receipts

    async def submit_block(
        self,
        partition_id: int,
        block: RecordBlock,
        *,
        wait: str = "applied",
        timeout: float | None = None,
        producer_id: bytes | None = None,
        epoch: int = 0,
        sequence: int | None = None,
        dense: bool = False,
    ) -> Receipt:
        """Columnar form of ``submit``; with ``producer_id`` and ``sequence``, under the caller's own numbering."""
        check_partition(partition_id)
        if (producer_id is None) != (sequence is None):
            raise InvalidRequest("give producer_id and sequence together, or neither")
        if producer_id is None or sequence is None:
            return (await self.submit_blocks({partition_id: block}, wait=wait, timeout=timeout)).parts[0]
        receipt = await self._submitter.numbered(
            Part(partition_id, sequence, block),
            wait=_level(wait),
            deadline=self._deadline(timeout),
            producer_id=_producer(producer_id),
            epoch=epoch,
            dense=dense,
        )
        self._reader.seen(receipt.global_index)
        return receipt

    # -- waiting

    async def barrier(
        self,
        global_index: int,
        *,
        partitions: Sequence[int] | None = None,
        scope: str = "node",
        level: str = "applied",
        timeout: float | None = None,
        wait_blocked: bool = False,
        node: str | None = None,
    ) -> BarrierResult:
        """Wait until the partitions (None: all) have reached ``global_index``.

        ``scope``: ``node`` (whichever answers, or ``node=``), ``leader``, ``quorum``, ``all``. ``level``:
        ``ordered``, ``durable``, ``applied``. Raises BarrierTimeout with the watermarks reached;
        BarrierBlocked at once when a partition is paused, unless ``wait_blocked``.
        """
        if node is not None and scope != Scope.NODE:
            raise InvalidRequest("node= goes with scope node only")
        return await self._reader.barrier(
            global_index,
            partitions=partitions,
            scope=Scope(scope) if scope in set(Scope) else _bad("scope", scope),
            level=Level(level) if level in set(Level) else _bad("level", level),
            wait_blocked=wait_blocked,
            node=node,
            deadline=self._deadline(timeout),
        )

    # -- reading

    async def get(
        self,
        partition_id: int,
        key: bytes,
        *,
        at_least: AtLeast = None,
        stale: bool = False,
        node: str | None = None,
        timeout: float | None = None,
    ) -> Value | None:
        """The value of a key: linearizable, or from any replica that has applied ``at_least``, or ``stale``."""
        found = await self.get_many(partition_id, [key], at_least=at_least, stale=stale, node=node, timeout=timeout)
        return found[0]

    async def get_many(
        self,
        partition_id: int,
        keys: Sequence[bytes],
        *,
        at_least: AtLeast = None,
        stale: bool = False,
        node: str | None = None,
        timeout: float | None = None,
    ) -> list[Value | None]:
        """Several keys from one consistent view."""
        return await self._reader.get_many(
            partition_id, keys, at_least=at_least, stale=stale, node=node, deadline=self._deadline(timeout)
        )

    def scan(
        self,
        partition_id: int,
        *,
        prefix: bytes | None = None,
        start: bytes | None = None,
        end: bytes | None = None,
        limit: int = 0,
        at_least: AtLeast = None,
        stale: bool = False,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[bytes, Value]]:
        """Keys (ascending) and values of a range, from one consistent view."""
        return self._reader.scan(
            partition_id,
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            at_least=at_least,
            stale=stale,
            node=node,
            deadline=self._deadline(timeout),
        )

    def scan_blocks(
        self,
        partition_id: int,
        *,
        at_least: AtLeast = None,
        stale: bool = False,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[GlobalLogIndex, RecordBlock]]:
        """A whole partition in columns: the global index of the view, and keys with encoded values."""
        return self._reader.scan_blocks(
            partition_id,
            prefix=None,
            start=None,
            end=None,
            limit=0,
            at_least=at_least,
            stale=stale,
            node=node,
            deadline=self._deadline(timeout),
        )

    def tail(
        self, partition_id: int, *, start: int = 0, follow: bool = False, node: str | None = None
    ) -> AsyncIterator[LogBatch]:
        """The log of a partition from index ``start`` on, batch by batch; with ``follow``, for ever."""
        return self._reader.tail(partition_id, start=start, follow=follow, node=node)

    async def scan_log(
        self, partitions: Sequence[int] | None = None, *, start_global: int = 0, timeout: float | None = None
    ) -> AsyncIterator[LogBatch]:
        """Batches of many partitions in global order, up to what was committed when it began."""
        chosen = partitions if partitions is not None else await self.partitions()
        async for batch in self._reader.scan_log(chosen, start_global=start_global, deadline=self._deadline(timeout)):
            yield batch


def _producer(given: Any) -> bytes:
    if not isinstance(given, bytes) or len(given) != PRODUCER_ID_BYTES:
        raise InvalidRequest(f"producer_id must be {PRODUCER_ID_BYTES} bytes, not {given!r}")
    return given


def _level(wait: Any) -> Level:
    level = WAITS.get(wait) if isinstance(wait, str) else None
    return level if level is not None else _bad("wait", wait)


def _bad(name: str, value: object) -> Any:
    choices = {
        "scope": "node, leader, quorum or all",
        "level": "ordered, durable or applied",
        "wait": "committed, durable or applied",
    }
    raise InvalidRequest(f"{name} must be {choices[name]}, not {value!r}")
