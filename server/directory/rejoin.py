"""A journal that is damaged is set aside, and another begun; until the cluster has taken this node back it says so.

So does a node whose whole disk was lost, or put back to an earlier one, as soon as others tell it (docs/decisions/0031,
0034); an earlier one's journal stays, as that of a node which was away.

What the journal had promised to others is lost (docs/decisions/0019-damaged-journal.md), what was committed is not: it
is with them, and most of it here, in the partition logs and the states. Blocking; every step may be the last before a
crash: the next start finds the file, and goes on.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from logboom.errors import CorruptData, IncompatibleVersion, LogboomError, Unavailable
from partitions.log.opening import LogBase, places_reach
from ports.disk import Disk
from ports.offload import Offload
from raftlog.entries.configuration import REJOIN_TOKEN_BYTES
from raftlog.entries.parent_state import ParentState
from raftlog.journal import journal_base
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base
from raftlog.journal.journal_codec import AnotherClusters
from raftlog.journal.journal_files import BASE, BROKEN, NAME, NEWEST
from raftlog.journal.membership import Rejoining
from server.directory.data_dir import number_in
from server.directory.journal_of import OF, JournalOf
from server.directory.manifest import sealed, unsealed, unsealed_id

log = structlog.get_logger(__name__)

REJOIN: Final = "rejoin.json"
ASIDE: Final = "journal.damaged-"
"""A directory each; the highest number is the newest. They are the operator's to remove."""
WITHIN: Final = "damaged-"
"""What ``ASIDE`` is within the journal's own directory, where that cannot be moved: a file system is mounted on it."""
NO_MAJORITY: Final = (
    "without this node's vote one or two voters have no majority: unless one leads already, nothing helps but to "
    "restore a backup (`logboom restore`) or, of two, to begin again with the other (`logboom recover`): this one goes "
    "on waiting"
)
PERHAPS_ALONE: Final = (
    "by what it has this node alone votes. Others that were added since take it back; where that is one alone, begin "
    "again with it (`logboom recover`); where there are none, restore a backup (`logboom restore`): it goes on waiting"
)


class RejoinDue(LogboomError):
    """Not an error: the disk was put back to an earlier one, and the node starts anew, as one that has forgotten."""

    code = "rejoin_due"
    retryable = True


class Memory:
    """The file of a data directory that says that its node has forgotten what it promised, and which time it is."""

    def __init__(self, disk: Disk, directory: Path, random_bytes: Callable[[int], bytes]) -> None:
        self._disk = disk
        self._directory = directory
        self._random_bytes = random_bytes
        self._path = directory / REJOIN

    def token(self) -> bytes | None:
        """Which time it is; None: nothing was forgotten, or that is over. A damaged file says that it is not over."""
        if not self._disk.exists(self._path):
            return None
        try:
            return decode(self._disk.read_file(self._path), path=str(self._path))
        except CorruptData as error:
            log.error("rejoin_begins_again", error=str(error))
            return self.lose()

    def lose(self) -> bytes:
        """From now on this node has forgotten; durable on return. The token is of this time alone."""
        token = self._random_bytes(REJOIN_TOKEN_BYTES)
        self._disk.replace_file(self._path, encode(token))
        return token

    def over(self) -> None:
        """The cluster has taken it back; durable on return."""
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
            self._disk.sync_directory(self._directory)

    def forget(self, *, offload: Offload, fatal: Callable[[BaseException], None]) -> Rejoining:
        """``lose`` while the node runs: on the loop, once in its life. Raises Unavailable."""
        try:
            return self.rejoining(self.lose(), offload=offload, fatal=fatal)
        except OSError as error:
            fatal(error)
            raise Unavailable(f"{self._path}: {error.strerror or error}") from error

    def rejoining(self, token: bytes, *, offload: Offload, fatal: Callable[[BaseException], None]) -> Rejoining:
        """For the log, until it is over. ``fatal`` is told what the disk refuses then."""

        def end(done: Callable[[], None]) -> None:
            def removed(_: None, error: BaseException | None) -> None:
                if error is not None:
                    fatal(error)
                else:
                    done()

            offload.submit(self.over, removed)

        return Rejoining(token, end)


class Opened(NamedTuple):
    """A journal, and the token of this time if what it had promised is forgotten."""

    journal: Journal
    token: bytes | None


