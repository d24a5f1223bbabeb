"""``logboom backup``: a snapshot of a running cluster, and what its logs have beside it, into a directory.

Everything is asked of one node, piece by piece, and written so that a backup that was interrupted is gone on with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from logboom.client.operations import LogPiece
from logboom.errors import (
    CorruptData,
    InvalidRequest,
    LogboomError,
    ProtocolError,
    Unavailable,
    WrongNode,
)
from logboom.sync_client import SyncClient
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.batch import Batch, parse_batch
from ports.disk import Disk, File
from raftlog.entries.voids import Void
from server.offline.backup_dir import FILE_BYTES, BackupDir, LogArchive, check_free, forgets_voids, log_tails, voids_of
from server.offline.backup_source import Source, Standing
from server.offline.findings import Progress, silent
from server.offline.locking import locked
from server.offline.world import OfflineWorld, real_offline_world
from snapshots.meta import SetMeta, decode
from snapshots.store import NAME

META_BYTES_MAX: Final = 64 << 20
SYNC_BYTES: Final = 8 << 20
BYTES_PER_S: Final = 64 << 20


class NotAsked(NamedTuple):
    """A part of a log that those nodes which answered do not have."""

    partition: int
    first_index: int
    last_index: int
    nodes: Mapping[str, str]
    """Who did not answer, and why; empty: it is lost on all that were to be asked, or so those said that know of it."""


class Done(NamedTuple):
    """What a backup has done."""

    global_index: int
    node: str
    """Whom it was copied from last."""
    bytes: int
    """Bytes of states that were copied now."""
    batches: int
    """Batches of logs that were copied now."""
    log_bytes: int
    sets: int
    """Complete sets in the directory."""
    not_asked: Sequence[NotAsked] = ()
    """What is not in it, and may be on nodes that did not answer, or turn up. The next backup asks for it again."""


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
        cluster, lineage = _whose(client, timeout)
        target.check(cluster, lineage)
        source = Source(client, node, timeout, bytes_per_s, world)
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


def _whose(client: SyncClient, timeout: float) -> tuple[str, str]:
    """The cluster, and its history, which a node that waits to be taken in does not know. Raises Unavailable."""
    about = client.status(timeout=timeout)
    others = iter([node for node in (about["leader"], *client.members()) if node is not None])
    while (lineage := about.get("lineage", "")) is None:  # of an earlier release: it knows of no other than the first
        node = next(others, None)
        if node is None:
            raise Unavailable("nobody that answers knows of which history the cluster is; try again later")
        with suppress(LogboomError):
            about = client.status(node=node, timeout=timeout)
    return str(about["cluster"]), str(lineage)


def _begun(disk: Disk, directory: Path) -> list[GlobalLogIndex]:
    names = filter(None, map(NAME.fullmatch, disk.list(directory)))
    return [GlobalLogIndex(int(found[1])) for found in names if found[2] in ("states.fetch", "set")]


class _Copy:
    """Copies one set, and the logs up to it."""

    def __init__(
        self,
        target: BackupDir,
        source: Source,
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
        self._not_asked: list[NotAsked] = []

    def run(self) -> Done:
        meta = self._set()
        all_voids, self._forgets = voids_of(meta), forgets_voids(meta)
        open_ends: list[NotAsked] = []
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
                end = [each for each in self._not_asked if (each.partition, each.last_index) == (partition, last_index)]
                open_ends += end
                if end:
                    continue
                raise WrongNode(
                    f"{archive.directory} is of another history, or damaged: `logboom verify {self._target.path}` "
                    f"tells; a cluster that was restored needs a new directory ({error})"
                ) from error
        if open_ends:
            raise _ends_open(open_ends)
        self._target.complete(meta)
        sets = len(self._target.contents.sets) if self._target.contents is not None else 0
        copied = self._bytes, self._batches, self._log_bytes
        return Done(self._global_index, self._source.node, *copied, sets, self._not_asked)

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

        ``voids``: what the set knows to be void, by last index. True: what ``through`` ends with is gone everywhere, or
        on most members and the others do not answer: where one of them never does there would be no backup any more.
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
                unheard = {} if piece.void else self._source.unheard
                if unheard or piece.lost:
                    last_index = min(piece.first - 1, through)
                    self._note(NotAsked(archive.partition_id, after + 1, last_index, unheard))
                after, digest, rows, nbytes = piece.first - 1, piece.before, [], 0
                gone = not piece.void and after >= through and self._source.most_heard
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

    def _note(self, found: NotAsked) -> None:
        """Neighbours that the same nodes did not give are one; of what is lost on all each is named, to be void."""
        last = self._not_asked[-1] if self._not_asked else found
        follows = (last.partition, last.last_index + 1) == (found.partition, found.first_index)
        if follows and found.nodes and last.nodes.keys() == found.nodes.keys():
            found = found._replace(first_index=self._not_asked.pop().first_index)
        self._not_asked.append(found)

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


def _ends_open(ends: Sequence[NotAsked]) -> Unavailable:
    """Logs have nothing that a set could end with, and others may: that is not noted, and nothing restored without."""
    partitions = ", ".join(str(each.partition) for each in ends[:8])
    why = {node: said for each in ends for node, said in each.nodes.items()}
    nodes = ", ".join(f"{node} ({said})" for node, said in sorted(why.items()))
    return Unavailable(
        f"nobody that answers has anything of the logs of partitions {partitions} up to the snapshot, and {nodes} may: "
        "run it again with --resume once most members answer; whoever is gone for good has to be removed as one"
    )
