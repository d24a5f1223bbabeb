"""Segment files: names, header, scan, and the index written when a segment is sealed.

``<first partition_log_index, 20 digits>-<ordinal, 8 digits>.log``: a 64-byte header, then
batches back to back, then zeros (the file is allocated ahead). The ``.log`` alone is the
truth. A sealed segment gets an ``.idx`` with one 64-byte entry per batch and a digest of
all of it; a missing or wrong one is rebuilt by scanning. One that is still written to may have
an ``.idx``, too, of what was synced by then.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c
import structlog
from blake3 import blake3

from logboom.batch_layout import HEAD
from logboom.errors import CorruptData, IncompatibleVersion, LogboomError
from logboom.types import DIGEST_BYTES, PartitionId, PartitionLogIndex, Term
from partitions.log.batch import HEADER_BYTES, MAGIC, parse_batch, parse_header
from ports.disk import Disk, File
from ports.zeros import only_zeros

log = structlog.get_logger(__name__)

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
SEGMENT_MAGIC: Final = b"LBSEGM"
NAME: Final = re.compile(r"[0-9]{20}-[0-9]{8,}\.log")
INDEX_MAGIC: Final = b"LBIDX1"
VERSION: Final = 1
SEGMENT_HEADER: Final = struct.Struct("<6sHIIQQ28xI")
SEGMENT_HEADER_BYTES: Final = SEGMENT_HEADER.size
INDEX_HEADER: Final = struct.Struct("<6sHIIQQ16s16s")
INDEX_PART: Final = 1
"""In the index of a segment that was still written to: more may follow its end."""
INDEX_ENTRY: Final = struct.Struct("<QQQI16s16sI")


class BatchRef(NamedTuple):
    """Where a batch is, and what it must be."""

    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    digest: bytes
    previous_digest: bytes
    term: Term
    segment: int
    offset: int
    length: int
    order: int
    """Position in the order of appends of this process; 0: found on disk at start."""


class DamagedHeader(CorruptData):
    """Of a segment that may be whole behind it. What it says the file's name says, too, and so do its batches."""


class Damage(NamedTuple):
    """Bytes that are not what they should be; they are fenced, never cut, never served."""

    path: str
    offset: int
    length: int


class Scanned(NamedTuple):
    """What a segment file holds."""

    refs: list[BatchRef]
    end: int
    damage: list[Damage]
    proven: int = 0
    """So many of ``refs``, from the first on, were synced before an index named them."""
    whole: bool = True
    """False: from the index of a segment that was still written to."""


def segment_name(first_index: int, ordinal: int) -> str:
    """File name of a segment."""
    return f"{first_index:020d}-{ordinal:08d}.log"


def segment_first(name: str) -> PartitionLogIndex:
    """Inverse, for the index that it began with."""
    return PartitionLogIndex(int(name[:20]))


def segment_ordinal(name: str) -> int:
    """Inverse, for the part that numbers segments in the order in which they were made."""
    return int(name[21:].partition(".")[0])


def segment_names(names: Iterable[str]) -> dict[int, str]:
    """By ordinal, those among the files of a log's directory that are segments: a copy beside one is not."""
    return {segment_ordinal(name): name for name in names if NAME.fullmatch(name)}


def pack_segment_header(partition_id: PartitionId, *, ordinal: int, first_index: int) -> bytes:
    """The first 64 bytes of a segment."""
    raw = SEGMENT_HEADER.pack(SEGMENT_MAGIC, VERSION, partition_id, ordinal, first_index, 0, 0)[:-4]
    return raw + struct.pack("<I", google_crc32c.value(raw))


def check_segment_header(raw: bytes, partition_id: PartitionId, *, ordinal: int, path: Path) -> None:
    """Raises IncompatibleVersion, DamagedHeader, or CorruptData for one that is misplaced, naming ``path``."""
    if len(raw) < SEGMENT_HEADER_BYTES or raw[:6] != SEGMENT_MAGIC:
        raise DamagedHeader(f"{path}: not a segment of a partition log", path=str(path), offset=0)
    _, version, partition, number, _, _, crc = SEGMENT_HEADER.unpack_from(raw)
    ours = raw[:6] + struct.pack("<H", VERSION) + raw[8 : SEGMENT_HEADER_BYTES - 4]
    whole = google_crc32c.value(ours) == crc  # of this format, be it that its number was changed
    if version != VERSION and not whole:
        raise IncompatibleVersion(
            f"{path}: segment format {version}; this release reads {VERSION}. Nothing was changed",
            found=version,
            supported=VERSION,
        )
    if version != VERSION or not whole:
        raise DamagedHeader(f"{path}: damaged segment header", path=str(path), offset=0)
    if (partition, number) != (partition_id, ordinal):
        raise CorruptData(
            f"{path}: belongs to partition {partition}, segment {number}; it is misplaced", path=str(path), offset=0
        )


