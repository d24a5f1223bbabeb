"""Reads of state: linearizable, at least as new as an index, or stale; off the loop, but for what is at hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from dispatcher.reading.surroundings import Asker, Surroundings
from dispatcher.requests.requests import field_of
from logboom.commands import Value, pack_numbers
from logboom.errors import CorruptData, InvalidRequest, RecordTooLarge, Unavailable
from logboom.records import RecordBlock
from logboom.state_machine import Machine, Position
from logboom.types import GlobalLogIndex, PartitionId, Record
from logboom.wire import REPLY_BYTES_MAX, Frame, shown

KEYS_MAX: Final = 10_000


def state_damaged(backend: Surroundings, partition_id: PartitionId, machine: Machine, error: CorruptData) -> None:
    """A read has met it. Of a machine that was replaced since, or is gone, nobody needs to know."""
    if backend.machines.get(partition_id) is machine:
        backend.rebuilding.damaged(partition_id, error)


def encode_value(value: Value) -> bytes:
    """As on the wire: ``b`` + bytes, or ``q``/``d`` + numbers. Raises InvalidRequest for what is no value."""
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, tuple):
        with suppress(InvalidRequest):
            return pack_numbers(value)
    raise InvalidRequest(f"the state machine gave {value!r:.40} as a value: they are bytes, or tuples of numbers")


def partition_of_header(backend: Surroundings, header: Mapping[str, Any]) -> PartitionId:
    """The partition that a request names. Raises NoSuchPartition."""
    number = field_of(header, "partition", int)
    if number not in backend.workers:
        raise backend.missing(number)
    return PartitionId(number)


async def partition_of_read(backend: Surroundings, header: Mapping[str, Any], deadline: float) -> PartitionId:
    """The same of a read. Raises NotLeader, too."""
    if field_of(header, "partition", int) not in backend.workers:
        await hear_of_all(backend, header, deadline)
    return partition_of_header(backend, header)


async def hear_of_all(backend: Surroundings, header: Mapping[str, Any], deadline: float) -> None:
    """Whoever is to answer with all that was committed does not go by what he has not heard of yet.

    Raises NotLeader.
    """
    if header.get("read", "linearizable") == "linearizable":
        await backend.read_index(deadline)


async def make_fresh(
    backend: Surroundings,
    header: Mapping[str, Any],
    partition_id: PartitionId,
    deadline: float,
    *,
    lone: bool = False,
    asker: Asker | None = None,
) -> None:
    """Wait until this node may answer the read that ``header`` asks for. ``lone``: nobody else is known to ask.

    ``asker``: who waits; the node itself, without one.
    """
    mode = header.get("read", "linearizable")
    if mode == "stale":
        return
    if mode == "linearizable":
        target = await backend.read_index(deadline, lone=lone)
    elif mode == "at_least":
        target = GlobalLogIndex(field_of(header, "at_least", int))
    elif mode == "bounded":
        target = await backend.freshness.recent(field_of(header, "max_staleness_ms", int) / 1000, deadline)
        target = max(target, GlobalLogIndex(field_of(header, "at_least", int, 0)))
    else:
        raise InvalidRequest(f"read must be linearizable, at_least, bounded or stale, not {shown(mode)}")
    if not backend.recovered([partition_id]):
        raise Unavailable("this node is still recovering; ask another or try again", retry_after=0.1)
    await backend.wait_applied(partition_id, target, deadline, asker=asker)


def keys_of(frame: Frame) -> list[bytes]:
    """Of a GET: in its header, or, of more than that has room for, ``lengths`` there and the keys in the body."""
    keys = frame.header.get("keys")
    if keys is None and "lengths" in frame.header:
        lengths = field_of(frame.header, "lengths", list)
        if len(lengths) > KEYS_MAX:  # before they are gone through
            raise InvalidRequest(f"at most {KEYS_MAX} keys, not {len(lengths)}")
        keys, at = [], 0
        for length in lengths:
            if type(length) is not int or not 0 <= length <= len(frame.body) - at:
                raise InvalidRequest(f"a key of {shown(length)} bytes, of {len(frame.body) - at} that are left")
            keys.append(bytes(frame.body[at : at + length]))
            at += length
        if at != len(frame.body):
            raise InvalidRequest(f"keys of {at} bytes in a body of {len(frame.body)}")
    if not isinstance(keys, list) or not 1 <= len(keys) <= KEYS_MAX or not all(isinstance(k, bytes) for k in keys):
        raise InvalidRequest(f"keys must be 1 to {KEYS_MAX} byte strings")
    return keys


async def get(
    backend: Surroundings, frame: Frame, deadline: float, *, lone: bool = False, asker: Asker | None = None
) -> tuple[dict[str, Any], list[Any]]:
    """Header and body of VALUES. ``lone``: the client waits for nothing else."""
    partition_id, keys = await partition_of_read(backend, frame.header, deadline), keys_of(frame)
    await make_fresh(backend, frame.header, partition_id, deadline, lone=lone, asker=asker)
    distinct = list(dict.fromkeys(keys))
    with backend.using(partition_id) as machine:
        try:
            found = backend.at_hand.get(machine, distinct)
            if found is None:
                found = await backend.threads_of(partition_id, machine).run(lambda: machine.get(distinct))
            values, position = found
        except CorruptData as error:
            state_damaged(backend, partition_id, machine, error)
            raise
    if len(values) != len(distinct):
        raise InvalidRequest(f"the state machine gave {len(values)} values for {len(distinct)} keys")
    known = {k: None if v is None else encode_value(v) for k, v in zip(distinct, values, strict=True)}
    size = sum(len(known[k] or b"") for k in keys)
    if size > REPLY_BYTES_MAX:  # a key may be named ten thousand times
        raise RecordTooLarge(f"{size} bytes of values in one answer; ask for fewer", size=size, limit=REPLY_BYTES_MAX)
    payloads = [known[k] or b"" for k in keys]
    # Of one there are no arrays to be made, which take as long as all else together.
    lone = len(payloads) == 1
    block = RecordBlock.from_records([Record(payloads[0])]) if lone else RecordBlock.from_columns(payloads=payloads)
    reply = {
        "found": [known[k] is not None for k in keys],
        "metadata": len(block.metadata),
        "data": len(block.data),
        "global_index": position.applied_global_index,
    }
    return reply, [block.metadata, block.data]


async def digest(backend: Surroundings, partition_id: PartitionId) -> tuple[bytes, Position] | None:
    """Of a partition's state; None: it is damaged, or gone."""
    if backend.rebuilding.fenced(partition_id) or partition_id not in backend.machines:
        return None
    # However far behind it is here: whoever compares states is told the position, too.
    with backend.partitioning.using(partition_id) as machine:
        try:
            found = await _digest(backend, partition_id, machine)
        except CorruptData as error:
            state_damaged(backend, partition_id, machine, error)
            return None
    return found if partition_id in backend.machines else None


