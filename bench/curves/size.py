"""With the size of a command, and with the number of commands in a batch."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final, NamedTuple

from bench.curves.clusters import cluster
from bench.curves.drive import Drive, run
from bench.curves.given import Given
from bench.curves.sheet import Sheet
from logboom.types import KIB, MIB
from raftlog.entries.entry import KIND_ROUTES
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal import cluster_hash

SIZES: Final = (16, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
BLOCK_BYTES: Final = 256 * KIB
"""Payload of a request, unless one command has more."""
SPREAD: Final = 8
UNDER_WAY: Final = 16
BATCHES: Final = (1, 10, 100, 1_000)
REQUESTS: Final = 1_000
ROUTED_MAX: Final = 1.0
"""Bytes of parent log per command, a thousand to a batch."""


def size(given: Given, sheet: Sheet) -> None:
    """16 bytes to 1 MiB."""
    sheet.curve("commands over size", x="bytes", unit="commands/s")
    sheet.curve("bytes over size", x="bytes", unit="MB/s")
    for each in given.some(SIZES):
        # Each size has a cluster of its own: all together they leave 50 GB of logs.
        with cluster(given.directory, partitions=SPREAD) as (local, _):
            shape = Drive(
                tuple(local.addresses.values()),
                partitions=SPREAD,
                commands=max(1, BLOCK_BYTES // each),
                size=each,
                under_way=UNDER_WAY,
                seconds=given.seconds,
            )
            rates = [found.commands_per_s for found in given.measure(local, shape)]
            sheet.point("commands over size", each, rates)
            sheet.point("bytes over size", each, [rate * each / 1e6 for rate in rates])


class ParentLog(NamedTuple):
    """What a journal holds of the parent log. Small batches that it carries for their partitions are not counted."""

    entries: int
    """Raft entries with routing entries."""
    entry_bytes: int
    """Of their commands: what is replicated."""
    record_bytes: int
    """Of their records on the disk, with index, term, header and padding."""


def parent_log(directory: Path, cluster_id: str = "logboom") -> ParentLog:
    """Read a stopped node's journal. Raises CorruptData."""
    entries = entry_bytes = record_bytes = 0
    for path in sorted(directory.glob("*.journal")):
        raw = path.read_bytes()
        header = codec.check_segment_header(raw, cluster=cluster_hash(cluster_id), path=str(path))
        for record in codec.scan(memoryview(raw), header)[0]:
            command = record.body[codec.ENTRY.size :]
            if record.kind is codec.RecordKind.ENTRY and bytes(command[:1]) == KIND_ROUTES:
                entries += 1
                entry_bytes += len(command)
                record_bytes += record.end - record.start
    return ParentLog(entries, entry_bytes, record_bytes)


def batch(given: Given, sheet: Sheet) -> None:
    """1 to 1,000 commands to a batch: the parent log's bytes per command, each batch with an entry of its own."""
    name = "parent log over batch"
    sheet.curve(name, x="commands/batch", unit="bytes/command")
    requests = REQUESTS // 10 if given.quick else REQUESTS
    for commands in BATCHES:
        # One request at a time shares its Raft entry with nobody: the most that a command can cost.
        with cluster(given.directory, partitions=1) as (local, _):
            endpoints = tuple(local.addresses.values())
            total = requests * commands
            run(Drive(endpoints, partitions=1, commands=commands, size=100, under_way=1, total=total))
            leader = local.leader()
            local.stop()
            found = parent_log(local.data_dirs[leader] / "journal")
        sheet.point(name, commands, found.entry_bytes / total, series="entries")
        sheet.point(name, commands, found.record_bytes / total, series="on the disk")
    line = sheet.curves[name].line("on the disk")
    steps = [later.y / before.y for before, later in itertools.pairwise(line)]
    sheet.check(f"{name}, greatest step from a batch size to the next", max(steps), at_most=1.0)
    sheet.check(f"bytes of parent log per command, {line[-1].x:,g} per batch", line[-1].y, at_most=ROUTED_MAX)
