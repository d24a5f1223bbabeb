"""What a backup's logs become again: copied from one node, looked at, and made a node of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from logboom.client.operations import LogPiece
from logboom.errors import IndexCompacted, Voided
from logboom.settings import ClusterSettings, NodeSettings, PartitionSettings, Settings
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, RaftIndex
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from raftlog.entries.parent_state import ParentState, Tail
from server.offline.backup import Done, backup
from server.offline.restore import Restored, restore
from server.offline.verify import verify
from server.world.disk_os import OsDisk
from snapshots.states import StatesWriter
from tests.unit.dispatcher.installing_world import LOG, G, Source, Wire
from tests.unit.partitions.compaction_world import digests, open_log
from tests.unit.snapshots.states_world import Dump, entries

LOGS = 30
"""Partitions that are logs: one has records, and of the others all was removed."""


class Cluster(Source):
    """Of one node: the partitions up to ``LOG`` are no logs, those from there on are."""

    def set_at(self, global_index: GlobalLogIndex) -> None:
        end = Tail(self.batches[-1].last_index, self.batches[-1].digest, G)
        tails = {PartitionId(LOG + number): end for number in range(LOGS)}
        self.parent = ParentState(global_index, RaftIndex(self.raft_index), tails)
        writer = self.written_by(self.store.begin(global_index))
        self.store.complete(writer, self.meta_of(writer.finish()))

    def written_by(self, writer: StatesWriter) -> StatesWriter:
        for number in range(LOG + LOGS):
            dump = Dump(entries(3), 0 if number < LOG else self.batches[-1].last_index)
            writer.add(PartitionId(number), "kv" if number < LOG else "log", dump)
        return writer

    # -- as a client sees it

    def status(self, **_: Any) -> dict[str, Any]:
        said = {"ack": "committed", "linearizable": False, "partitions": []}
        partitions = [[number] for number in range(LOG + LOGS)]
        return {"cluster": "c", "leader": "n1", "partitions": partitions, "acknowledgement": said}

    def members(self) -> list[str]:
        return ["n1"]

    def create_snapshot(self, **_: Any) -> dict[str, Any]:
        return {"global_index": G}

    def snapshots(self, **_: Any) -> dict[str, Any]:
        return {"sets": [{"global_index": G}]}

    def read_snapshot(self, _: int, name: str, offset: int, **__: Any) -> tuple[int, memoryview]:
        if name == "meta":
            raw = self.store.raw_meta(G)
        else:
            file = self.store.open_states(G)
            raw = file.read(offset=0, length=file.size())
        return len(raw), memoryview(raw)[offset:]

    def read_log(self, _: int, partition: int, *, after: int, through: int, **__: Any) -> LogPiece:
        if partition != LOG:
            return LogPiece([], PartitionLogIndex(self.batches[-1].last_index + 1), self.batches[-1].digest)
        try:
            rows = self.log.read_raw(after_index=after, through_index=through, max_bytes=400)
        except (IndexCompacted, Voided):
            rows = []
        batches = [(row.global_index, memoryview(row.raw)) for row in rows]
        return LogPiece(batches, self.log.first_available_index, self.log.before_digest)


def copied(cluster: Cluster, kept: Path) -> Done:
    return backup(cast("Any", cluster), kept, bytes_per_s=1 << 40)


def restored(kept: Path, data: Path) -> Restored:
    overrides = {str(LOG + number): PartitionSettings(state_machine="log") for number in range(LOGS)}
    cluster = ClusterSettings(id="c", partitions=LOG + LOGS, state_machine="kv", overrides=overrides)
    return restore(kept, Settings(cluster=cluster, node=NodeSettings(id="n1", data_dir=str(data))))


def log_of(cluster: Cluster, data: Path) -> PartitionLog:
    """As the first start makes it."""
    end = cluster.batches[-1]
    base = LogBase(end.last_index, end.digest, G, True)
    return open_log(OsDisk(), base, directory=data / "partitions" / str(LOG))


def test_a_set_of_many_logs_is_read_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it says of all partitions was read for each of them, by each command: an hour for ten thousand."""
    cluster, times, decode = Cluster("n1", Wire()), list[int](), ParentState.decode

    def counted(_: type[ParentState], raw: bytes) -> ParentState:
        times[-1] += 1
        return decode(raw)

    monkeypatch.setattr(ParentState, "decode", classmethod(counted))
    for step in (
        lambda: copied(cluster, tmp_path / "kept"),
        lambda: verify(tmp_path / "kept"),
        lambda: restored(tmp_path / "kept", tmp_path / "data"),
    ):
        times.append(0)
        step()
    assert max(times) <= 10 < LOGS
    assert digests(log_of(cluster, tmp_path / "data")) == [batch.digest for batch in cluster.batches]
