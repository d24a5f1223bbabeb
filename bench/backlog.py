"""``python -m bench.backlog``: what does a committed backlog cost while nothing is applied?

On all three nodes one partition's worker is paused; then ten million small records are committed there, far more than
the default budgets let in. After commit nothing is refused: what waits is a position in a file. So memory has to stay
where it is, on the leader and on the followers, up to a bound per *batch*; and when the workers go on, all of it is
applied, the same on every node.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.endless import resident
from bench.report import RESULTS, SCRATCH, Check, say, verdict, write
from logboom import Client
from logboom.errors import LogboomError
from logboom.records import RecordBlock
from logboom.testing import LocalCluster

PARTITION: Final = 0
BLOCK_RECORDS: Final = 10_000
PAYLOAD_BYTES: Final = 8
UNDER_WAY: Final = 4
PATIENCE_S: Final = 600.0
BATCH_BYTES_MAX: Final = 4_000
"""Memory per batch at most; as built it is about 1.5 KB at the leader, less elsewhere."""
GROWTH_BYTES_MAX: Final = 64 << 20
"""Whatever does not depend on how much waits: batches in memory (`log.recent_bytes`), buffers, arenas."""


@dataclass(frozen=True)
class Stand:
    """Resident memory per node once so many records wait."""

    records: int
    bytes: dict[str, int]


@dataclass(frozen=True)
class Backlog:
    """What was seen."""

    batches: int
    stands: list[Stand]
    applied: int
    equal: bool
    """All nodes have the same state afterwards."""


def settings(records: int) -> dict[str, Any]:
    """Budgets that let all of it in: the first guard stands aside, so that the second is seen alone."""
    room = 2 * records
    return {
        "node.log_level": "warning",
        "admission.partition_ops": room,
        "admission.node_ops": room,
        "admission.partition_bytes": 64 * room,
        "admission.node_bytes": 64 * room,
        "admission.fair_share_percent": 100,
    }


async def build_up(cluster: LocalCluster, records: int, block_records: int) -> Backlog:
    """Pause, commit, look, go on, compare."""
    async with Client(cluster.endpoints, timeout=PATIENCE_S) as client:
        for address in cluster.addresses.values():
            await client.admin("pause", PARTITION, node=address)
        block = RecordBlock.from_columns(payloads=[b"r" * PAYLOAD_BYTES] * block_records)
        stands = [_stand(cluster, 0)]
        batches = records // block_records
        turns = asyncio.Semaphore(UNDER_WAY)

        async def one() -> None:
            async with turns:
                await client.submit_block(PARTITION, block, wait="committed")

        for tenth in range(10):
            await asyncio.gather(*(one() for _ in range(batches * (tenth + 1) // 10 - batches * tenth // 10)))
            stands.append(_stand(cluster, batches * (tenth + 1) // 10 * block_records))
        for address in cluster.addresses.values():
            await client.admin("resume", PARTITION, node=address)
        await client.barrier(client.last_seen, partitions=[PARTITION], scope="all", timeout=PATIENCE_S)
        states = [await client.status(node=each, digests=True) for each in cluster.addresses.values()]
        digests = [next(row[2] for row in state["digests"] if row[0] == PARTITION) for state in states]
        applied = min(row[3] for state in states for row in state["partitions"] if row[0] == PARTITION)
        return Backlog(batches, stands, applied, all(each == digests[0] for each in digests))


def _stand(cluster: LocalCluster, records: int) -> Stand:
    return Stand(records, {node: resident(cluster.pid(node)) for node in cluster.nodes})


def measured(records: int, block_records: int, directory: Path) -> Backlog:
    """A fresh cluster each time. Raises the errors of logboom, and OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="backlog-", dir=directory)).resolve()
    try:
        with LocalCluster(partitions=1, state_machine="log", directory=place, settings=settings(records)) as cluster:
            return asyncio.run(build_up(cluster, records, block_records))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def judge(seen: Backlog, records: int) -> list[Check]:
    """Growth from the first tenth on: by then whatever is filled once is full."""
    first, last = seen.stands[1], seen.stands[-1]
    grown = max(last.bytes[node] - first.bytes[node] for node in last.bytes)
    most = GROWTH_BYTES_MAX + seen.batches * BATCH_BYTES_MAX
    return [
        Check("MB that a node's memory grew by, from a tenth of the backlog to all", grown / 1e6, at_most=most / 1e6),
        Check("records applied afterwards, of those committed", seen.applied / records, at_least=1.0),
        Check("nodes are equal afterwards", float(seen.equal), at_least=1.0),
    ]


def main() -> int:
    """Exit status 1: a bound was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.backlog", description="a backlog while nothing is applied")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--block-records", type=int, default=BLOCK_RECORDS)
    parser.add_argument("--directory", type=Path, default=SCRATCH)
    parser.add_argument("--output", type=Path, default=RESULTS / "backlog.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    records = asked.records // asked.block_records * asked.block_records
    if asked.block_records < 1 or records < 10 * asked.block_records:
        parser.error("--records is at least ten times --block-records, which is at least 1")
    say(f"backlog: {records:,} records in batches of {asked.block_records:,}, none applied meanwhile")
    try:
        seen = measured(records, asked.block_records, asked.directory)
    except (LogboomError, TimeoutError, OSError) as error:
        say(f"backlog: {error!r}")
        return 2
    for stand in seen.stands:
        say(f"{stand.records:>12,} wait: " + ", ".join(f"{n} {b / 1e6:,.1f} MB" for n, b in stand.bytes.items()))
    checks = judge(seen, records)
    write(
        asked.output,
        settings={"records": records, "block_records": asked.block_records, "servers": settings(records)},
        checks=checks,
        stands=[asdict(each) for each in seen.stands],
    )
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
