"""Reading a journal back at a start: the base, then every record behind it. Blocking."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from logboom.errors import CorruptData
from ports.disk import File
from ports.zeros import only_zeros
from raftlog.entries.entry import KIND_NOOP
from raftlog.journal import journal_base, journal_newest
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal_base import HardState
from raftlog.journal.journal_codec import AnotherClusters, RecordKind
from raftlog.journal.journal_files import BASE, BROKEN, NAME, NEWEST, JournalFiles, Tail, leftovers, name_of

log = structlog.get_logger(__name__)

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

Entry = tuple[bytes, int, int]
"""Command, Raft index, term: the engine's own shape."""


@dataclass
class Replay:
    """What the records say, up to the one that was read last."""

    files: JournalFiles
    begun: bool = False
    """There was a journal before: one without a file, or whose first one is about to be made, is damaged."""
    entries: list[Entry] = field(default_factory=list)
    """From the base's placeholder on."""
    hard: HardState = field(default_factory=HardState)
    redo: dict[bytes, tuple[int, memoryview]] = field(default_factory=dict)
    """Batches that are not settled, by digest, with their sequence."""
    redo_bytes: int = 0
    sequence: int = 1
    """Of the next record."""
    first: int = 1
    """Of the first record of the file that was read last."""
    mended: CorruptData | None = None
    """What was damaged, and is written anew."""

    def run(self) -> None:
        """Leaves ``files`` ready to be written. Raises CorruptData (damage, no torn tail) or IncompatibleVersion."""
        files, disk = self.files, self.files.disk
        names = [name for name in disk.list(files.directory) if NAME.fullmatch(name)]
        if disk.exists(files.directory / BASE):
            names = self._begin(names)
            self.begun = True
        elif self.begun and not names:
            raise CorruptData(f"{files.directory}: the journal is missing", path=str(files.directory))
        self._find_newest(names)
        (base, self.sequence, self.hard) = files.record
        self.entries = [(KIND_NOOP, base.index, base.term)]
        for position, name in enumerate(names):
            self._load(files.directory / name, last=position == len(names) - 1)
        files.hard, files.synced = self.hard, self.sequence - 1
        if files.tail is None:
            files.tail = files.new_segment(self.sequence)
        else:
            # What a killed process had written and not synced is in the page cache, be it records or the file's
            # name. It counts as held from here on: make it so.
            self._write_again(files.tail)
            disk.sync_directory(files.directory)
            files.write_newest(self.first)
        for name in leftovers(disk.list(files.directory)):
            disk.remove(files.directory / name)

    def _begin(self, names: list[str]) -> list[str]:
        """Read the base; returns the names of the files behind it."""
        files, disk = self.files, self.files.disk
        path = files.directory / BASE
        files.record = journal_base.decode(disk.read_file(path), cluster=files.cluster, path=str(path))
        first = name_of(files.record.first_sequence)
        left_over = [name for name in names if name < first]
        if first not in names:
            raise CorruptData(f"{files.directory / first}: a journal segment is missing", path=str(path))
        for name in left_over:  # a crash came between the base and their removal
            disk.remove(files.directory / name)
        if left_over:
            disk.sync_directory(files.directory)
        return [name for name in names if name not in left_over]

    def _find_newest(self, names: list[str]) -> None:
        files, path = self.files, self.files.directory / NEWEST
        if not files.disk.exists(path):
            return  # of an older release
        raw = files.disk.read_file(path)
        try:
            files.newest = journal_newest.decode(raw, cluster=files.cluster, path=str(path))
        except CorruptData as error:
            # Rotten alone it is no reason to give up votes: it is written anew, as one that is missing. Empty, it may
            # be what a disk that loses what it said was synced has left, and that may have lost the last file, too.
            lost = not raw.strip(b"\0")
            if isinstance(error, AnotherClusters) or lost or not self._is_begun(names):
                raise
            self.mended = error
            return
        newest = name_of(files.newest)
        # Behind the base, or else an older release has gone on, which knows nothing of it, and has compacted.
        if files.newest >= files.record.first_sequence and newest not in names:
            raise CorruptData(f"{files.directory / newest}: the newest journal segment is missing", path=str(path))

    def _is_begun(self, names: list[str]) -> bool:
        """There are files, and the last one has its header."""
        if not names:
            return False
        path = self.files.directory / names[-1]
        file = self.files.disk.open(path, readonly=True)
        try:
            raw = file.read(offset=0, length=codec.SEGMENT_HEADER.size)
        finally:
            file.close()
        try:
            codec.check_segment_header(raw, cluster=self.files.cluster, path=str(path))
        except CorruptData:
            return False
        return True

    def _load(self, path: Path, *, last: bool) -> None:
        file = self.files.disk.open(path)
        try:
            self._read(file, last=last)
        except BaseException:
            file.close()
            raise

    def _read(self, file: File, *, last: bool) -> None:
        files, path, size = self.files, file.path, file.size()
        self.first = self.sequence
        if last and self._was_being_made(file):
            if self.sequence <= files.newest or (self.begun and self.sequence == files.record.first_sequence):
                raise CorruptData(f"{path}: nothing is left of a journal that was begun", path=str(path), offset=0)
            files.tail = files.start_segment(file, self.sequence)
            return
        raw = file.read(offset=0, length=size)
        header = codec.check_segment_header(raw, cluster=files.cluster, path=str(path))
        if header.first_sequence != self.sequence:
            raise CorruptData(
                f"{path}: starts at record {header.first_sequence}, expected {self.sequence}: "
                "a journal segment is missing",
                path=str(path),
            )
        try:
            records, end = codec.scan(memoryview(raw), header)
        except CorruptData as error:
            raise CorruptData(f"{path}: {error}", path=str(path), **error.fields) from error
        highest = max((self._replay(record, path) for record in records), default=0)
        self.sequence = records[-1].next_sequence if records else self.sequence
        last_redo = max((record.sequence for record in records if record.kind is RecordKind.REDO), default=0)
        damage = codec.later_record(raw, end, missing=self.sequence, salt=header.salt)
        if damage is not None or (not last and raw[end:].strip(b"\0")):
            raise CorruptData(
                f"{path}: damaged at offset {end}, before records that were synced later",
                path=str(path),
                offset=end,
            )
        tail = Tail(file, end, self.sequence, header.salt, highest, last_redo)
        if last:
            self._cut_torn_tail(file, raw, end)
            proven = records[-1].synced if records else 0
            doubtful = next((r.start for r in records if r.sequence > proven), end)
            tail.doubtful = doubtful if doubtful > codec.SEGMENT_HEADER.size else 0
            files.tail = tail
        else:
            file.close()
            files.sealed.append(tail.sealed(self.hard))

    def _was_being_made(self, file: File) -> bool:
        """A crash before the header was synced: a part of it at most, and nothing behind it was ever promised."""
        begun = file.read(offset=0, length=codec.SEGMENT_HEADER.size)
        if not codec.begins_header(begun, first_sequence=self.sequence, cluster=self.files.cluster):
            return False
        rest = file.read(offset=len(begun), length=file.size())
        return only_zeros(rest)

    def _write_again(self, tail: Tail) -> None:
        # After a failed sync the page cache may show what the disk never got, and the next sync succeeds without
        # writing it. Files before the last were synced before it was made.
        length = tail.offset - tail.doubtful
        if length > 0:
            tail.file.write([tail.file.read(offset=tail.doubtful, length=length)], offset=tail.doubtful)
        tail.file.sync()

    def _cut_torn_tail(self, file: File, raw: bytes, end: int) -> None:
        if only_zeros(raw, end):  # by far the common case, and much faster to see than to strip
            return
        rest = raw[end:].rstrip(b"\0")
        try:  # keep what is cut: an operator may want to know what a power loss left behind
            self.files.disk.replace_file(file.path.with_suffix(BROKEN), rest)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("torn_tail_not_kept", path=str(file.path), offset=end, bytes=len(rest), error=str(error))
        file.write([bytes(len(rest))], offset=end)
        file.sync()

    def _replay(self, record: codec.JournalRecord, path: Path) -> int:
        """Returns the Raft index of an entry, else 0."""
        entered = 0
        if record.kind is RecordKind.ENTRY:
            entered = self._enter(record, path)
        elif record.kind is RecordKind.TRUNCATE:
            (index,) = codec.INDEX.unpack(record.body)
            if index < 2:
                raise CorruptData(f"{path}: entries are removed from {index} on", path=str(path), offset=record.start)
            del self.entries[max(1, index - self.entries[0][1]) :]
        elif record.kind is RecordKind.REDO:
            self.redo[bytes(record.body[: codec.DIGEST_BYTES])] = record.sequence, record.body[codec.DIGEST_BYTES :]
            self.redo_bytes += len(record.body)
        elif record.kind is RecordKind.SETTLED:
            (through,) = codec.INDEX.unpack(record.body)
            self.redo = {digest: found for digest, found in self.redo.items() if found[0] > through}
            self.files.settled = max(self.files.settled, through)
        elif record.kind is RecordKind.HARDSTATE:
            try:
                term, vote = codec.unpack_hard_state(record.body)
            except UnicodeDecodeError as error:
                raise CorruptData(f"{path}: a vote for nobody: {error}", path=str(path), offset=record.start) from error
            if term < self.files.record.hard.term:
                raise CorruptData(f"{path}: term {term} after the base", path=str(path), offset=record.start)
            self.hard = HardState(term, vote, record.floor)
        self.hard = self.hard._replace(floor=record.floor)
        return entered

    def _enter(self, record: codec.JournalRecord, path: Path) -> int:
        index, term = codec.ENTRY.unpack_from(record.body)
        (_, base, _), (_, last, _) = self.entries[0], self.entries[-1]
        if index < 2 or (index != last + 1 and not (index <= base == last)):
            raise CorruptData(f"{path}: entry {index} follows {last}", path=str(path), offset=record.start)
        if index > base:
            self.entries.append((bytes(record.body[codec.ENTRY.size :]), index, term))
        return int(index)
