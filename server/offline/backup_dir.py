"""A backup directory: snapshot sets, the logs of partitions that are nothing else, and which sets are complete.

::

    backup.json                                whose it is, and the complete sets; written last
    lock                                       held while it is written to or read
    <global index, 20 digits>.set, .states     as in a node's directory
    logs/<partition>/<first index, 20 digits>.batches
    logs/<partition>/<last index, 20 digits>.nothing
    logs/<partition>/<last index, 20 digits>.void

Whatever backup.json does not name is under way or left over: the next backup goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from logboom.errors import CorruptData, IncompatibleVersion, WrongNode
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, is_lineage, lineage_shown
from partitions.log.batch import Batch
from ports.disk import Disk
from raftlog.entries.parent_state import ParentState
from raftlog.entries.voids import Void
from raftlog.journal.journal import cluster_hash
from server.directory.data_dir import LOST_AND_FOUND, MANIFEST, SNAPSHOTS
from server.directory.manifest import sealed
from server.offline.batches import (
    NOTHING,
    ROWS_AT,
    SUFFIX,
    VOID,
    BatchFile,
    Span,
    decode,
    decode_nothing,
    decode_void,
    encode,
    encode_nothing,
    encode_void,
    name_of,
    span_of,
)
from snapshots.meta import SetMeta
from snapshots.store import NAME, SnapshotStore

FORMAT: Final = 2
"""The format of a directory of another history than the cluster's first; 1 has no lineage in it."""
FIRST_LINEAGE: Final = 1
INDEX: Final = "backup.json"
LOGS: Final = "logs"
LOCK: Final = "lock"
FILE_BYTES: Final = 32 << 20
"""Bytes of batches in one file, about."""
OURS: Final = re.compile(rf"{INDEX}(\.new)?|{LOGS}|{LOCK}|{re.escape(LOST_AND_FOUND)}")
NOTE: Final = re.compile(rf"[0-9]{{20}}{re.escape(NOTHING)}")
KEPT_IN_LOGS: Final = "log"
"""State machine whose records are in its log and nowhere else."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A complete set."""

    global_index: int
    raft_index: int
    created_ms: int
    bytes: int
    """Bytes of its states."""
    digest: str
    """BLAKE3-128 of its states, in hexadecimal."""

    @staticmethod
    def of(meta: SetMeta) -> Kept:
        """A set as backup.json lists it."""
        return Kept(meta.global_index, meta.raft_index, meta.created_ms, meta.states_bytes, meta.states_digest.hex())


class Contents(NamedTuple):
    """What backup.json says."""

    cluster: str
    sets: tuple[Kept, ...]
    """Ascending by global index."""
    lineage: str = ""
    """Of the one history of the cluster that all of it is of."""


def encode_contents(contents: Contents) -> bytes:
    """The file."""
    rows = [msgspec.to_builtins(each) for each in contents.sets]
    fields: dict[str, Any] = {"format": FIRST_LINEAGE, "cluster": contents.cluster, "sets": rows}
    return sealed(fields | ({"format": FORMAT, "lineage": contents.lineage} if contents.lineage else {}))


def decode_contents(raw: bytes, *, path: str) -> Contents:
    """Raises CorruptData or IncompatibleVersion, naming ``path``."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
        version = fields["format"]
        del fields["checksum"]
        whole = sealed(fields) == raw
    except (msgspec.MsgspecError, KeyError, ValueError, RecursionError) as error:
        raise CorruptData(f"{path} cannot be read: {error}", path=path) from error
    if not whole:
        raise CorruptData(f"{path} does not match its checksum", path=path)
    if version not in (FORMAT, FIRST_LINEAGE):
        raise IncompatibleVersion(
            f"{path} has format {version}; this release reads {FORMAT}. Nothing was changed",
            found=version,
            supported=FORMAT,
        )
    try:
        cluster = msgspec.convert(fields.get("cluster"), str)
        sets = msgspec.convert(fields.get("sets"), tuple[Kept, ...])
        lineage = msgspec.convert(fields.get("lineage", ""), str)
    except msgspec.ValidationError as error:
        raise CorruptData(f"{path} is no list of a backup: {error}", path=path) from error
    if sorted({each.global_index for each in sets}) != [each.global_index for each in sets]:
        raise CorruptData(f"{path}: its sets are not in order", path=path)
    if not is_lineage(lineage) or bool(lineage) != (version == FORMAT):
        raise CorruptData(f"{path} is no list of a backup of format {version}", path=path)
    return Contents(cluster, sets, lineage)


def check_free(disk: Disk, path: Path) -> None:
    """Nothing is made in a directory that is somebody else's, not even a lock. Raises WrongNode."""
    if disk.exists(path / INDEX) or not disk.exists(path):
        return
    if any(not (OURS.fullmatch(name) or NAME.fullmatch(name)) for name in disk.list(path)):
        raise WrongNode(f"{path} is not empty and has no {INDEX}: not a backup directory")
    if path.name == SNAPSHOTS and disk.exists(path.parent / MANIFEST):
        raise WrongNode(f"{path} is a node's own: a backup needs a directory for itself")


