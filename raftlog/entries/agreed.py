"""What all nodes have agreed to know, from somewhere in the parent log on, for ever. Sans-io.

``{"do": "agree", "features": [name, …]}``: the leader proposes it when every other member has said that it knows
these, over a link that is there, or was. A release that knows of no such entry ends when it is handed one: so a node
that does not know a feature never applies anything that rests on it (docs/decisions/0036-txn.md).

As bytes: how many u8; then of each, ascending: length u8, name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import KV_TXN, MIXED, PARTITION_SETTINGS

AGREE: Final = "agree"
"""What the control entry does."""
KNOWN: Final = frozenset((KV_TXN, MIXED, PARTITION_SETTINGS))
NAME_BYTES_MAX: Final = 64

Agreed = frozenset[str]


def agreeing(names: Iterable[str]) -> dict[str, Any]:
    """The fields of the control entry."""
    return {"do": AGREE, "features": sorted(names)}


def agreed_in(fields: Mapping[str, Any]) -> Agreed:
    """What such an entry says. Raises CorruptData, and IncompatibleVersion for what this release does not know."""
    names = fields.get("features")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise CorruptData(f"a control entry that agrees to {names!r:.80}")
    return _known(names)


def encode_agreed(agreed: Agreed) -> bytes:
    """See the module."""
    rows = [name.encode() for name in sorted(agreed)]
    return bytes((len(rows),)) + b"".join(bytes((len(row),)) + row for row in rows)


def decode_agreed(raw: bytes) -> tuple[Agreed, int]:
    """What ``encode_agreed`` made, and how many bytes of ``raw`` it is. Raises CorruptData and IncompatibleVersion."""
    names, at = list[str](), 1
    for _ in range(raw[0] if raw else 0):
        length = raw[at] if at < len(raw) else 0
        row = raw[at + 1 : at + 1 + length]
        at += 1 + length
        if not row.isascii() or not 1 <= len(row) == length <= NAME_BYTES_MAX:
            raise CorruptData("features with a name that is none")
        names.append(row.decode())
    if not names or names != sorted(set(names)):
        raise CorruptData(f"features {names!r:.80}, out of order or none")
    return _known(names), at


def _known(names: list[str]) -> Agreed:
    strange = sorted(set(names) - KNOWN)
    if strange:
        raise IncompatibleVersion(
            f"the cluster has agreed to use {', '.join(strange)[:80]}, which this release does not know: upgrade it",
            found=strange[0],
            supported=sorted(KNOWN),
        )
    return frozenset(names)
