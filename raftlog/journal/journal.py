"""The parent journal: Raft entries, term and vote, on disk before anything else may know.

In memory it is the list that the Raft engine works on; every change is queued as a typed
record and written, with one sync, by the group sync (``take`` → ``run`` → ``done``).

Below its base, a committed entry, it has nothing but the parent state there.

It also carries small batches of the partition logs (REDO), so that a group needs one sync
however many partitions it touches. They count only until those logs are synced themselves
(SETTLED); files behind that point are then written anew without them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, KeysView, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from logboom.errors import CorruptData
from logboom.types import MIB
from ports.disk import Disk
from ports.invariant import InvariantViolated, invariant
from ports.scrub import Pieces
from ports.sync import Redo
from raftlog.entries.entry import KIND_NOOP
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal_base import BEGINNING, Base
from raftlog.journal.journal_codec import RecordKind
from raftlog.journal.journal_files import NEWEST, JournalFiles, Pending
from raftlog.journal.journal_replay import Entry, Replay
from raftlog.journal.journal_scrub import scrub_journal


class JournalJob:
    """One group's records. ``run`` happens off the loop, alone."""

    records = 0
    """Of clients: what it carries is counted with the partition logs."""

    def __init__(self, journal: Journal, pending: list[Pending]) -> None:
        self.journal = journal
        self.pending = pending
        self.last_index = journal.last_index
        self.floor = journal.floor
        self.term = journal.term
        self.last_sequence = journal.taken_sequence
        self.pending_bytes = sum([len(body) for _, body in pending]) + len(pending) * codec.RECORD_HEADER.size

    def redo(self) -> Sequence[Redo]:
        """See ports.sync.SyncJob: the journal is what the others rely on."""
        return ()

    def begin(self) -> None:
        """See ports.sync.SyncJob: nothing, it comes last."""

    def run(self) -> None:
        """Write and sync. An OSError is final for this node."""
        self.journal.write(self.pending, floor=self.floor)

    def done(self) -> None:
        """The records are on stable storage."""
        self.journal.written(self)


class Compaction:
    """Entries up to a base's go. ``run`` happens off the loop, perhaps while a group is written."""

    def __init__(self, journal: Journal, base: Base) -> None:
        self._journal = journal
        self._base = base

    def run(self) -> None:
        """On the disk. An OSError is final for this node."""
        self._journal.write_base(self._base)

    def done(self) -> None:
        """In memory."""
        self._journal.compacted(self._base)


