"""A journal on real files, of several segments."""

from __future__ import annotations

import random
from pathlib import Path

from ports.sync import Redo
from raftlog.journal.journal import Journal
from server.world.disk_os import OsDisk

SEGMENT_BYTES = 4096


def opened(directory: Path) -> Journal:
    return Journal.open(
        disk=OsDisk(),
        directory=directory,
        cluster_id="c",
        segment_bytes=SEGMENT_BYTES,
        random_bytes=random.Random(0).randbytes,
    )


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def grown(directory: Path, groups: int, *, redo: bool = False) -> Journal:
    """One entry, and sometimes a vote, per group."""
    journal = opened(directory)
    for group in range(groups):
        if group % 5 == 0:
            journal.setCurrentTerm(group + 1, f"n{group % 3}")
        if redo:
            journal.redo(Redo(digest(group), [b"batch", b"%d" % group * 9]))
        journal.add(b"\x10" + b"r" * 32, journal.last_index + 1, group + 1)
        journal.flush()
    return journal


def content(journal: Journal) -> tuple[object, ...]:
    return list(journal.entries), journal.term, journal.vote
