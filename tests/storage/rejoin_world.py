"""A journal that is found damaged: it is set aside, another is begun, and one day the node is taken back."""

from __future__ import annotations

import random
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from chaos.sim.disk import SimDisk
from raftlog.entries.entry import KIND_NOOP
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base
from server.directory.rejoin import Memory, Opened, open_journal, set_aside
from tests.storage.world import World

DATA = Path("/n")
JOURNAL = DATA / "journal"
SEGMENT_BYTES = 1024
BASE = Base(5, 1, b"")


class Stage(IntEnum):
    """How far the story is."""

    NOTHING = 0
    DAMAGED = 1
    FORGOTTEN = 2
    """Others were told so."""
    ENDING = 3
    OVER = 4


class RejoinWorld(World):
    def __init__(self, disk: SimDisk, seed: int) -> None:
        super().__init__(disk, seed)
        self.stage = Stage.NOTHING
        self.term = 0

    def open(self) -> None:
        if self.stage is Stage.NOTHING:
            self._damage()
        self._start()
        if self.stage is Stage.DAMAGED:
            self._reach(Stage.FORGOTTEN)

    def _damage(self) -> None:
        self.disk.make_directory(JOURNAL)
        for name, content in damaged().items():
            file = self.disk.open(JOURNAL / name, create=True)
            file.write([content], offset=0)
            file.sync()
            file.close()
        self.disk.sync_directory(JOURNAL)
        self._reach(Stage.DAMAGED)

    def _reach(self, stage: Stage) -> None:
        self.stage = stage
        self.mark()

    def _start(self) -> None:
        self.opened = opened(self.disk, self.rng)
        # Where it was not known to be over, what was removed may come back with the power: a node that has its token
        # already finds that in its log, and is done once more.
        if self.stage is Stage.ENDING and self.opened.token is not None:
            self._reach(Stage.FORGOTTEN)
        assert self.stage is Stage.ENDING or (self.opened.token is None) == (self.stage is Stage.OVER)

    def step(self) -> None:
        fate, journal = self.rng.random(), self.opened.journal
        if fate < 0.6:
            journal.add(KIND_NOOP, journal.last_index + 1, max(journal.term, 1))
            journal.setCurrentTerm(journal.term + 1, None)
            journal.flush()
            self.term = journal.term
            self.mark()
        elif fate < 0.85:
            self.disk.kill()
            self._start()
        elif self.stage is Stage.FORGOTTEN:
            self._reach(Stage.ENDING)
            memory(self.disk, self.rng).over()
            self._reach(Stage.OVER)
            self.disk.kill()
            self._start()

    def promise(self) -> tuple[Stage, int]:
        return self.stage, self.term

    def verify(self, disk: SimDisk, promise: tuple[Stage, int], *, again: bool = False) -> Any:
        stage, term = promise
        if stage is Stage.NOTHING:
            return None
        found = opened(disk, random.Random(1))
        forgets = found.token is not None
        assert forgets or stage >= Stage.ENDING, "takes itself for one that knows what it has promised (VoteOnce)"
        assert not forgets or stage <= Stage.ENDING, "has forgotten once more, of itself"
        assert found.journal.base == BASE, "does not begin where the damaged one did"
        assert found.journal.term >= term, "the new journal is not kept"
        kept = [path.name for path in set_aside(disk, JOURNAL)]
        assert kept == ["journal.damaged-1"], f"what was damaged is kept: {kept}"
        found.journal.close()
        return forgets, tuple(found.journal.entries)


def memory(disk: SimDisk, rng: random.Random) -> Memory:
    return Memory(disk, DATA, rng.randbytes)


def opened(disk: SimDisk, rng: random.Random) -> Opened:
    return open_journal(
        lambda begun: journal_on(disk, begun=begun),
        memory(disk, rng),
        begun=True,
        own=None,
        needed=lambda _: False,
        disk=disk,
        directory=JOURNAL,
        partition=lambda p: DATA / str(p),
    )


def journal_on(disk: SimDisk, directory: Path = JOURNAL, *, begun: bool = False) -> Journal:
    return Journal.open(
        disk=disk,
        directory=directory,
        cluster_id="c",
        segment_bytes=SEGMENT_BYTES,
        random_bytes=random.Random(0).randbytes,
        begun=begun,
    )


@cache
def damaged() -> dict[str, bytes]:
    """The files of a journal that begins behind a base, with a flipped byte far from its end."""
    disk = SimDisk(random.Random(0))
    disk.make_directory(DATA)
    journal = journal_on(disk)
    journal.setCurrentTerm(1, "n1")
    for index in range(2, 60):
        journal.add(KIND_NOOP + bytes(60), index, 1)
        journal.acknowledged(index - 1)
        journal.flush()
    job = journal.compaction(BASE)
    job.run()
    job.done()
    journal.close()
    files = {name: disk.read_file(JOURNAL / name) for name in disk.list(JOURNAL)}
    first = min(name for name in files if name != "base")
    content = bytearray(files[first])
    content[300] ^= 1
    return files | {first: bytes(content)}
