"""``logboom backup``: a snapshot of a running cluster, and what its logs have beside it, into a directory.

Everything is asked of one node, piece by piece, and written so that a backup that was interrupted is gone on with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from logboom.client.operations import LogPiece
from logboom.errors import (
    CorruptData,
    DeadlineExceeded,
    IndexCompacted,
    InvalidRequest,
    LogboomError,
    ProtocolError,
    Unavailable,
    UnknownOutcome,
    WrongNode,
)
from logboom.sync_client import SyncClient
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.batch import Batch, parse_batch
from ports.disk import Disk, File
from raftlog.entries.parent_state import ParentState
from raftlog.entries.voids import Void
from server.offline.backup_dir import FILE_BYTES, BackupDir, LogArchive, check_free, forgets_voids, log_tails, voids_of
from server.offline.findings import Progress, silent
from server.offline.locking import locked
from server.offline.world import OfflineWorld, real_offline_world
from snapshots.meta import SetMeta, decode
from snapshots.store import NAME

T = TypeVar("T")

META_BYTES_MAX: Final = 64 << 20
SYNC_BYTES: Final = 8 << 20
PIECE_S: Final = 10.0
"""Of one request; then another node is asked."""
FAILURES_MAX: Final = 10
"""In a row, before the backup is given up."""
PAUSE_S: Final = 0.5
BYTES_PER_S: Final = 64 << 20


class Done(NamedTuple):
    """What a backup has done."""

    global_index: int
    node: str
    """Whom it was copied from last."""
    bytes: int
    """Of states that were copied now."""
    batches: int
    """Of logs that were copied now."""
    log_bytes: int
    sets: int
    """Complete ones in the directory."""


def backup(
    client: SyncClient,
    directory: Path,
    *,
    node: str | None = None,
    resume: bool = False,
    timeout: float = 30.0,
    snapshot_timeout: float | None = None,
    bytes_per_s: int = BYTES_PER_S,
    progress: Progress = silent,
    world: OfflineWorld | None = None,
) -> Done:
    """Copy everything that is committed when this is called, or, with ``resume``, what an earlier call had begun with.

    ``node``: from there, else from a follower. ``bytes_per_s``: not faster than that. ``timeout`` is for what should be
    answered soon; how long the snapshot takes (``snapshot_timeout``, None: the same) follows from how large states are.

    Raises WrongNode for the directory of another cluster or another history, ConfigError when somebody else writes to
    it, and the client's errors; what was copied stays.
    """
    world = world or real_offline_world()
    disk, directory = world.disk, directory.absolute()
    check_free(disk, directory)
    disk.make_directory(directory)
    with locked(disk, directory):
        target = BackupDir(disk, directory)
        about = client.status(timeout=timeout)
        cluster, lineage = str(about["cluster"]), str(about.get("lineage") or "")
        target.check(cluster, lineage)
        source = _Source(client, node, timeout, bytes_per_s, world)
        begun = [each for each in _begun(disk, directory) if not target.is_complete(each)] if resume else []
        global_index = source.find(begun)
        before: Standing | None = None
        if global_index is None:
            before = source.standing()
            patience = timeout if snapshot_timeout is None else snapshot_timeout
            global_index = GlobalLogIndex(client.create_snapshot(timeout=patience)["global_index"])
            newest = max((kept.global_index for kept in target.contents.sets), default=0) if target.contents else 0
            if global_index < newest:
                raise WrongNode(
                    f"{directory} has a set at {newest}, the cluster is at {global_index}: of another history; "
                    "a cluster that was restored needs a new directory"
                )
            if source.find([global_index], patience=patience) is None:
                raise Unavailable(f"no node that may be asked has the snapshot at {global_index}")
        target.claim(cluster, lineage)
        target.remove_unfinished(but=global_index)
        return _Copy(target, source, global_index, progress, before).run()


def _begun(disk: Disk, directory: Path) -> list[GlobalLogIndex]:
    names = filter(None, map(NAME.fullmatch, disk.list(directory)))
    return [GlobalLogIndex(int(found[1])) for found in names if found[2] in ("states.fetch", "set")]


class Standing(NamedTuple):
    """What may change and is no write, as whoever leads knows it."""

    partitions: frozenset[int]
    chosen: dict[int, tuple[str | None, bool | None]]
    """What was set of partitions: ack, and linearizable."""

    @staticmethod
    def in_set(meta: SetMeta) -> Standing:
        """As a set knows it."""
        chosen = ParentState.decode(meta.parent).chosen
        return Standing(
            frozenset(each.partition_id for each in meta.partitions),
            {p: (each.ack and str(each.ack), each.linearizable) for p, each in chosen.items()},
        )


class _Source:
    """The node that is asked; another one when it is lost."""

    def __init__(
        self, client: SyncClient, node: str | None, timeout: float, bytes_per_s: int, world: OfflineWorld
    ) -> None:
        self._client = client
        self._world = world
        self._bytes_per_s = bytes_per_s
        self._due = self._world.monotonic()
        """When the next piece may be asked for."""
        self._wanted = node
        self._timeout = timeout
        self.node = node or ""
        self._helpful = ""
        """Who had of a log what ``node`` did not."""

    def find(self, sets: Sequence[GlobalLogIndex], *, patience: float = 0.0) -> GlobalLogIndex | None:
        """The newest of these sets that a node has, which is asked from now on."""
        deadline = self._world.monotonic() + patience
        while sets:
            for node in self._candidates():
                try:
                    there = {row["global_index"] for row in self._client.snapshots(node=node, timeout=2.0)["sets"]}
                except LogboomError:
                    continue
                if found := there & set(sets):
                    self.node = node
                    return GlobalLogIndex(max(found))
            if self._world.monotonic() > deadline:
                return None
            self._world.sleep(0.1)
        return None

    def standing(self) -> Standing:
        """As it is now."""
        status = self._client.status(timeout=self._timeout)
        if status["leader"]:
            status = self._client.status(node=status["leader"], timeout=self._timeout)
        chosen = {partition: (ack, linearizable) for partition, ack, linearizable in status.get("chosen", ())}
        return Standing(frozenset(row[0] for row in status["partitions"]), chosen)

    def _candidates(self) -> list[str]:
        """Followers first: the leader has enough to do."""
        if self._wanted is not None:
            return [self._wanted]
        leader = self._client.status(timeout=self._timeout)["leader"]
        return sorted(self._client.members(), key=lambda node: (node == leader, node))

    def ask(self, global_index: GlobalLogIndex, call: Callable[[str], T]) -> T:
        """``call`` with a node that has the set; again, perhaps with another, after what may pass."""
        failures = 0
        while True:
            try:
                return call(self.node)
            except (Unavailable, UnknownOutcome, DeadlineExceeded, CorruptData, IndexCompacted) as error:
                failures += 1
                if failures == FAILURES_MAX:
                    raise
                self._world.sleep(PAUSE_S)
                if self.find([global_index]) is None and isinstance(error, IndexCompacted):
                    raise

    def piece(self, global_index: GlobalLogIndex, name: str, offset: int) -> tuple[int, memoryview]:
        """Of a set's file."""
        read = self._client.read_snapshot
        total, piece = self.ask(
            global_index,
            lambda node: read(global_index, name, offset, node=node, timeout=PIECE_S),  # type: ignore[arg-type]
        )
        self._keep_pace(len(piece))
        return total, piece

    def log(self, global_index: GlobalLogIndex, partition: PartitionId, after: int, through: int) -> LogPiece:
        """Of a partition's log: what comes next, of whoever has it; else of the node whose log goes on the soonest."""
        read = self._client.read_log

        def call(node: str) -> LogPiece:
            return read(global_index, partition, after=after, through=through, node=node, timeout=PIECE_S)

        found = self.ask(global_index, call)
        others = [] if found.batches or self._wanted is not None else self._client.members()
        for node in sorted(others, key=lambda node: (node != self._helpful, node)):
            try:
                other = call(node)
            except LogboomError:
                continue
            if other.batches:
                found, self._helpful = other, node
                break
            if other.first > after + 1 and not after + 1 < found.first <= other.first:
                found = other
        self._keep_pace(sum(len(raw) for _, raw in found.batches))
        return found

    def _keep_pace(self, nbytes: int) -> None:
        now = self._world.monotonic()
        self._due = max(self._due, now - 1.0) + nbytes / self._bytes_per_s
        if self._due > now:
            self._world.sleep(self._due - now)