async def _digest(backend: Any, partition_id: PartitionId, machine: Machine) -> tuple[bytes, Position]:
    """One at a time on the same threads, those included for which nobody waits any more."""
    alone: asyncio.Lock = backend.digesting(partition_id)
    await alone.acquire()
    job: asyncio.Future[tuple[bytes, Position]] = asyncio.ensure_future(
        backend.threads_of(partition_id, machine).run(machine.digest)
    )
    job.add_done_callback(lambda _: alone.release())
    return await asyncio.shield(job)


def entries(rows: list[tuple[bytes, Value]], position: Position) -> tuple[dict[str, Any], list[Any]]:
    """Header and body of ENTRIES."""
    reply: dict[str, Any] = {"count": len(rows), "global_index": position.applied_global_index}
    if not rows:
        return {**reply, "metadata": 0, "data": 0}, []
    block = RecordBlock.from_columns(payloads=[encode_value(v) for _, v in rows], keys=[k for k, _ in rows])
    return {**reply, "metadata": len(block.metadata), "data": len(block.data)}, [block.metadata, block.data]


def scan_range(header: Mapping[str, Any]) -> tuple[bytes, bytes | None]:
    """Start and end (exclusive; None: no end) of a scan, from a prefix or a range."""
    prefix, start, end = header.get("prefix"), header.get("start"), header.get("end")
    if any(v is not None and not isinstance(v, bytes) for v in (prefix, start, end)):
        raise InvalidRequest("prefix, start and end must be bytes")
    if prefix is None:
        return start or b"", end
    if start is not None or end is not None:
        raise InvalidRequest("give a prefix or a range, not both")
    stripped = prefix.rstrip(b"\xff")
    return prefix, stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None
