"""The files of the parent journal: written, written anew without what is settled, and removed below the base.

Everything here blocks. ``write`` runs off the loop, one at a time; so do ``strip`` and ``write_base``, one of
both at a time, perhaps while ``write`` does: they look at sealed files alone, and a file is sealed only when the
next one is on the disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from logboom.errors import CorruptData, IncompatibleVersion
from ports.disk import Disk, File
from ports.invariant import InvariantViolated
from ports.scrub import unreadable_is_damage
from raftlog.journal import journal_base, journal_newest
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal_base import BEGINNING, Base, BaseRecord, HardState
from raftlog.journal.journal_codec import RecordKind

Pending = tuple[RecordKind, bytes]
BASE: Final = "base"
NEWEST: Final = "newest"
SUFFIX: Final = ".journal"
NAME: Final = re.compile(r"[0-9]{20}\.journal")
"""What is called otherwise, as a copy beside a file, is nothing of the journal."""
BROKEN: Final = ".broken"
"""Of a file beside one of those: what a torn tail of it held."""
UNFINISHED: Final = ".new"
"""Of a file that was to take another's place (``Disk.replace_file``) when the process ended."""


@dataclass(slots=True)
class Sealed:
    """A full file; the one after it is on the disk."""

    path: Path
    last_sequence: int
    highest: int
    """Highest Raft index of an entry that was ever in it; 0: it never had any."""
    last_redo: int
    """It has no REDO record behind this sequence, settled or not; 0: it has none."""
    hard: HardState
    """As of its last record."""


@dataclass(slots=True)
class Tail:
    """Where the next record goes."""

    file: File
    offset: int
    sequence: int
    salt: codec.Salt
    highest: int = 0
    """See Sealed."""
    last_redo: int = 0
    """See Sealed."""
    doubtful: int = 0
    """At start: what was found from this offset on may not be on the disk."""

    @property
    def empty(self) -> bool:
        """No record in it."""
        return self.offset == codec.SEGMENT_HEADER.size

    def sealed(self, hard: HardState) -> Sealed:
        """It is full."""
        return Sealed(self.file.path, self.sequence - 1, self.highest, self.last_redo, hard)


def leftovers(names: Sequence[str]) -> list[str]:
    """Of the files in a journal's directory, at a start: those that mean nothing, and that nobody else would remove."""
    unfinished = [name for name in names if name.endswith((f"{SUFFIX}{UNFINISHED}", f"{BROKEN}{UNFINISHED}"))]
    broken = [name for name in names if name.endswith(BROKEN)]
    return unfinished + [name for name in broken if name.removesuffix(BROKEN) + SUFFIX not in names]


def name_of(sequence: int) -> str:
    """Of the file whose first record has that sequence."""
    return f"{sequence:020d}{SUFFIX}"


