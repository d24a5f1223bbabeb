"""Data by descriptor: payloads of records that the client names, whole or in parts.

A descriptor is a partition and an index: it means the same on every node, wherever the batch lies. What is asked for
is read in the order of the logs, each batch once however many of its records are wanted, within the node's
``ReadBudget``, and answered as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from dispatcher.reading.read_budget import Grant
from dispatcher.reading.surroundings import Surroundings
from logboom.errors import CorruptData, InvalidRequest, Unavailable, Voided
from logboom.records import RecordBlock
from logboom.types import MIB, NUMBER_MAX, PartitionId
from logboom.wire import shown
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch

ROWS_MAX: Final = 4096
RANGES_MAX: Final = 64
ANSWER_BYTES: Final = 1 * MIB


class Wanted(NamedTuple):
    """One row of the request."""

    partition_id: PartitionId
    record: int
    """Its index."""
    number: int
    """Which row it is."""
    ranges: Sequence[tuple[int, int]] | None


class Found(NamedTuple):
    """Its payload, or what is wanted of it."""

    number: int
    parts: list[memoryview]


def parse(backend: Surroundings, header: Mapping[str, Any]) -> list[Wanted]:
    """In the order of the logs. Raises InvalidRequest, NoSuchPartition."""
    rows = header.get("rows")
    if not isinstance(rows, list) or not 1 <= len(rows) <= ROWS_MAX:
        raise InvalidRequest(f"rows must be 1 to {ROWS_MAX} descriptors")
    known, found = backend.workers, list[Wanted]()
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 3:
            raise InvalidRequest(f"row {number} must be a partition, an index and ranges or nil, not {shown(row)}")
        partition, index, ranges = row
        if type(partition) is not int or type(index) is not int or not 1 <= index <= NUMBER_MAX:
            raise InvalidRequest(f"row {number}: no record has partition {shown(partition)}, index {shown(index)}")
        if partition not in known:
            raise backend.missing(partition)
        found.append(Wanted(PartitionId(partition), index, number, _ranges(ranges, number)))
    return sorted(found, key=lambda each: each[:3])


def _ranges(given: Any, number: int) -> list[tuple[int, int]] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) > RANGES_MAX:
        raise InvalidRequest(f"row {number}: ranges must be at most {RANGES_MAX} pairs of offset and length, or nil")
    for part in given:
        if not isinstance(part, list) or len(part) != 2 or any(type(n) is not int or n < 0 for n in part):
            raise InvalidRequest(f"row {number}: {shown(part)} is not an offset and a length")
    return [(offset, length) for offset, length in given]


async def fetch(
    backend: Surroundings, header: Mapping[str, Any]
) -> AsyncGenerator[tuple[dict[str, Any], list[Any]], None]:
    """Headers and bodies of DATA: rows in any order, each once. Raises IndexCompacted, CorruptData, Unavailable."""
    numbers, lengths, body = list[int](), list[int](), list[bytes]()
    for partition, rows in groupby(parse(backend, header), key=lambda each: each.partition_id):
        left = list(rows)
        while left:
            if partition not in backend.workers:  # destroyed since, as far as the client has taken what it asked for
                raise backend.missing(partition)
            log = backend.log(partition)
            found = await _of_one_batch(backend, log, left)
            for each in found:
                raw = b"".join(each.parts)
                numbers.append(each.number)
                lengths.append(len(raw))
                body.append(raw)
            left = left[len(found) :]
            if sum(lengths) >= ANSWER_BYTES:
                yield {"rows": numbers, "lengths": lengths}, body
                numbers, lengths, body = [], [], []
    yield {"rows": numbers, "lengths": lengths}, body


async def _of_one_batch(backend: Surroundings, log: PartitionLog, rows: Sequence[Wanted]) -> list[Found]:
    """Those of the rows, from the first on, that are in the same batch and in one answer."""
    first = rows[0].record
    if first > log.durable_index:
        raise Unavailable(f"partition {log.partition_id} has no record {first} here yet", retry_after=0.05)
    position = log.position_after(first - 1)
    place = log.chunks.place(position)
    if place is None:
        raise Unavailable(f"partition {log.partition_id} has no record {first} here yet", retry_after=0.05)
    here = [each for each in rows if each.record <= place.last_index]
    grant = await _admitted(backend, place.length, place.global_index)
    try:

        def read() -> list[Found]:
            (batch,) = log.chunks.at(position, 1).batches()
            records = batch.records()  # once, however many of them are wanted
            picked, size = list[Found](), 0
            for each in here:
                picked.append(_pick(records, each.record - batch.header.first_index, each))
                size += sum(map(len, picked[-1].parts))
                if size >= ANSWER_BYTES:
                    break
            return picked

        found: list[Found] = await backend.offload.run(read)
    except DamagedBatch as damage:
        backend.damaged(log.partition_id, damage)
        if backend.is_lost(damage.digest):
            raise
        raise Unavailable(
            f"record {first} of partition {log.partition_id} is being repaired", retry_after=0.1
        ) from damage
    except Voided as gap:
        raise CorruptData(gap.message) from gap  # which is final
    except OSError as error:
        raise Unavailable(f"record {first} of partition {log.partition_id} could not be read: {error}") from error
    finally:
        grant.release()
    return found


def _pick(records: RecordBlock, row: int, wanted: Wanted) -> Found:
    ends = records.payload_ends
    start, end = int(ends[row - 1]) if row else 0, int(ends[row])
    payload = memoryview(records.data)[start:end]
    if wanted.ranges is None:
        return Found(wanted.number, [payload])
    for offset, length in wanted.ranges:
        if offset + length > len(payload):
            raise InvalidRequest(
                f"record {wanted.record} of partition {wanted.partition_id} has {len(payload)} bytes, "
                f"not {length} from {offset} on"
            )
    if sum(length for _, length in wanted.ranges) > len(payload):
        raise InvalidRequest(
            f"record {wanted.record} of partition {wanted.partition_id} has {len(payload)} bytes, fewer than its ranges"
        )
    return Found(wanted.number, [payload[offset : offset + length] for offset, length in wanted.ranges])


async def _admitted(backend: Surroundings, nbytes: int, order: int) -> Grant:
    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def admitted() -> None:
        if not room.done():
            room.set_result(None)

    grant: Grant = backend.read_budget.ask(nbytes=nbytes, segments=1, order=order, admitted=admitted)
    try:
        await room
    except BaseException:
        grant.release()
        raise
    return grant
