"""What a client reads of the log. ``logboom.Client`` has all of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import datetime
from typing import Any, get_args

from logboom.client.attempts import seconds
from logboom.client.log_batches import Descriptor, LogBatch, LogMetadata
from logboom.client.parts import partition_ids
from logboom.client.reads import Reader
from logboom.client.streams import TAIL_CREDIT, OnCompacted, OnNode, OnVoid, Select, Start, close
from logboom.errors import InvalidRequest
from logboom.types import Level


class LogReading:
    """See the module."""

    _reader: Reader
    timeout: float

    @abstractmethod
    def _deadline(self, timeout: float | None) -> float: ...

    @abstractmethod
    async def partitions(self) -> list[int]:
        """Ids of the partitions that there are."""

    def tail(
        self,
        partition_id: int,
        *,
        start: int = 0,
        start_global: int = 0,
        start_time: int | datetime | None = None,
        follow: bool = False,
        level: str = "durable",
        key_prefix: bytes | None = None,
        header: tuple[str, bytes | None] | None = None,
        batch_records: int = 0,
        batch_bytes: int = 0,
        on_compacted: OnCompacted = "error",
        on_void: OnVoid | None = None,
        cold: bool = False,
        credit: int = TAIL_CREDIT,
        node: str | None = None,
        on_node: OnNode | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[LogBatch, None]:
        """The log of a partition from a position on, batch by batch; with ``follow``, for ever.

        Without, up to what the node that answers has, which may be behind: the leader may have more (``scan_log`` goes
        on to where it was to end when it began, ``follow`` to wherever you stop).

        The position: ``start`` (index), ``start_global`` or ``start_time`` (milliseconds since 1970, or a datetime with
        a time zone); by default the first record that is still there. With ``follow``, a time still to come is waited
        for. Where records have been removed on every node that can be reached (or on ``node``), IndexCompacted, or
        with ``on_compacted="first"`` from the first that is there.
        ``level="applied"``: only what has taken effect.
        ``key_prefix`` and ``header`` (name, and value or None for any) are looked at by the node: see
        ``LogBatch.offsets``. ``batch_records`` and ``batch_bytes``: larger batches come in pieces. ``cold``: nobody
        else reads this soon. ``credit``: bytes that the node sends ahead of what was taken. ``batch.position`` is the
        ``start`` to go on from. What was lost and declared void is stepped over, and ``on_void`` is told of it; what
        that raises ends the tail. When a node is lost another is found within ``timeout`` (by default the client's).
        ``on_node`` is told the address of each that is asked.
        """
        if type(credit) is not int or credit < 1:
            raise InvalidRequest(f"credit is a number of bytes above 0, not {credit!r}")
        _check_compacted(on_compacted)
        fields = _feed_fields(follow=follow, level=level, key_prefix=key_prefix, header=header, cold=cold)
        fields |= {"records_max": batch_records, "bytes_max": batch_bytes}
        where = Start.of(start, start_global, start_time)
        return self._reader.tail(
            partition_id,
            start=where,
            node=node,
            fields=fields,
            on_compacted=on_compacted,
            on_void=on_void,
            patience=seconds(self.timeout if timeout is None else timeout),
            credit=credit,
            on_node=on_node,
        )

    def tail_metadata(
        self,
        partition_id: int,
        *,
        start: int = 0,
        start_global: int = 0,
        start_time: int | datetime | None = None,
        follow: bool = False,
        level: str = "durable",
        key_prefix: bytes | None = None,
        header: tuple[str, bytes | None] | None = None,
        on_compacted: OnCompacted = "error",
        on_void: OnVoid | None = None,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[LogMetadata, None]:
        """As ``tail``, without the data: keys, headers, sizes, and descriptors for ``fetch``."""
        _check_compacted(on_compacted)
        fields = _feed_fields(follow=follow, level=level, key_prefix=key_prefix, header=header, cold=False)
        where = Start.of(start, start_global, start_time)
        return self._reader.tail_metadata(
            partition_id,
            start=where,
            node=node,
            fields=fields,
            on_compacted=on_compacted,
            on_void=on_void,
            patience=seconds(self.timeout if timeout is None else timeout),
        )

    async def fetch(
        self,
        descriptors: Sequence[Descriptor],
        select: Select | None = None,
        *,
        node: str | None = None,
        timeout: float | None = None,
    ) -> list[bytes]:
        """Payloads of records, in the order of ``descriptors``; any node has them.

        ``select`` names the parts of each that are wanted, as (offset, length); they come back to back.
        """
        given: Any = descriptors
        if not isinstance(given, Iterable):
            raise InvalidRequest(f"descriptors are a list, not {given!r}")
        wanted = list(given)
        if wrong := [each for each in wanted if not isinstance(each, Descriptor)]:
            raise InvalidRequest(f"what is fetched is a Descriptor, as tail_metadata gives it, not {wrong[0]!r:.80}")
        return await self._reader.fetch(wanted, select, node=node, deadline=self._deadline(timeout))

    async def scan_log(
        self,
        partitions: Sequence[int] | None = None,
        *,
        start_global: int = 0,
        start_time: int | datetime | None = None,
        follow: bool = False,
        level: str = "durable",
        on_compacted: OnCompacted = "error",
        on_void: OnVoid | None = None,
        cold: bool = False,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[LogBatch, None]:
        """Batches of many partitions (None: all) in global order, up to what was safe to give when it began.

        All are those that there were before this call, as the leader knows it, or that ``node`` knows of. Nothing that
        comes out can be preceded by something that does not. With ``follow``, for ever, unless there are none; of
        partitions that are created meanwhile nothing comes (``tail`` those). Memory is bounded on both sides, however
        many partitions there are.
        What was lost and declared void is stepped over, and ``on_void`` is told of it in its place; what that raises
        ends the scan. ``timeout``: for learning which there are, and for finding a node to go on at.
        """
        _check_compacted(on_compacted)
        if partitions is None:
            await self._reader.refresh_partitions(None, node, deadline=self._deadline(timeout))
            partitions = await self.partitions()
            if not partitions:
                return
        fields = _feed_fields(follow=follow, level=level, key_prefix=None, header=None, cold=cold)
        where = Start.of(0, start_global, start_time)
        batches = self._reader.scan_log(
            partition_ids(partitions),
            start=where,
            node=node,
            fields=fields,
            on_compacted=on_compacted,
            on_void=on_void,
            patience=seconds(self.timeout if timeout is None else timeout),
        )
        try:
            async for batch in batches:
                yield batch
        finally:
            await close(batches)


def _check_compacted(given: Any) -> None:
    if not isinstance(given, str) or given not in get_args(OnCompacted):
        raise InvalidRequest(f"on_compacted must be error or first, not {given!r}")


def _feed_fields(
    *, follow: bool, level: str, key_prefix: bytes | None, header: tuple[str, bytes | None] | None, cold: bool
) -> dict[str, Any]:
    if level not in (Level.DURABLE, Level.APPLIED):
        raise InvalidRequest(f"level must be durable or applied, not {level!r}")
    fields: dict[str, Any] = {"follow": follow, "level": level, "cold": cold}
    fields |= {} if key_prefix is None else {"key_prefix": key_prefix}
    return fields | ({} if header is None else {"header": list(header)})
