"""What a client reads of the state. ``logboom.Client`` has all of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence

from logboom.client.parts import partition_ids
from logboom.client.reads import AtLeast, Reader, ViewEntry
from logboom.client.streams import close
from logboom.commands import Value
from logboom.records import RecordBlock
from logboom.types import GlobalLogIndex


class StateReading:
    """See the module."""

    _reader: Reader

    @abstractmethod
    def _deadline(self, timeout: float | None) -> float: ...

    async def get(
        self,
        partition_id: int,
        key: bytes,
        *,
        at_least: AtLeast = None,
        stale: bool = False,
        max_staleness: float | None = None,
        node: str | None = None,
        timeout: float | None = None,
    ) -> Value | None:
        """The value of a key: linearizable; from any replica that has applied ``at_least``; or ``stale``.

        ``at_least="session"``: whatever this client was told of before. ``max_staleness`` (seconds): any replica that
        knows what was committed so long ago, and has applied it; 0 is linearizable, at any replica.
        """
        found = await self.get_many(
            partition_id, [key], at_least=at_least, stale=stale, max_staleness=max_staleness, node=node, timeout=timeout
        )
        return found[0]

    async def get_many(
        self,
        partition_id: int,
        keys: Sequence[bytes],
        *,
        at_least: AtLeast = None,
        stale: bool = False,
        max_staleness: float | None = None,
        node: str | None = None,
        timeout: float | None = None,
    ) -> list[Value | None]:
        """Several keys, 10,000 at most, from one consistent view: hence always one request.

        Raises RecordTooLarge, at once, for more keys, or values, than fit into one frame (`net.client_frame_bytes`;
        and, at a node of an earlier release, keys of more than 256 KiB).
        """
        return await self._reader.get_many(
            partition_id,
            keys,
            at_least=at_least,
            stale=stale,
            max_staleness=max_staleness,
            node=node,
            deadline=self._deadline(timeout),
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
        max_staleness: float | None = None,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[tuple[bytes, Value], None]:
        """Keys (ascending) and values of a range, from one view, which ends if nothing is taken for ``timeout``."""
        return self._reader.scan(
            partition_id,
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            at_least=at_least,
            stale=stale,
            max_staleness=max_staleness,
            node=node,
            deadline=self._deadline(timeout),
        )

    async def scan_view(
        self,
        partitions: Sequence[int] | None = None,
        *,
        prefix: bytes | None = None,
        start: bytes | None = None,
        end: bytes | None = None,
        at_least: AtLeast = None,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[ViewEntry, None]:
        """Keys and values of a range in several partitions (None: all that have keys), all as of one global index.

        A request over several partitions is in there as a whole or not at all. One partition after the other.
        """
        entries = self._reader.scan_view(
            None if partitions is None else partition_ids(partitions),
            prefix=prefix,
            start=start,
            end=end,
            at_least=at_least,
            node=node,
            deadline=self._deadline(timeout),
        )
        try:
            async for entry in entries:
                yield entry
        finally:
            await close(entries)

    def scan_blocks(
        self,
        partition_id: int,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        at_least: AtLeast = None,
        stale: bool = False,
        max_staleness: float | None = None,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[tuple[GlobalLogIndex, RecordBlock], None]:
        """A whole partition, or a range, in columns: the global index of the view, and keys with encoded values."""
        return self._reader.scan_blocks(
            partition_id,
            prefix=None,
            start=start,
            end=end,
            limit=0,
            at_least=at_least,
            stale=stale,
            max_staleness=max_staleness,
            node=node,
            deadline=self._deadline(timeout),
        )