class _Copy:
    """Of one set."""

    def __init__(
        self,
        target: BackupDir,
        source: _Source,
        global_index: GlobalLogIndex,
        progress: Progress,
        before: Standing | None,
    ) -> None:
        """``before``: how things were when the snapshot was asked for; None: it was there already."""
        self._before = before
        self._target = target
        self._source = source
        self._global_index = global_index
        self._progress = progress
        self._bytes = self._batches = self._log_bytes = 0
        self._forgets = False
        """More were declared void than the set knows of."""

    def run(self) -> Done:
        meta = self._set()
        all_voids, self._forgets = voids_of(meta), forgets_voids(meta)
        for partition, (last_index, digest) in log_tails(meta).items():
            archive, voids = self._target.log(partition), all_voids.get(partition, ())
            known: dict[int, Void] = {void.last_index: void for void in voids}
            for after, through, before in archive.gaps(last_index):
                gone = self._log(archive, known, after, through, before)
                # Of a gap in front of what is here it says nothing about the set.
                if gone and through == last_index and self._target.contents is not None:
                    archive.note_nothing(last_index, digest, self._target.contents.cluster)
            try:
                archive.run_to(last_index, digest, voids)
                archive.remove_notes()
            except CorruptData as error:
                raise WrongNode(
                    f"{archive.directory} is of another history, or damaged: `logboom verify {self._target.path}` "
                    f"tells; a cluster that was restored needs a new directory ({error})"
                ) from error
        self._target.complete(meta)
        sets = len(self._target.contents.sets) if self._target.contents is not None else 0
        return Done(self._global_index, self._source.node, self._bytes, self._batches, self._log_bytes, sets)

    # -- the set

    def _set(self) -> SetMeta:
        store = self._target.store
        raw = self._meta()
        meta = decode(raw, path=f"snapshot {self._global_index} of {self._source.node}")
        contents = self._target.contents
        if contents is None or meta.cluster != contents.cluster or meta.global_index != self._global_index:
            raise ProtocolError(f"asked for the snapshot at {self._global_index}, got another")
        self._target.check(meta.cluster, meta.lineage)
        known = next((each for each in store.sets() if each.global_index == self._global_index), None)
        if known is not None and known.states_digest != meta.states_digest:
            raise self._another(known, meta)
        self._check_standing(Standing.in_set(meta if known is None else known))
        if known is not None:
            return known
        file, offset = store.fetch(self._global_index)
        try:
            self._states(meta, file, offset)
        finally:
            file.close()
        return store.adopt_fetched(raw, self._global_index)

    def _another(self, known: SetMeta, meta: SetMeta) -> Exception:
        """Why the directory has another set of the same index."""
        ours, theirs = ({each.partition_id: each.digest for each in of.partitions} for of in (known, meta))
        strange = sorted(ours.keys() ^ theirs.keys())
        if not strange or any(ours[p] != theirs[p] for p in ours.keys() & theirs.keys()):
            return WrongNode(f"{self._target.path} has another set {known.global_index}: of another history")
        return InvalidRequest(
            f"{self._target.path} has the snapshot at {known.global_index}, and {self._source.node} another one: in "
            f"between partitions were created or destroyed ({', '.join(map(str, strange[:8]))}), and nothing was "
            "written: write to any partition, then back up again"
        )

    def _check_standing(self, there: Standing) -> None:
        """A set that is as old as the last write does not know of what was created, destroyed or set since."""
        before = self._before
        if before is None or before == there:
            return
        now = self._source.standing()
        strange = before.partitions ^ there.partitions
        made = sorted(p for p in strange if (p in before.partitions) == (p in now.partitions))
        alive = before.partitions & there.partitions & now.partitions
        chosen = sorted(p for p in alive if there.chosen.get(p) not in (before.chosen.get(p), now.chosen.get(p)))
        if made or chosen:
            which = ", ".join(map(str, (made or chosen)[:8]))
            raise InvalidRequest(
                f"the snapshot at {self._global_index} is of before partitions were "
                f"{'created or destroyed' if made else 'set'} ({which}), "
                "and nothing was written since: write to any partition, then back up again"
            )

    def _meta(self) -> bytes:
        node, raw = self._source.node, bytearray()
        while True:
            total, piece = self._source.piece(self._global_index, "meta", len(raw))
            if node != self._source.node:  # nodes write their own times into it
                node, raw = self._source.node, bytearray()
                continue
            raw += piece
            if total > META_BYTES_MAX or (not piece and len(raw) < total):
                raise ProtocolError(f"a snapshot's description of {total} bytes, of which {len(raw)} came")
            if len(raw) >= total:
                return bytes(raw)

    def _states(self, meta: SetMeta, file: File, offset: int) -> None:
        unsynced = 0
        while offset < meta.states_bytes:
            _, piece = self._source.piece(self._global_index, "states", offset)
            if not piece or offset + len(piece) > meta.states_bytes:
                raise ProtocolError(f"{len(piece)} bytes of a snapshot at {offset} of {meta.states_bytes}")
            offset += file.write([piece], offset=offset)
            self._bytes += len(piece)
            unsynced += len(piece)
            if unsynced >= SYNC_BYTES:
                file.sync()
                unsynced = 0
            self._progress("states", offset, meta.states_bytes)

    # -- logs

    def _log(
        self, archive: LogArchive, voids: Mapping[int, Void], after: int, through: int, digest: bytes | None
    ) -> bool:
        """What lies between; what is gone everywhere is left out. ``digest``: of the batch in front, if it is here.

        ``voids``: what the set knows to be void, by last index. True: what ``through`` ends with is gone.
        """
        gone = False
        rows: list[tuple[GlobalLogIndex, Batch]] = []
        nbytes = 0
        while after < through:
            piece = self._source.log(self._global_index, archive.partition_id, after, through)
            if not piece.batches:
                if piece.first <= after + 1:
                    raise InvalidRequest(
                        f"{self._source.node} gives nothing of partition {archive.partition_id} behind {after}"
                    )
                void = self._void(archive.partition_id, voids, after, piece)
                self._keep(archive, rows)
                if void is not None and self._target.contents is not None:
                    archive.note_void(void, self._target.contents.cluster)
                after, digest, rows, nbytes = piece.first - 1, piece.before, [], 0
                gone = not piece.void and after >= through
                continue
            for global_index, raw in piece.batches:
                batch = parse_batch(raw)
                header = batch.header
                if (header.partition_id, header.first_index) != (archive.partition_id, after + 1):
                    raise ProtocolError(f"a batch of partition {header.partition_id} that was not asked for")
                if digest not in (None, header.previous_digest):
                    raise WrongNode(
                        f"{archive.directory}: what the cluster has behind {after} does not follow: it is of another "
                        "history. A cluster that was restored needs a new directory"
                    )
                rows.append((global_index, batch))
                nbytes += batch.nbytes
                after, digest = header.last_index, header.digest
            self._progress(f"log of partition {archive.partition_id}", self._log_bytes + nbytes, 0)
            if nbytes >= FILE_BYTES:
                self._keep(archive, rows)
                rows, nbytes = [], 0
        self._keep(archive, rows)
        return gone

    def _void(self, partition: PartitionId, voids: Mapping[int, Void], after: int, piece: LogPiece) -> Void | None:
        """What stands behind ``after``, if it was declared void. Raises InvalidRequest if that came after the set."""
        if not piece.void or piece.void in voids:
            return voids.get(piece.void)
        if not self._forgets:
            raise InvalidRequest(
                f"the snapshot at {self._global_index} is of before the batch up to {piece.void} "
                f"of partition {partition} was declared void: write to any partition, then back up again"
            )
        void = Void(partition, PartitionLogIndex(after + 1), piece.void, piece.before, piece.void_global)
        void.check()
        return void

    def _keep(self, archive: LogArchive, rows: Sequence[tuple[GlobalLogIndex, Batch]]) -> None:
        if rows and self._target.contents is not None:
            archive.add(rows, self._target.contents.cluster)
            self._batches += len(rows)
            self._log_bytes += sum(batch.nbytes for _, batch in rows)