class BackupDir:
    """One directory; the caller holds its lock."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Raises CorruptData, IncompatibleVersion, or WrongNode for a directory that holds something else."""
        self.path = path
        self._disk = disk
        index = path / INDEX
        self.contents: Contents | None = None
        """None: nothing is in it yet."""
        if disk.exists(index):
            self.contents = decode_contents(disk.read_file(index), path=str(index))
        else:
            check_free(disk, path)
        self._is_listed = self.contents is not None
        """There was a list; one that is begun now may stand for one that was lost."""
        self.store = SnapshotStore(disk, path)

    def claim(self, cluster: str, lineage: str = "") -> None:
        """It is of this history of this cluster from now on. Raises WrongNode if it is another's."""
        self.check(cluster, lineage)
        if self.contents is None:
            self._write(Contents(cluster, (), lineage))

    def check(self, cluster: str, lineage: str) -> None:
        """Raises WrongNode if it is of another cluster, or of another history of it."""
        if self.contents is None:
            return
        if self.contents.cluster != cluster:
            raise WrongNode(f"{self.path} is a backup of cluster {self.contents.cluster!r}, not of {cluster!r}")
        if self.contents.lineage != lineage:
            raise WrongNode(
                f"{self.path} is of another history of {cluster!r} ({lineage_shown(self.contents.lineage)}) than the "
                f"cluster is now ({lineage_shown(lineage)}): a cluster that was restored needs a new directory"
            )

    def complete(self, meta: SetMeta) -> None:
        """All of a set, and of the logs up to it, is here. What was removed by hand is listed no more."""
        if self.contents is None:
            raise WrongNode(f"{self.path} belongs to no cluster yet")
        there = {each.global_index for each in self.store.sets()} | {each.global_index for each in self.store.damaged}
        listed = [each for each in self.contents.sets if each.global_index in there]
        sets = {each.global_index: each for each in (*listed, Kept.of(meta))}
        self._write(self.contents._replace(sets=tuple(sets[index] for index in sorted(sets))))

    def remove_unfinished(self, *, but: GlobalLogIndex) -> None:
        """Sets of backups that came to nothing: not listed, and the logs up to them are not here.

        Older ones than the newest that is listed stay: a list that was lost did not name them either.
        """
        listed = [each.global_index for each in self.contents.sets] if self.contents is not None else []
        for meta in self.store.sets() if self._is_listed else ():
            if max(listed, default=0) < meta.global_index != but and not self._has_logs(meta):
                self.store.remove(meta.global_index)

    def _has_logs(self, meta: SetMeta) -> bool:
        try:
            voids = voids_of(meta)
            for partition, tail in log_tails(meta).items():
                self.log(partition).run_to(*tail, voids.get(partition, ()))
        except CorruptData:
            return False
        return True

    def is_complete(self, global_index: GlobalLogIndex) -> bool:
        """Such a set is listed."""
        return self.contents is not None and any(each.global_index == global_index for each in self.contents.sets)

    def log(self, partition_id: PartitionId) -> LogArchive:
        """What there is of a partition's log."""
        return LogArchive(self._disk, self.path / LOGS / str(partition_id), partition_id)

    def _write(self, contents: Contents) -> None:
        self._disk.replace_file(self.path / INDEX, encode_contents(contents))
        self.contents = contents


