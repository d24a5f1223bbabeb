"""The parent journal on its own, beside a model of it: a list of records, and what they add up to."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

from chaos.sim.disk import SimDisk
from ports.sync import Redo
from raftlog.entries.entry import KIND_NOOP
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import BEGINNING, Base
from raftlog.journal.journal_replay import Entry
from tests.storage.world import World

SEGMENT_BYTES = 2048


class Content(NamedTuple):
    """What the journal says after some record."""

    entries: tuple[Entry, ...] = ((KIND_NOOP, 1, 0),)
    term: int = 0
    vote: str | None = None
    floor: int = 1


class Begun(NamedTuple):
    """A base; after which record everything was dropped last, if ever, and what was left then."""

    base: Base
    sequence: int = 0
    content: Content | None = None


class Promise(NamedTuple):
    """Records up to this one were synced."""

    sequence: int
    settled: int
    """REDO records up to this one need not be there."""
    base: int
    """Raft index: the journal begins there, or later."""


class JournalWorld(World):
    directory = Path("/n/journal")

    def __init__(self, disk: SimDisk, seed: int) -> None:
        super().__init__(disk, seed)
        self.contents = [Content()]
        """After record k."""
        self.redo: dict[bytes, tuple[int, bytes]] = {}
        """Sequence and bytes."""
        self.synced = self.settled = 0
        self.bases = [Begun(BEGINNING.base)]
        """Where the journal may begin, rising; those after the last that was reached are tried, and no more."""
        self.now = Content()
        self.reached = 1
        """Raft index of a base that is there for good."""
        self.queued: list[Any] = []

    def open(self) -> None:
        self.journal = open_journal(self.disk)
        self.synced = self._found(self.journal)
        del self.bases[1 + [begun.base for begun in self.bases].index(self.journal.base) :]
        self.now, self.reached = self.found, self.journal.base.index
        # What a process that died had queued, or written and lost, never was.
        del self.contents[self.synced + 1 :]
        self.redo = {digest: found for digest, found in self.redo.items() if found[0] <= self.synced}
        self.queued = []
        if self.rng.random() < 0.5:
            self._forget()
        self.mark()

    def _found(self, journal: Journal) -> int:
        """Which of the contents it is; fails if it is none."""
        sequence = journal.taken_sequence
        assert sequence < len(self.contents), "records that nobody wrote (NoPhantom)"
        wanted = self.contents[sequence]
        begun = {begun.base: begun for begun in self.bases}.get(journal.base)
        assert begun is not None, "a base that nobody wrote (NoPhantom)"
        if begun.content is not None and begun.sequence == sequence:
            wanted = begun.content
        self.found = wanted
        base = journal.base.index
        entries = (KIND_NOOP, base, journal.base.term), *(each for each in wanted.entries if each[1] > base)
        assert tuple(journal.entries) == entries, f"other entries after record {sequence}, base {base}"
        assert (journal.term, journal.vote) == (wanted.term, wanted.vote), f"other vote after record {sequence}"
        assert journal.durable_index == journal.last_index
        floor = max(wanted.floor, base)
        assert journal.floor == floor, f"floor {journal.floor} after record {sequence}, was {floor}"
        return sequence

    def _forget(self) -> None:
        """As after a start, when the partitions' logs are synced."""
        if any(sequence > self.settled for sequence, _ in self.redo.values()):
            pending = bool(self.journal._redo)
            self.journal.forget_redo()
            if pending:
                self.queued.append(lambda content: content)
            self.settled = self.synced

    # -- what may happen

    def step(self) -> None:
        for _ in range(self.rng.choice((1, 2, 2, 3, 6))):
            self._change()
        if self.rng.random() < 0.8:
            self._flush()
        if self.rng.random() < 0.04:
            self.disk.kill()
            self.open()

    def _change(self) -> None:
        fate, journal = self.rng.random(), self.journal
        if fate < 0.45:
            command, index, term = self.rng.randbytes(self.rng.choice((1, 33, 65, 600))), journal.last_index + 1, 7
            journal.add(command, index, term)
            self._then(lambda c: c._replace(entries=(*c.entries, (command, index, term))))
        elif fate < 0.55:
            term, vote = journal.term + self.rng.randint(0, 2), self.rng.choice((None, "n1", "a-long-name"))
            journal.setCurrentTerm(term, vote)
            self._then(lambda c: c._replace(term=term, vote=vote))
        elif fate < 0.62 and journal.last_index > journal.base_index:
            index = self.rng.randint(max(journal.base_index + 1, journal.last_index - 3), journal.last_index)
            journal.truncate_from(index)
            self._then(lambda c: c._replace(entries=tuple(e for e in c.entries if e[1] < index)))
        elif fate < 0.85:
            digest, body = self.rng.randbytes(16), self.rng.randbytes(self.rng.choice((10, 100, 700)))
            journal.redo(Redo(digest, [body[:4], body[4:]]))
            self.queued.insert(sum(isinstance(each, tuple) for each in self.queued), (digest, body))
        elif fate < 0.93:
            journal.acknowledged(self.rng.randint(1, journal.durable_index))
        elif fate < 0.96:
            self._settle()
        elif fate < 0.985:
            self._compact()
        else:
            self._install()

    def _then(self, change: Any) -> None:
        self.queued.append(change)

    def _settle(self) -> None:
        """The partitions' logs are synced up to here; files are written anew before or after that is recorded."""
        through = self.journal.taken_sequence
        self.journal.settled(through)
        self._then(lambda content: content)
        self.settled = through
        self.mark()
        if self.rng.random() < 0.5:
            self._flush()
        self.journal.strip(through)

    def _compact(self) -> None:
        journal = self.journal
        if journal.durable_index == journal.base_index:
            return
        index = self.rng.randint(journal.base_index + 1, journal.durable_index)
        base = Base(index, journal.entry(index)[2], self.rng.randbytes(self.rng.choice((0, 20, 3000))))
        self.bases.append(self.bases[-1]._replace(base=base))
        job = journal.compaction(base)
        job.run()
        if self.rng.random() < 0.5:
            self._flush()  # groups go on beside it
        job.done()
        self.reached = index
        self.mark()

    def _install(self) -> None:
        """A snapshot of others: what is here may follow it, contradict it, or end before it."""
        self._flush()
        journal = self.journal
        index = self.rng.randint(journal.base_index + 1, journal.last_index + 5)
        term = self.rng.choice((6, 7, journal.term, journal.term + 1))
        follows = index <= journal.last_index and journal.entry(index)[2] == term
        base = Base(index, term, self.rng.randbytes(20))
        if term > journal.term:
            self.now = self.now._replace(term=term, vote=None, floor=journal.floor)
            self.contents.append(self.now)
        sequence = len(self.contents) - 1
        if follows:
            self.bases.append(self.bases[-1]._replace(base=base))
        else:
            self.now = self.now._replace(entries=(), floor=index)
            self.bases.append(Begun(base, sequence, self.now))
            self.settled = sequence
        journal.install(base)
        self.synced, self.reached = sequence, index
        self.mark()

    def _flush(self) -> None:
        floor = self.journal.floor
        job = self.journal.take()
        if job is None:
            return
        for change in self.queued:
            self.now = self.now._replace(floor=floor)
            if isinstance(change, tuple):
                self.redo[change[0]] = len(self.contents), change[1]
            else:
                self.now = change(self.now)
            self.contents.append(self.now)
        self.queued = []
        job.run()
        job.done()
        self.synced = len(self.contents) - 1
        assert self.journal.taken_sequence == self.synced
        self.mark()

    # -- what must hold

    def promise(self) -> Promise:
        return Promise(self.synced, self.settled, self.reached)

    def verify(self, disk: SimDisk, promise: Promise, *, again: bool = False) -> Any:
        journal = open_journal(disk)
        sequence = self._found(journal)
        assert journal.base.index >= promise.base, f"a base of {promise.base} was reached, found {journal.base.index}"
        assert sequence >= promise.sequence, f"record {promise.sequence} was synced, found {sequence} (NoTruncateAcked)"
        for digest, (number, body) in self.redo.items():
            found = journal.find_redo(digest)
            assert found is None or bytes(found) == body, "other bytes (NoServeCorrupt)"
            assert found is not None or number <= self.settled or number > sequence, "a batch that was still needed"
        content = tuple(journal.entries), journal.term, journal.vote, journal.floor, sorted(journal._redo)
        journal.close()
        return content


def open_journal(disk: SimDisk) -> Journal:
    return Journal.open(
        disk=disk,
        directory=JournalWorld.directory,
        cluster_id="c",
        segment_bytes=SEGMENT_BYTES,
        random_bytes=random.Random(0).randbytes,
    )
