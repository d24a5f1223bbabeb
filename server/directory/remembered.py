"""How much of producers is remembered: which decides what is applied, so all nodes have to agree, and to go on so.

A batch that one node skips, or refuses, and another applies leaves two states, for good. So does a replay with another
limit than the first time. Hence a file says what the directory was begun with; and nodes tell each other (PEER_HELLO).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from logboom.errors import ConfigError, CorruptData
from logboom.settings import ApplySettings
from ports.disk import Disk
from server.directory.manifest import sealed, unsealed

log = structlog.get_logger(__name__)

REMEMBERED: Final = "remembered.json"
NAMES: Final = ("producers_max", "producer_ranges_max", "producer_receipts")
"""Of ``[apply]``."""


def remembered(settings: ApplySettings) -> tuple[int, ...]:
    """What nodes compare."""
    return tuple(getattr(settings, name) for name in NAMES)


def check_remembered(disk: Disk, directory: Path, settings: ApplySettings, *, used: bool) -> None:
    """Raises ConfigError for other settings than those that a directory was ``used`` with.

    A directory of an earlier release does not say: it goes on with those of its first start with this one.
    """
    path, now = directory / REMEMBERED, dict(zip(NAMES, remembered(settings), strict=True))
    before = _read(disk, path)
    if before == now:
        return
    if before is not None and used:
        name = next(name for name in NAMES if before[name] != now[name])
        raise ConfigError(
            f"apply.{name}: {now[name]}, and {directory} was begun with {before[name]}: what is sent again would take "
            "effect on some nodes and not on others. Set it back. Where the others refuse this node for that "
            "(`peer_refused`), it never had what they have: `logboom members remove` takes it out, and its machine is "
            "added with another id and an empty directory. A restore changes it for all: they begin anew from that",
            path=f"apply.{name}",
        )
    disk.replace_file(path, sealed(dict(now)))


def _read(disk: Disk, path: Path) -> dict[str, int] | None:
    """None: it does not say."""
    if not disk.exists(path):
        return None
    try:
        return decode(disk.read_file(path), path=str(path))
    except CorruptData as error:
        log.error("remembered_damaged", error=str(error), advice="the settings count, as they are")
        return None


def decode(raw: bytes, *, path: str) -> dict[str, int]:
    """Raises CorruptData, naming ``path``."""
    found = unsealed(raw, path=path, only=NAMES)
    if found.keys() != set(NAMES) or any(type(each) is not int for each in found.values()):
        raise CorruptData(f"{path} does not say what it should", path=path)
    return found
