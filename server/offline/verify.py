"""``logboom verify``: is all of a stopped node's data directory (or a backup) what it has to be? Changes nothing.

What a start would refuse, and what it would not look at: every batch of every segment, every state, every set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from logboom.errors import CorruptData, IncompatibleVersion, WrongNode
from logboom.types import PartitionId
from ports.disk import Disk
from ports.invariant import InvariantViolated
from raftlog.entries.entry import Route, unpack_routes
from raftlog.entries.parent_state import EMPTY, ParentState
from raftlog.entries.voids import voided_in
from raftlog.journal.journal import Journal
from raftlog.journal.journal_codec import AnotherClusters
from raftlog.journal.journal_files import BASE, NAME, NEWEST
from server.directory.changes import changes_in
from server.directory.data_dir import MANIFEST, number_in, refuse_before_manifests
from server.directory.directories import DIRECTORIES, HEARD, decode_heard, own_id
from server.directory.directories import decode as decode_directories
from server.directory.install import INTENT, Intent
from server.directory.journal_of import OF
from server.directory.journal_of import decode as decode_of
from server.directory.manifest import Manifest, decode
from server.directory.refill import NOT_YET, REFILL
from server.directory.refill import decode as decode_refill
from server.directory.rejoin import REJOIN, set_aside
from server.directory.remembered import REMEMBERED
from server.directory.remembered import decode as decode_remembered
from server.offline.backup_dir import INDEX
from server.offline.findings import REBUILD, Progress, Report, bytes_below, silent
from server.offline.locking import locked
from server.offline.logs import check_log
from server.offline.looking import LookingDisk
from server.offline.sets import check_sets
from server.offline.states import CHECKPOINT, DATA, KNOWN, check_states, is_there
from server.offline.verify_backup import verify_backup
from server.world.disk_os import OsDisk
from snapshots.meta import SetMeta

T = TypeVar("T")
STATE: Final = "state"
REJOINS: Final = (
    "start the node, while a majority of the others runs: it sets the journal aside, and rejoins under its id; where "
    "there are no more than two voters, restore the cluster from a backup, or `logboom recover` the other one"
)
BEGINS_ANEW: Final = "start the node: with three voters or more it rejoins under its id, as after a damaged journal"
REFUSED: Final = (
    "put it back from a copy of this directory's own: without it the node is another one to those that have met it, "
    "and with three voters or more they refuse it. Or remove all its data, and start it empty: it is given everything"
)
EMPTIED: Final = "move the data directory away, and start the node with an empty one: it is given everything"
SAID_AGAIN: Final = "start the node: the others say again how far their journals are"
WRITTEN_ANEW: Final = "start the node: it is written anew"
AS_SET: Final = "start the node with the settings of `[apply]` that the others have: they count then"
MANIFEST_ADVICE: Final = "put it back from a copy of this node's own; it changes with the configuration only"


def verify(path: Path, progress: Progress = silent) -> Report:
    """Look at all of a data directory, or of a backup.

    Raises ConfigError when another process uses it, WrongNode when it is none, IncompatibleVersion for one of before
    manifests.
    """
    disk, path = OsDisk(), path.absolute()
    if disk.exists(path / INDEX):
        return verify_backup(path, progress)
    if not any(disk.exists(path / name) for name in (MANIFEST, "journal", "partitions")):
        raise WrongNode(f"{path} is no logboom data directory, nor a backup: it has no {MANIFEST} and no {INDEX}")
    refuse_before_manifests(disk, path)
    with locked(disk, path, reading=True):
        report = Report(path, "data", progress, total=bytes_below(path))
        _Node(LookingDisk(disk), path, report).check()
    return report


class _Node:
    """Looks at all of one data directory."""

    def __init__(self, disk: LookingDisk, path: Path, report: Report) -> None:
        self._disk = disk
        self._path = path
        self._report = report
        self._rejoining = False
        self._created: dict[PartitionId, str] = {}
        """State machines of partitions that were created while the cluster ran: of them the manifest says nothing."""

    def check(self) -> None:
        """All of it."""
        manifest = self._manifest()
        self._rejoin()
        self._directories()
        sets = self._sets(manifest)
        installing = self._intent(sets)
        journal = self._journal(manifest, installing)
        firsts = self._logs(journal, installing)
        self._states(manifest, firsts, sets)

    def _manifest(self) -> Manifest | None:
        path = self._path / MANIFEST
        if not self._disk.exists(path):
            self._report.damage(path, "missing", MANIFEST_ADVICE)
            return None
        self._report.count("manifests")
        return self._said("manifest", path, decode, MANIFEST_ADVICE)

    def _said(self, what: str, path: Path, decoder: Callable[..., T], advice: str) -> T | None:
        """By a small file; None: it is damaged."""
        try:
            raw = self._disk.read_file(path)
            self._report.read(what, len(raw))
            return decoder(raw, path=str(path))
        except (CorruptData, IncompatibleVersion) as error:
            self._report.error(path, error, advice)
            return None

    def _rejoin(self) -> None:
        """Journals that were damaged before, and whether the cluster has taken this node back since."""
        path = self._path / REJOIN
        self._rejoining = self._disk.exists(path)
        if self._rejoining:
            self._report.note(
                path,
                "the journal was damaged, or the disk lost, and this node is not taken back yet",
                "start it, and wait",
            )
        asides: list[Path] = []
        with suppress(CorruptData):  # something else by the name of the journal: that is told where it is opened
            asides = set_aside(self._disk, self._path / "journal")
        for aside in asides:
            advice = (
                "leave it while the node rejoins" if self._rejoining else "remove it when nobody wants to know more"
            )
            self._report.note(aside, "a damaged journal that was set aside", advice)

    def _directories(self) -> None:
        path = self._path / DIRECTORIES
        if self._disk.exists(path):
            self._said("directories", path, decode_directories, BEGINS_ANEW)
        elif self._disk.exists(self._path / HEARD) and not self._rejoining:  # else of a release that had none
            self._report.damage(path, "missing, though this node has met others", REFUSED)
        path = self._path / REFILL
        waits = self._said("refill", path, decode_refill, EMPTIED) if self._disk.exists(path) else None
        if waits is not None:
            story = "it was empty, and leads nobody before it has been given what others had by then"
            self._report.note(path, f"{story} (Raft index {waits[1]})", NOT_YET)
        for name, decoder, advice in ((HEARD, decode_heard, SAID_AGAIN), (REMEMBERED, decode_remembered, AS_SET)):
            path = self._path / name
            if self._disk.exists(path):
                self._said(path.stem, path, decoder, advice)

    def _sets(self, manifest: Manifest | None) -> list[SetMeta]:
        directory = self._path / "snapshots"
        if not self._disk.exists(directory):
            return []
        advice = "start the node: the next snapshot takes its place; until then this node cannot give it to others"
        owner = (manifest.cluster, manifest.lineage) if manifest else None
        return check_sets(self._disk, directory, owner=owner, advice=advice, report=self._report)

    def _intent(self, sets: Collection[SetMeta]) -> SetMeta | None:
        """The set that the next start makes the node from."""
        path = self._path / INTENT
        try:
            wanted = Intent(self._disk, self._path).read()
        except CorruptData as error:
            self._report.error(path, error, REBUILD)
            return None
        for meta in sets:
            if meta.global_index == wanted:
                return meta
        if wanted is not None:
            self._report.damage(path, f"names the snapshot at {wanted}, which is not whole here", REBUILD)
        return None

    def _journal(self, manifest: Manifest | None, installing: SetMeta | None) -> Journal | None:
        """None: nothing is known of what is committed."""
        directory, report = self._path / "journal", self._report
        begun = self._disk.exists(self._path / DIRECTORIES) and not self._rejoining
        if manifest is None:
            report.note(
                directory, "not looked at: the manifest does not say whose it is", "see what is said of the manifest"
            )
            return None
        if not self._disk.exists(directory):
            if self._disk.exists(self._path / "partitions") and installing is None and not self._rejoining:
                report.damage(directory, "missing", REJOINS if begun else REBUILD)
            return None
        self._journal_of(directory / OF)
        names: list[str] = []
        try:
            names = [name for name in self._disk.list(directory) if NAME.fullmatch(name) or name in (BASE, NEWEST)]
            journal = Journal.open(
                disk=self._disk,
                directory=directory,
                cluster_id=manifest.cluster,
                random_bytes=bytes,
                begun=begun,
            )
        except (CorruptData, IncompatibleVersion, InvariantViolated) as error:
            damaged = isinstance(error, CorruptData) and not isinstance(error, AnotherClusters)
            report.error(directory, error, REJOINS if damaged else REBUILD)
            return None
        finally:
            for name in names:
                self._report_size("journal", directory / name)
        journal.close()
        if journal.mended is not None:
            report.error(directory / NEWEST, journal.mended, WRITTEN_ANEW)
        report.count("journal_files", len(names))
        report.count("journal_entries", len(journal.entries) - 1)
        for path in self._disk.replaced:
            if path.parent == directory and path.suffix == ".broken":
                report.note(
                    path.with_suffix(".journal"), "ends in a torn write", "nothing: the next start puts it aside"
                )
        return journal

    def _journal_of(self, path: Path) -> None:
        of = self._said("journal", path, decode_of, WRITTEN_ANEW) if self._disk.exists(path) else None
        if not self._rejoining and None not in (of, own := own_id(self._disk, self._path)) and of != own:
            self._report.damage(path, "names another data directory: this journal is not today's", REJOINS)

    def _logs(self, journal: Journal | None, installing: SetMeta | None) -> dict[PartitionId, int]:
        """First index that each log has."""
        root = self._path / "partitions"
        names = self._disk.list(root) if self._disk.exists(root) else []
        there = {PartitionId(number) for number in map(number_in, names) if number is not None}
        parent = ParentState()
        routes: dict[PartitionId, list[Route]] = {}
        void: set[bytes] = set()
        if installing is not None:
            parent = ParentState.decode(installing.parent)
        elif journal is not None:
            try:
                parent = ParentState.decode(journal.base.state)
                void.update(voided_in(command for command, _, _ in journal.entries[1:]))
                for command, _, _ in journal.entries[1:]:
                    for route in unpack_routes(command):
                        routes.setdefault(PartitionId(route.partition_id), []).append(route)
                for change in changes_in(journal):
                    if change.kind is not None:
                        self._created[change.partition_id] = change.kind.state_machine
            except (CorruptData, IncompatibleVersion) as error:
                self._report.error(self._path / "journal", error, REBUILD)
        void.update(each.digest for each in parent.voids.kept)
        self._created.update(
            (partition, each.kind.state_machine) for partition, each in parent.lifecycle.created.items()
        )
        firsts = {}
        for partition in sorted(there):
            self._report.count("partitions")
            try:
                firsts[partition] = check_log(
                    self._disk,
                    root / str(partition),
                    partition,
                    tail=parent.tails.get(partition, EMPTY),
                    routes=routes.get(partition, []),
                    carried=journal.carried if journal is not None else (),
                    void=void,
                    report=self._report,
                    installing=installing is not None,
                    journal=journal is not None or installing is not None,
                )
            except CorruptData as error:
                self._report.error(root / str(partition), error, REBUILD)
        if installing is not None:
            return firsts
        for partition in sorted({*parent.tails, *routes} - there):
            self._report.damage(root / str(partition), "missing, though it has data", REBUILD)
        return firsts

    def _states(self, manifest: Manifest | None, firsts: dict[PartitionId, int], sets: Collection[SetMeta]) -> None:
        for meta in sets:  # where the journal cannot be read they may know
            for each in meta.partitions:
                self._created.setdefault(each.partition_id, each.state_machine)
        wanted: list[tuple[PartitionId, str, Path]] = []
        for partition, first in firsts.items():
            directory = self._path / "partitions" / str(partition) / STATE
            name = self._created.get(partition) or _machine(self._disk, manifest, partition, directory)
            if name not in KNOWN:
                problem = f"not looked at: a state of {name!r}" if name else "not looked at: nobody says whose it is"
                self._report.note(directory, problem, "nothing")
            elif is_there(self._disk, directory):
                wanted.append((partition, name, directory))
            elif first > 1 and not sets:
                self._report.damage(directory, f"missing, and the log begins at {first}", REBUILD)
        for (partition, _, directory), saved in zip(
            wanted, check_states(self._disk, [(name, directory) for _, name, directory in wanted]), strict=True
        ):
            self._report.count("states")
            self._report.count("state_entries", saved.entries)
            if saved.error is not None:
                advice = (
                    "with the node stopped remove this directory: the next start makes it from a snapshot and the log"
                )
                place = saved.error.partition(": ")[0]
                self._report.damage(directory, saved.error.removeprefix(f"{place}: "), advice)
            elif saved.position is not None and saved.position.applied_index + 1 < firsts[partition] and not sets:
                problem = f"ends at {saved.position.applied_index}, and the log begins at {firsts[partition]}"
                self._report.damage(directory, problem, REBUILD)
            for name in (DATA, CHECKPOINT):
                self._report_size("states", directory / name)

    def _report_size(self, what: str, path: Path) -> None:
        """Of a file that somebody else has read."""
        with suppress(CorruptData):
            file = self._disk.open(path)
            self._report.read(what, file.size())
            file.close()


def _machine(disk: Disk, manifest: Manifest | None, partition: PartitionId, directory: Path) -> str | None:
    """Name of a partition's state machine; without a manifest, by its files."""
    if manifest is None:
        return "kv" if disk.exists(directory / DATA) else "log" if disk.exists(directory / CHECKPOINT) else None
    end = 0
    for kind in manifest.partitions:
        end += kind.count
        if partition < end:
            return kind.state_machine
    return None
