"""Named positions of consumers, kept in the cluster.

They are keys of a ``kv`` partition of their own, which the first commit creates: its creation token is known to all,
so there is one, and nodes leave it out of what users see. A commit is a compare-and-set: nobody who lags moves a
cursor back, and one that is sent twice takes effect once (docs/decisions/0024-read-path.md).
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import Final, NamedTuple

from logboom.client.cluster import Cluster
from logboom.client.reads import Reader
from logboom.client.submits import Submitter
from logboom.commands import Cas, Command, Delete, Put, Value
from logboom.errors import CorruptData, InvalidRequest, NoSuchPartition
from logboom.types import CURSORS, CURSORS_TOKEN, NUMBER_MAX, GlobalLogIndex, Level, Receipt, Status, Watermark

NAME_BYTES_MAX: Final = 255
POSITION: Final = struct.Struct("<Q")


class CursorRow(NamedTuple):
    """One cursor. ``lag``: so many records, or batches of all partitions, are in front of it."""

    name: str
    partition_id: int | None
    """None: a position in the global order."""
    position: int
    lag: int | None
    """None: nobody could say how long its partition is."""


class Cursor:
    """A named consumer's place: the index, or global index, that it reads next. Made by ``Client.cursor``."""

    def __init__(self, store: CursorStore, name: str, partition_id: int | None) -> None:
        self._store = store
        self.name = name
        self.partition_id = partition_id
        self._key = key_of(name, partition_id)
        self._known: int | None = None
        """The position, as of the last answer."""

    async def position(self, *, timeout: float | None = None) -> int:
        """Where to go on (``start``, or ``start_global``); 0: nothing was committed yet. Linearizable."""
        return await self._position(self._store.deadline(timeout))

    async def _position(self, deadline: float) -> int:
        self._known = await self._store.read(self._key, deadline)
        return self._known

    async def commit(self, position: int, *, force: bool = False, timeout: float | None = None) -> int:
        """Everything in front of ``position`` is done. Returns where the cursor is then.

        It never goes back, whoever else commits, unless ``force``.
        """
        if type(position) is not int or not 1 <= position <= NUMBER_MAX:
            raise InvalidRequest(f"a position is an index from 1 on, not {position!r}")
        deadline = self._store.deadline(timeout)
        if force:
            await self._store.write(Put(self._key, POSITION.pack(position)), deadline)
            self._known = position
            return position
        while True:
            known = self._known
            if known is None or known >= position:  # what we know may be old
                known = await self._position(deadline)
            if known >= position:
                return known
            expected = POSITION.pack(known) if known else None
            receipt = await self._store.write(Cas(self._key, expected, POSITION.pack(position)), deadline)
            if receipt.results is not None and receipt.results[0] is Status.OK:
                self._known = position
                return position
            self._known = None  # somebody else has moved it

    async def delete(self, *, timeout: float | None = None) -> None:
        """Forget it. One that does not exist is no error."""
        deadline = self._store.deadline(timeout)
        if await self._store.where(deadline, create=False) is not None:
            await self._store.write(Delete(self._key), deadline)
        self._known = None


