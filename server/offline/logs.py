"""Checking one partition's log: every batch, every index, and that what is committed is there and chains."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

from logboom.errors import CorruptData, IncompatibleVersion, IndexCompacted
from logboom.types import DIGEST_BYTES, PartitionId, Term
from partitions.log.columns import LOST_OFFSET, NOWHERE_SEGMENT, Columns
from partitions.log.places import PLACES, decode_places, newest_of
from partitions.log.segment import (
    INDEX_HEADER,
    SEGMENT_HEADER_BYTES,
    BatchRef,
    Damage,
    DamagedHeader,
    Scanned,
    check_segment_header,
    parse_index,
    scan,
    segment_names,
    segment_ordinal,
    was_being_made,
)
from ports.disk import Disk
from ports.zeros import only_zeros
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import Tail
from server.offline.findings import REBUILD, Report

REFETCHED: Final = "start the node: it fetches from a peer what is missing, when it is read at the latest"
ASKED_FOR: Final = (
    "start the node: it asks the others for it; where none has it either, `logboom partitions void` says more"
)
WRITTEN_AGAIN: Final = "start the node: it writes it again, and goes by the batches"
TERM_BITS: Final = 0xFFFFFFFF


@dataclass
class _Check:
    """What is known of one partition while its log is looked at."""

    disk: Disk
    directory: Path
    partition_id: PartitionId
    carried: Container[bytes]
    """Digests of batches that the journal still holds."""
    void: Container[bytes]
    """Digests of batches that were declared void: nothing has to be in their place."""
    report: Report
    places: Columns = field(default_factory=Columns)
    """Places of batches up to the base, as far as compaction has left them."""
    found: bytearray = field(default_factory=bytearray)
    """Per row of ``places``: it is where it has to be."""
    wanted: dict[tuple[int, bytes], bytes | None] = field(default_factory=dict)
    """What the journal names behind the base, and the previous digest of what was found."""
    fenced: list[Damage] = field(default_factory=list)
    """Bytes that are no batches."""
    installing: bool = False
    """A snapshot is to be installed: a log that does not reach it begins behind it."""


def check_log(
    disk: Disk,
    directory: Path,
    partition_id: PartitionId,
    *,
    tail: Tail,
    routes: Sequence[Route],
    carried: Container[bytes],
    void: Container[bytes] = (),
    report: Report,
    installing: bool = False,
    journal: bool = True,
) -> int:
    """What one partition's log has, beside what it has to have.

    ``tail``: where the partition ends at the journal's base; ``routes``: what the journal names behind it; ``void``:
    digests of what was declared void, at the base or behind it.
    ``installing``: a snapshot that ends at ``tail`` is to be installed: a log that does not reach it begins behind it.
    ``journal``: it could be read; else the log is looked at for itself.

    Adds to ``report``; returns the first index that the log still has.
    """
    check = _Check(disk, directory, partition_id, carried=carried, void=void, report=report, installing=installing)
    names = segment_names(disk.list(directory))
    if tail.last_index or (not journal and disk.exists(directory / PLACES)):
        _read_places(check, tail if journal else None)
        _leave_removed(check, names)
    check.found = _void_rows(check)
    check.wanted = {(route.last_index, route.digest): None for route in routes}
    newest = max(names, default=0)
    for ordinal, name in sorted(names.items()):
        _segment(check, directory / name, sealed=ordinal != newest)
    missing = _missing_places(check) + _missing_routes(check, routes, tail)
    for damage in check.fenced:
        problem = f"{damage.length} bytes are no batches"
        if missing:
            report.damage(damage.path, problem, REFETCHED, offset=damage.offset)
        elif journal:
            problem += "; nothing that is needed is missing"
            report.note(damage.path, problem, "nothing: they are left alone", offset=damage.offset)
        else:
            problem += "; whether they are needed the journal would know"
            report.note(damage.path, problem, "see what is said of the journal", offset=damage.offset)
    return check.places.before_index + 1


# -- what has to be there


def _read_places(check: _Check, tail: Tail | None) -> None:
    """``tail`` None: nobody knows how far they have to reach."""
    path, report = check.directory / PLACES, check.report
    if tail is not None:
        check.places = Columns(before_index=tail.last_index, before_digest=tail.digest)
    if not check.disk.exists(path):
        if not check.installing:
            report.damage(path, "missing, though the journal begins behind what it tells", REBUILD)
        return
    report.count("places")
    try:
        raw = check.disk.read_file(path)
        report.read("places", len(raw))
        columns = decode_places(raw, partition_id=check.partition_id, path=path)
        end = columns.end if tail is None else columns.through(tail.last_index)
        reached = columns.last_index(end - 1), columns.digest(end - 1)
    except (CorruptData, IncompatibleVersion, IndexCompacted) as error:
        report.error(path, error, REBUILD)
        return
    if tail is not None and columns.before_index > tail.last_index:
        if not check.installing:
            said = (
                f"of a snapshot that this node has not started from: the log begins behind {tail.last_index} until then"
            )
            report.note(path, said, "nothing")
        return
    if tail is not None and reached != (tail.last_index, tail.digest):
        if not check.installing:
            report.damage(path, f"does not have the batch at {tail.last_index}, where the journal begins", REBUILD)
        return
    check.places = columns.part(columns.start, end)


def _void_rows(check: _Check) -> bytearray:
    """Per row: it was void when the places were written, or became so afterwards."""
    columns = check.places
    segments = enumerate(columns.segment, start=columns.start)
    return bytearray(
        segment == NOWHERE_SEGMENT or columns.digest(position) in check.void for position, segment in segments
    )


def _leave_removed(check: _Check, names: dict[int, str]) -> None:
    """Compaction takes the oldest segments first: what was in them is not asked for."""
    columns = check.places
    newest = newest_of(columns)
    missing = {segment: last for segment, last in newest.items() if segment not in names}
    present = [(segment, last) for segment, last in newest.items() if segment in names]
    for segment, last in missing.items():
        if any(older < segment and end < last for older, end in present):
            path = check.directory / f"*-{segment:08d}.log"
            check.report.damage(path, f"missing, and with it batches up to {last}", REBUILD)
    if missing:
        check.places = columns.part(columns.through(max(missing.values())), columns.end)


def _missing_places(check: _Check) -> int:
    """One finding for batches that lie behind each other."""
    columns = check.places
    paths = segment_names(check.disk.list(check.directory))
    missing = [row for row, found in enumerate(check.found) if not found]
    lost = {row for row in missing if columns.offset[row] == LOST_OFFSET}
    for row in sorted(lost):
        problem = f"the committed batch that ends at {columns.last[row]} was lost on all nodes"
        check.report.damage(check.directory / PLACES, problem, ASKED_FOR)
    placed = enumerate(row for row in missing if row not in lost)
    runs = groupby(placed, lambda each: (each[1] - each[0], columns.segment[each[1]]))
    for (_, segment), group in runs:
        rows = [row for _, row in group]
        path = check.directory / paths.get(segment, PLACES)
        first, last = columns.last[rows[0]], columns.last[rows[-1]]
        which = f"batch that ends at {first} is" if first == last else f"batches that end at {first} to {last} are"
        problem = f"the committed {which} not here, or damaged"
        check.report.damage(path, problem, REFETCHED, offset=columns.offset[rows[0]])
    return len(missing)


def _missing_routes(check: _Check, routes: Iterable[Route], tail: Tail) -> int:
    missing: list[int] = []
    strange: list[int] = []
    head = tail.digest
    for route in routes:
        previous = check.wanted[route.last_index, route.digest]
        if previous is None and route.digest not in check.carried and route.digest not in check.void:
            missing.append(route.last_index)
        elif previous is not None and previous != head:
            strange.append(route.last_index)
        head = route.digest
    if missing:
        problem = f"{len(missing)} batches that the journal names are not here; the first ends at {missing[0]}"
        check.report.damage(check.directory, problem, REFETCHED)
    if strange:
        problem = f"the batch that ends at {strange[0]} does not follow the one that the journal has before"
        check.report.damage(check.directory, problem, REBUILD)
    return len(missing)


# -- what is there


def _segment(check: _Check, path: Path, *, sealed: bool) -> None:
    report, ordinal = check.report, segment_ordinal(path.name)
    lost: DamagedHeader | None = None
    report.count("segments")
    try:
        raw = check.disk.read_file(path)
    except CorruptData as error:
        report.error(path, error, REFETCHED)
        return
    report.read("logs", len(raw))
    header = raw[:SEGMENT_HEADER_BYTES]
    if not sealed and was_being_made(path, header, check.partition_id, ordinal) and only_zeros(raw, len(header)):
        report.note(path, "its header was never written", "nothing: the next start writes it")
        return
    try:
        check_segment_header(header, check.partition_id, ordinal=ordinal, path=path)
    except DamagedHeader as error:
        lost = error
    except (CorruptData, IncompatibleVersion) as error:
        report.error(path, error, REBUILD)
        return
    try:
        found = scan(raw, ordinal=ordinal, path=path, partition_id=check.partition_id)
    except IncompatibleVersion as error:
        report.error(path, error, REBUILD)
        return
    if lost is not None:
        report.error(path, lost, WRITTEN_AGAIN if found.refs else REBUILD)
        if not found.refs:
            return
    report.count("batches", len(found.refs))
    check.fenced += found.damage
    rest = raw[found.end :]
    if rest != bytes(len(rest)):
        check.fenced.append(Damage(str(path), found.end, len(rest.rstrip(b"\0"))))
    for ref in found.refs:
        _known(check, ref)
    _index(check, path, found)


def _known(check: _Check, ref: BatchRef) -> None:
    key = ref.last_index, ref.digest
    if key in check.wanted:
        check.wanted[key] = ref.previous_digest
        return
    columns = check.places
    position = columns.through(ref.last_index) - 1
    row = position - columns.start
    if row < 0 or columns.last[row] != ref.last_index or columns.digest(position) != ref.digest:
        return
    place = columns.segment[row], columns.offset[row], columns.length[row]
    if place != (ref.segment, ref.offset, ref.length) and columns.offset[row] != LOST_OFFSET:
        return  # an older or newer copy; of what was lost, any will do
    if ref.previous_digest == columns.digest(position - 1) and ref.first_index == columns.last_index(position - 1) + 1:
        check.found[row] = 1


def _index(check: _Check, log: Path, found: Scanned) -> None:
    path = log.with_suffix(".idx")
    if not check.disk.exists(path):
        return
    check.report.count("indices")
    advice = "remove it: the next start makes it again"
    try:
        raw = check.disk.read_file(path)
    except CorruptData as error:
        check.report.error(path, error, advice)
        return
    check.report.read("logs", len(raw))
    known = parse_index(raw, ordinal=segment_ordinal(log.name))
    chain = known.refs[-1].digest if known is not None and known.refs else bytes(DIGEST_BYTES)
    if known is None or raw[INDEX_HEADER.size - DIGEST_BYTES : INDEX_HEADER.size] != chain:
        check.report.damage(path, "does not match its digest", advice)
        return
    rows = {ref._replace(term=Term(ref.term & TERM_BITS)) for ref in found.refs}
    strange = [ref for ref in known.refs if ref not in rows and not _in_fenced(ref, check.fenced, log)]
    if strange:
        problem = f"names a batch at {strange[0].offset} that the segment does not have"
        check.report.damage(path, problem, advice)


def _in_fenced(ref: BatchRef, fenced: Iterable[Damage], log: Path) -> bool:
    """Of a batch that was damaged after it was indexed."""
    return any(each.path == str(log) and each.offset <= ref.offset < each.offset + each.length for each in fenced)
