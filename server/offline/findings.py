"""What a check of files finds, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from logboom.errors import IncompatibleVersion, LogboomError
from server.offline.looking import Unreadable

Progress = Callable[[str, int, int], None]
"""Is told what is looked at, and how many bytes of how many are done."""
REBUILD: Final = (
    "this node must not go on with it: where the other voters are a majority of themselves, move its directory away, "
    "start it with an empty one, and it begins anew; else restore the cluster from a backup"
)
TAKE_ANOTHER: Final = (
    "look once more; a disk that says so each time fails: take another one, start the node on it with an empty "
    "directory, or, of a backup, back up into a new one"
)
OF_ANOTHER_RELEASE: Final = "verify it with the release that wrote it"


def silent(what: str, done: int, total: int) -> None:
    """A Progress for those who do not look."""


class Level(StrEnum):
    """How bad it is."""

    DAMAGE = "damage"
    """Something is not what it has to be."""
    UNREAD = "unread"
    """Another release wrote it: nobody knows whether it is what it has to be, nor what is found because of that."""
    NOTE = "note"
    """Nothing that is needed is lost; or it could not be looked at."""


class Finding(NamedTuple):
    """One line for people."""

    level: Level
    path: str
    offset: int | None
    """Bytes from the file's beginning, if known."""
    problem: str
    advice: str
    """What to do."""


@dataclass
class Report:
    """What was looked at in one directory, and what was found."""

    path: Path
    kind: str
    """``data`` or ``backup``."""
    progress: Progress = silent
    total: int = 0
    """Bytes of all files."""
    findings: list[Finding] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    """How many of each kind were looked at."""
    _known: set[Finding] = field(default_factory=set)
    _done: int = 0

    @property
    def damaged(self) -> bool:
        """Something needs a hand."""
        return any(each.level is Level.DAMAGE for each in self.findings)

    @property
    def unread(self) -> bool:
        """There is something of another release."""
        return any(each.level is Level.UNREAD for each in self.findings)

    def damage(self, path: Path | str, problem: str, advice: str, *, offset: int | None = None) -> None:
        """Add a finding."""
        self._add(Finding(Level.DAMAGE, str(path), offset, problem, advice))

    def note(self, path: Path | str, problem: str, advice: str, *, offset: int | None = None) -> None:
        """Add a finding that is no damage."""
        self._add(Finding(Level.NOTE, str(path), offset, problem, advice))

    def error(self, path: Path | str, error: BaseException, advice: str) -> None:
        """Add what was raised; a typed error knows its place better than ``path``."""
        fields: dict[str, Any] = error.fields if isinstance(error, LogboomError) else {}
        place, offset = str(fields.get("path") or path), fields.get("offset")
        problem = str(error).removeprefix(f"{place}: ")
        if isinstance(error, IncompatibleVersion):
            self._add(Finding(Level.UNREAD, place, offset, problem, OF_ANOTHER_RELEASE))
        else:
            self.damage(place, problem, TAKE_ANOTHER if isinstance(error, Unreadable) else advice, offset=offset)

    def _add(self, finding: Finding) -> None:
        if finding not in self._known:
            self._known.add(finding)
            self.findings.append(finding)

    def count(self, what: str, number: int = 1) -> None:
        """So many more were looked at."""
        self.checked[what] = self.checked.get(what, 0) + number

    def read(self, what: str, nbytes: int) -> None:
        """So many more bytes."""
        self._done += nbytes
        self.progress(what, min(self._done, self.total), self.total)


def bytes_below(directory: Path) -> int:
    """Of all files in it."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