@dataclass
class JournalFiles:
    """All of one journal. An OSError is final for this node."""

    disk: Disk
    directory: Path
    cluster: bytes
    segment_bytes: int
    random_bytes: Callable[[int], bytes]
    """For the salts of new files."""
    record: BaseRecord = BEGINNING
    hard: HardState = field(default_factory=HardState)
    """As of the last record."""
    sealed: list[Sealed] = field(default_factory=list)
    tail: Tail | None = None
    synced: int = 0
    settled: int = 0
    """REDO records up to this sequence are not needed."""
    newest: int = 0
    """First sequence of the newest file, as the disk says it beside the files themselves; 0: it does not."""

    def open_tail(self) -> Tail:
        """The file that is written; InvariantViolated once closed."""
        if self.tail is None:
            raise InvariantViolated("the journal is closed")
        return self.tail

    def close(self) -> None:
        """Idempotent."""
        if self.tail is not None:
            self.tail.file.close()
            self.tail = None

    # -- writing

    def write(self, pending: Sequence[Pending], *, floor: int) -> None:
        """Encode, write once, sync once; a new segment when the old one is full."""
        tail = self.open_tail()
        raw = self._encoded(pending, tail, floor)
        if tail.offset + len(raw) > self.segment_bytes and not tail.empty:
            tail = self.roll()
            raw = self._encoded(pending, tail, floor)  # its salt is another
        tail.file.write_synced([raw], offset=tail.offset)
        tail.offset += len(raw)
        tail.sequence += len(pending)
        term, vote, _ = self.hard
        for kind, body in pending:
            if kind is RecordKind.ENTRY:
                tail.highest = max(tail.highest, codec.ENTRY.unpack_from(body)[0])
            elif kind is RecordKind.REDO:
                tail.last_redo = tail.sequence - 1  # what one group carries is settled as one
            elif kind is RecordKind.HARDSTATE:
                term, vote = codec.unpack_hard_state(body)
        self.hard = HardState(term, vote, floor)
        self.synced = tail.sequence - 1

    def _encoded(self, pending: Sequence[Pending], tail: Tail, floor: int) -> bytes:
        first, synced, salt = tail.sequence, self.synced, tail.salt
        return b"".join(
            [
                codec.encode_record(kind, body, sequence=sequence, synced=synced, floor=floor, salt=salt)
                for sequence, (kind, body) in enumerate(pending, first)
            ]
        )

    def roll(self) -> Tail:
        """Go on in a new file."""
        tail = self.open_tail()
        following = self.new_segment(tail.sequence)
        tail.file.close()
        self.sealed.append(tail.sealed(self.hard))
        self.tail = following
        return following

    def new_segment(self, sequence: int) -> Tail:
        """An empty file on the disk, and its name; from here on it cannot be missing, or without its header."""
        file = self.disk.open(self.directory / name_of(sequence), create=True)
        tail = self.start_segment(file, sequence)
        self.disk.sync_directory(self.directory)
        self.write_newest(sequence)
        return tail

    def write_newest(self, sequence: int) -> None:
        """The file that begins there is on the disk, with its header and its name."""
        if sequence != self.newest:
            self.disk.replace_file(self.directory / NEWEST, journal_newest.encode(sequence, cluster=self.cluster))
            self.newest = sequence

    def start_segment(self, file: File, sequence: int) -> Tail:
        """Make ``file`` an empty one."""
        # Space first: appends then change no metadata, which makes their syncs cheaper.
        file.allocate(self.segment_bytes)
        salt = self.random_bytes(codec.SALT_BYTES)
        file.write([codec.segment_header(first_sequence=sequence, cluster=self.cluster, salt=salt)], offset=0)
        file.sync()
        return Tail(file, codec.SEGMENT_HEADER.size, sequence, codec.Salt.of(salt))

    # -- getting rid of

    def strip(self, through: int) -> None:
        """Write sealed files anew without their batches, which are settled up to a sequence."""
        for each in list(self.sealed):
            if each.last_redo > through:
                return
            if not each.last_redo:
                continue
            raw = b""
            try:
                with unreadable_is_damage():
                    raw = self.disk.read_file(each.path)
                header = codec.check_segment_header(raw, cluster=self.cluster, path=str(each.path))
                records, _ = codec.scan(memoryview(raw), header)
            except (CorruptData, IncompatibleVersion):
                records = []
            if not records or records[-1].next_sequence - 1 != each.last_sequence:
                return  # damaged since it was sealed: scrubbing and the next start say so
            self.disk.replace_file(each.path, codec.strip(raw, records, header.salt))
            each.last_redo = 0

    def write_base(self, base: Base) -> None:
        """Begin at ``base``, and remove the files that nothing needs any more."""
        gone = 0
        first, hard = self.record.first_sequence, self.record.hard
        for each in list(self.sealed):
            if each.highest > base.index or each.last_redo > self.settled:
                break
            gone, first, hard = gone + 1, each.last_sequence + 1, each.hard
        self._replace(BaseRecord(base, first, hard), gone)

    def start_over(self, base: Base) -> None:
        """Begin at ``base`` and with nothing else; term and vote stay. Not while ``write`` may run."""
        tail = self.open_tail() if self.open_tail().empty else self.roll()
        self.hard = self.hard._replace(floor=base.index)
        self._replace(BaseRecord(base, tail.sequence, self.hard), len(self.sealed))

    def _replace(self, record: BaseRecord, gone: int) -> None:
        self.disk.replace_file(self.directory / BASE, journal_base.encode(record, cluster=self.cluster))
        self.record = record
        removed = self.sealed[:gone]
        for each in removed:
            self.disk.remove(each.path)
            broken = each.path.with_suffix(BROKEN)  # means nothing without it
            if self.disk.exists(broken):
                self.disk.remove(broken)
        if removed:
            self.disk.sync_directory(self.directory)
            del self.sealed[:gone]
