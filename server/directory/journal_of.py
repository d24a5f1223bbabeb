"""Which data directory a journal is of: the file ``of`` in the journal's own (docs/decisions/0034).

A journal may lie on a file system of its own, which is mounted late, or not at all. Begun anew meanwhile, there are two
of them, each whole, and one has forgotten what the other promised. The directory has had another id since the second
was begun, and each says of which it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from logboom.errors import CorruptData
from ports.disk import Disk
from ports.scrub import UNREADABLE
from raftlog.links.directories import DIRECTORY_BYTES
from server.directory.manifest import sealed, unsealed, unsealed_id

log = structlog.get_logger(__name__)

OF: Final = "of"


class JournalOf:
    """The file that says of which data directory a journal is. Blocking."""

    def __init__(self, disk: Disk, journal: Path) -> None:
        self._disk = disk
        self._path = journal / OF

    def said(self) -> bytes | None:
        """The directory's id. None: it does not say, or that is damaged, and any may have it."""
        try:
            return decode(self._disk.read_file(self._path), path=str(self._path))
        except FileNotFoundError:  # of an earlier release, or just begun
            return None
        except (CorruptData, OSError) as error:
            if isinstance(error, OSError) and error.errno not in UNREADABLE:
                raise
            log.error("journal_of_damaged", error=str(error))
            return None

    def say(self, own: bytes) -> None:
        """Durable on return."""
        self._disk.replace_file(self._path, encode(own))

    def say_nothing(self) -> None:
        """It says no directory's id, until ``say``. Durable on return."""
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
            self._disk.sync_directory(self._path.parent)


def encode(own: bytes) -> bytes:
    """The file."""
    return sealed({"directory": own.hex()})


def decode(raw: bytes, *, path: str) -> bytes:
    """The directory's id. Raises CorruptData."""
    return unsealed_id(unsealed(raw, path=path, only={"directory"}).get("directory"), DIRECTORY_BYTES, path=path)
