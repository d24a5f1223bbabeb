"""A cluster, as whoever backs it up sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from logboom.client.operations import LogPiece, log_piece_of
from logboom.errors import IndexCompacted, LogboomError, Unavailable, Voided
from logboom.types import PartitionId, PartitionLogIndex
from logboom.wire import Frame, Kind
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from server.offline.backup import Done, backup
from server.offline.backup_dir import LogArchive
from server.world.disk_os import OsDisk
from tests.unit.dispatcher.installing_world import LOG, G, Source

Row = tuple[int, str | None, bool | None]


class Nodes:
    """Of a cluster, as a client sees it: each has the set and its own log."""

    def __init__(self, **nodes: Source) -> None:
        self.nodes = nodes
        self.lineages: dict[str | None, str | None] = {}
        """Those of which each node says that its history is; None: any node."""
        self.down: set[str] = set()
        self.fails: dict[str, LogboomError] = {}
        """What is answered for logs."""
        self.down_for: dict[str, int] = {}
        """So often."""
        self.asked: list[str] = []
        """For logs, in turn."""
        self.at = G
        self.partitions = [[LOG, LOG + 1]] * 99
        """Asked about again and again."""
        self.chosen: list[list[Row]] = [[]] * 99
        """So are these."""

    def status(self, *, node: str | None = None, **_: Any) -> dict[str, Any]:
        there, chosen = self.partitions.pop(0), self.chosen.pop(0)
        said = {"cluster": "c", "leader": "n3", "partitions": [[p] for p in there], "chosen": [*map(list, chosen)]}
        return said | ({"lineage": self.lineages[node]} if node in self.lineages else {})

    def members(self) -> list[str]:
        return list(self.nodes)

    def create_snapshot(self, **_: Any) -> dict[str, Any]:
        return {"global_index": self.at}

    def snapshots(self, *, node: str, **_: Any) -> dict[str, Any]:
        return {"sets": [{"global_index": self.at}]}

    def read_snapshot(self, _: int, name: str, offset: int, *, node: str, **__: Any) -> tuple[int, memoryview]:
        source = self.nodes[node]
        if name == "meta":
            raw = source.store.raw_meta(self.at)
        else:
            file = source.store.open_states(self.at)
            raw = file.read(offset=0, length=file.size())
        return len(raw), memoryview(raw)[offset:]

    def read_log(self, _: int, partition: int, *, after: int, through: int, node: str, **__: Any) -> LogPiece:
        self.asked.append(node)
        left = self.down_for.pop(node, 0)
        if left > 1:
            self.down_for[node] = left - 1
        if left or node in self.down:
            raise Unavailable("it is down")
        if node in self.fails:
            raise self.fails[node]
        log: PartitionLog = self.nodes[node].log
        try:
            rows = log.read_raw(after_index=after, through_index=min(through, log.durable_index), max_bytes=400)
        except (IndexCompacted, Voided, DamagedBatch):
            rows = []
        void = log.void_behind(after) if not rows else None
        if void is not None:
            first = PartitionLogIndex(void.last_index + 1)
            return LogPiece([], first, void.digest, void.last_index, void.global_index)
        lost = log.lost_behind(after) if not rows else None
        if lost is not None:
            header = {"rows": [], "first": 1, "before": b"", "lost": list(lost)}
            return log_piece_of(Frame(Kind.LOG_PIECE, 0, header, memoryview(b"")))
        batches = [(row.global_index, memoryview(row.raw)) for row in rows]
        return LogPiece(batches, log.first_available_index, log.before_digest)


def taken(nodes: Nodes, directory: Path, **options: Any) -> tuple[Done, list[Batch]]:
    done = backup(cast("Any", nodes), directory, bytes_per_s=1 << 40, **options)
    archive = LogArchive(OsDisk(), directory / "logs" / str(LOG), PartitionId(LOG))
    files = [archive.read(span.first_index) for span in archive.spans()]
    return done, [batch for file in files for _, batch in file.batches]
