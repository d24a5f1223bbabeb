"""Which nodes' logs a backup is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from logboom.client.operations import LogPiece
from logboom.errors import IndexCompacted, InvalidRequest, Unavailable
from logboom.types import PartitionId
from partitions.batch import Batch
from partitions.log import PartitionLog
from server.disk_os import OsDisk
from server.offline.backup import Done, backup
from server.offline.backup_dir import LogArchive
from tests.unit.dispatcher.test_installing import LOG, G, Source, Wire


class Nodes:
    """Of a cluster, as a client sees it: each has the set and its own log."""

    def __init__(self, **nodes: Source) -> None:
        self.nodes = nodes
        self.down: set[str] = set()

    def status(self, **_: Any) -> dict[str, Any]:
        return {"cluster": "c", "leader": "n3"}

    def members(self) -> list[str]:
        return list(self.nodes)

    def create_snapshot(self, **_: Any) -> dict[str, Any]:
        return {"global_index": G}

    def snapshots(self, *, node: str, **_: Any) -> dict[str, Any]:
        return {"sets": [{"global_index": G}]}

    def read_snapshot(self, _: int, name: str, offset: int, *, node: str, **__: Any) -> tuple[int, memoryview]:
        source = self.nodes[node]
        if name == "meta":
            raw = source.store.raw_meta(G)
        else:
            file = source.store.open_states(G)
            raw = file.read(offset=0, length=file.size())
        return len(raw), memoryview(raw)[offset:]

    def read_log(self, _: int, partition: int, *, after: int, through: int, node: str, **__: Any) -> LogPiece:
        if node in self.down:
            raise Unavailable("it is down")
        log: PartitionLog = self.nodes[node].log
        try:
            rows = log.read_raw(after_index=after, through_index=min(through, log.durable_index), max_bytes=400)
        except IndexCompacted:
            rows = []
        batches = [(row.global_index, memoryview(row.raw)) for row in rows]
        return LogPiece(batches, log.first_available_index, log.before_digest)


def cut_off(source: Source, *, first: int) -> Source:
    source.log.save_places(source.batches[-1].last_index)()
    source.log.compact(source.batches[first].header.first_index)()
    return source


def taken(nodes: Nodes, directory: Path, **options: Any) -> tuple[Done, list[Batch]]:
    done = backup(cast("Any", nodes), directory, bytes_per_s=1 << 40, **options)
    archive = LogArchive(OsDisk(), directory / "logs" / str(LOG), PartitionId(LOG))
    files = [archive.read(span.first_index) for span in archive.spans()]
    return done, [batch for file in files for _, batch in file.batches]


@pytest.fixture
def whole() -> Source:
    return Source("n2", Wire(), big=10)


def test_what_one_node_lacks_comes_from_another(whole: Source, tmp_path: Path) -> None:
    """Found by review: what lay in front of where the first node's log begins was left out, without a word."""
    nodes = Nodes(n1=cut_off(Source("n1", Wire(), big=10), first=20), n2=whole, n3=whole)
    done, batches = taken(nodes, tmp_path / "kept")
    assert [batch.digest for batch in batches] == [batch.digest for batch in whole.batches]
    assert done.batches == len(whole.batches)


def test_of_several_that_lack_it_the_one_that_begins_first_counts(tmp_path: Path) -> None:
    late, early = (cut_off(Source(n, Wire(), big=10), first=first) for n, first in (("n1", 30), ("n2", 10)))
    nodes = Nodes(n1=late, n2=early, n3=late)
    nodes.down.add("n3")
    _, batches = taken(nodes, tmp_path / "kept")
    assert batches[0].header.first_index == early.log.first_available_index < late.log.first_available_index


def test_a_node_that_was_named_is_the_only_one(whole: Source, tmp_path: Path) -> None:
    late = cut_off(Source("n1", Wire(), big=10), first=20)
    _, batches = taken(Nodes(n1=late, n2=whole, n3=whole), tmp_path / "kept", node="n1")
    assert batches[0].header.first_index == late.log.first_available_index


def test_a_node_that_has_the_set_and_not_the_log_yet_is_passed_over(whole: Source, tmp_path: Path) -> None:
    nodes = Nodes(n1=Source("n1", Wire(), big=10), n2=whole, n3=whole)
    nodes.nodes["n1"].log.durable_index = whole.batches[4].last_index
    _, batches = taken(nodes, tmp_path / "kept")
    assert [batch.digest for batch in batches] == [batch.digest for batch in whole.batches]
    with pytest.raises(InvalidRequest):
        taken(nodes, tmp_path / "other", node="n1")
