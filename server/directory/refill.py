"""The file that says that this node was empty when others told it how far they were (docs/decisions/0031).

Until its journal is there, and that is committed, it leads nobody. Blocking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from logboom.errors import CorruptData, Unavailable
from logboom.types import NUMBER_MAX, is_lineage
from ports.disk import Disk
from ports.offload import Offload
from raftlog.journal.membership import Refill
from server.directory.manifest import sealed, unsealed

REFILL: Final = "refill.json"
NOT_YET: Final = (
    "start it and the others, and wait: it is given that, and may lead then; where nobody has it any more, restore a "
    "backup, or begin anew with all data directories empty"
)
ADVICE: Final = ". Move the data directory away, and start its node with an empty one: it is given everything"


class Refills:
    """The file that says up to where a node has to be fed before it leads.

    ``fatal`` is told what the disk refuses while the node runs.
    """

    def __init__(
        self, disk: Disk, directory: Path, *, offload: Offload, fatal: Callable[[BaseException], None]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._path = directory / REFILL
        self._offload = offload
        self._fatal = fatal
        self._changing = threading.Lock()
        self._kept = 0
        """Times that something else was to be waited for: the file is not removed for what was before."""

    def found(self) -> Refill | None:
        """None: nothing is waited for. Raises CorruptData."""
        if not self._disk.exists(self._path):
            return None
        return self._refill(*decode(self._disk.read_file(self._path), path=str(self._path)))

    def keep(self, term: int, index: int, lineage: str) -> Refill:
        """From now on that is waited for: on the loop, before this node is fed. Durable; raises Unavailable."""
        try:
            with self._changing:
                self._kept += 1
                self._disk.replace_file(self._path, encode(term, index, lineage))
        except OSError as error:
            self._fatal(error)
            raise Unavailable(f"{self._path}: {error.strerror or error}") from error
        return self._refill(term, index, lineage)

    def _refill(self, term: int, index: int, lineage: str) -> Refill:
        def end(done: Callable[[], None]) -> None:
            def removed(_: None, error: BaseException | None) -> None:
                if error is not None:
                    self._fatal(error)
                else:
                    done()

            self._offload.submit(partial(self._remove, kept), removed)

        kept = self._kept
        return Refill(term, index, lineage, end)

    def _remove(self, kept: int) -> None:
        with self._changing:
            if kept == self._kept and self._disk.exists(self._path):
                self._disk.remove(self._path)
                self._disk.sync_directory(self._directory)


def encode(term: int, index: int, lineage: str) -> bytes:
    """The file."""
    return sealed({"index": index, "lineage": lineage, "term": term})


def decode(raw: bytes, *, path: str) -> tuple[int, int, str]:
    """Term, Raft index, and the lineage of that history. Raises CorruptData."""
    said = unsealed(raw, path=path, only={"index", "lineage", "term"}, advice=ADVICE)
    term, index, lineage = said.get("term"), said.get("index"), said.get("lineage")
    if type(term) is int and type(index) is int and isinstance(lineage, str):
        sound = 0 <= term < NUMBER_MAX and 0 < index < NUMBER_MAX and is_lineage(lineage)
        if sound:
            return term, index, lineage
    raise CorruptData(f"{path} does not say what is waited for{ADVICE}", path=path)
