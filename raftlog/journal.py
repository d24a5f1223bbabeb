"""The parent journal: Raft entries, term and vote, on disk before anything else may know.

In memory it is the list that the Raft engine works on; every change is queued as a typed
record and written, with one sync, by the group sync (``take`` → ``run`` → ``done``).

It also carries small batches of the partition logs (REDO), so that a group needs one sync
however many partitions it touches. They count only until those logs are synced themselves
(SETTLED); files behind that point are then written anew without them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, KeysView, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, overload

from logboom.errors import CorruptData
from logboom.types import MIB
from ports.disk import Disk, File
from ports.invariant import InvariantViolated, invariant
from ports.sync import Redo
from raftlog import journal_codec as codec
from raftlog.entry import KIND_NOOP
from raftlog.journal_codec import Kind

Entry = tuple[bytes, int, int]
"""Command, Raft index, term: the engine's own shape."""

Pending = tuple[Kind, bytes]

SCAN_BYTES_MAX = 1 << 31


@dataclass
class _Tail:
    """Where the next record goes."""

    file: File
    offset: int
    sequence: int
    salt: codec.Salt
    redo_bytes: int = 0
    """In this file."""
    doubtful: int = 0
    """At start: what was found from this offset on may not be on the disk."""


class _Sealed(NamedTuple):
    """A full file that still has REDO records."""

    path: Path
    last_sequence: int


class JournalJob:
    """One group's records. ``run`` happens off the loop, alone."""

    def __init__(self, journal: Journal, pending: list[Pending], *, last_index: int, floor: int) -> None:
        self.journal = journal
        self.pending = pending
        self.last_index = last_index
        self.floor = floor
        self.pending_bytes = sum(len(body) + codec.RECORD_HEADER.size for _, body in pending)

    def redo(self) -> Sequence[Redo]:
        """See ports.sync.SyncJob: the journal is what the others rely on."""
        return ()

    def run(self) -> None:
        """Write and sync. An OSError is final for this node."""
        self.journal.write(self.pending, floor=self.floor)

    def done(self) -> None:
        """The records are on stable storage."""
        self.journal.written(self)


