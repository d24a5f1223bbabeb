"""``logboom verify`` of a backup directory. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import PartitionId
from ports.disk import Disk
from raftlog.entries.voids import Void
from raftlog.journal.journal import cluster_hash
from server.directory.data_dir import number_in
from server.offline.backup_dir import (
    INDEX,
    LOGS,
    Contents,
    End,
    LogArchive,
    decode_contents,
    leads,
    log_tails,
    voids_of,
)
from server.offline.batches import Span
from server.offline.findings import Progress, Report, bytes_below, silent
from server.offline.locking import locked
from server.offline.looking import LookingDisk
from server.offline.sets import check_sets
from server.world.disk_os import OsDisk

AGAIN: Final = "remove it and back up again: what is missing is copied, if the cluster still has it"


def verify_backup(path: Path, progress: Progress = silent) -> Report:
    """Look at all of a backup directory. Raises ConfigError when another process uses it."""
    disk = OsDisk()
    with locked(disk, path, reading=True):
        report = Report(path, "backup", progress, total=bytes_below(path))
        _check(LookingDisk(disk), path, report)
    return report


def _check(disk: LookingDisk, path: Path, report: Report) -> None:
    contents = _contents(disk, path, report)
    cluster = None if contents is None else contents.cluster
    owner = None if contents is None else (contents.cluster, contents.lineage)
    sets = {int(m.global_index): m for m in check_sets(disk, path, owner=owner, advice=AGAIN, report=report)}
    needed: dict[PartitionId, dict[End, int]] = {}
    voids: dict[PartitionId, list[Void]] = {}
    for kept in () if contents is None else contents.sets:
        meta = sets.get(kept.global_index)
        place = path / f"{kept.global_index:020d}.set"
        if meta is None:
            if not disk.exists(place):
                report.damage(place, f"missing, though {INDEX} names it", AGAIN)
            continue
        if meta.states_digest.hex() != kept.digest:
            report.damage(place, f"it is not the set that {INDEX} names", AGAIN)
        for partition, end in log_tails(meta).items():
            needed.setdefault(partition, {})[end] = kept.global_index
        for partition, some in voids_of(meta).items():
            voids.setdefault(partition, []).extend(some)
    for partition in sorted({*needed, *_partitions(disk, path, report)}):
        archive = LogArchive(disk, path / LOGS / str(partition), partition)
        try:
            missing = _log(archive, needed.get(partition, {}), voids.get(partition, ()), cluster, report)
        except CorruptData as error:
            report.error(archive.directory, error, AGAIN)
            continue
        for (last_index, _), global_index in missing.items():
            problem = f"the batch at {last_index}, with which the set {global_index} ends, is not here"
            report.damage(archive.directory, problem, AGAIN)


def _contents(disk: Disk, path: Path, report: Report) -> Contents | None:
    index = path / INDEX
    report.count("lists")
    try:
        raw = disk.read_file(index)
        report.read("list", len(raw))
        return decode_contents(raw, path=str(index))
    except (CorruptData, IncompatibleVersion) as error:
        report.error(index, error, "put it back from a copy, or back up into a new directory")
        return None


def _partitions(disk: Disk, path: Path, report: Report) -> list[PartitionId]:
    try:
        names = disk.list(path / LOGS)
    except CorruptData as error:
        report.error(path / LOGS, error, AGAIN)
        return []
    return [PartitionId(number) for number in map(number_in, sorted(names)) if number is not None]


def _log(
    archive: LogArchive, needed: Mapping[End, int], voids: Sequence[Void], cluster: str | None, report: Report
) -> dict[End, int]:
    """Returns what is missing of ``needed``."""
    voids = [*voids, *_noted_voids(archive, report)]
    missing = {end: at for end, at in needed.items() if end not in {(void.last_index, void.digest) for void in voids}}
    notes = _notes(archive, report)
    before: Span | None = None
    for file in archive.paths():
        report.count("batch_files")
        try:
            span = archive.span(file)
            batches = archive.read(span.first_index).batches
        except (CorruptData, IncompatibleVersion) as error:
            report.error(file, error, AGAIN)
            continue
        report.read("logs", span.nbytes)
        report.count("batches", len(batches))
        if cluster is not None and span.cluster != cluster_hash(cluster):
            report.damage(file, "it is of another cluster", AGAIN)
            continue
        if before is not None:
            _joint(file, before, span, voids, report)
        for _, batch in batches:
            end = batch.last_index, batch.digest
            missing.pop(end, None)
            if end in notes:
                problem = f"it says that nothing is left of what {file.name} has: should that be lost, nobody is told"
                report.note(notes[end], problem, "remove it, or back up again")
        before = span
    return {end: at for end, at in missing.items() if end not in notes}


def _notes(archive: LogArchive, report: Report) -> dict[End, Path]:
    """Of what the cluster had nothing."""
    found = {}
    for file in archive.notes():
        report.count("batch_files")
        try:
            found[archive.noted(file)] = file
        except (CorruptData, IncompatibleVersion) as error:
            report.error(file, error, AGAIN)
    return found


def _noted_voids(archive: LogArchive, report: Report) -> list[Void]:
    """Of what sets know no more."""
    found = []
    for file in archive.void_notes():
        report.count("batch_files")
        try:
            found.append(archive.noted_void(file))
        except (CorruptData, IncompatibleVersion) as error:
            report.error(file, error, AGAIN)
    return found


def _joint(file: Path, before: Span, span: Span, voids: Sequence[Void], report: Report) -> None:
    if leads((before.last_index, before.last_digest), (span.first_index - 1, span.before_digest), voids):
        return
    if span.first_index > before.last_index + 1:
        problem = f"nothing is here between {before.last_index} and {span.first_index}"
        report.note(file, problem, "back up again: it is copied, if the cluster still has it")
    else:
        report.damage(file, f"does not follow what ends at {before.last_index}", AGAIN)
