"""Scrubbing the parent journal: its small files and its sealed ones are read again, as the next start would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from logboom.errors import CorruptData, IncompatibleVersion
from ports.scrub import PIECE_BYTES, UNREADABLE, Piece, Pieces, twice
from raftlog.journal import journal_base, journal_newest
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal_files import BASE, NEWEST, JournalFiles, Sealed


def scrub_journal(files: JournalFiles) -> Pieces:
    """What is damaged stays: the node goes on with what it has in memory; its next start would have to rejoin.

    Compaction mends it: the base is written anew, and files of entries below it go. What names the newest file is
    written anew with the next one.

    Files may be written anew, or removed, meanwhile.
    """
    for name, decode in ((BASE, journal_base.decode), (NEWEST, journal_newest.decode)):
        path = files.directory / name
        if files.disk.exists(path):
            yield from _scrub_small(files, path, decode)
    for each in list(files.sealed):
        yield from _scrub(files, each)


def _scrub_small(files: JournalFiles, path: Path, decode: Callable[..., object]) -> Pieces:
    def read() -> Pieces:
        raw = files.disk.read_file(path)
        yield Piece(len(raw))
        decode(raw, cluster=files.cluster, path=str(path))

    try:
        yield from twice(read)
    except (CorruptData, IncompatibleVersion, OSError) as error:
        if isinstance(error, OSError) and error.errno not in UNREADABLE:
            raise
        yield Piece(0, CorruptData(str(error), path=str(path), offset=0))


def _scrub(files: JournalFiles, sealed: Sealed) -> Pieces:
    try:
        yield from twice(lambda: _read(files, sealed))
    except (CorruptData, IncompatibleVersion, OSError) as error:
        if isinstance(error, OSError) and error.errno not in UNREADABLE:
            raise
        if files.record.first_sequence <= sealed.last_sequence:  # else it was removed meanwhile
            yield Piece(0, CorruptData(f"{sealed.path}: {error}", path=str(sealed.path)))


def _read(files: JournalFiles, sealed: Sealed) -> Pieces:
    parts: list[bytes] = []
    file = files.disk.open(sealed.path, readonly=True)
    try:
        for offset in range(0, file.size(), PIECE_BYTES):
            parts.append(file.read_anew(offset=offset, length=PIECE_BYTES))
            yield Piece(len(parts[-1]))
    finally:
        file.close()
    _check(files, sealed, b"".join(parts))


def _check(files: JournalFiles, sealed: Sealed, raw: bytes) -> None:
    header = codec.check_segment_header(raw, cluster=files.cluster, path=str(sealed.path))
    records, end = codec.scan(memoryview(raw), header)
    reached = records[-1].next_sequence - 1 if records else header.first_sequence - 1
    if reached != sealed.last_sequence or raw[end:].strip(b"\0"):
        raise CorruptData(f"damaged at offset {end}: record {reached} is the last, {sealed.last_sequence} should be")