class LogArchive:
    """One partition's ``.batches`` files."""

    def __init__(self, disk: Disk, directory: Path, partition_id: PartitionId) -> None:
        self.directory = directory
        self.partition_id = partition_id
        self._disk = disk

    def paths(self) -> list[Path]:
        """In the order of the log."""
        if not self._disk.exists(self.directory):
            return []
        return [self.directory / name for name in self._disk.list(self.directory) if name.endswith(SUFFIX)]

    def spans(self) -> list[Span]:
        """What the files' headers say, unchecked. Raises CorruptData for one that cannot be, or IncompatibleVersion."""
        return [self.span(path) for path in self.paths()]

    def span(self, path: Path) -> Span:
        """What the file's header says, unchecked, but for whose it is. Raises CorruptData or IncompatibleVersion."""
        file = self._disk.open(path, readonly=True)
        try:
            span = span_of(file.read(offset=0, length=ROWS_AT), path=path)
        except IncompatibleVersion:  # or rot, which the whole file tells
            span = decode(self._disk.read_file(path), path=path).span
        finally:
            file.close()
        if span.partition_id != self.partition_id or path.name != name_of(span.first_index):
            raise CorruptData(f"{path}: of partition {span.partition_id}, from {span.first_index} on: misplaced",
                              path=str(path), offset=0)  # fmt: skip
        return span

    def read(self, first_index: int) -> BatchFile:
        """The file that begins there. Raises CorruptData."""
        path = self.directory / name_of(first_index)
        return decode(self._disk.read_file(path), path=path)

    def add(self, rows: Sequence[tuple[GlobalLogIndex, Batch]], cluster: str) -> None:
        """A new file, durable on return."""
        self._disk.make_directory(self.directory)
        path = self.directory / name_of(rows[0][1].header.first_index)
        self._disk.replace_file(path, encode(rows, cluster=cluster_hash(cluster)))

    def note_nothing(self, last_index: int, digest: bytes, cluster: str) -> None:
        """The cluster has nothing of what ends with this batch: a log that is restored begins behind it."""
        self._disk.make_directory(self.directory)
        raw = encode_nothing(self.partition_id, last_index=last_index, digest=digest, cluster=cluster_hash(cluster))
        self._disk.replace_file(self._nothing(last_index), raw)

    def remove_notes(self) -> None:
        """Those of what is here after all: once it is lost they would say that it never was."""
        spans, removed = self.spans(), False
        for note in self.notes():
            index = int(note.stem) if NOTE.fullmatch(note.name) else 0
            if any(span.first_index <= index <= span.last_index for span in spans):
                self._disk.remove(note)
                removed = True
        if removed:
            self._disk.sync_directory(self.directory)

    def notes(self) -> list[Path]:
        """Of what ``note_nothing`` was told."""
        if not self._disk.exists(self.directory):
            return []
        return [self.directory / name for name in self._disk.list(self.directory) if name.endswith(NOTHING)]

    def noted(self, path: Path) -> End:
        """What a note says. Raises CorruptData."""
        span = decode_nothing(self._disk.read_file(path), path=path)
        if span.partition_id != self.partition_id or path != self._nothing(span.last_index):
            raise CorruptData(f"{path}: of partition {span.partition_id}, up to {span.last_index}: misplaced",
                              path=str(path), offset=0)  # fmt: skip
        return span.last_index, span.last_digest

    def note_void(self, void: Void, cluster: str) -> None:
        """The cluster has nothing in this place for good; sets know of the last so many such batches only."""
        self._disk.make_directory(self.directory)
        path = self.directory / f"{void.last_index:020d}{VOID}"
        self._disk.replace_file(path, encode_void(void, cluster=cluster_hash(cluster)))

    def void_notes(self) -> list[Path]:
        """Of what ``note_void`` was told, in the order of the log."""
        if not self._disk.exists(self.directory):
            return []
        return [self.directory / name for name in sorted(self._disk.list(self.directory)) if name.endswith(VOID)]

    def noted_void(self, path: Path) -> Void:
        """What such a note says. Raises CorruptData."""
        void = decode_void(self._disk.read_file(path), path=path)
        if void.partition_id != self.partition_id or path.name != f"{void.last_index:020d}{VOID}":
            raise CorruptData(f"{path}: of partition {void.partition_id}, up to {void.last_index}: misplaced",
                              path=str(path), offset=0)  # fmt: skip
        return void

    def voids(self) -> list[Void]:
        """All that are noted. Raises CorruptData."""
        return [self.noted_void(path) for path in self.void_notes()]

    def _nothing(self, last_index: int) -> Path:
        return self.directory / f"{last_index:020d}{NOTHING}"

    def gaps(self, through_index: int) -> list[tuple[int, int, bytes | None]]:
        """What is not here of the log up to there: after, through, and the digest of the batch in front, if known.

        What is noted to be void is here.
        """
        found: list[tuple[int, int, bytes | None]] = []
        end, digest = 0, None
        here = [(span.first_index, span.last_index, span.last_digest) for span in self.spans()]
        for first, last, last_digest in sorted(
            [*here, *((v.first_index, v.last_index, v.digest) for v in self.voids())]
        ):
            if first > end + 1 and end < through_index:
                found.append((end, min(through_index, first - 1), digest))
            if last > end:
                end, digest = last, last_digest
        return [*found, (end, through_index, digest)] if end < through_index else found

    def run_to(self, last_index: int, digest: bytes, voids: Sequence[Void] = ()) -> list[Span]:
        """The files that hold what ends there, from the first one on that the others follow without a gap.

        ``voids``: those of this partition that a set knows, over which the log steps, as over those that are noted.

        Raises CorruptData when there is no such batch.
        """
        voids = [*voids, *self.voids()]
        run: list[Span] = []
        for span in self.spans():
            if span.first_index > last_index:
                break
            follows = run and leads(_end_of(run), (span.first_index - 1, span.before_digest), voids)
            run = [*run, span] if follows else [span]
        if run and run[-1].last_index >= last_index:
            last = self.read(run[-1].first_index).batches
            if any((b.last_index, b.digest) == (last_index, digest) for _, b in last):
                return run
        if any((v.last_index, v.digest) == (last_index, digest) for v in voids):
            return run if run and leads(_end_of(run), (last_index, digest), voids) else []
        note = self._nothing(last_index)
        if self._disk.exists(note) and self.noted(note) == (last_index, digest):
            return []
        raise CorruptData(
            f"{self.directory}: does not have the batch at {last_index} that a set ends with", path=str(self.directory)
        )