def open_journal(
    opening: Callable[[bool], Journal],
    memory: Memory,
    *,
    begun: bool,
    own: bytes | None,
    needed: Callable[[Journal], bool],
    disk: Disk,
    directory: Path,
    partition: Callable[[int], Path],
) -> Opened:
    """The journal in ``directory``, or another one in its place. Raises AnotherClusters or IncompatibleVersion.

    ``opening`` is told whether there has to be one, as it is in a directory that was in use (``begun``).
    ``own``: the data directory's id, if it is known; a journal of another one has forgotten what was promised since.
    ``needed``: without this node's vote nobody leads, so that its journal stays whosever it is.
    ``partition``: where the log of one lives.
    """
    token = memory.token()
    of = JournalOf(disk, directory)
    try:
        journal = opening(begun and token is None)  # what was set aside may have no successor yet
        if own is not None and of.said() not in (None, own, token):
            _refuse_others(journal, needed, str(directory))
    except AnotherClusters:
        raise
    except CorruptData as error:
        log.error("journal_damaged", error=str(error))
        # First of all: whatever happens from here on, nobody may take this node for one that knows its votes.
        token = memory.lose()
        _set_aside(disk, directory)
        journal = opening(False)  # noqa: FBT003 - it begins
        of.say(token)
    if journal.mended is not None:
        log.error("journal_mended", error=str(journal.mended))
    if token is not None:
        if journal.last_index == journal.base_index == 1:
            _begin_at_base(journal, disk=disk, directory=directory, partition=partition)
        log.warning("rejoining", begins_at=journal.base_index, last_index=journal.last_index)
    return Opened(journal, token)


def _refuse_others(journal: Journal, needed: Callable[[Journal], bool], path: str) -> None:
    story = f"{path} is the journal of another data directory, or of this one before its node began anew"
    if needed(journal):
        log.error("journal_of_another", error=story)
        return
    journal.close()
    raise CorruptData(story, path=path)


def set_aside(disk: Disk, directory: Path) -> list[Path]:
    """Damaged journals beside, or within, the one in ``directory``, the newest first."""
    found = {
        number: place / name
        for place, prefix in ((directory.parent, ASIDE), (directory, WITHIN))
        for name in (disk.list(place) if disk.exists(place) else [])
        if name.startswith(prefix) and (number := number_in(name.removeprefix(prefix))) is not None
    }
    return [found[number] for number in sorted(found, reverse=True)]


def encode(token: bytes) -> bytes:
    """The file."""
    return sealed({"token": token.hex()})


def decode(raw: bytes, *, path: str) -> bytes:
    """Its token. Raises CorruptData."""
    return unsealed_id(unsealed(raw, path=path, only={"token"}).get("token"), REJOIN_TOKEN_BYTES, path=path)


def _set_aside(disk: Disk, directory: Path) -> None:
    before = set_aside(disk, directory)
    number = 1 + int(before[0].name.rpartition("-")[2]) if before else 1
    target = directory.parent / f"{ASIDE}{number}"
    try:
        disk.move_directory(directory, target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        target = directory / f"{WITHIN}{number}"
        _move_files(disk, directory, target)
    log.warning("journal_set_aside", path=str(target))


def _move_files(disk: Disk, directory: Path, target: Path) -> None:
    """The last one first: what a crash leaves ends earlier, or is damaged. That it has forgotten is said already."""
    disk.make_directory(target)
    names = disk.list(directory)
    files = sorted((name for name in names if NAME.fullmatch(name) or name.endswith(BROKEN)), reverse=True)
    for name in (*files, *(name for name in (NEWEST, BASE, OF) if name in names)):
        disk.rename(directory / name, target / name)
    disk.sync_directory(target)
    disk.sync_directory(directory)


def _begin_at_base(journal: Journal, *, disk: Disk, directory: Path, partition: Callable[[int], Path]) -> None:
    """Where the damaged one began, if that can be read: it is committed, and partition logs know their places there.

    Else at the very beginning, as a node that has nothing: it is sent everything, or given a snapshot, and what its
    logs hold it need not be sent again.
    """
    for base in _bases(journal, disk, directory):
        tails = ParentState.decode(base.state).tails
        if all(
            places_reach(disk, partition(p), p, LogBase(tail.last_index, tail.digest, tail.global_index))
            for p, tail in tails.items()
        ):
            journal.install(base)
            return


def _bases(journal: Journal, disk: Disk, directory: Path) -> Iterator[Base]:
    for aside in set_aside(disk, directory):
        path = aside / BASE
        try:
            if disk.exists(path):
                found = journal_base.decode(disk.read_file(path), cluster=journal.cluster, path=str(path)).base
                ParentState.decode(found.state)
                yield found
        except (CorruptData, IncompatibleVersion) as error:
            log.warning("journal_base_of_no_use", error=str(error))
