"""The file that remembers which data directory this is, and which ones this node has met (docs/decisions/0031).

Blocking. A directory that is of an earlier release has none and is given an id; one whose file is damaged is another
directory from then on, which its node has to say: it begins anew, as after a damaged journal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from logboom.errors import CorruptData, Unavailable
from logboom.types import NodeId
from ports.disk import Disk
from raftlog.journal.membership import Membership
from raftlog.links.directories import DIRECTORY_BYTES, Directories, Met, counts
from server.directory.manifest import sealed, unsealed, unsealed_id

log = structlog.get_logger(__name__)

DIRECTORIES: Final = "directories.json"


def open_directories(
    disk: Disk,
    directory: Path,
    membership: Membership,
    random_bytes: Callable[[int], bytes],
    *,
    fatal: Callable[[BaseException], None],
) -> Directories:
    """What is remembered in a data directory. ``fatal`` is told what the disk refuses later, while the node runs."""
    path, node, current = directory / DIRECTORIES, membership.node_id, membership.current
    had, met = None, Met()
    try:
        if disk.exists(path):
            had, met = decode(disk.read_file(path), path=str(path))
    except CorruptData as error:
        log.error("directories_damaged", error=str(error))
        if membership.rejoining is None and membership.forget is not None and counts(node, current, settled=True):
            membership.rejoining = membership.forget(False)  # noqa: FBT003 - it has its lineage

    def write(own: bytes, met: Met) -> None:
        disk.replace_file(path, encode(own, met))

    def keep(own: bytes, met: Met) -> None:  # on the loop: once for each node that is new
        try:
            write(own, met)
        except OSError as error:
            fatal(error)
            raise Unavailable(f"{path}: {error.strerror or error}") from error

    token = None if membership.rejoining is None else membership.rejoining.token
    own = token or current.rejoined_with(node) or had or random_bytes(DIRECTORY_BYTES)
    if own != had:
        write(own, met)
    return Directories(node, own, met, keep)


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
