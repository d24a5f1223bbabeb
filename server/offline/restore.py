"""``logboom restore``: an empty data directory becomes a node that its first start makes from a backup's set.

The manifest is written last: without it a start refuses the directory, so an interrupted restore cannot pass for a
node that has nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from logboom.errors import ConfigError, CorruptData, IndexCompacted, WrongNode
from logboom.settings import ClusterSettings, LogSettings, Settings
from logboom.types import (
    LINEAGE_BYTES,
    NO_DIGEST,
    DurabilityMode,
    GlobalLogIndex,
    NodeId,
    PartitionId,
    PartitionLogIndex,
)
from partitions.log.log import PartitionLog
from partitions.log.places import Rows
from ports.disk import Disk
from raftlog.entries.lifecycle import kind_of
from raftlog.entries.parent_state import ParentState, Tail
from server.directory.data_dir import MANIFEST, somebodys
from server.directory.install import Intent
from server.directory.manifest import Manifest
from server.directory.manifest import encode as encode_manifest
from server.directory.shares import log_share, without_age
from server.offline.backup_dir import INDEX, BackupDir, LogArchive, log_tails, voids_of
from server.offline.batches import Span
from server.offline.findings import Progress, silent
from server.offline.locking import locked
from server.offline.looking import LookingDisk
from server.offline.world import OfflineWorld, real_offline_world
from snapshots.meta import SetMeta
from snapshots.meta import encode as encode_set
from snapshots.store import SnapshotStore

PIECE_BYTES: Final = 1 << 20


class Restored(NamedTuple):
    """What was made."""

    node: str
    data_dir: str
    global_index: int
    bytes: int
    """Bytes of states."""
    batches: int
    """Batches of logs."""
    lineage: str
    """Of the history that begins here: the same for whoever restores this set."""
    left_out: Sequence[tuple[int, int, int]] = ()
    """Of logs that begin later than what the backup has of them: partition, its first record, and where they begin.

    A file between is missing: a log has no gaps. Backing up once more gets it again, if the cluster still has it.
    """


def restore(
    directory: Path,
    settings: Settings,
    *,
    global_index: int | None = None,
    as_cluster: bool = False,
    token: str = "",
    progress: Progress = silent,
    world: OfflineWorld | None = None,
) -> Restored:
    """Of the node that ``settings`` describe, from a backup's set (None: the newest).

    ``token`` tells one restore of a set from another; the same on all nodes.

    Raises WrongNode for the backup of another cluster, unless ``as_cluster``, or a directory that is not empty;
    ConfigError for partitions that are not the backup's; IndexCompacted if there is no such set; CorruptData.
    """
    disk, target = (world or real_offline_world()).disk, Path(settings.node.data_dir).absolute()
    directory = directory.absolute()
    if not disk.exists(directory / INDEX):
        raise WrongNode(f"{directory} is no backup directory: it has no {INDEX}")
    with locked(disk, directory, reading=True):
        source = BackupDir(LookingDisk(disk), directory)  # it may be one that nobody can write to
        meta = _chosen(source, global_index)
        _check(meta, settings.cluster, as_cluster=as_cluster)
        voids = voids_of(meta)
        runs = {
            partition: source.log(partition).run_to(*tail, voids.get(partition, ()))
            for partition, tail in sorted(log_tails(meta).items())
        }  # before anything is written
        _check_empty(disk, target)
        disk.make_directory(target)
        with locked(disk, target):
            _check_empty(disk, target)  # whoever had the lock until now may have made a node of it
            lineage = lineage_of(meta, settings.cluster.id, token)
            work = _Restore(disk, source, target, settings, meta, lineage, progress)
            work.states()
            for partition, run in runs.items():
                work.log(partition, run)
            work.claim()
    done = settings.node.id, str(target), meta.global_index, meta.states_bytes, work.batches, lineage
    return Restored(*done, _left_out(source, meta, runs))


def _left_out(
    source: BackupDir, meta: SetMeta, runs: Mapping[PartitionId, Sequence[Span]]
) -> Sequence[tuple[int, int, int]]:
    found = []
    for partition, (last_index, _) in log_tails(meta).items():
        run = runs[partition]
        begins = run[0].first_index if run else last_index + 1
        first = min((span.first_index for span in source.log(partition).spans()), default=begins)
        if first < begins:
            found.append((partition, first, begins))
    return found


def lineage_of(meta: SetMeta, cluster: str, token: str) -> str:
    """Of the history that begins with this set: whoever restores it finds the same, and no other restore does."""
    # Not created_ms: the set of another node's is the same.
    said = (cluster, token, meta.cluster, meta.lineage, meta.global_index, meta.raft_index, meta.raft_term)
    raw = msgspec.json.encode([*said, meta.states_digest.hex()])
    return hashlib.blake2b(raw, digest_size=LINEAGE_BYTES, person=b"logboom lineage").hexdigest()


def _chosen(source: BackupDir, global_index: int | None) -> SetMeta:
    complete = [] if source.contents is None else [each.global_index for each in source.contents.sets]
    if global_index is None and complete:
        global_index = complete[-1]
    if global_index is None or global_index not in complete:
        there = ", ".join(map(str, complete)) or "none"
        wanted = "" if global_index is None else f" {global_index}"
        raise IndexCompacted(f"{source.path} has no complete set{wanted}; there are: {there}", first=0)
    for damaged in source.store.damaged:
        if damaged.global_index == global_index:
            raise damaged.error
    return source.store.get(GlobalLogIndex(global_index))


def _check(meta: SetMeta, cluster: ClusterSettings, *, as_cluster: bool) -> None:
    if meta.cluster != cluster.id and not as_cluster:
        raise WrongNode(
            f"the backup is of cluster {meta.cluster!r}, the configuration of {cluster.id!r}; "
            "--as-cluster makes it that one's"
        )
    ids = [each.partition_id for each in meta.partitions]
    lifecycle = ParentState.decode(meta.parent).lifecycle
    begun = lifecycle.begun or len(ids)
    if begun != cluster.partitions or ids != lifecycle.ids(begun):
        raise ConfigError(
            f"cluster.partitions: {cluster.partitions}, and the backup's cluster began with {begun}",
            path="cluster.partitions",
        )
    for each in meta.partitions:
        wanted = kind_of(cluster, lifecycle, each.partition_id).state_machine
        if wanted != each.state_machine:
            path = f'cluster.overrides."{each.partition_id}".state_machine'
            raise ConfigError(
                f"{path}: {wanted!r}, and partition {each.partition_id} of the backup is {each.state_machine!r}",
                path=path,
            )


def _check_empty(disk: Disk, target: Path) -> None:
    found = somebodys(disk, target)
    if found:
        what = "a node's data" if MANIFEST in found else "what an interrupted restore left, or something else"
        raise WrongNode(f"{target} is not empty: it has {what}. A restore needs an empty directory, or none")


class _Restore:
    """Makes one node's data directory, which is empty, from a set."""

    def __init__(
        self,
        disk: Disk,
        source: BackupDir,
        target: Path,
        settings: Settings,
        meta: SetMeta,
        lineage: str,
        progress: Progress,
    ) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._settings = settings
        self._meta = meta
        self._tails = ParentState.decode(meta.parent).tails
        self._voids = voids_of(meta)
        self._lineage = lineage
        self._progress = progress
        self.batches = 0

    def states(self) -> None:
        """The set: copied, then read again and compared as a whole."""
        global_index = GlobalLogIndex(self._meta.global_index)
        meta = msgspec.structs.replace(
            self._meta, cluster=self._settings.cluster.id, lineage=self._lineage, parent=_parent(self._meta)
        )
        store = SnapshotStore(self._disk, self._target / "snapshots")
        source, copy = self._source.store.open_states(global_index), store.receive(global_index)
        try:
            for offset in range(0, meta.states_bytes, PIECE_BYTES):
                piece = source.read(offset=offset, length=PIECE_BYTES)
                copy.write([piece], offset=offset)
                self._progress("states", offset + len(piece), meta.states_bytes)
        finally:
            source.close()
            copy.close()
        try:
            store.adopt(encode_set(meta), store.partial_path(global_index))
        except CorruptData as error:
            raise CorruptData(
                f"{self._source.path}: the states of set {global_index} are damaged, or their copy is: {error}",
                path=str(self._source.path / f"{global_index:020d}.states"),
                offset=error.fields.get("offset"),
            ) from error

    def log(self, partition: PartitionId, run: Sequence[Span]) -> None:
        """A partition's segments, and the places of its batches."""
        cluster = self._settings.cluster
        tail = self._tails[partition]
        log = PartitionLog.open(
            disk=self._disk,
            directory=self._target / "partitions" / str(partition),
            partition_id=partition,
            settings=self._of_one(cluster.partitions),
            mode=DurabilityMode.WRITE_AHEAD,
        )
        try:
            self._fill(log, self._source.log(partition), run, tail)
        finally:
            log.close()

    def _of_one(self, partitions: int) -> LogSettings:
        """Nothing is kept in memory for whoever applies."""
        of_one = msgspec.structs.replace(log_share(self._settings.log, partitions), recent_bytes=0)
        return of_one if self._settings.snapshot.retain_log_ms else without_age(of_one)

    def _fill(self, log: PartitionLog, archive: LogArchive, run: Sequence[Span], tail: Tail) -> None:
        rows = Rows()
        known = (*archive.voids(), *self._voids.get(archive.partition_id, ()))
        voids = {void.first_index: void for void in known}
        before = (run[0].first_index - 1, run[0].before_digest) if run else (tail.last_index, tail.digest)
        if before[1] != NO_DIGEST:
            log.follow(PartitionLogIndex(before[0]), before[1])

        def step_over(after: int) -> int:
            while after < tail.last_index and (void := voids.get(PartitionLogIndex(after + 1))) is not None:
                log.concede(void.last_index, void.digest)
                rows.append(void.last_index, void.global_index, void.digest)
                after = void.last_index
            return after

        total, done, after = sum(span.nbytes for span in run), 0, step_over(before[0])
        for span in run:
            for global_index, batch in archive.read(span.first_index).batches:
                if batch.last_index > tail.last_index:
                    break
                if batch.last_index > after:  # else it is void, and was copied before it was lost
                    log.append(batch)
                    rows.append(batch.last_index, global_index, batch.digest)
                    after = step_over(batch.last_index)
            job = log.take()
            if job is not None:
                job.run()
                job.done()
            done += span.nbytes
            self._progress(f"log of partition {archive.partition_id}", done, total)
        log.save_fetched(rows, voids={(void.last_index, void.digest) for void in voids.values()})()
        self.batches += len(rows)

    def claim(self) -> None:
        """The directory is a node's from now on: what its first start does is written down before."""
        Intent(self._disk, self._target).write(GlobalLogIndex(self._meta.global_index))
        manifest = Manifest.of(NodeId(self._settings.node.id), self._settings.cluster)
        manifest = msgspec.structs.replace(manifest, lineage=self._lineage)
        self._disk.replace_file(self._target / MANIFEST, encode_manifest(manifest))


def _parent(meta: SetMeta) -> bytes:
    """Where the logs end, and which partitions there are; not who the old cluster's nodes were."""
    found = ParentState.decode(meta.parent)
    return dataclasses.replace(found, members=None).encode()