def scan(raw: bytes, *, ordinal: int, path: Path, partition_id: PartitionId, start: int = 0) -> Scanned:
    """Every whole, correct batch of a segment; what lies between two of them is damage.

    ``raw`` is the file from ``start`` on: its beginning, or the end of a batch.
    """
    refs: list[BatchRef] = []
    damage: list[Damage] = []
    view, offset = memoryview(raw), 0 if start else SEGMENT_HEADER_BYTES
    while offset < len(raw):
        ref = _batch_at(view, offset, ordinal, partition_id)
        if ref is None:
            following = _next_batch(raw, view, offset, ordinal, partition_id)
            if following is None:
                break
            damage.append(Damage(str(path), start + offset, following.offset - offset))
            ref = following
        refs.append(ref._replace(offset=start + ref.offset) if start else ref)
        offset = ref.offset + ref.length
    return Scanned(refs, start + offset, damage)


def _batch_at(
    view: memoryview, offset: int, ordinal: int, partition_id: PartitionId, *, searched: bool = False
) -> BatchRef | None:
    """``searched``: it may lie anywhere, in a record, too: what no batch of ours can be is none of a later release."""
    try:
        header = parse_header(view[offset : offset + HEADER_BYTES])
        batch = parse_batch(view[offset : offset + header.nbytes])
    except IncompatibleVersion:
        if not searched:
            raise
        return None
    except LogboomError:
        return None
    if header.partition_id != partition_id:
        return None
    return BatchRef(
        header.first_index,
        batch.last_index,
        header.digest,
        header.previous_digest,
        header.term,
        ordinal,
        offset,
        header.nbytes,
        0,
    )


def _next_batch(raw: bytes, view: memoryview, offset: int, ordinal: int, partition_id: PartitionId) -> BatchRef | None:
    at = offset
    while (behind := _behind(view, at, partition_id)) is not None:  # within it are records, be they what they may
        if (ref := _batch_at(view, behind, ordinal, partition_id, searched=True)) is not None:
            return ref
        at = behind
    at = raw.find(MAGIC, at + 1)
    while at >= 0:
        ref = _batch_at(view, at, ordinal, partition_id, searched=True)
        if ref is not None:
            return ref
        at = raw.find(MAGIC, at + 1)
    return None


def _behind(view: memoryview, offset: int, partition_id: PartitionId) -> int | None:
    """Where a batch of ours ends whose header is whole."""
    try:
        header = parse_header(view[offset : offset + HEADER_BYTES])
    except LogboomError:
        return None
    return offset + header.nbytes if header.partition_id == partition_id else None


def pack_index(refs: Sequence[BatchRef], *, ordinal: int, end: int, whole: bool = True) -> bytes:
    """The ``.idx`` of a segment; ``whole``: it is sealed. All of it must be on stable storage."""
    part = 0 if whole else INDEX_PART
    rows = b"".join(
        INDEX_ENTRY.pack(
            r.first_index, r.last_index, r.offset, r.length, r.digest, r.previous_digest, r.term & 0xFFFFFFFF
        )
        for r in refs
    )
    digest = _index_digest(rows, ordinal, end, part)
    chain = refs[-1].digest if refs else bytes(16)
    return INDEX_HEADER.pack(INDEX_MAGIC, VERSION, ordinal, len(refs), end, part, digest, chain) + rows


def _index_digest(rows: bytes, ordinal: int, end: int, part: int) -> bytes:
    # Releases that know of whole indices only must not take a part for one.
    said = struct.pack("<QQQ", ordinal, end, part) if part else struct.pack("<QQ", ordinal, end)
    return blake3(rows + said).digest(16)


def parse_index(raw: bytes, *, ordinal: int, above: int = -1) -> Scanned | None:
    """The content of an ``.idx``, or None if it cannot be trusted; of a whole one only what ends behind ``above``."""
    if len(raw) < INDEX_HEADER.size:
        return None
    magic, version, number, count, end, part, digest, _ = INDEX_HEADER.unpack_from(raw)
    rows = raw[INDEX_HEADER.size :]
    if (magic, version, number) != (INDEX_MAGIC, VERSION, ordinal) or len(rows) != count * INDEX_ENTRY.size:
        return None
    if part not in (0, INDEX_PART):
        return None
    if _index_digest(rows, ordinal, end, part) != digest:
        return None
    refs = [
        BatchRef(
            PartitionLogIndex(first), PartitionLogIndex(last), own, previous, Term(term), ordinal, offset, length, 0
        )
        for first, last, offset, length, own, previous, term in INDEX_ENTRY.iter_unpack(rows)
        if last > above or part
    ]
    return Scanned(refs, end, [], len(refs), not part)