@dataclass
class Journal:
    """Indexed like a list of entries; the first is a placeholder at the base, Raft index 1 at the beginning."""

    disk: Disk
    directory: Path
    cluster: bytes
    segment_bytes: int
    random_bytes: Callable[[int], bytes]
    entries: list[Entry] = field(default_factory=lambda: [(KIND_NOOP, 1, 0)])
    term: int = 0
    vote: str | None = None
    base: Base = BEGINNING.base
    """What is at or before it is committed, and only its state is left."""
    durable_index: int = 1
    """Entries up to here are synced; a leader may count itself up to here."""
    durable_term: int = 0
    """This term, or a later one, is what the next start would find."""
    floor: int = 1
    """Highest index that was acknowledged by this node, as far as the journal tells."""
    redo_bytes: int = 0
    """Of batches that may be missing from their logs after a power loss."""
    found_sequence: int = 0
    """Of the last record that was found at start: whatever was said before rests on records up to there."""
    mended: CorruptData | None = None
    """What was damaged at start, and did not matter."""
    synced_sequence: int = 0
    """Of the last record that is on the disk. It only grows, over starts, too (docs/decisions/0034)."""
    _pending: list[Pending] = field(default_factory=list)
    _pending_redo: list[Pending] = field(default_factory=list)
    _next_sequence: int = 1
    """Of the first record that no job has taken yet."""
    _redo: dict[bytes, tuple[int, memoryview]] = field(default_factory=dict)
    """Found at start, by digest, with their sequence."""
    _in_flight: JournalJob | None = None
    _proof: int = 0
    """The record of ``prove`` that was queued last."""

    def __post_init__(self) -> None:
        self._files = JournalFiles(self.disk, self.directory, self.cluster, self.segment_bytes, self.random_bytes)

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
        begun: bool = False,
    ) -> Journal:
        """Read everything back. Raises CorruptData (damage that is not a torn tail) or IncompatibleVersion.

        ``begun``: this is not its first start, so that what reads as if it were is damage.
        ``random_bytes`` makes the salts of new files: what clients cannot guess.
        """
        disk.make_directory(directory)
        journal = cls(disk, directory, cluster_hash(cluster_id), segment_bytes, random_bytes)
        found = Replay(journal._files, begun)
        found.run()
        journal.base = journal._files.record.base
        journal.entries = found.entries
        journal.term, journal.vote, floor = found.hard
        journal.durable_term = journal.term
        journal.floor = max(floor, journal.base.index)
        journal.durable_index = journal.entries[-1][1]
        journal.redo_bytes, journal._redo = found.redo_bytes, found.redo
        journal._next_sequence, journal.mended = found.sequence, found.mended
        journal.found_sequence = journal.synced_sequence = found.sequence - 1
        invariant(journal.floor <= journal.durable_index, "journal ends below its acknowledged floor")
        return journal

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
        self._pending.append((RecordKind.ENTRY, codec.ENTRY.pack(index, term) + command))

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802 - the engine's name
        """Drop entries from list position ``position`` on (a Raft conflict)."""
        if position >= len(self.entries):
            return
        invariant(position > 0, "the journal's base is cut off")
        index = self.entries[position][1]
        del self.entries[position:]
        self._pending.append((RecordKind.TRUNCATE, codec.INDEX.pack(index)))
        self.durable_index = min(self.durable_index, index - 1)
        self.floor = min(self.floor, index - 1)  # acknowledged to a leader that lost: nobody counts on it
        if self._in_flight is not None:
            self._in_flight.last_index = min(self._in_flight.last_index, index - 1)

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802 - the engine's name
        """Queue term and vote; no message that depends on them leaves before they are synced."""
        invariant(term >= self.term, "term went back from {} to {}", self.term, term)
        self.term, self.vote = term, vote
        self._pending.append((RecordKind.HARDSTATE, codec.INDEX.pack(term) + (vote or "").encode()))

    def getCurrentTerm(self) -> int:  # noqa: N802 - the engine's name
        """As on disk or queued for it."""
        return self.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802 - the engine's name
        """As on disk or queued for it."""
        return self.vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802 - the engine's name
        """Not stored, but for the base's: a commit index from disk could exceed what the journal still holds."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802 - the engine's name
        """The base's: whatever is gone was committed."""
        return self.base.index

    def onOneSecondTimer(self) -> None:  # noqa: N802 - the engine's name
        """Nothing to do."""

    def _destroy(self) -> None:
        self.close()

    # -- reading

    @property
    def last_index(self) -> int:
        """Raft index of the last entry, durable or not."""
        return self.entries[-1][1]

    @property
    def base_index(self) -> int:
        """Raft index of the placeholder, the first of ``entries``."""
        return self.entries[0][1]

    def entry(self, index: int) -> Entry:
        """The entry at a Raft index that the journal holds; the base's own has a no-op for a command."""
        position = index - self.entries[0][1]
        if position < 0:
            raise InvariantViolated(f"entry {index} is asked for, the journal begins at {self.base_index}")
        return self.entries[position]

    def leads_to(self, index: int, term: int) -> bool:
        """Whatever was cut in front of this entry, which was committed, has nothing that is not in here, or was."""
        if index <= self.base_index:
            return True
        return index <= self.last_index and self.entry(index)[2] == term

    def after(self, index: int) -> list[Entry]:
        """Entries above a Raft index, which is the base's or higher."""
        return self.entries[index - self.entries[0][1] + 1 :]

    def last_of(self, term: int, end: int) -> int:
        """Highest Raft index up to ``end`` of a term up to ``term``; the one before the base: there is none."""
        stop = min(max(0, end - self.base_index + 1), len(self.entries))
        return self.base_index - 1 + bisect_right(self.entries, term, hi=stop, key=lambda entry: entry[2])

    def truncate_from(self, index: int) -> None:
        """Drop entries from Raft index ``index`` on."""
        self.deleteEntriesFrom(index - self.entries[0][1])

    # -- batches of partition logs

    def redo(self, batch: Redo) -> None:
        """Hold a batch until its own log is synced; ahead of everything queued, as entries may name it."""
        self._pending_redo.append((RecordKind.REDO, b"".join((batch.digest, *batch.buffers))))
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

    @property
    def queued_sequence(self) -> int:
        """With the next group the disk has at least the records up to this one."""
        return self.taken_sequence + len(self._pending)

    def settled(self, sequence: int) -> None:
        """Batches held up to ``sequence`` are synced in their logs: they are needed here no more."""
        self._files.settled = max(self._files.settled, sequence)
        self._pending.append((RecordKind.SETTLED, codec.INDEX.pack(sequence)))

    def prove(self) -> bool:
        """Queue a record, unless it was the last: damage to what was synced before is then not taken for a torn write.

        False: there is nothing to prove, or something else to write, which proves it, too.
        """
        due = not self.dirty and self._files.synced != self._proof
        if due:
            self._proof = self._next_sequence
            self.settled(self._files.settled)
        return due

    def strip(self, through: int) -> None:
        """Write sealed files anew without their batches, settled up to a sequence. Off the loop; one at a time."""
        self._files.strip(through)

    def scrub(self) -> Pieces:
        """Read everything again but the file that is written. Off the loop."""
        return scrub_journal(self._files)

    def outlives(self, damage: CorruptData) -> Callable[[], bool]:
        """To be asked later: is the file that ``scrub`` found damaged needed no more, or written anew?"""
        path, record = damage.fields.get("path"), self._files.record
        if any(str(each.path) == path for each in self._files.sealed):
            return lambda: all(str(each.path) != path for each in self._files.sealed)
        if path == str(self.directory / NEWEST):
            newest = self._files.newest
            return lambda: self._files.newest != newest
        return lambda: self._files.record is not record

    @property
    def sealed_bytes(self) -> int:
        """Of the files that ``scrub`` reads, as far as their number tells."""
        return len(self._files.sealed) * self.segment_bytes

    # -- beginning later

    def compaction(self, base: Base) -> Compaction:
        """Let the journal begin at a committed entry: it and what is before it go. One at a time, and no ``strip``."""
        self._check_base(base)
        invariant(base.index > self.base.index, "compaction to {}, the base is {}", base.index, self.base.index)
        return Compaction(self, base)

    def write_base(self, base: Base) -> None:
        """Off the loop: the base, then files that nothing needs any more go."""
        self._files.write_base(base)

    def compacted(self, base: Base) -> None:
        """On the loop, after ``write_base``."""
        self._check_base(base)
        del self.entries[: base.index - self.base_index]
        self.entries[0] = (KIND_NOOP, base.index, base.term)
        self.base = base
        self.floor = max(self.floor, base.index)

    def _check_base(self, base: Base) -> None:
        held = self.base_index <= base.index <= self.durable_index and self.entry(base.index)[2] == base.term
        invariant(held, "entry {} of term {}, a base, is not in the journal", base.index, base.term)

    def install(self, base: Base) -> None:
        """Begin at an entry that others have committed, here or not. Blocking, before anything else goes on.

        Entries behind it stay if they follow it. Term and vote stay, but for a term below the base's. After a crash
        the caller does it again.
        """
        invariant(base.index >= self.base.index, "base {} in front of {}", base.index, self.base.index)
        if base.term > self.term:
            self.setCurrentTerm(base.term, None)
        self.flush()
        if base.index <= self.last_index and self.entry(base.index)[2] == base.term:
            if base.index > self.base.index:
                self.write_base(base)
                self.compacted(base)
            return
        invariant(base.index > self.base.index, "base {} is of another term", base.index)
        self._files.start_over(base)
        self.base, self.entries = base, [(KIND_NOOP, base.index, base.term)]
        self.durable_index = self.floor = base.index
        self.redo_bytes = 0
        self._redo.clear()

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
        self._in_flight = JournalJob(self, pending)
        return self._in_flight

    def write(self, pending: list[Pending], *, floor: int) -> None:
        """Off the loop: written and synced, as one."""
        self._files.write(pending, floor=floor)

    def written(self, job: JournalJob) -> None:
        """On the loop, after ``write``."""
        invariant(self._in_flight is job, "a journal write ended that was not under way")
        self._in_flight = None
        self.durable_index = max(self.durable_index, job.last_index)
        self.durable_term, self.synced_sequence = job.term, job.last_sequence

    def flush(self) -> None:
        """Write and sync what is queued, blocking: for start-up and shutdown only."""
        job = self.take()
        if job is not None:
            job.run()
            job.done()

    def close(self) -> None:
        """Idempotent. What is queued and not synced is dropped: nobody was told about it."""
        self._files.close()


def cluster_hash(cluster_id: str) -> bytes:
    """12 bytes that tie files to their cluster."""
    return hashlib.blake2b(cluster_id.encode(), digest_size=12).digest()