End = tuple[int, bytes]
"""Last index and digest of a batch."""


def _end_of(run: Sequence[Span]) -> End:
    return run[-1].last_index, run[-1].last_digest


def leads(end: End, to: End, voids: Sequence[Void]) -> bool:
    """What lies between is nothing, or void."""
    by_first = {void.first_index: void for void in voids}
    while end != to:
        void = by_first.get(PartitionLogIndex(end[0] + 1))
        if void is None:
            return False
        end = void.last_index, void.digest
    return True


def voids_of(meta: SetMeta) -> dict[PartitionId, list[Void]]:
    """What a set knows to be void in the logs of those partitions that have any. Once for all of them: it is long."""
    found: dict[PartitionId, list[Void]] = {}
    for void in ParentState.decode(meta.parent).voids.kept:
        found.setdefault(void.partition_id, []).append(void)
    return found


def forgets_voids(meta: SetMeta) -> bool:
    """There were more than a set keeps: what it does not know to be void may be so since long before it."""
    voids = ParentState.decode(meta.parent).voids
    return voids.count > len(voids.kept)


def log_tails(meta: SetMeta) -> dict[PartitionId, End]:
    """Where the logs end that a backup of this set has: last index and digest."""
    tails = ParentState.decode(meta.parent).tails
    return {
        each.partition_id: (tails[each.partition_id].last_index, tails[each.partition_id].digest)
        for each in meta.partitions
        if each.state_machine == KEPT_IN_LOGS and each.partition_id in tails
    }
