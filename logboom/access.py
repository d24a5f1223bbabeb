"""Who may do what, by the names in clients' certificates: the rules of ``access.file``, read and checked.

::

    [[rules]]
    principal = "billing"        # a name in the certificate; "*": whoever has one
    allow = ["read", "write"]    # status, read, write, admin
    partitions = "0-7,cursors"   # as the command line takes them; "*", or left out: all

What no rule allows is refused. A node goes by the file as it is now: see ``renewed``.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from logboom.certs import Renewed, check_apart
from logboom.errors import ConfigError, PermissionDenied
from logboom.settings import Settings
from logboom.types import CURSORS, MIB

EVERY: Final = "*"
"""As a principal: whoever has a certificate. As partitions: all, and what concerns the cluster as a whole."""
FILE_BYTES_MAX: Final = 1 * MIB
PARTITION_MAX: Final = (1 << 32) - 1
NAMES_SHOWN: Final = 4
NAME_SHOWN_MAX: Final = 128
_RANGE: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")


class Right(StrEnum):
    """What one may be allowed to do. Each comes with ``status``, and ``admin`` with all of them."""

    STATUS = "status"
    """See how the cluster is, and wait for it: all but what is in the partitions."""
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    """Change the cluster, its partitions and members, and copy all of it."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule, as it is written in the file."""

    principal: str
    allow: tuple[Right, ...]
    partitions: str = EVERY


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Partitions:
    """A set of partitions, for which a right is given."""

    everywhere: bool = False
    """All there are and will be, and the cluster as a whole."""
    cursors: bool = False
    """The one that keeps cursors, whatever its number."""
    ranges: tuple[tuple[int, int], ...] = ()
    """First and last of each, ascending and apart."""

    def has(self, partition: int) -> bool:
        """By its number."""
        at = bisect_right(self.ranges, (partition, math.inf))
        return self.everywhere or (at > 0 and partition <= self.ranges[at - 1][1])


NOWHERE: Final = Partitions()
ALL: Final = Partitions(everywhere=True, cursors=True)


@dataclass(frozen=True)
class Grants:
    """What one client may do. ``who``: the names in its certificate, shortened; empty: it has none."""

    who: str
    read: Partitions = NOWHERE
    write: Partitions = NOWHERE
    admin: Partitions = NOWHERE
    status: Partitions = NOWHERE
    """Everywhere, or nowhere: that is of the whole cluster."""

    def where(self, right: Right) -> Partitions:
        """In which partitions that is allowed."""
        found: Partitions = getattr(self, right.value)
        return found

    def denied(self, right: Right, partition: int | None = None) -> PermissionDenied:
        """To be raised. ``partition`` None: it concerns the cluster as a whole."""
        where = "the cluster as a whole" if partition is None else f"partition {partition}"
        who = repr(self.who) if self.who else "a certificate that names nobody (subjectAltName)"
        return PermissionDenied(
            f"{who} does not have the right `{right}` for {where}: no rule of this node (access.file) gives it",
            principal=self.who,
            right=str(right),
            partition_id=partition,
        )


class Rules:
    """All rules of one file."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Raises ConfigError, naming the rule."""
        given: dict[str, list[Grants]] = {}
        for number, rule in enumerate(rules):
            try:
                given.setdefault(rule.principal, []).append(_grants_of(rule))
            except ValueError as error:
                raise ConfigError(f"rules[{number}].{error}", path="access.file") from None
        self._by_name = {name: _together("", grants) for name, grants in given.items()}
        self.count = sum(map(len, given.values()))
        if not given:
            raise ConfigError(
                "has no rules, and nobody could do anything; without access.file everybody may do everything",
                path="access.file",
            )
        said = msgspec.json.encode(sorted(self._by_name.items()))
        self.digest = hashlib.blake2b(said, digest_size=4).hexdigest()
        """Equal on nodes by whose rules everybody may do the same, however these are written down."""

    def of(self, names: Iterable[str]) -> Grants:
        """What all rules for these names allow together, and those for everybody."""
        own = sorted(names)
        return _together(_shown(own), [self._by_name[name] for name in (*own, EVERY) if name in self._by_name])