def load(
    disk: Disk, path: Path, partition_id: PartitionId, *, sealed: bool, above: int = -1
) -> tuple[Scanned, File | None]:
    """One segment at start: by its index as far as that goes, then by scanning. The last one's file stays open.

    Of a sealed one batches that end at ``above`` or before may be left out.
    """
    ordinal = segment_ordinal(path.name)
    file = disk.open(path)
    begun = file.read(offset=0, length=SEGMENT_HEADER_BYTES + HEADER_BYTES)
    header = begun[:SEGMENT_HEADER_BYTES]
    if not sealed and _was_being_made(file, header, partition_id, ordinal):
        return Scanned([], 0, []), file
    lost = _damage_of(header, partition_id, ordinal, path)
    index = path.with_suffix(".idx")
    known = _trusted(disk, index, ordinal, file, begun, above=above if sealed else -1) if lost is None else None
    if sealed and known is not None and known.whole:
        file.close()
        return known, None
    start = known.end if known is not None else 0
    raw = file.read(offset=start, length=file.size() - start)
    found = scan(raw, ordinal=ordinal, path=path, partition_id=partition_id, start=start)
    if known is not None:
        found = Scanned(known.refs + found.refs, found.end, found.damage, known.proven)
    if lost is not None:
        if not found.refs:
            raise lost  # whatever it is
        if disk.exists(index):
            disk.remove(index)  # it was not looked at: it is made again
        _write_header(file, partition_id, ordinal)
        found.damage.append(Damage(str(path), 0, SEGMENT_HEADER_BYTES))
    if sealed:
        if not only_zeros(raw, found.end - start):
            found.damage.append(Damage(str(path), found.end, len(raw[found.end - start :].rstrip(b"\0"))))
        else:
            rows = pack_index(found.refs, ordinal=ordinal, end=found.end)
            _keep(disk, index, rows, otherwise="index_not_written")
        file.close()
        return found, None
    _cut_torn_tail(disk, file, raw, start, found.end)
    return found, file


def _damage_of(header: bytes, partition_id: PartitionId, ordinal: int, path: Path) -> DamagedHeader | None:
    """Raises IncompatibleVersion, and CorruptData for one that is misplaced."""
    try:
        check_segment_header(header, partition_id, ordinal=ordinal, path=path)
    except DamagedHeader as error:
        return error
    return None


def _write_header(file: File, partition_id: PartitionId, ordinal: int) -> None:
    first = int(file.path.name[:20])
    file.write([pack_segment_header(partition_id, ordinal=ordinal, first_index=first)], offset=0)
    file.sync()


def _trusted(disk: Disk, index: Path, ordinal: int, file: File, begun: bytes, *, above: int) -> Scanned | None:
    """What the index of this segment says, if there is one that can be believed; ``begun``: its first bytes."""
    if not disk.exists(index):
        return None
    raw = disk.read_file(index)
    known = parse_index(raw, ordinal=ordinal, above=above)
    fits = known is not None and SEGMENT_HEADER_BYTES <= known.end <= file.size() and _is_index_of(raw, begun)
    return known if fits else None


def _is_index_of(raw: bytes, begun: bytes) -> bool:
    """It names the batch that the segment begins with: another partition's is as whole, and has the same number."""
    if len(raw) == INDEX_HEADER.size:
        return True
    _, _, offset, _, digest, _, _ = INDEX_ENTRY.unpack_from(raw, INDEX_HEADER.size)
    at = SEGMENT_HEADER_BYTES + HEAD.size + DIGEST_BYTES
    return bool(offset != SEGMENT_HEADER_BYTES or begun[at : at + DIGEST_BYTES] == digest)


def was_being_made(path: Path, header: bytes, partition_id: PartitionId, ordinal: int) -> bool:
    """Of a newest segment: a crash before its header was synced left a part of it at most.

    Then nothing behind it was ever promised; only zeros are there.
    """
    whole = pack_segment_header(partition_id, ordinal=ordinal, first_index=int(path.name[:20]))
    begun = header.rstrip(b"\0")
    return begun != whole.rstrip(b"\0") and whole.startswith(begun)


def _was_being_made(file: File, header: bytes, partition_id: PartitionId, ordinal: int) -> bool:
    if not was_being_made(file.path, header, partition_id, ordinal):
        return False
    rest = file.read(offset=len(header), length=file.size())
    return only_zeros(rest)


def _cut_torn_tail(disk: Disk, file: File, raw: bytes, start: int, end: int) -> None:
    """``raw``: the file from ``start`` on, which is whole up to ``end``."""
    if only_zeros(raw, end - start):  # by far the common case, and much faster to see than to strip
        return
    rest = raw[end - start :].rstrip(b"\0")
    if rest:
        # Never acknowledged (the parent journal knows what was); kept aside for whoever wants to know.
        _keep(disk, file.path.with_suffix(".broken"), rest, otherwise="torn_tail_not_kept")
        file.write([bytes(len(rest))], offset=end)
        file.sync()


def _keep(disk: Disk, path: Path, content: bytes, *, otherwise: str) -> None:
    """A file that its log does without. On a full disk it has to: whoever does not start gives no room back either."""
    try:
        disk.replace_file(path, content)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        log.warning(otherwise, path=str(path), error=str(error))  # half of it goes with what crashes leave