@dataclass
class Journal:
    """Indexed like a list of entries; the first is a placeholder at Raft index 1 that every node has."""

    disk: Disk
    directory: Path
    cluster: bytes
    segment_bytes: int
    random_bytes: Callable[[int], bytes]
    entries: list[Entry] = field(default_factory=lambda: [(KIND_NOOP, 1, 0)])
    term: int = 0
    vote: str | None = None
    durable_index: int = 1
    """Entries up to here are synced; a leader may count itself up to here."""
    floor: int = 1
    """Highest index that was acknowledged by this node, as far as the journal tells."""
    redo_bytes: int = 0
    """Of batches that may be missing from their logs after a power loss."""
    _pending: list[Pending] = field(default_factory=list)
    _pending_redo: list[Pending] = field(default_factory=list)
    _next_sequence: int = 1
    """Of the first record that no job has taken yet."""
    _redo: dict[bytes, tuple[int, memoryview]] = field(default_factory=dict)
    """Found at start, by digest, with their sequence."""
    _sealed: list[_Sealed] = field(default_factory=list)
    _tail: _Tail | None = None
    _synced: int = 0
    _in_flight: JournalJob | None = None

    # -- opening

    @classmethod
    def open(
        cls,
        *,
        disk: Disk,
        directory: Path,
        cluster_id: str,
        random_bytes: Callable[[int], bytes],
        segment_bytes: int = 16 * MIB,
    ) -> Journal:
        """Read everything back. Raises CorruptData (damage that is not a torn tail) or IncompatibleVersion.

        ``random_bytes`` makes the salts of new files: what clients cannot guess.
        """
        disk.make_directory(directory)
        journal = cls(disk, directory, cluster_hash(cluster_id), segment_bytes, random_bytes)
        names = [name for name in disk.list(directory) if name.endswith(".journal")]
        sequence, floor = 1, 1
        for position, name in enumerate(names):
            sequence, floor = journal._load(directory / name, sequence, floor, last=position == len(names) - 1)
        journal.floor = max(floor, 1)
        journal.durable_index = journal.entries[-1][1]
        journal._synced, journal._next_sequence = sequence - 1, sequence
        if journal._tail is None:
            journal._tail = journal._new_segment(sequence)
        else:
            # What a killed process had written and not synced is in the page cache, be it records or the file's
            # name. It counts as held from here on: make it so.
            journal._write_again(journal._tail)
            disk.sync_directory(directory)
        invariant(journal.floor <= journal.durable_index, "journal ends below its acknowledged floor")
        return journal

    def _load(self, path: Path, sequence: int, floor: int, *, last: bool) -> tuple[int, int]:
        file = self.disk.open(path)
        size = file.size()
        if last and self._was_being_made(file, sequence):
            self._tail = self._start_segment(file, sequence)
            return sequence, floor
        raw = file.read(offset=0, length=min(size, SCAN_BYTES_MAX))
        header = codec.check_segment_header(raw, cluster=self.cluster, path=str(path))
        if header.first_sequence != sequence:
            raise CorruptData(
                f"{path}: starts at record {header.first_sequence}, expected {sequence}: a journal segment is missing",
                path=str(path),
            )
        try:
            records, end = codec.scan(memoryview(raw), header)
        except CorruptData as error:
            raise CorruptData(f"{path}: {error}", path=str(path), **error.fields) from error
        for record in records:
            self._replay(record, path)
            floor = record.floor
        sequence = records[-1].next_sequence if records else sequence
        redo_bytes = sum(len(record.body) for record in records if record.kind is Kind.REDO)
        damage = codec.later_record(raw, end, missing=sequence, salt=header.salt)
        if damage is not None or (not last and raw[end:].strip(b"\0")):
            raise CorruptData(
                f"{path}: damaged at offset {end}, before records that were synced later. "
                "This node must not vote; restore it from a peer",
                path=str(path),
                offset=end,
            )
        if last:
            self._cut_torn_tail(file, raw, end)
            proven = records[-1].synced if records else 0
            doubtful = next((r.start for r in records if r.sequence > proven), end)
            doubtful = doubtful if doubtful > codec.SEGMENT_HEADER.size else 0
            self._tail = _Tail(file, end, sequence, header.salt, redo_bytes, doubtful)
        else:
            file.close()
            if redo_bytes:
                self._sealed.append(_Sealed(path, sequence - 1))
        return sequence, floor

    def _was_being_made(self, file: File, sequence: int) -> bool:
        """A crash before the header was synced: a part of it at most, and nothing behind it was ever promised."""
        begun = file.read(offset=0, length=codec.SEGMENT_HEADER.size)
        if not codec.begins_header(begun, first_sequence=sequence, cluster=self.cluster):
            return False
        rest = file.read(offset=len(begun), length=file.size())
        return rest == bytes(len(rest))

    def _write_again(self, tail: _Tail) -> None:
        # After a failed sync the page cache may show what the disk never got, and the next sync succeeds without
        # writing it. Files before the last were synced before it was made.
        length = tail.offset - tail.doubtful
        if length > 0:
            tail.file.write([tail.file.read(offset=tail.doubtful, length=length)], offset=tail.doubtful)
        tail.file.sync()

    def _cut_torn_tail(self, file: File, raw: bytes, end: int) -> None:
        rest = raw[end:]
        if rest == bytes(len(rest)):  # by far the common case, and much faster to see than to strip
            return
        rest = rest.rstrip(b"\0")
        # Keep what is cut: an operator may want to know what a power loss left behind.
        self.disk.replace_file(file.path.with_suffix(".broken"), rest)
        file.write([bytes(len(rest))], offset=end)
        file.sync()

    def _replay(self, record: codec.JournalRecord, path: Path) -> None:
        if record.kind is Kind.ENTRY:
            index, term = codec.ENTRY.unpack_from(record.body)
            if index != self.entries[-1][1] + 1:
                raise CorruptData(f"{path}: entry {index} follows {self.entries[-1][1]}", path=str(path))
            self.entries.append((bytes(record.body[codec.ENTRY.size :]), index, term))
        elif record.kind is Kind.TRUNCATE:
            (index,) = codec.INDEX.unpack(record.body)
            if index <= self.entries[0][1]:
                raise CorruptData(f"{path}: entries are removed from {index} on", path=str(path), offset=record.start)
            del self.entries[index - self.entries[0][1] :]
        elif record.kind is Kind.REDO:
            self._redo[bytes(record.body[: codec.DIGEST_BYTES])] = record.sequence, record.body[codec.DIGEST_BYTES :]
            self.redo_bytes += len(record.body)
        elif record.kind is Kind.SETTLED:
            (through,) = codec.INDEX.unpack(record.body)
            self._redo = {digest: found for digest, found in self._redo.items() if found[0] > through}
        elif record.kind is Kind.HARDSTATE:
            (self.term,) = codec.INDEX.unpack_from(record.body)
            try:
                self.vote = bytes(record.body[codec.INDEX.size :]).decode() or None
            except UnicodeDecodeError as error:
                raise CorruptData(f"{path}: a vote for nobody: {error}", path=str(path), offset=record.start) from error

    # -- the engine's view (PySyncObj's journal interface)

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        return self.entries[at]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry; durable after the next group sync."""
        invariant(index == self.entries[-1][1] + 1, "journal entry {} after {}", index, self.entries[-1][1])
        self.entries.append((command, index, term))
        self._pending.append((Kind.ENTRY, codec.ENTRY.pack(index, term) + command))

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802 - the engine's name
        """Drop entries from list position ``position`` on (a Raft conflict)."""
        if position >= len(self.entries):
            return
        index = self.entries[position][1]
        del self.entries[position:]
        self._pending.append((Kind.TRUNCATE, codec.INDEX.pack(index)))
        self.durable_index = min(self.durable_index, index - 1)
        self.floor = min(self.floor, index - 1)  # acknowledged to a leader that lost: nobody counts on it
        if self._in_flight is not None:
            self._in_flight.last_index = min(self._in_flight.last_index, index - 1)

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802 - the engine's name
        """Queue term and vote; no message that depends on them leaves before they are synced."""
        invariant(term >= self.term, "term went back from {} to {}", self.term, term)
        self.term, self.vote = term, vote
        self._pending.append((Kind.HARDSTATE, codec.INDEX.pack(term) + (vote or "").encode()))

    def getCurrentTerm(self) -> int:  # noqa: N802 - the engine's name
        """As on disk or queued for it."""
        return self.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802 - the engine's name
        """As on disk or queued for it."""
        return self.vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802 - the engine's name
        """Not stored: a commit index from disk could exceed what the journal still holds."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802 - the engine's name
        """Always 1, for the same reason."""
        return 1

    def onOneSecondTimer(self) -> None:  # noqa: N802 - the engine's name
        """Nothing to do."""

    def _destroy(self) -> None:
        self.close()

    # -- reading

    @property
    def last_index(self) -> int:
        """Raft index of the last entry, durable or not."""
        return self.entries[-1][1]

    def entry(self, index: int) -> Entry:
        """The entry at a Raft index that the journal holds."""
        return self.entries[index - self.entries[0][1]]

    def truncate_from(self, index: int) -> None:
        """Drop entries from Raft index ``index`` on."""
        self.deleteEntriesFrom(index - self.entries[0][1])

    # -- batches of partition logs

    def redo(self, batch: Redo) -> None:
        """Hold a batch until its own log is synced; ahead of everything queued, as entries may name it."""
        self._pending_redo.append((Kind.REDO, b"".join((batch.digest, *batch.buffers))))
        self.redo_bytes += len(self._pending_redo[-1][1])

    def find_redo(self, digest: bytes) -> memoryview | None:
        """A batch that was not settled when the journal was opened."""
        found = self._redo.get(digest)
        return None if found is None else found[1]

    @property
    def carried(self) -> KeysView[bytes]:
        """Digests of the batches that were not settled when the journal was opened."""
        return self._redo.keys()

    def forget_redo(self) -> None:
        """Everything found at start is synced in its own log."""
        self.redo_bytes = 0
        if self._redo:
            self._redo.clear()
            self.settled(self.taken_sequence)

    @property
    def taken_sequence(self) -> int:
        """Last record that a job has taken."""
        return self._next_sequence - 1

    def settled(self, sequence: int) -> None:
        """Batches held up to ``sequence`` are synced in their logs: they are needed here no more."""
        self._pending.append((Kind.SETTLED, codec.INDEX.pack(sequence)))

    def strip(self, through: int) -> None:
        """Write sealed files up to a settled sequence anew, without their batches. Off the loop; one at a time."""
        while self._sealed and self._sealed[0].last_sequence <= through:
            path = self._sealed[0].path
            raw = self.disk.read_file(path)
            header = codec.check_segment_header(raw, cluster=self.cluster, path=str(path))
            records, _ = codec.scan(memoryview(raw), header)
            if not records or records[-1].next_sequence - 1 != self._sealed[0].last_sequence:
                return  # damaged since it was sealed: the next start says so
            self.disk.replace_file(path, codec.strip(raw, records, header.salt))
            self._sealed.pop(0)

    # -- group sync

    @property
    def dirty(self) -> bool:
        """Something is queued or being written."""
        return bool(self._pending or self._pending_redo) or self._in_flight is not None

    def request_sync(self) -> bool:
        """See ports.sync.SyncTarget: every job syncs."""
        return False

    def acknowledged(self, index: int) -> None:
        """This node told somebody, or counted for itself, that it holds entries up to ``index``."""
        self.floor = max(self.floor, index)

    def take(self) -> JournalJob | None:
        """See ports.sync.SyncTarget."""
        pending = self._pending_redo + self._pending
        if not pending:
            return None
        invariant(self._in_flight is None, "two journal writes at once")
        self._pending, self._pending_redo = [], []
        self._next_sequence += len(pending)
        self._in_flight = JournalJob(self, pending, last_index=self.entries[-1][1], floor=self.floor)
        return self._in_flight

    def write(self, pending: list[Pending], *, floor: int) -> None:
        """Off the loop: encode, write once, sync once; a new segment when the old one is full."""
        tail = self._open_tail()
        size = sum(codec.record_bytes(len(body)) for _, body in pending)
        if tail.offset + size > self.segment_bytes and tail.offset > codec.SEGMENT_HEADER.size:
            tail.file.close()
            if tail.redo_bytes:
                self._sealed.append(_Sealed(tail.file.path, tail.sequence - 1))
            tail = self._tail = self._new_segment(tail.sequence)
        synced, salt = self._synced, tail.salt
        raw = b"".join(
            codec.encode_record(kind, body, sequence=tail.sequence + k, synced=synced, floor=floor, salt=salt)
            for k, (kind, body) in enumerate(pending)
        )
        tail.file.write([raw], offset=tail.offset)
        tail.file.sync()
        tail.offset += len(raw)
        tail.sequence += len(pending)
        tail.redo_bytes += sum(len(body) for kind, body in pending if kind is Kind.REDO)
        self._synced = tail.sequence - 1

    def _open_tail(self) -> _Tail:
        if self._tail is None:
            raise InvariantViolated("the journal is closed")
        return self._tail

    def written(self, job: JournalJob) -> None:
        """On the loop, after ``write``."""
        invariant(self._in_flight is job, "a journal write ended that was not under way")
        self._in_flight = None
        self.durable_index = max(self.durable_index, job.last_index)

    def flush(self) -> None:
        """Write and sync what is queued, blocking: for start-up and shutdown only."""
        job = self.take()
        if job is not None:
            job.run()
            job.done()

    def close(self) -> None:
        """Idempotent. What is queued and not synced is dropped: nobody was told about it."""
        if self._tail is not None:
            self._tail.file.close()
            self._tail = None

    def _new_segment(self, sequence: int) -> _Tail:
        path = self.directory / f"{sequence:020d}.journal"
        file = self.disk.open(path, create=True)
        tail = self._start_segment(file, sequence)
        self.disk.sync_directory(self.directory)
        return tail

    def _start_segment(self, file: File, sequence: int) -> _Tail:
        # Space first: appends then change no metadata, which makes their syncs cheaper.
        file.allocate(self.segment_bytes)
        salt = self.random_bytes(codec.SALT_BYTES)
        file.write([codec.segment_header(first_sequence=sequence, cluster=self.cluster, salt=salt)], offset=0)
        file.sync()
        return _Tail(file, codec.SEGMENT_HEADER.size, sequence, codec.Salt.of(salt))


def cluster_hash(cluster_id: str) -> bytes:
    """12 bytes that tie files to their cluster."""
    return hashlib.blake2b(cluster_id.encode(), digest_size=12).digest()