def read(file: str | Path) -> Rules:
    """Raises ConfigError, which says what is wrong where."""
    path = Path(file)
    try:
        with path.open("rb") as opened:
            return _parsed(opened.read(FILE_BYTES_MAX + 1))
    except OSError as error:
        raise ConfigError(f"access.file {path}: {error.strerror or error}", path="access.file") from error
    except ConfigError as error:
        raise ConfigError(f"access.file {path}: {error.message}", path="access.file") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"access.file {path}: {str(error).replace('$.', '')}", path="access.file") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, numbers or nesting without end
        raise ConfigError(f"access.file {path}: {error}", path="access.file") from None


def _parsed(raw: bytes) -> Rules:
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"is larger than {FILE_BYTES_MAX} bytes", path="access.file")
    return Rules(msgspec.convert(tomllib.loads(raw.decode("utf-8")), _File).rules)


def of_node(settings: Settings, told: Callable[[str], None]) -> Renewed[Rules] | None:
    """What a node goes by; None: whoever is let in may do everything. Raises ConfigError; ``told``: see ``renewed``."""
    if not settings.access.file:
        return None
    check_apart(settings.tls.directory)
    return renewed(settings.access.file, told)


def renewed(file: str | Path, told: Callable[[str], None]) -> Renewed[Rules]:
    """The rules of the file as it is now. Raises ConfigError; later ``told`` hears it, and those before are kept."""
    return Renewed(lambda: read(file), [Path(file)], told=told, still=True)


def _grants_of(rule: Rule) -> Grants:
    """Raises ValueError: what is wrong with which field."""
    if not rule.principal or (EVERY in rule.principal and rule.principal != EVERY):
        raise ValueError(f'principal {rule.principal!r} is no name: a whole one, or "*" for whoever has a certificate')
    if not rule.allow:
        raise ValueError(f"allow is empty: it is some of {', '.join(Right)}")
    where = _partitions(rule.partitions)
    if where != ALL and set(rule.allow) == {Right.STATUS}:
        raise ValueError("partitions: `status` is of the whole cluster: leave them out")
    allowed = set(Right) if Right.ADMIN in rule.allow else set(rule.allow)
    return Grants(
        "",
        read=where if Right.READ in allowed else NOWHERE,
        write=where if Right.WRITE in allowed else NOWHERE,
        admin=where if Right.ADMIN in allowed else NOWHERE,
        status=ALL,
    )


def _together(who: str, grants: Sequence[Grants]) -> Grants:
    parts: dict[str, Any] = {right.value: _all_of([each.where(right) for each in grants]) for right in Right}
    return Grants(who, **parts)


def _all_of(places: Sequence[Partitions]) -> Partitions:
    if ALL in places:
        return ALL
    ranges = _merged(chain.from_iterable(each.ranges for each in places))
    return Partitions(cursors=any(each.cursors for each in places), ranges=ranges)


def _partitions(text: str) -> Partitions:
    if text.strip() == EVERY:
        return ALL
    ranges, cursors = set[tuple[int, int]](), False
    for part in text.split(","):
        ends = _RANGE.fullmatch(part.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends is not None else (1, 0)
        if part.strip() == CURSORS:
            cursors = True
        elif not first <= last <= PARTITION_MAX:
            raise ValueError(f'partitions {text!r} are no list such as 0,3,5-9,cursors, nor "*" for all')
        else:
            ranges.add((first, last))
    return Partitions(cursors=cursors, ranges=_merged(ranges))


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def _shown(names: list[str]) -> str:
    """For people: however many there are, however long."""
    more = ["…"] if len(names) > NAMES_SHOWN else []
    return ", ".join([*(name[:NAME_SHOWN_MAX] for name in names[:NAMES_SHOWN]), *more])
