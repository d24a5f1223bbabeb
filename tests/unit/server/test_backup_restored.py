"""What a backup's logs become again: copied from one node, looked at, and made a node of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from logboom.client.operations import LogPiece
from logboom.errors import CorruptData, IndexCompacted, Voided
from logboom.settings import ClusterSettings, NodeSettings, PartitionSettings, Settings
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, RaftIndex
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from raftlog.entries.parent_state import ParentState, Tail
from raftlog.entries.voids import KEPT_MAX, Void, Voids
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

    voids = Voids()
    at = G
    asked = 0
    """For how many pieces of the log."""

    def set_at(self, global_index: GlobalLogIndex) -> None:
        end = Tail(self.batches[-1].last_index, self.batches[-1].digest, G)
        tails = {PartitionId(LOG + number): end for number in range(LOGS)}
        self.parent = ParentState(global_index, RaftIndex(self.raft_index), tails, voids=self.voids)
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
        return {"global_index": self.at}

    def snapshots(self, **_: Any) -> dict[str, Any]:
        return {"sets": [{"global_index": self.at}]}

    def read_snapshot(self, _: int, name: str, offset: int, **__: Any) -> tuple[int, memoryview]:
        if name == "meta":
            raw = self.store.raw_meta(self.at)
        else:
            file = self.store.open_states(self.at)
            raw = file.read(offset=0, length=file.size())
        return len(raw), memoryview(raw)[offset:]

    def read_log(self, _: int, partition: int, *, after: int, through: int, **__: Any) -> LogPiece:
        if partition != LOG:
            return LogPiece([], PartitionLogIndex(self.batches[-1].last_index + 1), self.batches[-1].digest)
        self.asked += 1
        try:
            rows = self.log.read_raw(after_index=after, through_index=through, max_bytes=400)
        except (IndexCompacted, Voided):
            rows = []
        void = self.log.void_behind(after) if not rows else None
        if void is not None:
            behind = PartitionLogIndex(void.last_index + 1)
            return LogPiece([], behind, void.digest, void.last_index, void.global_index)
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


# -- void batches

NUMBERS = [5, 20, 21, -1]
"""Of the batches that are void."""


def others(count: int) -> Voids:
    """So many voids of another partition: a set keeps the last of all."""
    voids = Voids()
    for number in range(1, count + 1):
        index = PartitionLogIndex(number)
        voids = voids.after(Void(PartitionId(0), index, index, number.to_bytes(16), GlobalLogIndex(number), 1))
    return voids


def with_voids(voids: Voids) -> Cluster:
    """Of which its sets know ``voids``."""
    cluster = Cluster("n1", Wire())
    for number in NUMBERS:
        batch = cluster.batches[number]
        cluster.log.lose(batch.last_index, batch.digest)
        cluster.log.void(batch.last_index, batch.digest)
    later(cluster, voids)
    return cluster


def later(cluster: Cluster, voids: Voids) -> None:
    """Another set, which knows these."""
    cluster.voids, cluster.at = voids, GlobalLogIndex(cluster.at + 1)
    cluster.set_at(cluster.at)


def own_voids(cluster: Cluster, voids: Voids) -> Voids:
    """Those of its log as well."""
    ends = [cluster.batches[number] for number in NUMBERS]
    places = [
        (b.header.first_index, b.last_index, b.digest, cluster.log.place_of(b.last_index, b.digest)) for b in ends
    ]
    for first, last, digest, place in places:
        assert place is not None
        voids = voids.after(Void(PartitionId(LOG), first, last, digest, place.global_index, 2))
    return voids


def check_restored(cluster: Cluster, kept: Path, data: Path) -> None:
    assert [each for each in verify(kept).findings if str(kept / "logs" / str(LOG)) in each.path] == []
    assert restored(kept, data).left_out == []
    log = log_of(cluster, data)
    assert digests(log) == digests(cluster.log)
    assert log.first_available_index == 1
    for number in NUMBERS:
        before = cluster.batches[number].header.first_index - 1
        assert log.void_behind(before) == cluster.log.void_behind(before) is not None


def test_what_a_set_knows_no_more_to_be_void_is_noted(tmp_path: Path) -> None:
    """It was refused, for good, as declared void after the set: of the voids of all partitions a set keeps 1,024."""
    cluster = with_voids(others(KEPT_MAX + 1))
    copied(cluster, tmp_path / "kept")
    check_restored(cluster, tmp_path / "kept", tmp_path / "data")


def test_what_it_knew_once_is_noted_for_those_that_will_not(tmp_path: Path) -> None:
    """By then the cluster may have removed what is around it; and nobody is asked for it again."""
    cluster = with_voids(Voids())
    later(cluster, own_voids(cluster, others(3)))
    copied(cluster, tmp_path / "kept")
    later(cluster, others(KEPT_MAX + 1))
    cluster.asked = 0
    assert copied(cluster, tmp_path / "kept").batches == cluster.asked == 0
    check_restored(cluster, tmp_path / "kept", tmp_path / "data")


def test_a_note_of_one_that_is_damaged_is_told_and_is_no_note(tmp_path: Path) -> None:
    cluster, kept = with_voids(others(KEPT_MAX + 1)), tmp_path / "kept"
    copied(cluster, kept)
    note = min((kept / "logs" / str(LOG)).glob("*.void"))
    raw = note.read_bytes()
    elsewhere = note.with_name(f"{7:020d}.void")
    for bad in (raw[:-1] + bytes([raw[-1] ^ 1]), raw[:16] + bytes(8) + raw[24:], raw + b"x", b""):
        note.write_bytes(bad)
        assert str(note) in {each.path for each in verify(kept).findings}
        with pytest.raises(CorruptData):
            restored(kept, tmp_path / "data")
    note.write_bytes(raw)
    elsewhere.write_bytes(raw)
    assert str(elsewhere) in {each.path for each in verify(kept).findings}
