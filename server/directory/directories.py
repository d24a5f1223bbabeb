"""The files that remember which data directory this is, which ones this node has met, and how far their journals were.

See docs/decisions/0031 and 0034. Blocking. A directory that is of an earlier release has none and is given an id; one
whose file is damaged is another directory from then on, which its node has to say: it begins anew, as after a damaged
journal.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from logboom.errors import CorruptData, Unavailable, WrongNode
from logboom.types import NUMBER_MAX, NodeId
from ports.disk import Disk
from ports.offload import Offload
from ports.rng import Rng
from raftlog.journal.membership import Membership
from raftlog.links.directories import DIRECTORY_BYTES, Directories, Met, counts
from raftlog.links.marks import LIFE_BYTES, Heard, Mark, Marks, Own
from server.directory.journal_of import JournalOf
from server.directory.manifest import sealed, unsealed, unsealed_id
from server.directory.rejoin import RejoinDue

log = structlog.get_logger(__name__)

DIRECTORIES: Final = "directories.json"
HEARD: Final = "heard.json"
FORMER: Final = "former.json"
"""Its node led alone, with what is from before others voted. For people: that it is there is enough."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def open_directories(
    disk: Disk,
    directory: Path,
    membership: Membership,
    rng: Rng,
    offload: Offload,
    *,
    fatal: Callable[[BaseException], None],
) -> Directories:
    """What is remembered in a data directory. ``fatal`` is told what the disk refuses later, while the node runs.

    And, with RejoinDue, that the disk was put back to an earlier one; by then it says that this node has forgotten.
    """
    path, node, current = directory / DIRECTORIES, membership.node_id, membership.current
    had, met = None, Met()
    try:
        if disk.exists(path):
            had, met = decode(disk.read_file(path), path=str(path))
    except CorruptData as error:
        log.error("directories_damaged", error=str(error))
        if membership.rejoining is None and membership.forget is not None and counts(node, current, settled=True):
            membership.rejoining = membership.forget(False)  # noqa: FBT003 - it has its lineage

    of = JournalOf(disk, membership.journal.directory)
    said = of.said()

    def write(own: bytes, met: Met) -> None:
        nonlocal said
        # In between it says nothing: wherever a crash comes, what it says is so.
        if said not in (None, own):
            of.say_nothing()
            said = None
        disk.replace_file(path, encode(own, met))
        if said != own:
            of.say(own)
            said = own

    def keep(own: bytes, met: Met) -> None:  # on the loop: once for each node that is new
        try:
            write(own, met)
        except OSError as error:
            fatal(error)
            raise Unavailable(f"{path}: {error.strerror or error}") from error

    told = False

    def behind(why: str) -> None:
        nonlocal told
        if not told and membership.forget is not None:
            told = True
            membership.rejoining = membership.forget(False)  # noqa: FBT003 - from here on it gives no vote
            fatal(RejoinDue(why))

    def former(why: str) -> None:
        nonlocal told
        if told:
            return
        told = True
        try:
            disk.replace_file(directory / FORMER, sealed({"why": why}))
        except OSError as error:  # the next start finds out again
            fatal(error)
            raise Unavailable(f"{directory / FORMER}: {error.strerror or error}") from error
        fatal(WrongNode(why))

    token = None if membership.rejoining is None else membership.rejoining.token
    kept = had if said in (None, had) else None  # of another's journal, with few voters: others forget what it had
    own = token or current.rejoined_with(node) or kept or rng.randbytes(DIRECTORY_BYTES)
    if own != had or own != said:
        write(own, met)
    journal = membership.journal
    life = Own(rng.randbytes(LIFE_BYTES), journal.found_sequence, lambda: journal.synced_sequence)
    marks = Marks(life, *_heard(disk, directory / HEARD, offload, fatal))
    return Directories(node, own, met, keep, marks=marks, behind=behind, former=former)


def refuse_former(disk: Disk, directory: Path) -> None:
    """Raises WrongNode where a node has found out that its cluster is one of others, without what it has."""
    path = directory / FORMER
    if not disk.exists(path):
        return
    try:
        why = unsealed(disk.read_file(path), path=str(path), only={"why"}).get("why")
    except CorruptData as error:
        why = str(error)
    raise WrongNode(
        f"{directory} is from before others voted, and its node led alone with it. {FORMER} says why: {why}. To start "
        f"with it all the same, remove {FORMER}, too. Where only a restore called that was tried elsewhere under this "
        f"cluster's id (without --as-cluster), stop that one, and remove {FORMER}"
    )


def _heard(
    disk: Disk, path: Path, offload: Offload, fatal: Callable[[BaseException], None]
) -> tuple[Heard, Callable[[Heard, Callable[[], None]], None]]:
    """How far others' journals were, and how that is kept."""
    heard = Heard()
    try:
        if disk.exists(path):
            heard = decode_heard(disk.read_file(path), path=str(path))
    except CorruptData as error:  # they say it again; what is put back until then is not seen
        log.error("heard_damaged", error=str(error))

    short = False

    def keep(heard: Heard, done: Callable[[], None]) -> None:
        def written(_: None, error: BaseException | None) -> None:
            nonlocal short
            full = isinstance(error, OSError) and error.errno in NO_ROOM
            if error is not None and not full:
                fatal(error)
                return
            if full and not short:
                log.warning("heard_not_kept", error=str(error))  # once, until there is room
            short = full
            done()  # what changes next is tried again; nobody relies on the file

        offload.submit(lambda: disk.replace_file(path, encode_heard(heard)), written)

    return heard, keep


def own_id(disk: Disk, directory: Path) -> bytes | None:
    """A data directory's id, as its file says it; None: it does not."""
    path = directory / DIRECTORIES
    try:
        return decode(disk.read_file(path), path=str(path))[0] if disk.exists(path) else None
    except CorruptData:
        return None


def encode(own: bytes, met: Met) -> bytes:
    """The file."""
    return sealed({"own": own.hex(), "met": {node: each.hex() for node, each in sorted(met.items())}})


def decode(raw: bytes, *, path: str) -> tuple[bytes, Met]:
    """The directory's id, and those that were met. Raises CorruptData."""
    said = unsealed(raw, path=path, only={"own", "met"})
    met = said.get("met")
    if not isinstance(met, dict):
        raise CorruptData(f"{path} does not say who was met", path=path)
    own, *others = (unsealed_id(each, DIRECTORY_BYTES, path=path) for each in (said.get("own"), *met.values()))
    return own, dict(zip(map(NodeId, met), others, strict=True))


def encode_heard(heard: Heard) -> bytes:
    """The other file."""
    rows = {n: [mark.directory.hex(), mark.life.hex(), mark.sequence] for n, mark in sorted(heard.items())}
    return sealed({"heard": rows})


def decode_heard(raw: bytes, *, path: str) -> Heard:
    """How far whose journal was. Raises CorruptData."""
    rows = unsealed(raw, path=path, only={"heard"}).get("heard")
    if not isinstance(rows, dict):
        raise CorruptData(f"{path} does not say who was heard", path=path)
    return {NodeId(node): _mark(row, path) for node, row in rows.items()}


def _mark(row: object, path: str) -> Mark:
    if not isinstance(row, list) or len(row) != 3 or type(row[2]) is not int or not 0 <= row[2] < NUMBER_MAX:
        raise CorruptData(f"{path} does not say how far a journal was", path=path)
    directory, life, _ = row
    return Mark(unsealed_id(directory, DIRECTORY_BYTES, path=path), unsealed_id(life, LIFE_BYTES, path=path), row[2])