class CursorStore:
    """The partition that keeps cursors: its id, and reading and writing there."""

    def __init__(
        self, cluster: Cluster, reader: Reader, submitter: Submitter, deadline: Callable[[float | None], float]
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._submitter = submitter
        self.deadline = deadline
        """The deadline of a call, which may be several requests."""

    @property
    def known(self) -> int | None:
        """Its id, if this client has heard of it."""
        return next((row[0] for row in self._cluster.partitions if CURSORS in row[3:]), None)

    async def where(self, deadline: float, *, create: bool) -> int | None:
        """Its id; None: there is none, and none was made."""
        found = self.known
        if found is not None:
            return found
        # Whoever led before may not have heard yet that there is one.
        now = partial(self._cluster.refresh_partitions, linearizable=True)
        await self._cluster.at_leader(now, deadline=deadline)
        found = self.known
        if found is not None or not create:
            return found
        header = {"action": "create_partition", "token": CURSORS_TOKEN, "state_machine": "kv", "mode": "write_ahead"}
        made = await self._reader.admin_at_leader(header, deadline=deadline)
        await self._cluster.at_leader(now, deadline=deadline)
        return int(made["partition"])

    async def read(self, key: bytes, deadline: float) -> int:
        """Linearizable; 0: there is no such cursor."""
        while (where := await self.where(deadline, create=False)) is not None:
            try:
                (value,) = await self._reader.get_many(
                    where, [key], at_least=None, stale=False, max_staleness=None, node=None, deadline=deadline
                )
            except NoSuchPartition:  # somebody has destroyed it, or has not heard of it yet: ask again which
                self._cluster.forget_partitions()
                if self._cluster.now >= deadline:
                    raise
            else:
                return 0 if value is None else _position(key, value)
        return 0

    async def write(self, command: Command, deadline: float) -> Receipt:
        """Applied when it returns."""
        while True:
            where = await self.where(deadline, create=True)
            try:
                answer = await self._submitter.single_in_turn(
                    int(where or 0), command.record(), wait=Level.APPLIED, deadline=deadline
                )
                return await answer
            except NoSuchPartition:
                self._cluster.forget_partitions()
                if self._cluster.now >= deadline:
                    raise

    async def rows(self, deadline: float) -> list[CursorRow]:
        """All of them."""
        where = await self.where(deadline, create=False)
        if where is None:
            return []
        found: list[tuple[str, int | None, int]] = []
        entries = self._reader.scan(
            where,
            prefix=None,
            start=None,
            end=None,
            limit=0,
            at_least=None,
            stale=False,
            max_staleness=None,
            node=None,
            deadline=deadline,
        )
        async for key, value in entries:
            with suppress(CorruptData):  # whoever reads it is told
                found.append((*_parse_key(key), _position(key, value)))
        marks, commit_index = await self._reader.watermarks(deadline=deadline)
        return [CursorRow(*row, _lag(row[1], row[2], marks, commit_index)) for row in found]


class Cursors:
    """What a client does with cursors. A part of ``logboom.Client``."""

    _cluster: Cluster
    _reader: Reader
    _submitter: Submitter

    @abstractmethod
    def _deadline(self, timeout: float | None) -> float: ...

    @cached_property
    def _cursors(self) -> CursorStore:
        return CursorStore(self._cluster, self._reader, self._submitter, self._deadline)

    def cursor(self, name: str, partition_id: int | None = None) -> Cursor:
        """The place of a named consumer in a partition's log; without one, in the global order (``scan_log``)."""
        return Cursor(self._cursors, name, partition_id)

    async def cursor_position(self, name: str, partition_id: int | None = None, *, timeout: float | None = None) -> int:
        """See ``Cursor.position``."""
        return await self.cursor(name, partition_id).position(timeout=timeout)

    async def commit_cursor(
        self,
        name: str,
        partition_id: int | None,
        position: int,
        *,
        force: bool = False,
        timeout: float | None = None,
    ) -> int:
        """See ``Cursor.commit``."""
        return await self.cursor(name, partition_id).commit(position, force=force, timeout=timeout)

    async def delete_cursor(self, name: str, partition_id: int | None = None, *, timeout: float | None = None) -> None:
        """See ``Cursor.delete``."""
        await self.cursor(name, partition_id).delete(timeout=timeout)

    async def cursors(self, *, known: bool = False, timeout: float | None = None) -> list[CursorRow]:
        """All of them, by name, and how far each lags behind what the leader has.

        ``known``: only if this client has heard already that there are any; else the leader is asked.
        """
        if known and self._cursors.known is None:
            return []
        return await self._cursors.rows(self._deadline(timeout))

    async def cursors_partition(self, *, known: bool = False, timeout: float | None = None) -> int | None:
        """Id of the partition that holds them, which ``partitions`` leaves out; None: there is none yet.

        ``known``: as far as this client has heard; else the leader is asked.
        """
        return self._cursors.known if known else await self._cursors.where(self._deadline(timeout), create=False)


def key_of(name: str, partition_id: int | None) -> bytes:
    """Raises InvalidRequest."""
    try:
        raw = name.encode()
    except (AttributeError, UnicodeEncodeError):  # no text, or text that is none
        raw = b""
    if not 1 <= len(raw) <= NAME_BYTES_MAX or b"\0" in raw:
        raise InvalidRequest(f"the name of a cursor is a text of 1 to {NAME_BYTES_MAX} bytes, not {name!r}")
    if partition_id is not None and (type(partition_id) is not int or partition_id < 0):
        raise InvalidRequest(f"partition {partition_id!r} is not a partition id")
    return raw + b"\0" + (b"" if partition_id is None else b"%d" % partition_id)


def _position(key: bytes, value: Value) -> int:
    if not isinstance(value, bytes) or len(value) != POSITION.size:
        name, _ = _parse_key(key)
        raise CorruptData(
            f"what is kept for cursor {name!r} is no position: somebody else wrote it; set or delete it",
            path=f"cursor {name}",
            offset=0,
        )
    return int(POSITION.unpack(value)[0])


def _parse_key(key: bytes) -> tuple[str, int | None]:
    name, _, partition = key.partition(b"\0")
    return name.decode(errors="replace"), int(partition) if partition.isdigit() else None


def _lag(partition: int | None, position: int, marks: dict[int, Watermark], commit: GlobalLogIndex) -> int | None:
    if partition is None:
        return max(0, commit + 1 - position)
    mark = marks.get(partition)
    return None if mark is None else max(0, mark.log_index + 1 - position)
